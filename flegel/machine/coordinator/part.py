"""What a coordinator can do without: the interface between it and its parts, such as audits or checkpoints. Pure.

A part overrides the hooks at which it acts and leaves the others alone. The coordinator looks once, when it is made,
which hooks each part overrides, and keeps one list of bound methods for each hook: an event that concerns no part costs
nothing. Parts are asked in the order in which they are given. A part knows the coordinator by `CoordinatorPort` only,
and no other part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Protocol

from flegel.core.pytree import Array
from flegel.errors import FlegelError
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.events import Command, Event
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.state import JobState
from flegel.machine.coordinator.step_back import StepBack
from flegel.plan.termination import Progress, Termination, Verdict
from flegel.sync import policy as sync
from flegel.sync.policy import Updated

Handler = Callable[[Event, float], list[Command]]
"""From an event and the time to the commands that follow from it."""
EndingStep = Callable[[float], bool]
"""A step after training: True where it waits for something and calls `continue_ending` later."""

ENDING = ("agree", "settle", "count", "evaluate", "store", "collect")
"""Steps between the last barrier and the end of a job, in their order: other sites agree, the best θ is taken where
training diverged, all points are counted again, θ is evaluated, a last checkpoint is stored, states are fetched."""


class CoordinatorPort(Protocol):
    """What a part may use of the coordinator that it belongs to."""

    state: JobState
    liveness: Liveness
    orders: WorkerOrders
    commits: Commits
    membership: Membership
    termination: Termination
    step_back: StepBack
    notes: list[str]
    parts: tuple[CoordinatorPart, ...]

    @property
    def steady(self) -> bool:
        """The job trains, is not about to end, and its workers are not about to change."""
        ...

    def begin(self, now: float) -> None:
        """Begin training if all workers are loaded and all parts are ready."""
        ...

    def decide(self, event: sync.Event, now: float) -> None:
        """Ask the synchronization model what follows from this, and do it."""
        ...

    def proceed(self, event: Updated, now: float) -> None:
        """An update is complete: parts that store or send something do so, then the model is asked."""
        ...

    def carry_out(self, step: Next, now: float) -> None:
        """Do what the membership wants done next."""
        ...

    def recount(self, why: str, now: float) -> None:
        """Count all points as unvisited: one round under the present θ, then training goes on."""
        ...

    def end(self, verdict: Verdict, now: float) -> None:
        """End training for this reason; what is under way is committed first."""
        ...

    def over(self, now: float) -> None:
        """Training is over: take the steps of `ENDING` from the first one on."""
        ...

    def continue_ending(self, now: float) -> None:
        """The step that waited is done: take the next ones."""
        ...

    def finish(self, error: FlegelError | None = None) -> None:
        """The job is over, or has failed with this error."""
        ...


class CoordinatorPart:
    """A part without any effect. Subclasses override what they need; `coordinator` is set before the first event."""

    name: ClassVar[str] = ""
    """Under which a checkpoint stores `stored`."""
    answers: ClassVar[tuple[type, ...]] = ()
    """Messages of workers that go to `answered`."""
    timers: ClassVar[tuple[str, ...]] = ()
    """Names of timers that go to `happened`."""
    events: ClassVar[tuple[type, ...]] = ()
    """Events that go to `happened`."""
    needs_every_report: ClassVar[bool] = False
    """What it does at an update takes the reports of all workers, so a model must not choose single ones."""
    coordinator: CoordinatorPort

    def attach(self, coordinator: CoordinatorPort) -> None:
        """Belong to this coordinator; its members exist, and no event has come yet."""
        self.coordinator = coordinator

    # -- events that only this part understands ------------------------------------------------------------

    def around(self, handle: Handler) -> Handler:
        """Stand between the events and the coordinator: what to call in place of `handle`."""
        return handle

    def happened(self, event: Any, now: float) -> None:
        """One of `timers` or `events`."""

    def answered(self, worker: int, body: Any, arrays: tuple[Array, ...], now: float) -> None:
        """One of `answers`."""

    # -- the life of a job ---------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """The job starts: its workers are told to load."""

    def ready(self) -> bool:
        """Training may begin as far as this part is concerned; it calls `begin` when that changes."""
        return True

    def begin(self, now: float, fresh: bool) -> None:
        """Training begins. Unless `fresh`, the state of this part was restored."""

    def begun(self, now: float) -> None:
        """Training has begun: the first orders are given."""

    def busy(self) -> Collection[int]:
        """Workers between which points are under way, as a report comes."""
        return ()

    def before_commit(self) -> None:
        """Reports are about to become a row of the trace."""

    def at_barrier(self, workers: tuple[int, ...], updated: Updated, progress: Progress, now: float) -> bool:
        """θ is new, from the reports of `workers`, and the job goes on. True: this part continues later by `proceed`
        or has changed the workers; nothing else is asked."""
        return False

    def before_model(self, event: Updated, now: float) -> bool:
        """The model is about to hear of this update. True: the job stops here."""
        return False

    def lost(self, worker: int) -> None:
        """A worker is lost; the coordinator is about to forget it."""

    def workers_change(self, now: float) -> None:
        """Everybody is brought to rest, because workers come or go or points are counted again."""

    def workers_changed(self, now: float) -> None:
        """All points have an owner again, and training goes on."""

    def end_wait(self, verdict: Verdict, now: float) -> bool:
        """The job is to end while it waits for this part after training; True where it did wait."""
        return False

    def endings(self) -> Mapping[str, EndingStep]:
        """Steps after training, by their names in `ENDING`."""
        return {}

    # -- deadlines -----------------------------------------------------------------------------------------

    def check_deadlines(self, now: float) -> None:
        """Once a second: give up what is late."""

    def overdue(self, worker: int, waited: float, now: float) -> str:
        """What to say of a worker that keeps this part waiting for too long, `waited` seconds after its last order;
        empty where all is well. Such a worker ends the job."""
        return ""

    # -- what others see of it -----------------------------------------------------------------------------

    def stored(self) -> Any:
        """What a checkpoint keeps of this part; None: nothing."""
        return None

    def seen(self) -> Mapping[str, Any]:
        """Fields of the `JobSnapshot` that this part fills."""
        return {}

    def section(self) -> Mapping[str, Mapping[str, Any]]:
        """What a result says about this part: fields of `Result`, and what they get."""
        return {}

    def remarks(self) -> list[str]:
        """What people should read beside the figures of the result."""
        return []

    def moving(self) -> Mapping[int, int]:
        """Points under way to each worker, less those under way from it."""
        return {}


Hook = Callable[..., Any]


def overriding(parts: tuple[CoordinatorPart, ...], hook: str) -> tuple[Hook, ...]:
    """The bound methods of the parts that override this hook, in the order of the parts."""
    return tuple(
        getattr(part, hook) for part in parts if getattr(type(part), hook) is not getattr(CoordinatorPart, hook)
    )
