"""What a coordinator asks of the place where θ and the statistics live. Records and one protocol; nothing here acts.

An update has two phases. The coordinator asks for a *fold*: these reports are to enter the statistics, and θ is to be
made anew from them. The store answers `Folded`, either at once as the return value, or later as an event
(`machine/coordinator/events.py`, `FoldFinished`). Until the answer comes the coordinator handles no other event of the
job, so a store has at most one fold under way and sees no loss, no end and no change of workers in the middle of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from flegel.core.changed_rows import RowsOfStep
from flegel.core.pytree import Array, Tree
from flegel.errors import FlegelError
from flegel.messages import Reduced


class Fold(msgspec.Struct, frozen=True):
    """One request. Its changes belong to the store from now on; the caller does not write to them."""

    number: int
    """Counts up from 0; an answer repeats it, so that a doubled answer is recognised."""
    workers: Sequence[int]
    """Owners of the changes, in the order in which they are to be added: the order decides the last bit of a sum."""
    changes: Sequence[Tree]
    place: str
    """The round, for error messages."""
    receivers: Sequence[int] = ()
    """Workers that do not train now: the new θ may be for them."""
    update: bool = True
    """Make θ anew; otherwise only the statistics change, as when workers leave in the middle of a round."""


class Folded(msgspec.Struct, frozen=True):
    """The answer: the changes are in the statistics, exactly once each, and `ParameterStore.parameter` is the new θ."""

    number: int
    objective: float | None = None
    """F(Q, θ) of the statistics and the new θ; None where the algorithm defines none."""
    gains: Mapping[int, float] = {}
    """By worker: what its change alone did for the objective, where that is asked for."""
    diverged: str = ""
    """Why the new θ was refused: numbers that are not finite. The last good θ stays."""
    lost: str = ""
    """Why the statistics are not what the points say any more: all points have to be counted again under the last θ."""
    error: FlegelError | None = None
    """The fold failed and the job cannot go on. A store that answers at once raises it instead."""


class ParameterStore(Protocol):
    """θ, the statistics, and what each worker has contributed to them.

    Everything but `fold` returns at once and takes effect before the next fold.
    """

    @property
    def parameter(self) -> Tree:
        """θ after the last fold."""
        ...

    @property
    def statistics(self) -> Tree:
        """The sum of all contributions."""
        ...

    @property
    def remote(self) -> Mapping[str, Tree]:
        """Statistics of other groups that train the same model, which are part of `statistics`."""
        ...

    def own_statistics(self) -> Tree:
        """The statistics without those of other groups."""
        ...

    def set_remote(self, statistics: Mapping[str, Sequence[Array]]) -> bool:
        """Replace the statistics of all other groups. True where something changed."""
        ...

    @property
    def train_version(self) -> int:
        """The version of θ that servers give to workers; -1: θ goes with each order."""
        ...

    @property
    def made(self) -> RowsOfStep | None:
        """In which rows θ differs from the one before; None where that is not known."""
        ...

    @property
    def single_reports(self) -> bool:
        """A fold may hold the report of one worker while others train."""
        ...

    def reported(self, worker: int, round_: int, arrays: Sequence[Array], sparse: bool = False) -> Tree:
        """The arrays of a report as statistics, or what stands for them; `sparse`: they are those of `ChangedRows`."""
        ...

    def merged(self, first: Tree, second: Tree) -> Tree:
        """Two reports of one worker as one."""
        ...

    def fold(self, request: Fold) -> Folded | None:
        """None: the answer comes later, as an event."""
        ...

    def admit(self, worker: int, address: str) -> None:
        """A worker has loaded its shard; where other workers reach it, if it said so."""
        ...

    def publish(self, workers: Sequence[int]) -> bool:
        """These workers are about to train. True: they hold θ themselves, and their orders carry none."""
        ...

    def heard(self, worker: int, body: Reduced, arrays: Sequence[Array]) -> Folded | None:
        """While a fold is under way: a worker's part of it is done. The answer, when it was the last."""
        ...

    def interrupted(self, worker: int) -> bool:
        """While a fold is under way: this worker is lost. True: the fold needed it and is undone, as if it had never
        been asked for; otherwise it goes on, and the loss waits."""
        ...

    def join(self, one: int, other: int) -> None:
        """Points moved between these two workers: from now on they have one account together."""
        ...

    def detach(self, owner: int) -> int:
        """The worker is lost and its account cannot be closed yet: the number under which to `forget` it. A new worker
        may get the owner's number meanwhile."""
        ...

    def forget(self, owner: int) -> tuple[int, ...]:
        """Subtract what this owner contributed. Returns the workers that shared its account: their contributions went
        with it, so all their points count as unvisited."""
        ...

    def retire(self, owner: int) -> None:
        """The worker has handed its points over and leaves; its contributions stay with those who took them."""
        ...

    def use_spare_time(self) -> None:
        """The coordinator has nothing else to do now: time for work that was postponed."""
        ...

    def discrepancy(self) -> float:
        """Largest relative difference between the statistics and the sum over owners."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything as arrays and numbers, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any], owners: Collection[int] | None = None) -> None:
        """Continue with what `state` gave. `owners`: other workers hold the points now; they share one account."""
        ...

    def set_parameter(self, parameter: Tree) -> None:
        """Continue with this θ, newer than the statistics."""
        ...

    def clear_statistics(self) -> None:
        """No point has been visited: empty statistics, for every owner."""
        ...
