"""Observers of a running job: the events that they see, and what they may ask for. Decides nothing about training.

Whoever looks at a job implements `Observer`: lines in a terminal, callbacks, metrics, the dashboard, logs, the file for
`flegel top`, the slave of a cluster, functions of the caller. They are called from the job's own thread, so they only
take what they are given and return. One that raises is named once and sees nothing more; training goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # commands show what they do before they import the engine
    from flegel.core.pytree import Tree
    from flegel.job import Job
    from flegel.machine.coordinator.events import TraceRow
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PhaseBegan:
    """What the job does now: reading, init (and which hook of the class), compiling, loading, waiting for groups."""

    name: str
    hook: str = ""


@dataclass(frozen=True)
class RemarkMade:
    """A sentence that people should read."""

    text: str


@dataclass(frozen=True)
class JobBegan:
    """The job begins: sent before the first worker loads."""

    job: Job
    control: JobControl


@dataclass(frozen=True)
class JobSeen:
    """The job now, and the barriers since the last look of this observer, which are never changed again."""

    snapshot: JobSnapshot
    rows: Sequence[TraceRow] = ()


@dataclass(frozen=True)
class JobEnded:
    """The job is over: either with a result or with an error."""

    result: Result | None
    error: BaseException | None = None


@dataclass(frozen=True)
class PassEnded:
    """The slowest worker has made so many passes over its points; shown to observers with `passes` alone."""

    number: int
    objective: float | None
    parameter: Callable[[], Tree]
    """A copy of θ as it would be the result now; only while the event is shown."""


JobEvent: TypeAlias = PhaseBegan | RemarkMade | JobBegan | JobSeen | PassEnded | JobEnded


class Observer:
    """Sees a job from its beginning to its end."""

    every: float = 0.0
    """Seconds between two looks; 0 is as often as the coordinator looks around, ten times a second, `math.inf` never: a
    description of the job is not made for it alone."""
    shown: int | None = None
    """Workers that a snapshot describes one by one; None: as many as a terminal has lines."""
    passes = False
    """Is shown the end of each pass at once, with θ; what it then asks of the job is followed before the next one."""
    threaded = False
    """Works in threads of this process: the interpreter then changes threads more often, for the barriers' sake."""
    required = False
    """Without it the job makes no sense: what it raises ends the job."""

    def see(self, event: JobEvent) -> None:
        raise NotImplementedError


class Functions(Observer):
    """What a caller gave as `watch`, `say` and `phase`. An error of the caller's own functions ends the job."""

    required = True

    def __init__(
        self,
        watch: Callable[[JobSnapshot], object] | None = None,
        say: Callable[[str], object] | None = None,
        phase: Callable[[str, str], object] | None = None,
    ) -> None:
        self._watch, self._say, self._phase = watch, say, phase
        self.every = 0.0 if watch is not None else math.inf

    def see(self, event: JobEvent) -> None:
        """Call the function that was given for this kind of event, if any."""
        match event:
            case JobSeen() if self._watch is not None:
                self._watch(event.snapshot)
            case RemarkMade() if self._say is not None:
                self._say(event.text)
            case PhaseBegan() if self._phase is not None:
                self._phase(event.name, event.hook)


class Observers:
    """All observers of one job, as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def __iter__(self) -> Iterator[Observer]:
        return iter(tuple(self._observers))

    def phase(self, name: str, hook: str = "") -> None:
        self.tell(PhaseBegan(name, hook))

    def say(self, text: str) -> None:
        self.tell(RemarkMade(text))

    def tell(self, event: JobEvent) -> None:
        """Show it to all of them."""
        for observer in self:
            self.show(observer, event)

    def show(self, observer: Observer, event: JobEvent) -> None:
        """Show it to one of them; one that fails is left out from now on."""
        try:
            observer.see(event)
        except Exception as error:  # whatever it is, training goes on
            if observer.required:
                raise
            self._observers.remove(observer)
            name = type(observer).__name__
            _log.warning("%s failed and was removed", name, exc_info=error)
            self.say(f"{name} raised {type(error).__name__}: {error}; it gets nothing more, and training goes on.")


class Scalable(Protocol):
    """A cluster, as far as it can change its size."""

    def scale(self, workers: int) -> None: ...


class JobControl:
    """What an observer may ask of a job. From any thread; the job follows at its next look, within 0.1 s."""

    def __init__(self, observers: Observers | None = None) -> None:
        self._observers = observers or Observers()
        self._why = ""
        self._cluster: Scalable | None = None
        self._servers_of_job: int | str = 0
        self._servers_wanted: int | None = None
        self.most_servers = 0
        """Into so many slices θ can be cut; 0: that is not known yet."""

    def bind(self, cluster: Scalable, servers: int | str) -> None:
        """`servers`: the job's option."""
        self._cluster, self._servers_of_job = cluster, servers

    def end(self, why: str) -> None:
        """End training with what there is as its result; the first reason counts."""
        self._why = self._why or why

    def scale(self, workers: int | None = None, servers: int | None = None) -> None:
        """Have so many workers, or parameter servers, from now on; raises `UsageError` for an impossible number."""
        if self._cluster is None:
            return
        if servers is not None:
            from flegel.job import check_server_change

            check_server_change(self._servers_of_job, servers, self.most_servers)
            self._servers_wanted = servers
        if workers is not None:
            self._cluster.scale(workers)

    def take_servers(self) -> int | None:
        """How many parameter servers somebody has asked for since the last call; None: nobody has."""
        wanted, self._servers_wanted = self._servers_wanted, None
        return wanted

    def say(self, text: str) -> None:
        """Tell people something; only while this observer is shown an event."""
        self._observers.say(text)

    def why(self) -> str:
        """Why training is to end; empty if it is not."""
        return self._why
