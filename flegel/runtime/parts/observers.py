"""Observers of a running job are shown what they are to see, when it is their turn."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Iterator, Mapping

import msgspec

from flegel.configuration.active import active
from flegel.job import AlgorithmRef
from flegel.loading.class_source import plain_hyper, reference
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.observation import SHOWN, observe
from flegel.runtime import clock
from flegel.runtime.job.observers import JobBegan, JobEnded, JobEvent, JobSeen, Observer, Observers
from flegel.runtime.job.part import JobRun, Part
from flegel.runtime.job.teams import NotCompiled

_log = logging.getLogger(__name__)


class BarrierLog(Observer):
    """One line for each barrier, where lines of that level are written."""

    shown = 0

    def see(self, event: JobEvent) -> None:
        if isinstance(event, JobSeen):
            for row in event.rows:
                why = f"; {row.reason}" if row.reason else ""
                _log.debug("barrier %d at %.3f s: objective %s%s", row.iteration, row.seconds, row.estimate, why)


class LookSchedule:
    """Knows whose turn it is to look at the job, and which barriers each observer has seen."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._next_look_at: dict[int, float] = {}
        self._barriers_told: dict[int, int] = {}

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
        looking = (o for o in self._observers if o.every < math.inf)
        due = [o for o in looking if over or now >= self._next_look_at.get(id(o), 0.0)]
        if not due:
            return
        shown = max(SHOWN if o.shown is None else o.shown for o in due)
        seen = observe(machine, now=now + shift, shown=shown, hosts=hosts, followed=followed)
        for observer in due:
            self._next_look_at[id(observer)] = now + observer.every
            begin = self._barriers_told.get(id(observer), 0)
            self._barriers_told[id(observer)] = len(machine.trace)
            self._observers.show(observer, JobSeen(seen, machine.trace[begin:]))


class ObserversPart(Part):
    """All who look at the job see its beginning, its barriers and its end."""

    def __init__(self, running: JobRun) -> None:
        super().__init__(running)
        self._observers = self.request.observers
        if _log.isEnabledFor(logging.DEBUG):
            self._observers.add(BarrierLog())
        self._looks = LookSchedule(self._observers)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """While the job runs, have threads of observers take turns more often; at its end, tell observers of the result
        or error."""
        switch = sys.getswitchinterval()
        if any(observer.threaded for observer in self._observers):
            sys.setswitchinterval(min(switch, active().processors.observer_switch_seconds))
        try:
            yield
        except NotCompiled:  # it begins again, with other workers
            raise
        except BaseException as error:
            self._observers.tell(JobEnded(None, error))
            raise
        finally:
            sys.setswitchinterval(switch)
        self._observers.tell(JobEnded(self.running.result))

    def loading(self) -> None:
        """The job with its algorithm by name and without its source is what observers are told."""
        algorithm = self.request.algorithm
        described = AlgorithmRef(reference(algorithm).name, plain_hyper(algorithm))
        job = msgspec.structs.replace(self.request.job, algorithm=described, workers=self.request.workers)
        self._observers.tell(JobBegan(job, self.request.control))

    def look(self) -> None:
        running = self.running
        self._looks.look(running.machine, running.shift, running.cluster.hosts(), running.followed)
