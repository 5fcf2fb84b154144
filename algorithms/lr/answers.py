"""What a trained logistic regression says about rows: probabilities, scores, losses. Never takes a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.estimators import fitted_classifier
from flegel.algorithms.lr.model import Linear
from flegel.algorithms.rows import times
from flegel.core.pytree import Array
from flegel.errors import UsageError

MOST_LOSS = float(-np.log(np.finfo(np.float64).eps))
"""Log-loss of a row whose class the model does not know, to which it gives the probability 0; scikit-learn, too, counts
such a probability as the rounding error of a float64."""


def probabilities(features: Any, parameter: Linear) -> Array:
    """P(class | x), one column a class in the order of `parameter.classes`."""
    scores = class_scores(features, parameter)
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(likely / likely.sum(axis=1, keepdims=True))


def likeliest(features: Any, parameter: Linear) -> Array:
    """The most likely class of each row, as a label value; an integer where all label values are."""
    return np.asarray(whole_numbers(parameter.classes)[class_scores(features, parameter).argmax(axis=1)])


def means(*values: Array) -> list[float]:
    """Of each array; 0 where there are no rows."""
    return [float(each.mean()) if len(each) else 0.0 for each in values]


def losses(features: Any, labels: Array, parameter: Linear) -> tuple[Array, Array]:
    """Log-loss of each row, and the number of its class; `MOST_LOSS` and -1 where the model does not know its class."""
    target, scores = class_numbers(labels, parameter), class_scores(features, parameter)
    found = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(scores)), target]
    return np.where(target < 0, MOST_LOSS, found), target


def class_scores(features: Any, parameter: Linear) -> Array:
    """Logarithms of P(class | x) but for a number that all classes of a row share: (rows, classes)."""
    scores = times(features, np.asarray(parameter.weights).T) + parameter.bias
    if scores.shape[1] > 1:
        return np.asarray(scores)
    return np.zeros_like(scores) if len(parameter.classes) == 1 else np.hstack([np.zeros_like(scores), scores])


def whole_numbers(classes: Array) -> Array:
    """Label values as integers where all of them are."""
    values = np.asarray(classes)
    whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else values


def class_numbers(labels: Array, parameter: Linear) -> Array:
    """The place of each label among the classes; -1 where it is none of them."""
    order = np.argsort(parameter.classes)
    place = np.searchsorted(parameter.classes, labels, sorter=order).clip(max=len(order) - 1)
    return np.where(parameter.classes[order[place]] == labels, order[place], -1)


def genuine(parameter: Linear, names: list[str] | None, l2: float, l1: float) -> Any:
    """scikit-learn's estimator of this model; its C is told where there is no l1 penalty."""
    values = parameter.classes.astype(np.int64) if (parameter.classes % 1 == 0).all() else parameter.classes
    classes = np.array([names[int(c)] for c in parameter.classes]) if names else values
    if len(classes) < 2:
        raise UsageError("LR: scikit-learn knows no model of a single class.")
    points = float(parameter.internal_search[1])
    return fitted_classifier(parameter.weights, np.asarray(parameter.bias), classes, 0.0 if l1 else l2, points)
