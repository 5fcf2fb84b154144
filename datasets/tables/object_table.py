"""Tables that are Python objects: frames, Arrow tables, arrays of any type, dicts of columns, lists of rows.

Never imports a library only to test for its types, and copies a column only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.tables.columns import CHUNK_ROWS, RawColumn, RawTable, column_of, unique_names
from flegel.errors import DataError, UsageError
from flegel.wording import number


class ObjectTable(RawTable):
    """Columns in the memory of this process. `matrix` or `sparse` is given where all of it is numbers already."""

    def __init__(self, value: Any) -> None:
        """Accept a sparse matrix, a frame with named columns, or anything that converts to an array of rows ×
        columns."""
        self.origin = f"the given {type(value).__name__}"
        self.matrix: Array | None = None
        self.sparse: Sparse | None = None
        self._columns: list[Any] = []
        if isinstance(value, Sparse) or hasattr(value, "tocsr"):
            self.sparse = value if isinstance(value, Sparse) else sparse_rows(value)
            width, self.length = self.sparse.columns, len(self.sparse.indptr) - 1
            self.named, self.names = False, []
            self.width = width
            return
        named = frame_columns(value)
        if named is not None:
            names, self._columns = named
            self.names = unique_names(names)
            self.width = len(names)
            self.length = len(self._columns[0]) if names else 0
        else:
            if hasattr(value, "to_frame"):
                raise UsageError(
                    f"{self.origin} is one row or one column of {len(value)} values; give a frame: df.iloc[[0]] is one "
                    'row, df[["name"]] one column.'
                )
            self._open_array(to_array(value))
        if not self.length or not self.width:
            raise DataError(
                f"{self.origin} has {self.length} rows and {self.width} columns; give at least one of each."
            )

    def _open_array(self, array: Any) -> None:
        """Check that an array is two-dimensional and not empty. Numbers are used as they are; columns of other types
        are encoded one by one."""
        self.named = False
        if array.ndim == 0:
            raise UsageError(f"{self.origin} is a single value; give rows × columns.")
        if array.ndim == 1:
            raise UsageError(
                f"{self.origin} is one row or one column of {len(array)} values; give rows × columns: "
                "x.reshape(-1, 1) for one column, x.reshape(1, -1) for one row."
            )
        if array.ndim > 2:
            raise UsageError(
                f"{self.origin} has {array.ndim} dimensions, {' × '.join(map(str, array.shape))}; give rows × columns, "
                "such as x.reshape(len(x), -1), which makes one row of each."
            )
        if 0 in array.shape:
            raise DataError(
                f"{self.origin} has the shape {array.shape}, which holds no rows; give at least one row and one column."
            )
        self.length, self.width = array.shape
        self.names = [str(k) for k in range(self.width)]
        if isinstance(array, np.ma.MaskedArray) and not np.ma.is_masked(array):
            array = array.data
        if array.dtype.kind in "fiub" and not isinstance(array, np.ma.MaskedArray):
            self.matrix = array
        elif array.dtype.kind == "c":
            raise DataError(f"{self.origin} holds complex numbers; give real ones.")
        self._columns = [array[:, k] for k in range(self.width)]

    def add_column(self, name: str, values: Any) -> int:
        """A further column, such as labels that are given apart; its number."""
        if len(values) != self.length:
            raise DataError(f"{self.origin} has {self.length} rows but {len(values)} labels; give one label per row.")
        self.names = [*self.names, name]
        self._columns.append(values)
        return len(self.names) - 1

    def values(self, k: int) -> Any:
        """A column as it was given."""
        return self._columns[k]

    def column(self, k: int) -> RawColumn:
        return column_of(self._columns[k], self.names[k], self.origin)

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        columns = [self.column(k) for k in wanted]
        for start in range(0, self.length, CHUNK_ROWS):
            yield [column.rows(start, start + CHUNK_ROWS) for column in columns]

    def row_name(self, row: int) -> str:
        return f"row {number(row)}"

    def dtype(self, wanted: Sequence[int]) -> np.dtype[Any]:
        """float64 where a column has more than 24 bits."""
        kinds = [getattr(self._columns[k], "dtype", None) for k in wanted]
        plain = [kind for kind in kinds if isinstance(kind, np.dtype) and kind.kind in "fiub"]
        exact = all(np.result_type(kind, np.float32) == np.float32 for kind in plain)
        return np.dtype(np.float32 if exact and len(plain) == len(kinds) else np.float64)


def sparse_rows(matrix: Any) -> Sparse:
    """A scipy matrix as CSR; entries that are given twice are added."""
    rows = matrix.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return Sparse(rows.indptr, rows.indices, rows.data, rows.shape[1])


def frame_columns(value: Any) -> tuple[list[Any], list[Any]] | None:
    """Names and columns of a frame, an Arrow table, a dict of columns or a structured array; None for anything else.

    The index of a pandas frame is no column.
    """
    kind = type(value).__module__.partition(".")[0]
    if kind == "pyarrow" and hasattr(value, "column_names"):
        return list(value.column_names), [_arrow_numbers(value.column(k)) for k in range(value.num_columns)]
    if kind == "polars" and hasattr(type(value), "columns"):
        frame = value.collect() if hasattr(value, "collect") and not hasattr(value, "to_numpy") else value
        return list(frame.columns), [_arrow_numbers(frame[name]) for name in frame.columns]
    if kind == "pandas" and hasattr(value, "columns"):
        return list(value.columns), [_pandas_numbers(value.iloc[:, k]) for k in range(value.shape[1])]
    if isinstance(value, np.ndarray) and value.dtype.names:
        return list(value.dtype.names), [value[name] for name in value.dtype.names]
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        import pandas

        return frame_columns(pandas.DataFrame(value))
    if isinstance(value, Mapping):
        lengths = {len(column) for column in value.values()}
        if len(lengths) > 1:
            raise DataError(f"The columns of the given {type(value).__name__} have different lengths; give equal ones.")
        return list(value), [_one_dimensional(column) for column in value.values()]
    return None


def _arrow_numbers(column: Any) -> Any:
    """A column of numbers or booleans without gaps as an array; anything else as it is."""
    count = column.null_count() if callable(column.null_count) else column.null_count
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    numeric = kind.startswith(("int", "uint", "float", "double", "halffloat", "bool"))
    return column.to_numpy() if numeric and not count else column


def _pandas_numbers(column: Any) -> Any:
    """A nullable column of numbers without gaps as an array; anything else as it is."""
    if isinstance(column.dtype, np.dtype) or getattr(column.dtype, "kind", "O") not in "fiub" or column.hasnans:
        return column
    return column.to_numpy(np.dtype(getattr(column.dtype, "numpy_dtype", np.float64)))


def _one_dimensional(column: Any) -> Any:
    return column if hasattr(column, "dtype") or hasattr(column, "type") else np.array(list(column), object)


def to_array(value: Any) -> Any:
    """The object's values, through DLPack or `__array__`, without a copy where possible; masks are kept."""
    if isinstance(value, np.ma.MaskedArray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "to_numpy") and not isinstance(value, np.ndarray):
        return np.asarray(value.to_numpy())
    try:
        array = np.asarray(value)
        if array.dtype.kind in "US" and isinstance(value, list | tuple):
            array = np.asarray(value, object)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"The given {type(value).__name__} is no table of numbers ({error}); pass rows of equal length."
        ) from None
    if array.ndim == 0:
        raise UsageError(
            f"A value of type {type(value).__name__} cannot be read as rows; pass an array, a frame or a path."
        )
    return array
