"""Where the search of two classes begins: at the minimum for a part of the sample's rows, by Newton's method. Pure.

Each step towards the minimum costs a job a pass and a barrier, and a table of a few thousand rows costs next to nothing
here. Of a small job the part is all rows; otherwise it lies at the minimum of all of them but for what few rows cannot
tell, and a Newton step or two are left. Nothing is believed of it: the first pass measures it like any other θ, and one
that is worse than θ = 0 is given up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flegel.algorithm import Sample
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import Sparse


class FewRows(NamedTuple):
    """A part of the sample in the coordinates of the metric, so that scales and offsets keep their digits."""

    rows: Array
    """In float64, 1 last (0 where there is no bias); of the first class times -1, so that a product with the weights
    is the margin."""
    mass: Array
    ridge: Array
    """What the penalty adds to the second derivative by each weight; 0 for the bias."""

    def value(self, margins: Array, weights: Array) -> float:
        """The objective of these weights and the bias, given the margins they lead to."""
        losses = np.maximum(-margins, 0.0) + np.log1p(np.exp(-np.abs(margins)))
        return float(self.mass @ losses) + 0.5 * float(self.ridge @ weights**2)


def minimum_of_sample(
    sample: Sample, classes: list[float], importance: Array, l2: float, metric: Array, tolerance: float
) -> tuple[Array, Array] | None:
    """Weights (1, columns) and bias, after the first step that promises to lower the objective by less than the root of
    `tolerance`: a Newton step of the job squares what is left. Where a plane separates all rows, so that the minimum is
    0, until this part of the objective at 0 is left, with room for rounding. None where the rows are too few for the
    columns, where a plane separates this part only, and where numbers are too large to be squared."""
    few = _few_rows(sample, classes, importance, l2, metric)
    if few is None:
        return None
    rules, inner, margins = active().lr, np.zeros(sample.columns + 1), np.zeros(len(few.rows))
    value, damping = few.value(margins, inner), rules.first_damping
    with np.errstate(all="ignore"):  # looked at: what is not finite ends the search
        for _ in range(rules.sample_start_steps):
            small = np.exp(-np.abs(margins))
            miss = np.where(margins >= 0.0, small, 1.0) / (1.0 + small)
            gradient = few.ridge * inner - (few.mass * miss) @ few.rows
            step = _newton(few, few.mass * miss * (1.0 - miss), gradient, damping)
            if step is None:
                break
            along = few.rows @ step
            length, lower = _best_length(few, (margins, along), (inner, step), value)
            if not lower < value:
                break
            damping = max(damping * (0.2 if length >= 1.0 else 10.0), rules.least_damping)
            inner, margins, value = inner + length * step, margins + length * along, lower
            apart = float(margins.min()) > 0.0
            if apart and len(few.rows) < sample.points:
                return None
            if apart and value <= 0.5 * tolerance * few.value(np.zeros(len(few.rows)), np.zeros_like(inner)):
                break
            if length == 1.0 and -float(gradient @ step) / 2.0 <= math.sqrt(tolerance) * value:
                break
    weights = inner[:-1] / metric[1, :-1]
    bias = metric[0, -1] * (inner[-1] - weights @ metric[0, :-1])
    return (weights[None], np.array([bias])) if inner.any() else None


def _newton(few: FewRows, bends: Array, gradient: Array, damping: float) -> Array | None:
    """The step to the minimum of the quadratic model; None where that cannot be computed."""
    weighted = few.rows * np.sqrt(bends)[:, None]
    matrix = weighted.T @ weighted
    diagonal = np.diagonal(matrix) + few.ridge
    np.fill_diagonal(matrix, diagonal + damping * np.maximum(diagonal, diagonal.mean()))
    try:
        step = -np.linalg.solve(matrix, gradient)
    except np.linalg.LinAlgError:
        return None
    return step if np.isfinite(step).all() else None


def _best_length(
    few: FewRows, margins: tuple[Array, Array], weights: tuple[Array, Array], value: float
) -> tuple[float, float]:
    """Of a step, in whole ones: twice as long as long as that lowers the objective, a quarter where it does not fall
    below `value`. With the objective there. `margins` and `weights`: where the step begins, and by how much a whole one
    changes them. Far from the minimum Newton's steps are too short: the curvature falls along them."""

    def at(length: float) -> float:
        return few.value(margins[0] + length * margins[1], weights[0] + length * weights[1])

    length, lower = 1.0, at(1.0)
    while not lower < value and length > active().lr.shortest_step:
        length /= 4.0
        lower = at(length)
    while 1.0 <= length < active().lr.longest_newton_step and (further := at(2.0 * length)) < lower:
        length, lower = 2.0 * length, further
    return length, lower


def _few_rows(sample: Sample, classes: list[float], importance: Array, l2: float, metric: Array) -> FewRows | None:
    """Rows at even distances, which stand for all, and the longest, which no other row stands for. None where they say
    too little of the others, hold one class only, or where a few are far longer than all others."""
    labels, rules, width = sample.labels, active().lr, sample.columns + 1
    if isinstance(sample.features, Sparse) or labels is None or len(classes) != 2:
        return None
    rows, most = len(labels), min(rules.sample_start_rows, rules.sample_start_work // width**2)
    chosen: slice | Array
    if rows == sample.points <= most:
        chosen, stands_for = slice(None), np.ones(rows)
    elif min(most, rows) >= rules.sample_start_rows_per_column * width:
        chosen, stands_for = _spread(sample.features, metric, most)
    else:
        return None
    second = np.asarray(labels)[chosen] == classes[1]
    mass = stands_for * np.where(second, importance[1], importance[0])
    if sample.weights is not None:
        mass *= sample.weights[chosen]
    if not (mass[second].any() and mass[~second].any()):
        return None
    standard = np.empty((len(mass), width))
    np.subtract(sample.features[chosen], metric[0, :-1], out=standard[:, :-1])
    standard[:, :-1] /= metric[1, :-1]
    standard[:, -1] = metric[0, -1]
    with np.errstate(over="ignore", invalid="ignore"):
        usual = float((mass @ standard[:, :-1] ** 2).mean() / mass.sum())
    if not usual <= rules.long_row_curvature:  # a few rows have all the curvature: the search knows how to go on there
        return None
    standard *= np.where(second, 1.0, -1.0)[:, None]
    return FewRows(standard, mass / rows, np.append(l2 / metric[1, :-1] ** 2, 0.0))


def _spread(features: Array, metric: Array, most: int) -> tuple[Array, Array]:
    """Numbers of the longest rows and of others at even distances, and how many rows each stands for."""
    kind = features.dtype if features.dtype.kind == "f" else np.dtype(np.float64)
    lengths, at_once = np.empty(len(features), kind), active().lr.moment_rows
    mean, scale = metric[0, :-1].astype(kind), (1.0 / metric[1, :-1]).astype(kind)
    for first in range(0, len(features), at_once):
        away = features[first : first + at_once] - mean
        away *= scale
        lengths[first : first + at_once] = np.einsum("ij,ij->i", away, away)
    far = np.flatnonzero(~(lengths <= active().lr.sample_start_long_row ** 2 * np.median(lengths)))
    far = far[np.argsort(-lengths[far], kind="stable")[: most // 4]]
    others = np.delete(np.arange(len(features)), far)
    even = others[:: -(-len(others) // (most - len(far)))]
    stands_for = np.append(np.ones(len(far)), np.full(len(even), len(others) / max(len(even), 1)))
    return np.append(far, even), stands_for
