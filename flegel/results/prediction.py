"""What a trained model says about rows: classes or clusters, probabilities, distances, scores. Trains nothing.

`Result` and the saved `Model` answer through these functions, so both check and name things alike. A table is checked
and treated as in training first; the algorithm sees rows only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.datasets import Dataset, Scaling, Treatment, open_for_prediction, open_table
from flegel.datasets.rows import scale
from flegel.datasets.tables.columns import text_of
from flegel.datasets.tables.object_table import ObjectTable
from flegel.declarations.figures import ModelHooks
from flegel.declarations.optional import hook
from flegel.errors import UsageError, nearest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

FILE_CHUNK_ROWS = 1 << 18  # that are read and answered at a time

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
    told = hook(model.algorithm, ModelHooks.model)(pytree.present(model.parameter))
    shown = whole if told is None else dict(told)
    if "classes" in shown:
        shown["classes"] = with_names(model, shown["classes"])
    return shown, {name: value for name, value in whole.items() if name not in shown}


def answer(model: FittedModel, treatment: Treatment, said: Answer, table: Any) -> Array:
    """A hook's answer for the rows of a table."""
    return np.asarray(said(_rows(model, treatment, table), pytree.present(model.parameter)))


def _rows(model: FittedModel, treatment: Treatment, table: Any) -> Array | Sparse:
    """Rows as the model knows them: of a frame, an array, a path or the name of a data set."""
    rows = treatment.apply(open_for_prediction(os.fspath(table), treatment) if _is_place(table) else table)
    if isinstance(rows, Sparse) and not model.algorithm.accepts.sparse:
        name = type(model.algorithm).__name__
        raise UsageError(f"{name} takes dense rows, but these are sparse; give a dense array, such as X.toarray().")
    return rows


def _is_place(table: Any) -> TypeIs[str | os.PathLike[str]]:
    return isinstance(table, str | os.PathLike)


def score(model: FittedModel, treatment: Treatment, table: Any, labels: Any) -> float:
    """How good the model is on these rows; `labels` are an array, a list, a Series, or the name of a column of
    `table`."""
    algorithm, name = model.algorithm, type(model.algorithm).__name__
    if labels is None and isinstance(table, tuple) and not isinstance(table, Sparse):
        if len(table) != 2:
            raise UsageError(f"score takes rows and labels, not {len(table)} things; give score(X, y).")
        table, labels = table
    if labels is None and algorithm.accepts.supervised:
        raise UsageError(f"{name} needs labels to score: give score(X, y), or the name of a column of X as y.")
    if isinstance(labels, str):
        labels = _column(table, labels)
    rows = _rows(model, treatment, table)
    known = None if labels is None else _as_numbers(model, labels)
    count = len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)
    if known is not None and len(known) != count:
        raise UsageError(f"These are {count} rows and {len(known)} labels; give one label per row.")
    return float(hook(algorithm, ModelHooks.score)(rows, known, pytree.present(model.parameter)))


def _column(table: Any, name: str) -> Array:
    """A column of a frame or of a file, by name, as it is written there."""
    given = open_table(os.fspath(table)) if _is_place(table) else ObjectTable(table)
    if not given.named or name not in given.names:
        raise UsageError(f"{given.origin} has no column {name!r}{nearest(name, given.names if given.named else [])}")
    parts = [column for (column,) in given.chunks([given.names.index(name)])]
    return np.concatenate(
        [np.array([*part.texts, None], object)[part.values] if part.textual else part.values for part in parts]
    )


def _as_numbers(model: FittedModel, labels: Any) -> Array:
    """Labels as the algorithm knows them: words as numbers of classes, -1 where the model does not know the word."""
    array = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels).reshape(-1)
    if model.classes is not None:
        place = {name: float(at) for at, name in enumerate(model.classes)}
        return np.array([place.get(text_of(one), -1.0) for one in array.tolist()])
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{type(model.algorithm).__name__} was trained on labels that are numbers; give such."
        ) from None


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
    if names is None or not model.algorithm.accepts.supervised or found.ndim != 1 or found.dtype.kind not in "fiu":
        return found
    numbers = found.astype(np.int64)
    if not len(found) or not np.array_equal(numbers, found) or numbers.min() < 0 or numbers.max() >= len(names):
        return found
    return np.asarray(names)[numbers]


class TrainingRows:
    """The rows of a finished job, in the order of the data; read again when somebody asks about them."""

    def __init__(self, data: Dataset, scaling: Scaling | None) -> None:
        self._data, self._scaling = data, scaling

    @property
    def report(self) -> list[str]:
        """What became of the columns of a table, as lines for people; empty for plain numbers."""
        return list(self._data.source.report)

    def answer(self, model: FittedModel, hook: Answer) -> Array:
        parameter = pytree.present(model.parameter)
        return np.concatenate([np.asarray(hook(rows, parameter)) for rows in self._chunks()])

    def _chunks(self) -> Iterator[Array | Sparse]:
        """The training rows in chunks, scaled as in training."""
        step = self._data.rows if self._data.in_memory else FILE_CHUNK_ROWS
        for start in range(0, self._data.rows, step):
            rows = self._data.source.take(np.array([[start, min(start + step, self._data.rows)]])).features
            if self._scaling is not None:
                own = rows.copy() if isinstance(rows, np.ndarray) else rows
                rows = scale.apply(own, self._scaling)
            yield rows
