"""Where the search of two classes begins: at the minimum for a part of the sample's rows, by Newton's method. Pure.

Each step towards the minimum costs a job a pass and a barrier, and a table of a few thousand rows costs next to nothing
here. Of a small job the part is all rows; otherwise it lies at the minimum of all of them but for what few rows cannot
tell, and a Newton step or two are left. Nothing is believed of it: the first pass measures it like any other θ, and one
that is worse than θ = 0 is given up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.algorithm import Sample
from flegel.algorithms.lr.search import Curvature, Penalty, rounding_of
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import Sparse


class FewRows(NamedTuple):
    """A part of the sample, in float64."""

    features: Array
    standard: Array
    """x̃: in the coordinates of the metric, 1 for the bias last."""
    signs: Array
    """1 for the second class, -1 for the first."""
    mass: Array


class Measured(NamedTuple):
    """The objective at a θ, its gradient, and the slope of the loss by each row's margin."""

    value: float
    gradient: Array
    miss: Array


def minimum_of_sample(
    sample: Sample, classes: list[float], importance: Array, penalty: Penalty, metric: Array, tolerance: float
) -> Array | None:
    """Weights and bias (1, columns + 1), after the first step that promises to lower the objective by less than
    `tolerance`. None where the rows are too few for the columns, where a plane separates them, so that there is no
    minimum, and where numbers are too large to be squared."""
    few = _few_rows(sample, classes, importance, metric)
    if few is None:
        return None
    rules, theta = active().lr, np.zeros((1, sample.columns + 1))
    with np.errstate(all="ignore"):  # looked at: what is not finite ends the search
        here = _measured(few, theta, penalty, metric)
        for _ in range(rules.sample_start_steps):
            step = _newton(few, here, penalty, metric, rounding_of(sample.features))
            promised = 0.0 if step is None else float(np.vdot(here.gradient, step))
            if step is None or not promised < 0.0:
                break
            length, there = 1.0, _measured(few, theta + step, penalty, metric)
            while not there.value < here.value and length > rules.shortest_step:
                length /= 4.0
                there = _measured(few, theta + length * step, penalty, metric)
            if not there.value < here.value:
                break
            theta, here = theta + length * step, there
            if float(here.miss.max()) < 0.5:
                return None
            if length == 1.0 and -promised / 2.0 <= tolerance * here.value:
                break
    return theta if theta.any() else None


def _few_rows(sample: Sample, classes: list[float], importance: Array, metric: Array) -> FewRows | None:
    """Rows at even distances; None where they say too little of the others, or hold one class only."""
    features, labels, rules = sample.features, sample.labels, active().lr
    width = sample.columns + 1
    if isinstance(features, Sparse) or labels is None or len(classes) != 2:
        return None
    most = min(rules.sample_start_rows, rules.sample_start_work // width**2)
    step = -(-len(labels) // max(most, 1))
    chosen = np.asarray(labels)[::step]
    if len(chosen) < sample.points and len(chosen) < rules.sample_start_rows_per_column * width:
        return None
    mass = np.ones(len(chosen)) if sample.weights is None else np.asarray(sample.weights[::step], np.float64)
    second = chosen == classes[1]
    mass = mass * np.where(second, importance[1], importance[0])
    if not (mass[second].any() and mass[~second].any()):
        return None
    rows = np.asarray(features[::step], dtype=np.float64)
    standard = np.ones((len(rows), width))
    np.subtract(rows, metric[0, :-1], out=standard[:, :-1])
    standard[:, :-1] /= metric[1, :-1]
    return FewRows(rows, standard, np.where(second, 1.0, -1.0), mass / len(rows))


def _measured(few: FewRows, theta: Array, penalty: Penalty, metric: Array) -> Measured:
    margins = few.signs * (few.features @ theta[0, :-1] + theta[0, -1])
    small = np.exp(-np.abs(margins))
    value = float(few.mass @ (np.maximum(-margins, 0.0) + np.log1p(small))) + penalty.value(theta)
    miss = np.where(margins >= 0.0, small, 1.0) / (1.0 + small)
    slopes = -few.signs * few.mass * miss
    gradient = np.append(slopes @ few.features, slopes.sum() * metric[0, -1])[None]
    return Measured(value, penalty.add_slope(theta, gradient), miss)


def _newton(few: FewRows, here: Measured, penalty: Penalty, metric: Array, rounding: float) -> Array | None:
    """The step to the minimum of the quadratic model; None where that cannot be computed."""
    bends = few.mass * here.miss * (1.0 - here.miss)
    sums = (few.standard.T * bends) @ few.standard
    if not (np.isfinite(sums).all() and np.isfinite(here.gradient).all()):
        return None
    curvature = Curvature(sums[None], 1.0, metric, 0.25, summed=True, rounding=rounding)
    step = curvature.solve(here.gradient, penalty, active().lr.first_damping)
    return step if np.isfinite(step).all() else None
