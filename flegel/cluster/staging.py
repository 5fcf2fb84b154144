"""Rows of this process in files that slaves can read, in parts. Never writes what a path or a name says already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets import Dataset
from flegel.datasets.rows.source import Rows
from flegel.errors import StorageError, UsageError

TABLE_READING_OPTIONS = ("format", "label", "weight", "columns", "drop", "categorical", "categories", "missing")
"""Options that say how a table becomes rows; written rows need none of them."""
MAX_ARRAY_BYTES_IN_MESSAGE = 64 << 10
"""A larger array of a hyper-parameter goes to a file: a master stores the description of each job in its journal."""
ROWS_FILE_BYTES = 64 << 20
"""Of one file of rows, about; a slave reads only the parts of a file that its workers need."""


def stage_rows(data: Dataset, folder: Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Write all rows as plain numbers: features, then label, then weight. The path, and the options that read it."""
    if data.sparse:
        raise UsageError("Sparse rows cannot be handed to a cluster yet; write them to a file that its hosts can read.")
    rest: dict[str, Any] = {name: value for name, value in options.items() if name not in TABLE_READING_OPTIONS}
    if data.labelled:
        rest["label"] = data.columns + int(data.weighted)
    if data.weighted:
        rest["weight"] = data.columns
    step = max(ROWS_FILE_BYTES // ((data.columns + 2) * data.dtype.itemsize), 1)
    try:
        for number, start in enumerate(range(0, data.rows, step)):
            rows = data.source.take(np.array([[start, min(start + step, data.rows)]]))
            np.save(folder / f"part-{number:05d}.npy", _matrix(rows), allow_pickle=False)
    except OSError as error:
        raise StorageError(f"The rows could not be written to {folder}: {error.strerror or error}.") from None
    return str(folder), rest


def large_arrays(algorithm: Algorithm) -> dict[str, Array]:
    """Hyper-parameters that are better read from a file than put into the message that submits a job."""
    known = algorithm.hyper_parameters()
    arrays = {k: v for k, v in algorithm.hyper().items() if isinstance(v, np.ndarray) and known[k].file is not None}
    return {k: v for k, v in arrays.items() if v.nbytes > MAX_ARRAY_BYTES_IN_MESSAGE}


def stage_arrays(arrays: Mapping[str, Array], folder: Path) -> dict[str, str]:
    """Write each array into a file of its own; returns their paths."""
    try:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    except OSError as error:
        raise StorageError(f"An array could not be written to {folder}: {error.strerror or error}.") from None
    return {name: str(folder / f"{name}.npy") for name in arrays}


def _matrix(rows: Rows) -> Array:
    assert not isinstance(rows.features, Sparse)
    wide = [rows.features]
    for extra in (rows.weights, rows.labels):
        if extra is not None:
            wide.append(np.asarray(extra, rows.features.dtype)[:, None])
    return np.concatenate(wide, axis=1) if len(wide) > 1 else rows.features
