"""What a point remembers from one visit to the next, and how much the engine may rely on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flegel.core.pytree import Tree
from flegel.core.shard import DataPoint
from flegel.declarations.field_types import TypedFields


@dataclass(frozen=True, kw_only=True)
class HiddenState(TypedFields):
    """`state = HiddenState(memoryless=True)`. Without it nothing is assumed. Classes that define `contribution` or
    `hidden` are memoryless without saying so."""

    memoryless: bool = False
    """A visit under θ leaves a point in the same state, with the same contribution to the statistics, whatever its
    state was before (k-means, EM). Then the engine checks while it trains that changes are differences, and evaluates
    the final θ by one pass over all points."""
    kept: bool = False
    """The points' hidden state belongs to the model (NMF: the rows of W)."""
    remade: bool = False
    """A first visit under θ leaves a point in a state as good as any that it had before. A job that goes on from a
    commit then leaves states that are older than θ behind."""


class StateHooks:
    """Methods that a class may define; otherwise these answer."""

    def hidden(self, dataPoint: DataPoint, parameter: Tree) -> Any:
        """In place of `contribution`, with `statistics_of`: the part of it that θ decides, such as the point's cluster.
        A number, an array or a NamedTuple of these. The engine keeps it."""
        raise NotImplementedError(f"{type(self).__name__} must define hidden")

    def statistics_of(self, dataPoint: DataPoint, hidden: Any) -> Tree:
        """What this point adds to the statistics where this is its hidden value."""
        raise NotImplementedError(f"{type(self).__name__} must define statistics_of")

    def stateLimits(self, parameter: Tree) -> tuple[float, float] | None:
        """Lowest and highest number that a point's state may hold, where the hooks use it as a place in an array: a
        checkpoint with others is refused. None: any number."""
        return None

    def recounted(self: Any, aggregator: Tree, parameter: Tree) -> float | None:
        """The objective of θ, where the statistics are those of one pass under θ over points that were never visited.
        `objective`, where a visit does not depend on the last one. None: such a pass does not tell, or would only
        repeat the one before (statistics that are constant)."""
        tells = self.state.memoryless and not self.statistics.constant
        return self.objective(aggregator, parameter) if tells else None
