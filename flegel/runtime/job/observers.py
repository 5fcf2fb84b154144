"""Observers of a running job, such as callbacks, metrics and the dashboard: what they get, and what they may ask for.

They are called from the coordinator's loop, so they only take what they are given and return. One that raises is
reported once and gets nothing more; training goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flegel.job import Job
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.results.result import Result


class Scalable(Protocol):
    """A cluster, as far as it can change its size."""

    def scale(self, workers: int) -> None: ...


class JobControl:
    """What an observer may ask of a job. From any thread; the job follows at its next look, within 0.1 s."""

    def __init__(self) -> None:
        self._why = ""
        self._cluster: Scalable | None = None

    def bind(self, cluster: Scalable) -> None:
        self._cluster = cluster

    def end(self, why: str) -> None:
        """End training with what there is as its result; the first reason counts."""
        self._why = self._why or why

    def scale(self, workers: int) -> None:
        """Have so many workers from now on; raises `UsageError` for an impossible number."""
        if self._cluster is not None:
            self._cluster.scale(workers)

    def why(self) -> str:
        """Why training is to end; empty if it is not."""
        return self._why


class Observer(Protocol):
    """Sees a job from its beginning to its end."""

    every: float
    """Seconds between two looks; 0 is as often as the coordinator looks around, ten times a second."""
    shown: int
    """Workers that a snapshot describes one by one."""

    def begin(self, job: Job, control: JobControl) -> None:
        """Before the first worker loads."""
        ...

    def look(self, seen: JobSnapshot, rows: Sequence[TraceRow]) -> None:
        """The job now, and the barriers since the last look, which are never changed again."""
        ...

    def finish(self, result: Result | None, error: BaseException | None) -> None:
        """The job is over: either with a result or with an error."""
        ...
