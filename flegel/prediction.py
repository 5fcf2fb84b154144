"""What a trained model says about rows: classes or clusters, probabilities, distances, scores. Trains nothing.

`Result` and the saved `Model` answer through these functions, so both check and name things alike. A table is checked
and treated as in training first; the algorithm sees rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.datasets import Dataset, Scaling, Treatment, scale
from flegel.errors import UsageError

CHUNK = 1 << 18  # rows of a file that are read and answered at a time

Answer = Callable[[Any, Tree], Array]
"""Hooks of an algorithm that look at rows: `predict`, `probabilities`, `distances`, `scores`."""


class FittedModel(Protocol):
    """What an answer needs of a model."""

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def parameter(self) -> Tree: ...

    @property
    def classes(self) -> list[str] | None: ...


def model_of(model: FittedModel) -> tuple[dict[str, Array], dict[str, Array]]:
    """θ by name: what a user calls the model, and what the algorithm keeps for itself. Classes have their names."""
    whole = dict(zip(pytree.names(model.parameter), pytree.flatten(model.parameter), strict=True))
    told = model.algorithm.model(pytree.present(model.parameter))
    shown = whole if told is None else dict(told)
    if "classes" in shown:
        shown["classes"] = with_names(model, shown["classes"])
    return shown, {name: value for name, value in whole.items() if name not in shown}


def answer(model: FittedModel, treatment: Treatment, hook: Answer, table: Any) -> Array:
    """A hook's answer for the rows of a table."""
    rows = treatment.apply(table)
    if isinstance(rows, Sparse) and not model.algorithm.sparse:
        name = type(model.algorithm).__name__
        raise UsageError(f"{name} takes dense rows, but these are sparse; give a dense array, such as X.toarray().")
    return np.asarray(hook(rows, pytree.present(model.parameter)))


def predict(model: FittedModel, treatment: Treatment, table: Any) -> Array:
    """Classes by their names, where the labels of training were words; clusters by their numbers."""
    return with_names(model, answer(model, treatment, model.algorithm.predict, table))


def class_names(model: FittedModel) -> list[Any]:
    """What predictions consist of: names or values of classes; numbers of clusters otherwise."""
    shown = model_of(model)[0]
    if "classes" not in shown:
        clusters = model.algorithm.hyper().get("k")
        if not isinstance(clusters, int):
            raise UsageError(f"{type(model.algorithm).__name__} does not tell its classes.")
        return list(range(clusters))
    return [int(name) if isinstance(name, float) and name.is_integer() else name for name in shown["classes"].tolist()]


def with_names(model: FittedModel, found: Array) -> Array:
    """Predicted label values as the words that they stand for, where labels were words."""
    names = model.classes
    if names is None or not model.algorithm.supervised or found.ndim != 1 or found.dtype.kind not in "fiu":
        return found
    numbers = found.astype(np.int64)
    if not len(found) or not np.array_equal(numbers, found) or numbers.min() < 0 or numbers.max() >= len(names):
        return found
    return np.asarray(names)[numbers]


class TrainingRows:
    """The rows of a finished job, in the order of the data; read again when somebody asks about them."""

    def __init__(self, data: Dataset, scaling: Scaling | None) -> None:
        self._data, self._scaling = data, scaling

    def answer(self, model: FittedModel, hook: Answer) -> Array:
        parameter = pytree.present(model.parameter)
        return np.concatenate([np.asarray(hook(rows, parameter)) for rows in self._chunks()])

    def _chunks(self) -> Iterator[Array | Sparse]:
        step = self._data.rows if self._data.in_memory else CHUNK
        for start in range(0, self._data.rows, step):
            rows = self._data.source.take(np.array([[start, min(start + step, self._data.rows)]])).features
            if self._scaling is not None:
                own = rows.copy() if isinstance(rows, np.ndarray) else rows
                rows = scale.apply(own, self._scaling)
            yield rows
