"""Which workers there are: their processes, incarnations and readiness. Sends and receives nothing.

Every start of a worker is a new incarnation; what an earlier one still sends does not count. A worker is ready from
its hello until it is evicted.
"""

from __future__ import annotations

from flegel.messages import Envelope, Hello
from flegel.runtime.processes.cluster_protocol import WorkerDeath
from flegel.runtime.processes.worker_processes import Launcher, Process, close_stdin, end_process
from flegel.runtime.transport.codec import Sequencer


class WorkerRegistry:
    """The workers of one cluster, by number."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.processes: dict[int, Process] = {}
        self.sequencers: dict[int, Sequencer] = {}
        """One for each worker that was ever started: it has the current incarnation."""
        self.ready: set[int] = set()
        """Workers that have said hello."""
        self.hosts: dict[int, str] = {}
        """Where the last incarnation of each worker said that it runs."""
        self.former: dict[tuple[int, int], Sequencer] = {}
        """Of evicted workers, by number and incarnation: they may still have to be told to end."""
        self.departing: list[Process] = []
        """Processes that were asked to end and have not done so yet."""

    def new_incarnation(self, worker: int, job: str) -> int:
        """The number of the next incarnation, whose messages belong to this job."""
        before = self.sequencers.get(worker)
        incarnation = 0 if before is None else before.incarnation + 1
        self.sequencers[worker] = Sequencer(job, 0, worker, incarnation)
        self.ready.discard(worker)
        return incarnation

    def incarnations(self) -> dict[int, int]:
        return {worker: sequencer.incarnation for worker, sequencer in self.sequencers.items()}

    def set_job(self, job: str) -> None:
        for sequencer in self.sequencers.values():
            sequencer.job = job

    def accept_hello(self, envelope: Envelope, token: str) -> bool:
        """Whether this is the hello of a current incarnation; it is ready from then on."""
        if not isinstance(envelope.body, Hello) or envelope.job != token:
            return False
        current = self.sequencers.get(envelope.worker)
        if current is None or current.incarnation != envelope.incarnation:
            return False
        self.ready.add(envelope.worker)
        self.hosts[envelope.worker] = envelope.body.host
        self._launcher.worker_ready(envelope.worker)
        return True

    def deaths(self) -> list[WorkerDeath]:
        self._launcher.update()
        self.departing = [process for process in self.departing if process.poll() is None]
        polled = ((worker, process.poll()) for worker, process in self.processes.items())
        cause = self._launcher.exit_cause
        return [WorkerDeath(worker, *cause(worker, code)) for worker, code in polled if code is not None]

    def remove(self, worker: int) -> Process | None:
        """Forget this worker and return its process; the next start is another incarnation."""
        process = self.processes.pop(worker, None)
        if process is not None:
            sequencer = self.sequencers[worker]
            self.former[worker, sequencer.incarnation] = sequencer
            self.ready.discard(worker)
        return process

    def end(self, worker: int, process: Process, gently: bool) -> None:
        """End the process of a removed worker; a gentle end is not waited for."""
        close_stdin(process)
        if gently:
            self.departing.append(process)
        else:
            process.kill()
            end_process(process)
        self._launcher.worker_removed(worker)

    def job_ended(self) -> None:
        """No hook runs any more."""
        self._launcher.job_ended()

    def close(self) -> None:
        """End all processes, those that were asked to end included. Who has not said hello has nothing to finish."""
        everyone = [*self.processes.values(), *self.departing]
        for process in everyone:
            close_stdin(process)
        for worker in self.processes.keys() - self.ready:
            self.processes[worker].kill()
        for process in everyone:
            end_process(process)
        self.processes.clear()
        self.departing.clear()
        self.ready.clear()
