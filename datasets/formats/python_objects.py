"""Rows of Python objects: arrays, frames, tables, tensors, sparse matrices.

Uses the memory of the object where possible. Never imports a library only to test for its types.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.formats.arrays import ArraySource, wanted_dtype
from flegel.datasets.formats.sparse_arrays import SparseSource
from flegel.datasets.formats.text_dialect import find_column
from flegel.datasets.options import Options
from flegel.datasets.source import Source, column_name
from flegel.datasets.weights import WeightedSource
from flegel.errors import DataError, UsageError


def source_from_object(value: Any, options: Options) -> Source:
    """A source for an array, (X, y), (X, y or None, weights), a frame, a table, a tensor or a sparse matrix."""
    given = None
    if isinstance(value, tuple) and not isinstance(value, Sparse):
        if len(value) == 3:
            plain = source_from_object(value[:2], options)
            return plain if value[2] is None else WeightedSource(plain, to_array(value[2]))
        if len(value) != 2:
            raise UsageError(f"A tuple of {len(value)} is no pair; give (features, labels).")
        value, given = value
    labels, classes = encode_labels(given)
    if isinstance(value, Sparse):
        return SparseSource(value, labels, origin="the given sparse rows", dtype=options.dtype, classes=classes)
    if hasattr(value, "tocsr"):
        matrix = value.tocsr()
        matrix.sum_duplicates()
        rows = Sparse(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])
        return SparseSource(rows, labels, origin="the given sparse matrix", dtype=options.dtype, classes=classes)
    names, columns = named_columns(value)
    if names is not None:
        return from_columns(names, columns, labels, classes, options, f"the given {type(value).__name__}")
    array = to_array(value)
    origin = f"the given {type(value).__name__}"
    at = None
    if options.label is not None:
        if labels is not None:
            raise UsageError("Labels are given twice; give them either as the second of the pair or as label=.")
        at = find_column(options.label, None, array.shape[1] if array.ndim > 1 else 1, origin, "label column")
    return ArraySource(array, labels, origin=origin, dtype=options.dtype, label_column=at, classes=classes)


def named_columns(value: Any) -> tuple[list[str] | None, dict[str, Any]]:
    """Column names and columns of a pandas or polars frame or a PyArrow table; None for anything else."""
    kind = type(value).__module__.partition(".")[0]
    if kind == "pyarrow" and hasattr(value, "column_names"):
        return list(value.column_names), {n: value.column(n) for n in value.column_names}
    if kind in ("pandas", "polars") and hasattr(value, "columns"):
        if hasattr(value, "collect") and not hasattr(value, "to_numpy"):
            value = value.collect()
        names = [str(name) for name in value.columns]
        if len(set(names)) != len(names):
            raise DataError("The given frame has two columns of the same name; rename one.")
        return names, {str(name): value[name] for name in value.columns}
    return None, {}


def from_columns(
    names: list[str],
    columns: dict[str, Any],
    labels: Array | None,
    classes: list[str] | None,
    options: Options,
    origin: str,
) -> Source:
    if not names:
        raise DataError(f"{origin} has no columns; give at least one.")
    if options.label is not None:
        if labels is not None:
            raise UsageError("Labels are given twice; give them either as the second of the pair or as label=.")
        at = names[find_column(options.label, names, len(names), origin, "label column")]
        labels, classes = encode_labels(columns[at])
        names = [name for name in names if name != at]
    if options.columns is not None:
        names = [names[find_column(c, names, len(names), origin, "column")] for c in options.columns]
    parts = []
    for k, name in enumerate(names):
        part = to_array(columns[name])
        if part.dtype.kind not in "fiub":
            raise DataError(
                f"{origin}: {column_name(names, k)} holds {part.dtype}, not numbers; "
                "drop it, or choose others with columns=[…]."
            )
        parts.append(part)
    if not parts:
        raise DataError(f"{origin} has no column of features; choose at least one with columns=[…].")
    matrix = np.empty((len(parts[0]), len(parts)), wanted_dtype(np.result_type(*parts), options.dtype))
    for k, part in enumerate(parts):
        matrix[:, k] = part
    return ArraySource(matrix, labels, origin=origin, names=names, classes=classes)


def to_array(value: Any) -> Array:
    """The object's numbers; through DLPack or `__array__`, without a copy where possible."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "to_numpy") and not isinstance(value, np.ndarray):
        return np.asarray(value.to_numpy())
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"The given {type(value).__name__} is no table of numbers ({error}); pass rows of equal length."
        ) from None
    if array.dtype == object or array.ndim == 0:
        raise UsageError(
            f"A value of type {type(value).__name__} cannot be read as rows; pass an array, a frame or a path."
        )
    return array


def encode_labels(given: Any) -> tuple[Array | None, list[str] | None]:
    """Labels as numbers; text becomes the index in the sorted list of classes."""
    if given is None:
        return None, None
    array = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else given)
    if array.dtype.kind in "fiub":
        return array.astype(np.float64), None
    texts = [str(text) for text in array.tolist()]
    classes = sorted(set(texts))
    position = {name: k for k, name in enumerate(classes)}
    return np.array([position[text] for text in texts], np.float64), classes
