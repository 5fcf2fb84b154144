"""θ and statistics of logistic regression as they travel between coordinator and workers. Never takes a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithm import MOST_CLASSES, Sample
from flegel.configuration.active import active
from flegel.core.pytree import Array, bundle_type, given
from flegel.errors import UsageError, nearest

MOST_SHOWN = 30
"""Labels that a message lists."""

PAIR_NAMES = tuple(f"internal_pair_{i}" for i in range(100))
"""As many as the setting `lr.most_pairs` may ask for."""


class Linear(NamedTuple):
    """θ. One row of `weights` an output: one for two classes, otherwise one a class; `classes` are the label values.

    Fields whose names begin with `internal_` are the algorithm's own. `visit`: penalty, number of this θ, when
    curvature is counted again (part, floor), its cap, whether all of it is summed (1; 0: the diagonal; above: see
    `search.LATER`), and, where points have weights, the least of them (0: not known). `importance`: the weight of every
    class. `search`: a `StepSearch`. `best`: the best θ that was measured, and its gradient. `metric`: see
    `precondition`. `curvature`: of Newton's method, the second derivatives by which the step under way was found.
    `with_pairs` adds the pairs of L-BFGS.
    """

    weights: Array
    bias: Array
    classes: Array
    internal_visit: Array
    internal_importance: Array
    internal_search: Array
    internal_best: Array
    internal_metric: Array
    internal_curvature: Array


class Gradients(NamedTuple):
    """s: Σ residual·x (last column: the bias), Σ curvature·x̃·x̃ᵀ, weight of the points by class, Σ loss, points seen,
    Σ number of θ at the last visit, and of this interval the visits, the unknown labels and the bent points.

    `unknown` counts visits to points whose label is not among the classes, `bent` those to points whose curvature
    changed by more than `kernels.lr_bent_part` since the visit before: the second derivatives say little about a step
    that changes them.
    """

    gradient: Array
    curvature: Array
    counts: Array
    loss: Array
    seen: Array
    stamps: Array
    visits: Array
    unknown: Array
    bent: Array


def with_pairs(parameter: Linear, pairs: Sequence[Array]) -> Linear:
    """θ with these pairs of L-BFGS, the newest first, each a field of its own: one that stays is not copied where
    others come and go."""
    own = parameter[: len(Linear._fields)]
    if not pairs:
        return Linear(*own)
    made: Linear = bundle_type("Linear", (*Linear._fields, *PAIR_NAMES[: len(pairs)]))(*own, *pairs)
    return made


def pairs_in(parameter: Linear) -> tuple[Array, ...]:
    """The pairs of L-BFGS, the newest first; an empty one is all 0."""
    return tuple(parameter[len(Linear._fields) :])


def no_pairs(count: int, outputs: int, width: int) -> tuple[Array, ...]:
    """So many empty pairs, which share their memory."""
    return (given(np.zeros((2, outputs, width))),) * count


def joined(parameter: Linear, into: Array | None = None) -> Array:
    """Weights and bias as one array, the bias last."""
    outputs, columns = parameter.weights.shape
    theta = np.empty((outputs, columns + 1)) if into is None else into
    theta[:, :-1], theta[:, -1] = parameter.weights, parameter.bias
    return theta


def importance_of(
    wanted: str | list[float] | Mapping[Any, float] | None,
    classes: list[float],
    counts: Array,
    words: Sequence[str] | None = None,
) -> Array:
    """The weight of every class, where so many points are of each."""
    if wanted is None:
        return np.ones(len(classes))
    if isinstance(wanted, str):
        return np.asarray(counts.sum() / (len(counts) * np.where(counts > 0, counts, 1.0)))
    if isinstance(wanted, Mapping) and set(wanted) - set(classes):
        strange = shown_labels(sorted(set(wanted) - set(classes)), words)
        raise UsageError(f"LR: class_weight names {strange}, which are no classes.")
    weights = [wanted.get(c, 1.0) for c in classes] if isinstance(wanted, Mapping) else wanted
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


def number_of(value: float | str, words: Sequence[str] | None) -> float:
    """The label value that stands for a word; numbers stay, also as text."""
    if not isinstance(value, str):
        return float(value)
    if words is not None and value in words:
        return float(words.index(value))
    try:
        return float(value)
    except ValueError:
        hint = nearest(value, list(words)) if words else "; the labels are numbers."
        raise UsageError(f"LR: {value!r} is no label{hint}") from None


def shown_label(value: float, words: Sequence[str] | None) -> str:
    """A label as a user knows it: its word, or the number."""
    known = words is not None and value == int(value) and 0 <= value < len(words)
    return repr(words[int(value)]) if words is not None and known else f"{value:g}"


def shown_labels(values: Iterable[float], words: Sequence[str] | None) -> str:
    """Several of them as a list; of many, the first."""
    shown = [shown_label(value, words) for value in values]
    more = f", … {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return f"[{', '.join(shown[:MOST_SHOWN])}{more}]"


def reject_regression_targets(found: Array, words: Sequence[str] | None) -> None:
    """Raises where the labels found look like a quantity: very many of them, or many that are no whole numbers."""
    broken = words is None and bool((np.asarray(found) % 1.0 != 0.0).any())
    if len(found) > (active().lr.most_fractional_labels if broken else MOST_CLASSES):
        kind = "decimal numbers as labels" if broken else "labels"
        raise UsageError(
            f"LR: {len(found)} different {kind} look like a quantity, not classes; choose another label, or divide it "
            "into classes first."
        )


def check_classes(classes: list[float], found: Array, words: Sequence[str] | None = None) -> None:
    """Every label found must be one of the classes, and these must be distinct."""
    if len(classes) == 0 or len(set(classes)) != len(classes):
        raise UsageError("LR: classes must name at least one label value, and none twice.")
    unknown = sorted(set(found.tolist()) - set(classes))
    if unknown:
        raise UsageError(
            f"LR: label {shown_label(unknown[0], words)} is not among classes={shown_labels(classes, words)}; list it "
            "there too, or omit classes."
        )


def least_weight(sample: Sample) -> list[float]:
    """The least weight above 0, where points have weights; 0 where it is not known, because the sample lacks some."""
    if sample.weights is None:
        return []
    positive = sample.weights[sample.weights > 0]
    return [float(positive.min()) if len(positive) and len(sample.weights) == sample.points else 0.0]


def reject_unknown_labels(aggregator: Gradients, classes: str) -> None:
    """Raises where a point was visited whose label is none of the classes: rows that were not there when the job began,
    or those of another group."""
    if aggregator.unknown[0] > 0:
        raise UsageError(
            f"LR: {int(aggregator.unknown[0])} points carry labels outside classes={classes}; list all of them with "
            "classes=…"
        )
