"""What the members and parts of a coordinator share: the view of the workers, figures of the job, commands to come.

A part reads and writes this record and its own state, and no other part. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flegel.algorithm import Algorithm
from flegel.core.precision import FLOAT64_RELATIVE_ERROR
from flegel.core.pytree import Array, Tree
from flegel.job import Criteria
from flegel.machine.coordinator.events import Command, Send, Timeouts, TraceRow
from flegel.machine.coordinator.totals import Totals
from flegel.messages import Order
from flegel.params.protocol import ParameterStore
from flegel.params.replicated import ReplicatedStore
from flegel.plan.termination import Verdict
from flegel.sync.policy import Policy, View, WorkerView


class FinalCount(Protocol):
    """A pass over all points with fresh states under the final θ."""

    own_statistics: list[Array] | None
    """Of all points of this job; None until that pass was made, or where it does not tell."""
    counted: Tree | None
    """The statistics of that pass, with those of other groups."""
    objective: float | None
    """Of the final θ, by these statistics."""

    def evaluate_over(self, job: JobState, others: Sequence[Sequence[Array]]) -> None:
        """Evaluate again, over these statistics of other groups as well."""
        ...


@dataclass
class JobState:
    """One job as all members and parts of its coordinator see it."""

    algorithm: Algorithm
    policy: Policy
    criteria: Criteria
    store: ParameterStore
    timeouts: Timeouts = field(default_factory=Timeouts)
    attribute: bool = False
    """The store attributes progress to single workers."""
    rounding: float = FLOAT64_RELATIVE_ERROR
    """Relative, of statistics (core/precision.py)."""
    phase: str = "loading"
    """loading, training, collecting or over, or what a part does: auditing, checkpointing, resting, evaluating."""
    verdict: Verdict | None = None
    iteration: int = 0
    objective: float | None = None
    reason: str = ""
    """Why the model decided as it did, for the next row of the trace."""
    began: float = 0.0
    ended: float = 0.0
    ready_at: float = 0.0
    view: View = field(default_factory=View)
    resting: dict[int, WorkerView] = field(default_factory=dict)
    """Workers without points, outside of every barrier, ready to be called back; as they were last seen."""
    waits_for: str = ""
    """What the whole job waits for, such as other groups; empty while it does not."""
    news: list[str] = field(default_factory=list)
    """What people should read while the job runs; only grows."""
    in_flight: int = 0
    """Points that are to change owner and have not yet."""
    moved_bytes: int = 0
    """Bytes that moved points have taken so far."""
    model_waits: bool = False
    """Everybody was stopped for something that comes first, such as a checkpoint: until then the model hears of reports
    and is not obeyed."""
    final_count: FinalCount | None = None
    """Where θ is evaluated over all points when training is over."""
    trace: list[TraceRow] = field(default_factory=list)
    out: list[Command] = field(default_factory=list)
    """Commands that follow from the event at hand."""
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        self.totals = Totals(self.view)
        if isinstance(self.store, ReplicatedStore):
            self.store.connect(self)

    @property
    def members(self) -> Collection[int]:
        return self.view.workers.keys()

    @property
    def round(self) -> int:
        return self.view.round

    @property
    def points(self) -> int:
        return self.view.points

    @property
    def seconds(self) -> float:
        """Of training."""
        return self.ended - self.began

    @property
    def place(self) -> str:
        """Where the job is, for messages."""
        return f"round {self.view.round}" if self.phase == "training" else f"the {self.phase} phase"

    def send(self, worker: int, body: Order, arrays: tuple[Array, ...] = ()) -> None:
        self.out.append(Send(worker, body, arrays))

    def send_all(self, orders: list[tuple[int, Order]]) -> None:
        self.out.extend(Send(worker, order) for worker, order in orders)

    # -- checkpoints ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "iteration": self.iteration,
            "objective": self.objective,
            "began": self.began,
            "reason": self.reason,
            "verdict": self.verdict,
            "resting": self.resting,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.iteration, self.objective = state["iteration"], state["objective"]
        self.began, self.reason, self.verdict = state["began"], state["reason"], state["verdict"]
        self.resting = state["resting"]


class JobReader:
    """What others read of a coordinator."""

    state: JobState

    @property
    def view(self) -> View:
        return self.state.view

    @property
    def phase(self) -> str:
        return self.state.phase

    @property
    def trace(self) -> list[TraceRow]:
        return self.state.trace

    @property
    def iteration(self) -> int:
        return self.state.iteration

    @property
    def verdict(self) -> Verdict | None:
        return self.state.verdict

    @property
    def store(self) -> ParameterStore:
        return self.state.store

    @property
    def parameter(self) -> Tree:
        return self.state.store.parameter
