"""A job of this process on the dashboard: an observer that hands snapshots over and returns at once.

Frames are made in a thread of their own. Where that thread cannot keep up, looks without barriers are dropped.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

from flegel.dashboard.frames import RunHistory
from flegel.dashboard.hub import Hub
from flegel.dashboard.server import ActionRequest
from flegel.errors import UsageError
from flegel.job import Job
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.job.observers import JobBegan, JobControl, JobEnded, JobEvent, JobSeen, Observer
from flegel.wording import counted

MANY_WORKERS = 256  # above it a snapshot is taken once a second, not four times: it has a column for each worker
MAX_PENDING_SNAPSHOTS = 100  # that wait to be turned into frames; further ones without barriers are dropped
RUN_NAME = "job"

Looked = tuple[JobSnapshot, Sequence[TraceRow]]


class JobDashboard(Observer):
    """Observer of one job, and what its buttons do."""

    shown = 1024
    threaded = True

    def __init__(self, hub: Hub, title: str) -> None:
        self.every = 0.25
        self._hub, self._title = hub, title
        self._history: RunHistory | None = None
        self._control: JobControl | None = None
        self._looks: queue.SimpleQueue[Looked | None] = queue.SimpleQueue()
        self._handler = LineHandler(self)
        self._thread = threading.Thread(target=self._work, name="dashboard frames", daemon=True)

    def see(self, event: JobEvent) -> None:
        """Queue what the job shows for the thread that makes frames; snapshots without new rows are dropped where too
        many wait."""
        match event:
            case JobBegan(job, control):
                self._begin(job, control)
            case JobSeen(seen, rows):
                self.every = 1.0 if seen.members > MANY_WORKERS else 0.25
                if self._looks.qsize() < MAX_PENDING_SNAPSHOTS or rows:
                    self._looks.put((seen, rows))
            case JobEnded(result, error):
                self._finish(result, error)

    def _begin(self, job: Job, control: JobControl) -> None:
        """Announce the job to the pages, and show the log of this process there from now on."""
        about = {
            "title": self._title,
            "algorithm": job.algorithm.name.rpartition(":")[2],
            "sync": job.sync.name,
            "workers": job.workers,
            "data": job.data,
            "live": True,
        }
        self._control, self._history = control, RunHistory(RUN_NAME, about)
        self._hub.add(self._history)
        logger = logging.getLogger("flegel")
        logger.addHandler(self._handler)
        logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        self._thread.start()

    def _finish(self, result: Result | None, error: BaseException | None) -> None:
        """Wait for the last frames, then show the result or the error."""
        logging.getLogger("flegel").removeHandler(self._handler)
        history = self._history
        if history is None:
            return
        self._looks.put(None)
        self._thread.join(10.0)
        figures = result.to_json() if result is not None else None
        why = "" if error is None else f"{type(error).__name__}: {error}"
        self._hub.publish(lambda: history.end(figures, why))

    def log(self, text: str) -> None:
        history = self._history
        if history is not None:
            self._hub.publish(lambda: history.log([(clock.wall(), text)]))

    def act(self, request: ActionRequest) -> str:
        """Cancel or scale this job."""
        if self._control is None:
            raise UsageError("The job has not begun yet; try again.")
        if request.action == "cancel":
            self._control.end("cancelled on the dashboard")
            return "The job ends."
        if request.action == "scale" and request.workers is not None:
            self._control.scale(request.workers)
            return f"The job goes to {counted(request.workers, 'worker')}."
        raise UsageError("That action is not known here.")

    def _work(self) -> None:
        history = self._history
        assert history is not None
        while (taken := self._looks.get()) is not None:
            seen, rows = taken
            self._hub.publish(lambda seen=seen, rows=rows: history.take(seen, rows))  # type: ignore[misc]


class LineHandler(logging.Handler):
    """Records of `flegel.*` as lines of the page's log."""

    def __init__(self, dashboard: JobDashboard) -> None:
        super().__init__(logging.INFO)
        self._dashboard = dashboard

    def emit(self, record: logging.LogRecord) -> None:
        self._dashboard.log(f"{record.levelname.lower()} {record.getMessage()}")
