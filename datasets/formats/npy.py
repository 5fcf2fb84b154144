"""`.npy` files: mapped rows, or a table of which columns are chosen or gaps are treated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.arrays import ArraySource, open_npy
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.tables.columns import CHUNK_ROWS, FileTable, RawColumn
from flegel.errors import DataError


def open_rows(path: Path, options: Options) -> Source:
    """All columns, where they lie in the file."""
    array = open_npy(path)
    width = array.shape[1] if array.ndim > 1 else 1
    at = None if options.label is None else find_column(options.label, None, width, str(path), "label column")
    return ArraySource(array, origin=str(path), dtype=options.dtype, label_column=at, paths=(str(path), None))


def is_plain(path: Path, options: Options) -> bool:
    """Whether `open_rows` takes it: all columns are wanted."""
    return options.columns is None and options.drop is None


class NpyTable(FileTable):
    """A `.npy` file of numbers, of which columns are chosen or gaps are treated."""

    kind = "npy"
    named = False

    def __init__(self, path: Path) -> None:
        self.path, self.origin = path, str(path)
        array = open_npy(path)
        if array.dtype.kind not in "fiub" or array.ndim == 0 or 0 in array.shape:
            raise DataError(f"{path} holds {array.dtype} values of shape {array.shape}; give rows of numbers.")
        self.array: Array = array.reshape(len(array), -1)
        self.names = [str(k) for k in range(self.array.shape[1])]

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        for start in range(0, len(self.array), CHUNK_ROWS):
            part = self.array[start : start + CHUNK_ROWS]
            yield [RawColumn("number", np.array(part[:, k], np.float64)) for k in wanted]

    def dtype(self, wanted: Sequence[int]) -> np.dtype[np.generic]:
        return np.result_type(self.array.dtype, np.float32)
