"""Rows of Python objects: arrays, frames, tables, tensors, sparse matrices.

Uses the memory of the object where possible. What is not plain numbers goes by way of `flegel.datasets.tables`. Never
imports a library only to test for its types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.arrays import ArraySource, own_file, wanted_dtype
from flegel.datasets.rows.memory import exceeds_memory
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.datasets.rows.weights import WeightedSource
from flegel.datasets.tables.columns import column_of
from flegel.datasets.tables.object_table import ObjectTable, to_array
from flegel.datasets.tables.open_table import open_ratings, open_treated
from flegel.datasets.tables.ratings import recognized
from flegel.errors import DataError, UsageError
from flegel.wording import number

GIVEN_LABEL = "(label)"
TABLE, RATINGS = "table", "ratings"
CHECKED_BYTES = 64 << 20
"""Arrays up to this size are searched for gaps when they are opened, larger ones when they are read."""


def source_from_object(value: Any, options: Options) -> Source:
    """A source for an array, (X, y), (X, y or None, weights), a frame, a table, a dict of columns, a tensor or a sparse
    matrix."""
    given = None
    if isinstance(value, tuple) and not isinstance(value, Sparse):
        if len(value) == 3:
            whole = source_from_object(value[:2], options)
            return whole if value[2] is None else WeightedSource(whole, to_array(value[2]))
        if len(value) != 2:
            raise UsageError(f"A tuple of {len(value)} is no pair; give (features, labels).")
        value, given = value
        if given is not None and options.label is not None:
            raise UsageError("Labels are given twice; give them either as the second of the pair or as label=.")
    table = ObjectTable(value)
    if options.format not in (None, TABLE, RATINGS):
        raise UsageError(f"format={options.format!r} is for files; rows from Python are a {TABLE!r} or {RATINGS!r}.")
    if table.sparse is not None:
        if options.format == RATINGS:
            raise UsageError("Sparse rows are a matrix already, so format='ratings' has no effect; omit it.")
        return _sparse_source(table, given, options)
    if options.format == RATINGS or (options.format is None and given is None and recognized(table, options.ratings)):
        return open_ratings(table, options)
    label: Any = given
    plain = not options.treats
    if options.label is not None and plain:
        at, features = table.chosen(options)
        label = None if at is None else table.values(at)
    else:
        features = table.chosen(options._replace(label=None))[1]
    plain = plain and not has_gaps(label) and _all_plain(table, features)
    if not plain:
        if given is not None:
            features = [k for k in range(table.width) if k in features] if options.columns is None else features
            place = table.add_column(GIVEN_LABEL, given)
            options = options._replace(label=place, columns=list(features), drop=None)
        return open_treated(table, options)
    labels, classes = encode_labels(label)
    names = [table.names[k] for k in features] if table.named else None
    if table.matrix is not None and features == list(range(table.width)):
        file = own_file(value) if labels is None and exceeds_memory(table.matrix.nbytes) else None
        paths = None if file is None else (file, None)  # workers read it themselves: no copy of all fits into memory
        return ArraySource(table.matrix, labels, origin=table.origin, dtype=options.dtype, classes=classes, paths=paths)
    if table.matrix is not None and options.columns is None and options.drop is None and label is not None:
        at = table.chosen(options)[0]
        return ArraySource(table.matrix, None, origin=table.origin, dtype=options.dtype, label_column=at)
    parts = [np.asarray(table.values(k)) for k in features]
    matrix = np.empty((table.length, len(parts)), wanted_dtype(np.result_type(*parts), options.dtype))
    for k, part in enumerate(parts):
        matrix[:, k] = part
    return ArraySource(matrix, labels, origin=table.origin, names=names, classes=classes)


def _sparse_source(table: ObjectTable, given: Any, options: Options) -> Source:
    assert table.sparse is not None
    for name in ("label", "columns", "drop"):
        if getattr(options, name) is not None:
            raise UsageError(f"Sparse rows have no columns by name, so {name}= has no effect; give (rows, labels).")
    if has_gaps(given):
        raise _label_gaps(given)
    labels, classes = encode_labels(given)
    return SparseSource(table.sparse, labels, origin=table.origin, dtype=options.dtype, classes=classes)


def _all_plain(table: ObjectTable, features: Sequence[int]) -> bool:
    """Whether the features are numbers without gaps; an array is looked at as a whole."""
    if table.matrix is None:
        return all(_is_plain(table.values(k)) for k in features)
    if table.matrix.dtype.kind != "f" or table.matrix.nbytes > CHECKED_BYTES:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return not (np.isnan(table.matrix.sum()) and np.isnan(table.matrix[:, features]).any())


def _is_plain(column: Any) -> bool:
    """Whether a column is numbers of a NumPy type without gaps; booleans are no numbers, because they are not
    scaled."""
    kind = getattr(column, "dtype", None)
    if not isinstance(kind, np.dtype) or kind.kind not in "fiu" or isinstance(column, np.ma.MaskedArray):
        return False
    values = np.asarray(column)
    return kind.kind != "f" or values.nbytes > CHECKED_BYTES or not np.isnan(values).any()


def has_gaps(labels: Any) -> bool:
    """Whether a label is None, NaN or masked."""
    if labels is None:
        return False
    import pandas

    if isinstance(labels, np.ma.MaskedArray):
        return bool(np.ma.is_masked(labels))
    if hasattr(labels, "null_count") and not callable(labels.null_count):
        return bool(labels.null_count)
    array = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels)
    return array.dtype.kind in "fOM" and bool(np.asarray(pandas.isna(array.ravel())).any())


def _label_gaps(labels: Any) -> DataError:
    import pandas

    missing = np.flatnonzero(pandas.isna(np.asarray(labels).ravel()))
    return DataError(
        f"{len(missing):,} of {len(labels):,} labels are missing (first: row {number(int(missing[0]))}); "
        "leave those rows out."
    )


def encode_labels(given: Any) -> tuple[Array | None, list[str] | None]:
    """Labels as numbers; text becomes the index in the sorted list of classes."""
    if given is None:
        return None, None
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    array = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else given)
    if array.ndim != 1:
        if array.ndim != 2 or array.shape[1] != 1:
            raise DataError(
                f"The labels have the shape {array.shape}; give one label per row, as one column. A class of your "
                "own that learns several takes them as columns of the rows."
            )
        array = array[:, 0]
    if array.dtype.kind == "O" and array.ndim == 1:
        raw = column_of(array, GIVEN_LABEL, "the given labels")
        array = array if raw.textual or raw.kind == "date" else raw.values
    if array.dtype.kind in "fiub":
        return array.astype(np.float64), None
    texts = [str(text) for text in array.ravel().tolist()]
    classes = sorted(set(texts))
    position = {name: k for k, name in enumerate(classes)}
    return np.array([position[text] for text in texts], np.float64), classes
