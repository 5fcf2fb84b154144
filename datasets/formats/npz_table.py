"""A `.npz` of rows with gaps as a table: its features by number, and its labels behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.packed_arrays import NpzStream
from flegel.datasets.rows.arrays import as_matrix
from flegel.datasets.rows.file_signature import check_unchanged
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Description
from flegel.datasets.tables.columns import CHUNK_ROWS, FileTable, RawColumn, column_of
from flegel.errors import DataError
from flegel.wording import option


class NpzTable(FileTable):
    """Features and labels by the names that `NpzStream` finds."""

    kind = "npz table"
    named = False

    def __init__(self, path: Path, label: str | int | None = None) -> None:
        self.path, self.origin = path, str(path)
        self._stream = stream = NpzStream(path, label, None)
        if stream.sparse:
            raise DataError(f"{path} holds a sparse matrix, whose gaps are not treated; omit {option('missing')}.")
        self.names = [str(k) for k in range(stream.columns + stream.labelled)]

    def chosen(self, options: Options) -> tuple[int | None, list[int]]:
        place = len(self.names) - 1 if self._stream.labelled else None
        return super().chosen(options._replace(label=place))

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        stream = self._stream
        rows = as_matrix(stream.read(stream.features_name), self.origin)
        labels = stream.read(stream.labels_name) if stream.labelled else None
        for start in range(0, len(rows), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            yield [self._column(rows if k < stream.columns else labels, k, part) for k in wanted]

    def _column(self, values: Array | None, k: int, part: slice) -> RawColumn:
        assert values is not None
        some = values[part] if values.ndim == 1 else values[part, k]
        return column_of(np.array(some), self.names[k], self.origin)

    def dtype(self, wanted: Sequence[int]) -> np.dtype[np.generic]:
        return np.result_type(self._stream.dtype, np.float32)

    def describe(self) -> Description:
        return {**self._stream.describe(), "kind": self.kind}

    @classmethod
    def from_description(cls, description: Description) -> Self:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["label"])


def npz_table(path: Path, label: str | int | None) -> NpzTable | None:
    """The table, or None for a sparse matrix."""
    return None if NpzStream(path, label, None).sparse else NpzTable(path, label)
