"""Observers of a running job are shown what they are to see, when it is their turn. One that fails is left out."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from flegel.job import AlgorithmRef, Job
from flegel.loading.class_source import plain_hyper, reference
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.observation import observe
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.job.observers import JobControl, Observer
from flegel.runtime.job.part import JobRun, Part

SWITCH = 5e-4  # seconds after which a thread of an observer yields the interpreter; Python's 5 ms would delay barriers

_log = logging.getLogger(__name__)


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


class ObserversPart(Part):
    """Callbacks, metrics, the dashboard, and the `watch` of a caller see the job; they hear how it ended."""

    def __init__(self, running: JobRun) -> None:
        super().__init__(running)
        self._observation = Observation(self.request.observers, self.request.say)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._observation.finish(None, error)
            raise
        self._observation.finish(self.running.result, None)

    def loading(self) -> None:
        """The job with its algorithm by name and without its source is what observers are told."""
        algorithm = self.request.algorithm
        described = AlgorithmRef(reference(algorithm).name, plain_hyper(algorithm))
        job = msgspec.structs.replace(self.request.job, algorithm=described, workers=self.request.workers)
        self._observation.begin(job, self.request.control)

    def look(self) -> None:
        running, watch = self.running, self.request.watch
        if watch is not None:
            watch(observe(running.machine, followed=running.followed))
        self._observation.look(running.machine, running.shift, running.cluster.hosts(), running.followed)
