"""θ and statistics of logistic regression as they travel between coordinator and workers. Never takes a step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UsageError


class Linear(NamedTuple):
    """θ. One row of `weights` an output: one for two classes, otherwise one a class; `classes` are the label values.

    Fields whose names begin with `internal_` are the algorithm's own. `visit`: penalty, number of this θ, when
    curvature is counted again (part, floor), its cap, and whether all of it is summed. `importance`: the weight of
    every class. `search`: a `StepSearch`. `best`: the best θ that was measured, and its gradient. `pairs`: those of
    L-BFGS. `metric`: see `precondition`.
    """

    weights: Array
    bias: Array
    classes: Array
    internal_visit: Array
    internal_importance: Array
    internal_search: Array
    internal_best: Array
    internal_pairs: Array
    internal_metric: Array


class Gradients(NamedTuple):
    """s: Σ residual·x (last column: the bias), Σ curvature·x̃·x̃ᵀ, points by class, Σ loss, points seen, Σ number of θ
    at the last visit, and of this interval the visits and the unknown labels.

    `unknown` counts visits to points whose label is not among the classes.
    """

    gradient: Array
    curvature: Array
    counts: Array
    loss: Array
    seen: Array
    stamps: Array
    visits: Array
    unknown: Array


def joined(parameter: Linear) -> Array:
    """Weights and bias as one array, the bias last."""
    return np.hstack([parameter.weights, np.asarray(parameter.bias)[:, None]])


def importance_of(wanted: str | list[float] | dict[float, float] | None, classes: list[float], counts: Array) -> Array:
    """The weight of every class, where so many points are of each."""
    if wanted is None:
        return np.ones(len(classes))
    if isinstance(wanted, str):
        return np.asarray(counts.sum() / (len(counts) * np.maximum(counts, 1.0)))
    if isinstance(wanted, dict) and set(wanted) - set(classes):
        raise UsageError(f"LR: class_weight names {sorted(set(wanted) - set(classes))}, which are no classes.")
    weights = [wanted.get(c, 1.0) for c in classes] if isinstance(wanted, dict) else wanted
    found = np.array(weights, dtype=np.float64)
    if len(found) != len(classes) or not (found >= 0).all() or not 0 < found.max() < math.inf:
        raise UsageError(f"LR: class_weight needs {len(classes)} numbers of 0 or more, not all 0.")
    return found


def start_loss(aggregator: Gradients, parameter: Linear) -> float:
    """The objective of θ = 0."""
    weight = float(parameter.internal_importance @ aggregator.counts) / max(float(aggregator.seen[0]), 1.0)
    return math.log(max(len(parameter.classes), 2)) * weight


def intercept_loss(aggregator: Gradients, parameter: Linear) -> float:
    """The least objective of a model that gives every point the same class probabilities."""
    mass = parameter.internal_importance * aggregator.counts
    mass = mass[mass > 0]
    return float(-(mass @ np.log(mass / mass.sum())) / max(float(aggregator.seen[0]), 1.0))
