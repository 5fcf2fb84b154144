"""What a trained logistic regression says about rows: probabilities, scores, losses. Never takes a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.class_labels import MOST_LOSS, class_numbers, whole_numbers
from flegel.algorithms.estimators import fitted_classifier
from flegel.algorithms.lr.model import Linear
from flegel.algorithms.rows import row_parts, rows_of, times
from flegel.core.pytree import Array
from flegel.errors import UsageError


def probabilities(features: Any, parameter: Linear) -> Array:
    """P(class | x), one column a class in the order of `parameter.classes`."""
    scores = class_scores(features, parameter)
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(likely / likely.sum(axis=1, keepdims=True))


def likeliest(features: Any, parameter: Linear) -> Array:
    """The most likely class of each row, as a label value; an integer where all label values are."""
    best = np.empty(rows_of(features), np.intp)
    for first, end, rows in row_parts(features, len(parameter.classes)):
        best[first:end] = class_scores(rows, parameter).argmax(axis=1)
    return np.asarray(whole_numbers(parameter.classes)[best])


def means(*values: Array) -> list[float]:
    """Of each array; 0 where there are no rows."""
    return [float(each.mean()) if len(each) else 0.0 for each in values]


class Judged(NamedTuple):
    """What the model makes of labelled rows."""

    loss: Array
    """Log-loss of each row; `MOST_LOSS` where the model does not know its class."""
    target: Array
    """The number of its class; -1 where the model does not know it."""
    right: Array
    """Whether that is the likeliest."""


def judged(features: Any, labels: Array, parameter: Linear) -> Judged:
    """Labelled rows by scores that are computed once, of some rows at a time."""
    target = class_numbers(labels, parameter.classes)
    loss, right = np.empty(len(target)), np.empty(len(target), np.bool_)
    for first, end, rows in row_parts(features, len(parameter.classes)):
        scores, own = class_scores(rows, parameter), target[first:end]
        loss[first:end] = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(scores)), own]
        right[first:end] = scores.argmax(axis=1) == own
    return Judged(np.where(target < 0, MOST_LOSS, loss), target, right)


def class_scores(features: Any, parameter: Linear) -> Array:
    """Logarithms of P(class | x) but for a number that all classes of a row share: (rows, classes)."""
    scores = times(features, np.asarray(parameter.weights).T) + parameter.bias
    if scores.shape[1] > 1:
        return np.asarray(scores)
    return np.zeros_like(scores) if len(parameter.classes) == 1 else np.hstack([np.zeros_like(scores), scores])


def genuine(parameter: Linear, names: list[str] | None, l2: float, l1: float) -> Any:
    """scikit-learn's estimator of this model; its C is told where there is no l1 penalty."""
    values = parameter.classes.astype(np.int64) if (parameter.classes % 1 == 0).all() else parameter.classes
    classes = np.array([names[int(c)] for c in parameter.classes]) if names else values
    if len(classes) < 2:
        raise UsageError("LR: scikit-learn knows no model of a single class.")
    points = float(parameter.internal_search[1])
    return fitted_classifier(parameter.weights, np.asarray(parameter.bias), classes, 0.0 if l1 else l2, points)
