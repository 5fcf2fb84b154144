"""A job on workers of this host, in a thread of its own, like a future. Decides nothing about training.

Has the methods of a job on a cluster (`flegel.cluster.connected.SubmittedJob`), so that programs need not know where it
runs.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from flegel.errors import FlegelError
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.results.result import Result
from flegel.runtime.job.observers import JobBegan, JobControl, JobEnded, JobEvent, JobSeen, Observer, RemarkMade

CANCELLED = "the job was cancelled"


class BackgroundJob(Observer):
    """Made by `LocalCluster.submit`. It is also the observer of its own job."""

    threaded = True

    def __init__(self, name: str, run: Callable[[Observer], Result]) -> None:
        """Start a thread that calls `run` with this object as an observer. `name`: of the job, for people."""
        self.name = name
        self._future: Future[Result] = Future()
        self._control: JobControl | None = None
        self._snapshot: JobSnapshot | None = None
        self._lines_said: list[str] = []
        self._cancelled = False
        here = contextvars.copy_context()  # with the settings that hold where the job is submitted
        Thread(target=here.run, args=(self._execute, run), name=name, daemon=True).start()

    def _execute(self, run: Callable[[Observer], Result]) -> None:
        """In the thread of the job: run it, and keep its result or error for whoever asks."""
        try:
            if not self._cancelled:
                result = run(self)
            if self._cancelled:
                raise FlegelError(f"Job {self.name} was cancelled.")
            self._future.set_result(result)
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._future.set_exception(error)

    # -- as an observer --------------------------------------------------------------------------------------------

    def see(self, event: JobEvent) -> None:
        """Keep what the job tells its observers: remarks, the latest snapshot, and the means to end it."""
        match event:
            case RemarkMade(text):
                self._lines_said.append(text)
            case JobBegan(control=control):
                self._control = control
                if self._cancelled:
                    control.end(CANCELLED)
            case JobSeen(seen):
                self._snapshot = seen
            case JobEnded():
                self._control = None

    # -- as a future -----------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """It is over, well or not."""
        return self._future.done()

    @property
    def state(self) -> str:
        """`running`, `done`, `failed` or `cancelled`."""
        if not self._future.done():
            return "running"
        return "cancelled" if self._cancelled else "failed" if self._future.exception() else "done"

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result; raises what the job failed with, or `TimeoutError`."""
        return self._future.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; why it failed, None where it did not."""
        return self._future.exception(timeout)

    def cancel(self) -> bool:
        """End it at its next barrier; False where it was over already."""
        if self._future.done():
            return False
        self._cancelled = True
        if self._control is not None:
            self._control.end(CANCELLED)
        return True

    def progress(self) -> JobSnapshot | None:
        """What it does at this moment; None before it trains."""
        return self._snapshot

    def logs(self) -> list[str]:
        """Remarks of the job so far."""
        return list(self._lines_said)

    def scale(self, workers: int | None = None, servers: int | None = None) -> None:
        """Have so many workers, or parameter servers, from now on."""
        if self._control is not None:
            self._control.scale(workers, servers)

    def __repr__(self) -> str:
        return f"<job {self.name} on this host, {self.state}>"
