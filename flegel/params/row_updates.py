"""A new θ and its objective from statistics of which few rows have changed: work for these rows alone. Pure.

A late barrier of k-means with thousands of clusters changes a hundredth of them, and θ of 100 MB would be made anew,
looked through and judged as a whole. A class whose rows of θ follow each from its own row of the statistics says so by
`updateRows` and `objectiveTerms` (`PlacementHooks`). Nothing is approximated: rows are made by the same operations as
the whole, and the objective is summed anew from numbers of all rows, of which those of changed rows were replaced. So
no error adds up, and every bit is that of `updateParameter` and `objective`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.changed_rows import RowsOfStep
from flegel.core.pytree import Array, Tree
from flegel.core.sharding import UNCUT, axes
from flegel.declarations.optional import defines
from flegel.declarations.placement import PlacementHooks
from flegel.params import hook_values
from flegel.params.parameter_update import HookCall, ParameterUpdate, new_parameter


class RowUpdates:
    """`new_parameter` of one holder of θ and the statistics, which asks it for every update."""

    def __init__(self, algorithm: Algorithm, parameter: Tree, statistics: Tree) -> None:
        self._algorithm = algorithm
        self._terms: Array | None = None
        """Of the last θ that was made here (`objectiveTerms`)."""
        self._theta: Tree = None
        """That θ; None before the first one."""
        self._made = RowsOfStep(0, ())
        fields = pytree.flatten(statistics)
        self._by_rows = (
            sum(a.nbytes for a in fields) >= active().transport.changed_rows_from_bytes
            and makes_rows(algorithm)
            and len({a.shape[:1] for a in fields}) == 1
        )
        self._axes = axes(parameter, algorithm.placement.sharding.parameter) if self._by_rows else ()  # type: ignore[union-attr]

    def update(self, call: HookCall, total: Tree, parameter: Tree, rows: Array | None, place: str) -> ParameterUpdate:
        """`rows`: of `total` that have changed since the last call; None: any may have."""
        if not self._by_rows:
            return new_parameter(self._algorithm, call, total, parameter, place)
        made = self._update_of_rows(call, total, parameter, rows, place) or self._update_of_all(
            call, total, parameter, place
        )
        self._theta = None if made.diverged or made.parameter is parameter else made.parameter
        return made

    def made(self, parameter: Tree) -> RowsOfStep | None:
        """Where this θ differs from the one that was made here before it; None where it was not made here."""
        return self._made if self._theta is not None and parameter is self._theta else None

    def _update_of_rows(
        self, call: HookCall, total: Tree, parameter: Tree, rows: Array | None, place: str
    ) -> ParameterUpdate | None:
        """None where more than these rows may change, or something is not finite: all of θ is then made as ever."""
        most = active().transport.max_changed_part
        if (
            rows is None
            or self._terms is None
            or parameter is not self._theta
            or len(rows) > most * self._terms.shape[-1]
        ):
            return None
        few = call("updateRows", total, parameter, rows)
        if few is None:
            return None
        if not pytree.is_finite(few):
            return None
        pairs = zip(pytree.flatten(parameter), pytree.flatten(few), self._axes, strict=True)
        fresh = pytree.unflatten(parameter, [_with_rows(old, new, axis, rows) for old, new, axis in pairs])
        self._terms[..., rows] = call("objectiveTerms", total, fresh, rows)
        value = hook_values.number(call("objectiveOfTerms", self._terms), "objective", place)
        if value is None or not math.isfinite(value):
            return None
        self._made = RowsOfStep(self._made.step + 1, tuple(rows if axis == 0 else None for axis in self._axes))
        return ParameterUpdate(fresh, value)

    def _update_of_all(self, call: HookCall, total: Tree, parameter: Tree, place: str) -> ParameterUpdate:
        def by_terms(hook: str, *args: Any) -> Any:
            if hook != "objective":
                return call(hook, *args)
            self._terms = np.array(call("objectiveTerms", *args, None))
            return call("objectiveOfTerms", self._terms)

        self._made = RowsOfStep(self._made.step + 1, (None,) * len(self._axes))
        return new_parameter(self._algorithm, by_terms, total, parameter, place)


def _with_rows(old: Array, new: Array, axis: int, rows: Array) -> Array:
    """A field of θ with these rows anew; one that is not cut as it came."""
    whole = np.array(old if axis != UNCUT else new, old.dtype, order="C")
    if axis != UNCUT:
        np.moveaxis(whole, axis, 0)[rows] = np.moveaxis(new, axis, 0)
    return whole


def makes_rows(algorithm: Algorithm) -> bool:
    """Whether rows of θ and of the objective are made each from its own row of the statistics. Not where a subclass
    has another `updateParameter` or `objective` than the class that says so."""
    if algorithm.placement.sharding is None or algorithm.statistics.spent:
        return False
    if not (defines(algorithm, PlacementHooks.updateRows) and defines(algorithm, PlacementHooks.objectiveTerms)):
        return False
    of_rows_and_whole = (
        ("updateRows", "updateParameter"),
        ("updateRows", "updateSlice"),
        ("objectiveTerms", "objective"),
    )
    cls = type(algorithm)
    return all(_depth(cls, rows) <= _depth(cls, whole) for rows, whole in of_rows_and_whole)


def _depth(cls: type, name: str) -> int:
    """How far up among the classes that `cls` inherits from the method is defined."""
    return next((at for at, each in enumerate(cls.__mro__) if name in vars(each)), len(cls.__mro__))
