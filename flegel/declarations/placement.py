"""Where the fields of θ lie: in slices on servers, with the coordinator alone, exchanged between groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flegel.core.pytree import Array, Tree
from flegel.core.sharding import Sharding
from flegel.declarations.field_types import TypedFields


@dataclass(frozen=True, kw_only=True)
class ParameterPlacement(TypedFields):
    """`placement = ParameterPlacement(sharding=Sharding({"weights": 0}, {"gradient": 0}))`. Without it every worker
    gets all of θ, in float64, from the coordinator."""

    sharding: Sharding | None = None
    """Which fields of θ and of the statistics parameter servers cut along which axis (`flegel.core.sharding`). Then
    `updateSlice` of the slices gives the slices of `updateParameter`, to the last bit; `flegel check` tries it."""
    unsharded: str = "it does not declare `sharding`"
    """Why parameter servers cannot cut θ, where they cannot."""
    unsent: tuple[str, ...] = ()
    """Fields of θ that workers do not need, such as the state of an optimizer: they stay with the coordinator."""
    additive: tuple[str, ...] = ()
    """Fields of θ whose changes may be added, such as weights: where statistics are spent, groups at several sites
    exchange the changes of these. The others, such as the state of an optimizer, stay with each group."""
    not_additive: str = "it declares no fields of θ that may be added (`ParameterPlacement.additive`)"
    """Why groups cannot exchange changes of θ, where they cannot."""
    typed: bool = False
    """The arrays of `initParameter` and `initAggregator` say in which types θ and the statistics are kept and sent,
    such as float32. Otherwise both are float64, whatever the hooks return."""
    starts_from_means: bool = False
    """`initParameter` may get weighted means of small parts of the rows for the rows themselves: groups at several
    sites show each other those, and begin with one θ(0) for all. Otherwise the first group's is taken."""


class PlacementHooks:
    """Methods that a class may define; otherwise these answer."""

    def updateSlice(
        self: Any, aggregator: Tree, oldParameter: Tree, start: int, stop: int, summary: Array | None
    ) -> Tree:
        """`updateParameter` for the units from `start` to `stop`: fields that `sharding` names hold these alone. Define
        it where that needs to know which units these are, or `summary`."""
        return self.updateParameter(aggregator, oldParameter)

    def sliceSummary(self, aggregator: Tree, parameter: Tree, start: int, stop: int) -> Array | None:
        """What the updates of other slices need to know of this one. Those of all slices, one behind the other along
        the first axis, are the `summary` of `updateSlice`. None: nothing, which every slice says, or none."""
        return None

    def updateRows(self, aggregator: Tree, oldParameter: Tree, rows: Array) -> Tree | None:
        """`updateParameter` where only these rows of the statistics have changed since it made `oldParameter`: fields
        of θ that `sharding` cuts hold the same rows alone, to the same bits. None: other rows may change, too."""
        return None

    def objectiveTerms(self, aggregator: Tree, parameter: Tree, rows: Array | None) -> Array | None:
        """Numbers of each row, along the last axis, that `objectiveOfTerms` makes the objective of; `rows`: of these
        alone. None: the objective is not made of such numbers."""
        return None

    def objectiveOfTerms(self, terms: Array) -> float:
        """The `objective` from the numbers of all rows, to the same bits."""
        return float(terms.sum())
