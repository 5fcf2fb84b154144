"""What happens to a coordinator and what it wants done: events in, commands out. Plain records, no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from flegel.core.pytree import Array
from flegel.errors import FlegelError
from flegel.messages import Answer, Order
from flegel.params.protocol import Folded

# -- events ------------------------------------------------------------------------------------------------


class FromWorker(msgspec.Struct, frozen=True):
    worker: int
    body: Answer
    arrays: tuple[Array, ...] = ()


class Timer(msgspec.Struct, frozen=True):
    name: str
    tag: int = 0


class WorkerDied(msgspec.Struct, frozen=True):
    """The supervisor saw the process end, or it cannot be reached."""

    worker: int
    why: str
    fault: bool = False
    """It ended by its own doing (a crash, an exit), not by a kill or a broken connection."""


class WorkerJoined(msgspec.Struct, frozen=True):
    """A worker that was hired is up; it holds nothing yet."""

    worker: int


class ScaleTo(msgspec.Struct, frozen=True):
    """Somebody wants so many workers from now on."""

    workers: int


class LeaveJob(msgspec.Struct, frozen=True):
    """A worker is to give its points to the remaining workers and end."""

    worker: int


class EndJob(msgspec.Struct, frozen=True):
    """Somebody wants training to end now, with what there is as its result. May be repeated."""

    why: str


class FoldFinished(msgspec.Struct, frozen=True):
    """The parameter store answers a fold that it could not do at once."""

    folded: Folded


class PartEvent(msgspec.Struct, frozen=True):
    """Something that one part of the coordinator understands; its subclass is defined by that part."""


Event = FromWorker | Timer | WorkerDied | WorkerJoined | ScaleTo | LeaveJob | EndJob | FoldFinished | PartEvent


# -- commands ----------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    worker: int
    body: Order
    arrays: tuple[Array, ...] = ()


class SetTimer(msgspec.Struct, frozen=True):
    at: float
    timer: Timer


class StartWorker(msgspec.Struct, frozen=True):
    """Start a process for this worker, as a new incarnation; `WorkerJoined` or `WorkerDied` follows."""

    worker: int


class EvictWorker(msgspec.Struct, frozen=True):
    """From now on nothing that this worker says counts, and its process is ended; `gently` where it just leaves."""

    worker: int
    why: str
    gently: bool = False


class Note(msgspec.Struct, frozen=True):
    """A remark for the trace and the display."""

    text: str


class Milestone(msgspec.Struct, frozen=True):
    """Something that a person who watches the job wants to see at once: a phase, a worker lost or joined, a
    checkpoint. Observers look now instead of at their next turn."""

    what: str


class Done(msgspec.Struct, frozen=True):
    """The job is over; `error` says that it failed."""

    error: FlegelError | None = None


class PartCommand(msgspec.Struct, frozen=True):
    """Something that one part of the coordinator wants done; its subclass is defined by that part."""


Command = Send | SetTimer | StartWorker | EvictWorker | Note | Milestone | Done | PartCommand


class TraceSpan(NamedTuple):
    """One report of one worker, as a row of the trace holds it: `TraceSpan(*span)` names its fields."""

    worker: int
    order_sent: float
    """In seconds since the start, like the next."""
    report_here: float
    visits: int
    computing: float
    """Seconds, like the next two."""
    responding: float
    waiting: float
    """Before that order."""


@dataclass
class TraceRow:
    """One line of the trace: the state after a barrier."""

    seconds: float
    iteration: int
    objective: float | None
    interval: float | None
    estimate: float | None
    visits: int
    barrier_cost: float
    reason: str
    spans: list[tuple[int, float, float, int, float, float, float]] = field(default_factory=list)
    """Of each worker folded in: the fields of a `TraceSpan`."""
    passes: list[float] = field(default_factory=list)
    """Of each worker, in the order of their numbers: how often its points have been traversed."""
    in_flight: int = 0
    """Points that are to change owner and have not yet."""
    moved_bytes: int = 0
    """Bytes that moved points have taken so far."""
    gains: list[float] = field(default_factory=list)
    """Of each worker, what its reports have done for the objective so far; only where that is attributed."""


@dataclass(kw_only=True)
class Timeouts:
    """How long to wait for what, in seconds."""

    load: float = 600.0
    silence: float = 30.0
    """Without any message of a worker: then it counts as lost."""
    report: float = 60.0
    """For a report after a stop, for a part of a checkpoint, for an answer of the parameter store."""
    hook: float = 30.0
    """In one hook, without a single point done, by a worker that is alive: then its code does not return."""
    hire: float = 2.5
    """For a process to start in place of a lost one: then the others take over, and it gets points when it comes."""
    start: float = 120.0
    """For a process to start at all."""
