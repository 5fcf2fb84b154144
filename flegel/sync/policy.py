"""The language of synchronization models: events in, actions and a reason out. No clock, no socket, no arrays.

A policy is told what happened and what the workers look like, and answers what to do. It never sees θ or the
statistics; it decides *when* reports are folded in and who goes on training for how long.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, ClassVar, Protocol, get_args, get_type_hints

import msgspec

from flegel.configuration.active import active
from flegel.core.pytree import Array

# -- what a policy sees ------------------------------------------------------------------------------------


@dataclass
class WorkerView:
    """A worker as the coordinator knows it."""

    id: int
    points: int
    phase: str = "idle"  # idle, training, reported
    stopping: bool = False
    clock: int = 0
    """Reports so far."""
    visits: int = 0
    unseen: int = 0
    halted: int = 0
    rate: float = 0.0
    """Points a second while computing, from the last reports."""
    compute: float = 0.0
    respond: float = 0.0
    wait: float = 0.0
    last_visits: int = 0
    last_compute: float = 0.0
    exhausted: bool = False
    carried: int = 0
    """Passes (summed over points) that moved points brought along, less those that left with them."""
    gain: float = 0.0
    """What its reports did for the objective, where that is kept."""
    call: float = 0.0
    """Seconds that each call of a library takes besides its visits, as it says."""
    room: int = 0
    """Points that the memory of its device can hold; 0: not known."""
    caught_up: int = 0
    """Of the visits, those of points that were more than one pass behind others of the same worker."""
    local_updates: bool = False
    """It makes θ anew by itself between barriers."""

    def hear(self, visits: int, compute: float, respond: float, wait: float, call: float = 0.0) -> None:
        """Note a report: how many points were visited, and where the worker's seconds went."""
        self.phase, self.stopping = "reported", False
        self.clock += 1
        self.visits += visits
        self.last_visits, self.last_compute = visits, compute
        self.compute += compute
        self.respond += respond
        self.wait += wait
        self.call = call if 0.0 < call <= compute else 0.0
        if visits and compute > 0:
            self.note_rate(visits, compute)

    def note_rate(self, visits: int, seconds: float) -> None:
        """So many points took so long. A few points say little: most of their time is that of getting started."""
        fresh, weight = (
            visits / seconds,
            min(1.0, active().barriers.measured_parts_of_a_pass * visits / max(self.points, 1)),
        )
        self.rate = fresh if self.rate <= 0 else self.rate + weight * (fresh - self.rate)

    @property
    def passes(self) -> float:
        """How often its present points have been traversed, wherever that was."""
        return (self.visits + self.carried) / self.points if self.points else 0.0


@dataclass
class View:
    """The job as a policy sees it."""

    workers: dict[int, WorkerView] = field(default_factory=dict)
    round: int = 0
    evidence: float = math.inf
    """Numbers in the data for each number in θ: how much a full pass says about θ."""
    single_reports: bool = False
    """θ may be made of the report of one worker: it lies in one place, and no part of the job needs those of all."""
    in_batches: bool = False
    """Signals do not interrupt what a worker has begun (`Kernels.in_batches`)."""
    _awaited: list[WorkerView] = field(default_factory=list)

    @property
    def least(self) -> float:
        """The part of the first pass that an update should rest on. θ made from too few points leads k-means and
        its kin to worse optima, from which later passes do not come back."""
        return min(1.0, active().barriers.first_update_evidence / self.evidence)

    @property
    def points(self) -> int:
        return sum(w.points for w in self.workers.values())

    def training(self) -> tuple[int, ...]:
        return tuple(w.id for w in self.workers.values() if w.phase == "training")

    def reported(self) -> tuple[int, ...]:
        return tuple(w.id for w in self.workers.values() if w.phase == "reported")

    def all_reported(self) -> bool:
        """Asked at every report, so it must not look at every worker each time: it keeps those that were awaited when
        it last looked at all of them, and strikes them off one by one."""
        awaited = self._awaited
        while awaited:
            last = awaited[-1]
            if last.phase != "reported" and self.workers.get(last.id) is last:
                return False
            awaited.pop()
        awaited.extend(w for w in self.workers.values() if w.phase != "reported")
        return not awaited


# -- events ------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """All workers are loaded and idle."""


class Reported(msgspec.Struct, frozen=True):
    worker: int
    exhausted: bool
    moving: bool = False
    """Points come to it or go, which takes some of its time."""


class Updated(msgspec.Struct, frozen=True):
    """Reports were folded in and θ is new."""

    round: int
    workers: tuple[int, ...]
    objective: float | None
    """F(Q, θ); while some points are unseen, an estimate scaled up from those that were."""
    exact: bool
    visits: int
    barrier_cost: float
    """φ: seconds of this round in which the average worker did not compute."""
    gain: float | None = None
    """How much better the objective (or its estimate) is than after the round before."""
    seconds: float = 0.0
    """Since the round before."""
    worth: Array | None = None
    """What a visit is worth by the length of an interval (plan/interval/interval.py), where the algorithm says so."""
    noise: float | None = None
    """The gradient noise scale in visits (plan/interval/gradient_noise.py); not a number while it is not known yet."""
    held: bool = False
    """θ stays until every point has been visited with it, as the algorithm says."""


class Regrouped(msgspec.Struct, frozen=True):
    """Workers came or went. Everybody has reported, whoever that is now, and `Updated` follows."""


class Woken(msgspec.Struct, frozen=True):
    tag: int


Event = Started | Reported | Regrouped | Updated | Woken

# -- actions -----------------------------------------------------------------------------------------------


class TrainWorkers(msgspec.Struct, frozen=True):
    """Go on under the newest θ. `points`: how many at most by worker; None is one pass over the own share."""

    workers: tuple[int, ...]
    points: dict[int, int] | None = None
    seconds: dict[int, float] | None = None
    """Each worker stops by its own clock after so long."""
    linger: bool = False
    """A worker that has reported goes on training while it waits."""
    cursor: str = ""
    """Note where the order of visits is (`mark`), or go back to that place (`rewind`): plan/interval/interval.py."""


class StopWorkers(msgspec.Struct, frozen=True):
    """Raise the barrier for these."""

    workers: tuple[int, ...]


class Update(msgspec.Struct, frozen=True):
    """Fold the held reports of these workers into the statistics and make a new θ. It asks: `Updated` follows when the
    parameter store has folded them, in the same event or later. So it is the last action of its decision; until
    `Updated` the model hears of nothing else.
    """

    workers: tuple[int, ...]


class Wake(msgspec.Struct, frozen=True):
    """Come back with `Woken(tag)` at this time."""

    at: float
    tag: int


Action = TrainWorkers | StopWorkers | Update | Wake


class Decision(msgspec.Struct, frozen=True):
    """What to do, and why, in words fit for a log."""

    actions: tuple[Action, ...] = ()
    reason: str = ""


NOTHING = Decision()


class Policy(Protocol):
    """What the coordinator needs of a synchronization model."""

    @property
    def name(self) -> str: ...

    @property
    def flexible(self) -> bool:
        """A round may end at any time; else only when every worker has done what it was told."""
        ...

    def decide(self, event: Event, view: View, now: float) -> Decision: ...

    @property
    def interval(self) -> float | None:
        """η now, for the trace; None where the model has none."""
        ...

    @property
    def choice(self) -> str:
        """What the model has chosen by itself, and why; empty where it chooses nothing."""
        ...


# -- registration ------------------------------------------------------------------------------------------

Seconds = Annotated[float, "seconds"]
"""An option that is a duration, which users write as 200ms or 1.5s."""
USUAL_BATCHES_PER_PASS = 8  # of a pass, where a model needs batches and the user gave no number

BALANCE_OPTIONS = ("balance", "matching")
"""Options of models under which points move; the part that moves points reads them, not the model."""
REGISTERED: dict[str, type[SyncModel]] = {}
"""Every model whose class has been defined so far; `flegel.sync.models` imports the files of the package first."""


class SyncModel:
    """Base class of the models that users can name. A subclass registers itself by having a `name`.

    The options of a model are the parameters of its constructor, each with a default: they carry the names of the
    fields of `job.SyncSpec`, and None there means the default here.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for `flegel models`."""
    flexible: ClassVar[bool] = False
    """A round may end at any time; else only when every worker has done what it was told."""
    repeatable: ClassVar[bool] = False
    """The same data and seed give the same trajectory, to the last bit."""
    all_report: ClassVar[bool] = False
    """Every update takes a report of every worker, so workers may merge them among themselves (`--topology`)."""
    balances: ClassVar[bool] = False
    """Passes may drift apart, so points may move to faster workers: the model has the options `BALANCE_OPTIONS`."""
    matching: ClassVar[str] = "level"
    """Who gives points to whom by default (plan/balance)."""
    stored: ClassVar[Mapping[type, tuple[str, ...]]] = {}
    """Classes of the objects that a model keeps inside itself, which a checkpoint stores along with it, and their
    attributes that are not stored."""
    transient: ClassVar[tuple[str, ...]] = ()
    """Attributes of the model itself that a checkpoint does not store: they are counted anew."""
    interval: float | None = None
    """η now, for the trace; None where the model has none."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            REGISTERED[cls.name] = cls

    @classmethod
    @cache
    def options(cls) -> dict[str, object]:
        """The options of the model and their types: int, float, str or `Seconds`."""
        hints = get_type_hints(cls.__init__, include_extras=True)
        own = {name: _without_none(hints[name]) for name in inspect.signature(cls).parameters}
        return own | dict.fromkeys(BALANCE_OPTIONS, str) if cls.balances else own

    @property
    def choice(self) -> str:
        """What the model has chosen by itself, and why; empty where it chooses nothing."""
        return ""

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """What to do now that this has happened."""
        return NOTHING


def _without_none(hint: object) -> object:
    """`int | None` is an int that may be omitted."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if kinds and type(None) in get_args(hint) else hint


def train_on(waiting: str, view: View) -> bool:
    """Whether workers go on training while their report and the next θ travel: all of them (`training`), those that a
    new θ can interrupt (`interruptible`; a micro-batch of a network that was begun is not interrupted, so the update
    would wait for it), or none (`idle`)."""
    return waiting == "training" or (waiting == "interruptible" and not view.in_batches)


def names(workers: Iterable[int]) -> str:
    return ", ".join(str(w) for w in workers)
