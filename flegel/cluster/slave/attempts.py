"""Attempts of jobs on a slave: their processes, logs and folders, until the master has recorded all of it.

Holds state only: processes are started in `attempt_processes.py`, files are sent in `file_shipping.py`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flegel.cluster.slave.child_processes import ChildProcess, JobLog
from flegel.cluster.slave.coordinator_deadlines import CoordinatorDeadlines
from flegel.cluster.slave.coordinator_protocol import JobFinished
from flegel.cluster.slave.slave_folder import is_plain, tidy
from flegel.cluster.transport.protocol import COORDINATOR, ClusterJob, CoordinatorStatus, ProcessStatus

COORDINATOR_KEY = (COORDINATOR, 0)
"""The coordinator among the processes of an attempt."""


@dataclass
class JobAttempt:
    """One attempt of a job on this slave. Its processes are known by worker and incarnation."""

    job: str
    attempt: int
    folder: Path
    log: JobLog
    children: dict[tuple[int, int], ChildProcess] = field(default_factory=dict)
    ended: dict[tuple[int, int], ProcessStatus] = field(default_factory=dict)
    """Processes that have ended, until the master has recorded it."""
    status: CoordinatorStatus | None = None
    """Of the coordinator, where it runs on this slave."""
    spec: ClusterJob | None = None
    deadlines: CoordinatorDeadlines = field(default_factory=CoordinatorDeadlines)
    finished: JobFinished | None = None
    """The coordinator's last report."""
    shipped: dict[str, int] = field(default_factory=dict)
    """File → bytes that the master has; the log's name is empty."""
    sent_at: float | None = None
    """When a piece of a file was sent that the master has not acknowledged."""

    @property
    def result(self) -> Path:
        return self.folder / f"result.{self.attempt}"

    @property
    def scratch(self) -> Path:
        return self.folder / f"scratch.{self.attempt}"

    @property
    def code(self) -> Path:
        return self.folder / f"code.{self.attempt}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def over(self) -> bool:
        return not any(child.alive for child in self.children.values())

    @property
    def coordinator(self) -> ChildProcess | None:
        """Its coordinator's process, while that runs here."""
        child = self.children.get(COORDINATOR_KEY)
        return child if child is not None and child.alive else None

    def files(self) -> dict[str, int]:
        """What the master should have of this attempt, in bytes."""
        found = {"": self.log.length}
        if COORDINATOR_KEY in self.ended and self.ended[COORDINATOR_KEY].outcome == "done":
            with contextlib.suppress(OSError):  # user code may have removed anything
                if not self.result.is_symlink():
                    found.update((p.name, p.stat().st_size) for p in sorted(self.result.iterdir()) if is_plain(p))
        return found

    @property
    def unshipped(self) -> bool:
        """Whether the master lacks some of its files."""
        return any(self.shipped.get(file, 0) < size for file, size in self.files().items())


class Attempts:
    """All attempts that a slave knows of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._attempts: dict[tuple[str, int], JobAttempt] = {}

    def __iter__(self) -> Iterator[JobAttempt]:
        return iter(list(self._attempts.values()))

    def find(self, job: str, attempt: int) -> JobAttempt | None:
        return self._attempts.get((job, attempt))

    def open(self, job: str, attempt: int) -> JobAttempt:
        """Found, or created with its log."""
        if (job, attempt) not in self._attempts:
            folder = self._folder / job
            log = JobLog(folder / f"log.{attempt}")
            self._attempts[job, attempt] = JobAttempt(job, attempt, folder, log)
        return self._attempts[job, attempt]

    def living(self) -> list[ChildProcess]:
        return [child for attempt in self for child in attempt.children.values() if child.alive]

    def forget_process(self, name: tuple[str, int, int, int]) -> None:
        """The master has recorded its end: forget it, and its files with the last one."""
        job, number, worker, incarnation = name
        attempt = self.find(job, number)
        if attempt is None:
            return
        status = attempt.ended.pop((worker, incarnation), None)
        if worker == COORDINATOR and status is not None:
            attempt.children.pop(COORDINATOR_KEY, None)
            attempt.status = None
            shutil.rmtree(attempt.result, ignore_errors=True)
            if status.outcome == "done":
                shutil.rmtree(attempt.checkpoints, ignore_errors=True)
        self.forget_if_complete(attempt)

    def forget_if_complete(self, attempt: JobAttempt) -> bool:
        """True if nothing of it runs and the master has all of it; then its files are removed."""
        if attempt.ended or attempt.children or attempt.unshipped:
            return False
        del self._attempts[attempt.job, attempt.attempt]
        attempt.log.close()
        for path in (attempt.log.path, attempt.code):
            path.unlink(missing_ok=True)
        shutil.rmtree(attempt.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            attempt.folder.rmdir()
            tidy(attempt.folder.parent, {job for job, _ in self._attempts})
        return True

    def close(self) -> None:
        for attempt in self:
            attempt.log.close()
            shutil.rmtree(attempt.scratch, ignore_errors=True)
