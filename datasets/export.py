"""Write a set to a file: CSV, `.npy` or Parquet for tables, a CSV of ratings for sparse rows.

The file is renamed to its name only when it is complete. Never holds the whole set in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.dataset import Dataset
from flegel.datasets.rows.source import Rows
from flegel.errors import StorageError, UsageError


def write(data: Dataset, path: Path) -> Path:
    """All rows in order; the label, where there is one, is the last column."""
    writers: dict[str, Callable[[Dataset, Path], None]] = {".csv": _csv, ".npy": _npy, ".parquet": _parquet}
    if path.suffix not in writers:
        raise UsageError(f"{path} has no known format; use a name that ends with .csv, .npy or .parquet.")
    if data.sparse and path.suffix != ".csv":
        raise UsageError(f"{data.name} has sparse rows; write them as .csv (user, item, rating).")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix](data, part)
        part.rename(path)
    except OSError as error:
        raise StorageError(f"{path} could not be written ({error.strerror or error}); choose another --out.") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def column_names(data: Dataset) -> list[str]:
    names = list(data.names or [f"x{k}" for k in range(data.columns)])
    return [*names, "label"] if data.labelled else names


def _windows(data: Dataset) -> Iterator[Rows]:
    for window in data.source.windows(np.array([[0, data.rows]])):
        yield data.source.take(window)


def _table(rows: Rows) -> Array:
    assert not isinstance(rows.features, Sparse)
    if rows.labels is None:
        return rows.features
    return np.concatenate([rows.features, rows.labels[:, None].astype(rows.features.dtype)], axis=1)


def _csv(data: Dataset, path: Path) -> None:
    """Ratings become lines of user, item and rating, counted from 1 as in MovieLens; other rows become columns, labels
    last."""
    import pandas

    with path.open("w") as file:
        if data.sparse:
            file.write("userId,movieId,rating\n")
        else:
            file.write(",".join(column_names(data)) + "\n")
        for rows in _windows(data):
            if isinstance(rows.features, Sparse):
                user = np.repeat(rows.ids, np.diff(rows.features.indptr)) + 1
                table = {"u": user, "i": rows.features.indices + 1, "r": rows.features.values}
                pandas.DataFrame(table).to_csv(file, header=False, index=False)
            else:
                pandas.DataFrame(_table(rows)).to_csv(file, header=False, index=False)


def _npy(data: Dataset, path: Path) -> None:
    width = data.columns + int(data.labelled)
    with path.open("wb") as file:
        header = {"descr": data.dtype.str, "fortran_order": False, "shape": (data.rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        for rows in _windows(data):
            file.write(np.ascontiguousarray(_table(rows)).data)


def _parquet(data: Dataset, path: Path) -> None:
    from flegel.datasets.formats.arrow_tables import import_pyarrow

    pa = import_pyarrow()
    from pyarrow import parquet

    kind = pa.from_numpy_dtype(data.dtype)
    names = column_names(data)
    with parquet.ParquetWriter(path, pa.schema([(name, kind) for name in names])) as file:
        for rows in _windows(data):
            table = _table(rows)
            columns = [pa.array(np.ascontiguousarray(table[:, k])) for k in range(len(names))]
            file.write_table(pa.table(columns, names=names))
