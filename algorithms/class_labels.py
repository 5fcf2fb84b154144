"""Labels that name classes: their values, and their places among the classes. Knows no algorithm."""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Sample
from flegel.core.pytree import Array
from flegel.errors import UsageError

MOST_LOSS = float(-np.log(np.finfo(np.float64).eps))
"""Log-loss of a row whose class the model does not know, to which it gives the probability 0; scikit-learn, too, counts
such a probability as the rounding error of a float64."""


def whole_numbers(classes: Array) -> Array:
    """Label values as integers where all of them are."""
    values = np.asarray(classes)
    whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else values


def class_numbers(labels: Array, classes: Array) -> Array:
    """The place of each label among the classes; -1 where it is none of them."""
    order = np.argsort(classes)
    place = np.searchsorted(classes, labels, sorter=order).clip(max=len(order) - 1)
    return np.where(classes[order[place]] == labels, order[place], -1)


def label_values(sample: Sample, name: str) -> Array:
    """The different labels of all rows, in order; of the sample where no more is known. `name`: of the algorithm."""
    if sample.labels is None:
        raise UsageError(f"{name} learns from labels, and these data have none; name the label column.")
    labels = np.asarray(sample.labels)
    if labels.dtype.kind not in "fiub":
        raise UsageError(f"{name}: labels must be numbers; let the reader turn text into class numbers.")
    if not np.isfinite(labels.astype(np.float64)).all():
        raise UsageError(f"{name}: a label is missing or infinite; leave such rows out.")
    return np.unique(labels.astype(np.float64)) if sample.classes is None else sample.classes


def refuse_words(sample: Sample, name: str) -> None:
    """Raise where labels are words, for an algorithm that predicts numbers: their codes mean nothing."""
    words = sample.class_names
    if words is not None:
        shown = ", ".join(repr(word) for word in words[:3]) + (", …" if len(words) > 3 else "")
        raise UsageError(f"{name} predicts numbers, and these labels are words ({shown}); name a column of numbers.")
