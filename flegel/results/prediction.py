"""What a trained model says about rows: classes or clusters, probabilities, distances, scores. Trains nothing.

`Result` and the saved `Model` answer through these functions, so both check and name things alike. A table is checked
and treated as in training first; the algorithm sees rows only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flegel.algorithm import Algorithm, Evaluation, predicts
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.datasets import Dataset, Scaling, Treatment, known_labels, open_for_prediction, open_table
from flegel.datasets.rows import scale
from flegel.datasets.rows.options import MISSING, check_choice
from flegel.datasets.tables.cells import is_missing
from flegel.datasets.tables.columns import RawTable, text_of
from flegel.datasets.tables.object_table import ObjectTable
from flegel.declarations.figures import ModelHooks
from flegel.declarations.optional import hook
from flegel.errors import DataError, UsageError, nearest, warn
from flegel.wording import counted, listener, option

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


def answer(model: FittedModel, treatment: Treatment, said: Answer, table: Any, missing: str | None = None) -> Array:
    """A hook's answer for the rows of a table; `missing` says what its gaps become, in place of the training."""
    return np.asarray(said(_inputs(model, treatment, table, missing), pytree.present(model.parameter)))


def _inputs(model: FittedModel, treatment: Treatment, table: Any, missing: str | None) -> Array | Sparse:
    """Rows without what the model predicts, of a table with or without it."""
    targets = model.algorithm.accepts.targets
    if not targets:
        return _rows(model, treatment, table, missing)[0]
    fewer = treatment.without_last(targets)
    given = open_for_prediction(os.fspath(table), fewer, missing=missing) if _is_place(table) else table
    opened = given if isinstance(given, RawTable) else ObjectTable(given)
    width = opened.width if isinstance(opened, ObjectTable) else len(opened.names)
    if opened.named or width != _width_with_targets(treatment):
        return _rows(model, fewer, given, missing)[0]
    return without_last_columns(_rows(model, treatment, given, missing)[0], targets)


def _width_with_targets(treatment: Treatment) -> int:
    """Columns of a table without names that has all that the training had."""
    return treatment.width if treatment.plain else len(treatment.columns)


def without_last_columns(rows: Array | Sparse, count: int) -> Array | Sparse:
    """The other columns; `rows` themselves where none is left out."""
    if not count:
        return rows
    if not isinstance(rows, Sparse):
        return rows[:, :-count]
    columns = rows.columns - count
    kept = rows.indices < columns
    before = np.append(0, np.cumsum(kept))
    return Sparse(before[rows.indptr], rows.indices[kept], rows.values[kept], columns)


def _rows(
    model: FittedModel, treatment: Treatment, table: Any, missing: str | None, label: str | None = None
) -> tuple[Array | Sparse, Array | None]:
    """Rows as the model knows them: of a frame, an array, a path or the name of a data set; without the label. And
    which rows of the table they are, where some were left out."""
    if missing is not None:
        check_choice(missing, MISSING, "missing")
    if missing == "keep" and not model.algorithm.accepts.gaps:
        raise UsageError(
            f"{type(model.algorithm).__name__} does not know gaps; use {option('missing', 'mean')} or "
            f"{option('missing', 'drop')}."
        )
    given = open_for_prediction(os.fspath(table), treatment, label, missing) if _is_place(table) else table
    rows, taken = treatment.apply_to_complete(given, missing)
    if isinstance(rows, Sparse) and not model.algorithm.accepts.sparse:
        name = type(model.algorithm).__name__
        raise UsageError(f"{name} takes dense rows, but these are sparse; give a dense array, such as X.toarray().")
    return rows, taken


def _is_place(table: Any) -> TypeIs[str | os.PathLike[str]]:
    return isinstance(table, str | os.PathLike)


def score(model: FittedModel, treatment: Treatment, table: Any, labels: Any, missing: str | None = None) -> float:
    """How good the model is on these rows; `labels` are an array, a list, a Series, or the name of a column of
    `table`."""
    rows, known = _rows_and_labels(model, treatment, table, labels, "score", missing)
    return float(hook(model.algorithm, ModelHooks.score)(rows, known, pytree.present(model.parameter)))


def evaluate(
    model: FittedModel, treatment: Treatment, table: Any, labels: Any, missing: str | None = None
) -> Evaluation:
    """The objective and other figures of the model on these rows; labels as for `score`."""
    rows, known = _rows_and_labels(model, treatment, table, labels, "evaluate", missing)
    found = model.algorithm.evaluate(rows, known, pytree.present(model.parameter))
    if found is None:
        instead = "use predict" if predicts(model.algorithm) else "it needs that hook"
        raise UsageError(f"{type(model.algorithm).__name__} defines no evaluate; {instead}.")
    return found


def _rows_and_labels(
    model: FittedModel, treatment: Treatment, table: Any, labels: Any, verb: str, missing: str | None
) -> tuple[Array | Sparse, Array | None]:
    """Rows and labels as the algorithm knows them; `verb` is what the user called. Rows with gaps are left out where
    the training left them out, and nothing else is asked for."""
    missing = "drop" if missing is None and treatment.missing == "drop" else missing
    algorithm, name = model.algorithm, type(model.algorithm).__name__
    if labels is None and isinstance(table, tuple) and not isinstance(table, Sparse):
        if len(table) != 2:
            raise UsageError(f"{verb} takes rows and labels, not {len(table)} things; give {verb}(X, y).")
        table, labels = table
    if labels is None and algorithm.accepts.supervised and _is_place(table):
        labels = known_labels(os.fspath(table))
    if labels is None and algorithm.accepts.supervised:
        raise UsageError(f"{name} needs labels to {verb}: {_ways_to_give_labels(verb)}.")
    column = labels if isinstance(labels, str) else None
    if column is not None:
        labels = _column(table, column)
    rows, taken = _rows(model, treatment, table, missing, column)
    if labels is None:
        return rows, None
    given = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels).reshape(-1)
    count = len(taken) if taken is not None else _count(rows)
    if len(given) != count:
        raise UsageError(f"These are {count} rows and {len(given)} labels; give one label per row.")
    given = given if taken is None else given[taken]
    if missing not in (None, "error"):
        rows, given = _with_labels(rows, given)
    known = _as_numbers(model, given)
    if model.classes is not None:
        _tell_unknown(given, known, model.classes)
    return rows, known


def _count(rows: Array | Sparse) -> int:
    return len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)


def _with_labels(rows: Array | Sparse, labels: Array) -> tuple[Array | Sparse, Array]:
    """Rows that have a label, as in training; says how many have none."""
    import pandas

    there = ~np.asarray(pandas.isna(labels), bool)
    if labels.dtype.kind not in "fiub":
        there &= np.array([not (isinstance(one, str) and is_missing(one.strip())) for one in labels.tolist()])
    left = int((~there).sum())
    if not left:
        return rows, labels
    if left == len(labels):
        raise DataError("No row has a label; give another column.")
    warn(f"{left:,} of {counted(len(labels), 'row')} without a label {'is' if left == 1 else 'are'} left out.")
    if not isinstance(rows, Sparse):
        return rows[there], labels[there]
    sizes = np.diff(rows.indptr)
    entries = np.repeat(there, sizes)
    indptr = np.append(0, np.cumsum(sizes[there]))
    return Sparse(indptr, rows.indices[entries], rows.values[entries], rows.columns), labels[there]


def _tell_unknown(labels: Array, known: Array, classes: list[str]) -> None:
    """Labels that the model does not know count as wrong answers: all of them are an error, some of them a remark."""
    unknown = np.flatnonzero(known < 0)
    if not len(unknown):
        return
    such, knows = text_of(labels[unknown[0]]), ", ".join(map(repr, classes[:4]))
    if len(unknown) == len(known):
        raise UsageError(
            f"No label is a class that the model knows (first: {such!r}; it knows {knows}); give another column."
        )
    warn(
        f"{len(unknown):,} of {len(known):,} rows have a label that the model does not know (first: {such!r}); they "
        "count as wrong answers."
    )


def _ways_to_give_labels(verb: str) -> str:
    if listener() == "python":
        return f"give {verb}(X, y), or the name of a column of X as y"
    return "give --label COLUMN"


def _column(table: Any, name: str) -> Array:
    """A column of a frame or of a file, by name, as it is written there; by number where it has no names."""
    if _is_place(table):
        found = known_labels(os.fspath(table), name)
        if found is not None:
            return found
    given = open_table(os.fspath(table)) if _is_place(table) else ObjectTable(table)
    place = _place(name, given.names, given.named)
    if place is None:
        known = nearest(name, given.names) if given.named else f"; its columns are 0 to {len(given.names) - 1}."
        raise UsageError(f"{given.origin} has no column {name!r}{known}")
    return given.whole(place)


def _place(name: str, names: Sequence[str], named: bool) -> int | None:
    """The place of a column by its name; in a table without names by its number, from 0, or negative from the end."""
    if named:
        return names.index(name) if name in names else None
    number = int(name) if name.lstrip("-").isdecimal() else len(names)
    return number % len(names) if -len(names) <= number < len(names) else None


def _as_numbers(model: FittedModel, labels: Any) -> Array:
    """Labels as the algorithm knows them: words as numbers of classes, -1 where the model does not know the word."""
    array = np.asarray(labels)
    if model.classes is not None:
        place = {name: float(at) for at, name in enumerate(model.classes)}
        return np.array([place.get(text_of(one), -1.0) for one in array.tolist()])
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{type(model.algorithm).__name__} was trained on labels that are numbers; give such."
        ) from None


def predict(model: FittedModel, treatment: Treatment, table: Any, missing: str | None = None) -> Array:
    """Classes by their names, where the labels of training were words; clusters by their numbers."""
    found = answer(model, treatment, model.algorithm.predict, table, missing)
    targets, scaling = model.algorithm.accepts.targets, treatment.scaling
    if targets and scaling is not None:  # what is predicted was scaled as columns were
        own = found.reshape(len(found), -1) / scaling.factor[-targets:] + scaling.shift[-targets:]
        return np.asarray(own.reshape(found.shape))
    return with_names(model, found)


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
        parameter, targets = pytree.present(model.parameter), model.algorithm.accepts.targets
        chunks = (without_last_columns(rows, targets) for rows in self._chunks())
        return np.concatenate([np.asarray(hook(rows, parameter)) for rows in chunks])

    def _chunks(self) -> Iterator[Array | Sparse]:
        """The training rows in chunks, scaled as in training."""
        step = self._data.rows if self._data.in_memory else FILE_CHUNK_ROWS
        for start in range(0, self._data.rows, step):
            rows = self._data.source.take(np.array([[start, min(start + step, self._data.rows)]])).features
            if self._scaling is not None:
                own = rows.copy() if isinstance(rows, np.ndarray) else rows
                rows = scale.apply(own, self._scaling)
            yield rows
