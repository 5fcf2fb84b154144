"""Observers of a running job, such as callbacks, metrics and the dashboard: what they get, and what they may ask for.

They are called from the coordinator's loop, so they only take what they are given and return. One that raises is
reported once and gets nothing more; training goes on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from flegel.job import Job
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot, observe
from flegel.results.result import Result
from flegel.runtime import clock

SWITCH = 5e-4  # seconds after which a thread of an observer yields the interpreter; Python's 5 ms would delay barriers

_log = logging.getLogger(__name__)


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


class Observation:
    """All observers of one job."""

    def __init__(self, observers: Sequence[Observer], say: Callable[[str], None]) -> None:
        self._observers, self._say = list(observers), say
        self._due: dict[int, float] = {}
        self._logged = 0
        self._switch: float | None = None
        self._told: dict[int, int] = {}

    def begin(self, job: Job, control: JobControl) -> None:
        if self._observers:
            self._switch = sys.getswitchinterval()
            sys.setswitchinterval(min(self._switch, SWITCH))
        for observer in list(self._observers):
            self._safely(observer, partial(observer.begin, job, control))

    def look(
        self,
        machine: Coordinator,
        shift: float,
        hosts: Mapping[int, str],
        followed: Mapping[str, float] | None = None,
    ) -> None:
        """Show the job to those whose turn it is; to all of them when it is over. `shift`: of the job's clock;
        `followed`: figures of rows that are held out."""
        now, over = clock.now(), machine.phase == "over"
        if _log.isEnabledFor(logging.DEBUG):
            for row in machine.trace[self._logged :]:
                why = f"; {row.reason}" if row.reason else ""
                _log.debug("barrier %d at %.3f s: objective %s%s", row.iteration, row.seconds, row.estimate, why)
            self._logged = len(machine.trace)
        due = [o for o in self._observers if over or now >= self._due.get(id(o), 0.0)]
        if not due:
            return
        seen = observe(machine, now=now + shift, shown=max(o.shown for o in due), hosts=hosts, followed=followed)
        for observer in due:
            self._due[id(observer)] = now + observer.every
            begin = self._told.get(id(observer), 0)
            self._told[id(observer)] = len(machine.trace)
            rows = machine.trace[begin:]
            self._safely(observer, partial(observer.look, seen, rows))

    def finish(self, result: Result | None, error: BaseException | None) -> None:
        if self._switch is not None:
            sys.setswitchinterval(self._switch)
        for observer in list(self._observers):
            self._safely(observer, partial(observer.finish, result, error))

    def _safely(self, observer: Observer, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._observers.remove(observer)
            name = type(observer).__name__
            _log.warning("%s failed and was removed", name, exc_info=error)
            self._say(f"{name} raised {type(error).__name__}: {error}; it gets nothing more, and training goes on.")
