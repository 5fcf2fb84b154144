"""The block kernel of a generalized linear model over dense rows, as the engine calls it. Imports no compiler.

Only losses that are compiled have one (`places.POISSON`, …): others, and sparse rows, take `GeneralizedLinear.change`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.glm.places import (
    BENT,
    COLUMNS_AT_ONCE,
    GUARDED,
    LARGEST_LOSS,
    LOSS,
    MASS,
    SEEN,
    SHAPE,
    SHAPE_BEND,
    STAMPS,
    SUMS,
    UNFIT,
)
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, protected
from flegel.core.shard import Shard

NUMBERS_IN_CACHE = 2**12
"""Of rows that are shifted, and whose derivatives are added, at a time: the first cache holds them twice."""
MOST_ROWS, LEAST_ROWS = 128, 16
"""At a time. With 1,000 columns all second derivatives of 16 rows take a millisecond, after which the stop flag is read
again."""
_VISIT = EntryPoint("flegel.algorithms.glm.kernel", "visit")


class CompiledLoss(NamedTuple):
    """What the compiled kernel has to know of a loss."""

    kind: int
    setting: float = 0.0
    least_label: float = -np.inf
    shapes: int = 0
    guarded_kind: int = -1
    """The same with guarded second derivatives; -1: there are none."""


class DenseKernel:
    """The kernel of one thread. Call it as `flegel.algorithm.Kernel` says."""

    def __init__(self, loss: CompiledLoss, full: bool) -> None:
        self._loss, self._full = loss, full
        self._given: Any = None
        self._labels = np.zeros(0)

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        loss, columns = self._loss, shard.columns
        at = np.asarray(parameter.internal_at)
        shift, unit, _ = np.asarray(parameter.internal_metric)[:, :columns]
        weights, shape = at[:columns], float(at[columns + 1]) if loss.shapes else 0.0
        theta = (filled(shift), filled(1.0 / unit), filled(weights), float(at[columns]))
        sums, totals = self._new_sums(columns), np.zeros(SUMS)
        space = self._new_space(columns)
        kind = loss.guarded_kind if parameter.internal_search[GUARDED] else loss.kind
        most = float(parameter.internal_search[LARGEST_LOSS])
        reached = int(
            _VISIT(
                (floating(shard.features), self._labels_of(shard), shard.state, shard.weights),
                (kind, float(loss.setting), max(shape, 1e-150), float(loss.least_label), most),
                theta,
                (float(parameter.internal_search[0]), active().glm.bend_change_counted),
                sums,
                space,
                totals,
                start,
                min(end, shard.points),
                flag,
            )
        )
        self._finish(columns, sums, space[3], totals, aggregator)
        return reached

    def _labels_of(self, shard: Shard) -> Array:
        """In float64, made once."""
        if self._given is not shard.labels:
            self._given, self._labels = shard.labels, protected(np.ascontiguousarray(shard.labels, np.float64))
        return self._labels

    def _new_sums(self, columns: int) -> tuple[Array, Array, Array]:
        zeros, nothing = np.zeros(width_of(columns)), np.zeros(0)
        return zeros, zeros.copy() if self._loss.shapes else nothing, nothing if self._full else zeros.copy()

    def _new_space(self, columns: int) -> tuple[Array, ...]:
        """For some rows, with their biases; for changes of their bends; for both multiplied; for outer products; for
        what is found of them; for what that changes."""
        width = width_of(columns)
        several = min(max(NUMBERS_IN_CACHE // width, LEAST_ROWS), MOST_ROWS) // COLUMNS_AT_ONCE * COLUMNS_AT_ONCE
        some = np.zeros((several, width))
        some[:, columns] = 1.0
        outer = np.zeros((1, width, width) if self._full else (1, 1, 1))
        parts = 3 + 3 * self._loss.shapes
        return (
            some,
            np.zeros((1, several)),
            np.empty_like(some),
            outer,
            np.zeros((parts, several)),
            np.zeros((3, several)),
        )

    def _finish(self, columns: int, sums: tuple[Array, ...], outer: Array, totals: Array, aggregator: Any) -> None:
        """All that was summed, into the statistics."""
        slopes, mixed, diagonal = sums
        inside = slice(0, columns + 1)
        aggregator.gradient[inside] += slopes[inside]
        if self._full:
            lower = np.tril(outer[0, inside, inside])
            aggregator.curvature[inside, inside] += lower + np.tril(lower, -1).T
        else:
            aggregator.curvature[0, inside] += diagonal[inside]
        if self._loss.shapes:
            aggregator.gradient[-1] += totals[SHAPE]
            aggregator.curvature[-1, -1] += totals[SHAPE_BEND]
            if self._full:
                aggregator.curvature[-1, inside] += mixed[inside]
                aggregator.curvature[inside, -1] += mixed[inside]
        for name, place in (
            ("loss", LOSS),
            ("mass", MASS),
            ("seen", SEEN),
            ("stamps", STAMPS),
            ("unfit", UNFIT),
            ("bent", BENT),
        ):
            into = getattr(aggregator, name)
            np.add(into, totals[place], into)


def width_of(columns: int) -> int:
    """Columns and the bias, filled up."""
    return (columns + COLUMNS_AT_ONCE) // COLUMNS_AT_ONCE * COLUMNS_AT_ONCE


def filled(numbers: Array) -> Array:
    """By column, with zeros up to the width."""
    whole = np.zeros(width_of(len(numbers)))
    whole[: len(numbers)] = numbers
    return whole


def floating(rows: Any) -> Array:
    """float32 and float64 stay; other numbers are computed with as float64."""
    found = np.asarray(rows)
    return np.ascontiguousarray(found, found.dtype if found.dtype in (np.float32, np.float64) else np.float64)
