"""LIBSVM/SVMlight text: `label index:value index:value … # comment`, one sparse row per line.

Has a compiled parser (`lines`), because neither pandas nor PyArrow reads this format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.formats.compressed import line_pieces
from flegel.datasets.formats.text_dialect import LINE_LIMIT
from flegel.datasets.formats.text_stream import TEXT_PIECE_BYTES
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.source import Chunk, Description, Stream
from flegel.errors import DataError

_ENTRY = re.compile(rb"(?:qid|\d+):[^:\s]*\d[^:\s]*")
_NUMBERS = re.compile(rb"[-+.,eE\d]*\d[-+.,eE\d]*")


def is_svmlight(path: Path, head: bytes, whole: bool) -> bool:
    """Whether the first row is `label index:value …`, all of them numbers; the last may be cut off."""
    for line in head.split(b"\n"):
        body = line.split(b"#")[0].split()
        if body:
            entries = body[1:] if whole or len(head) > len(line) else body[1:-1]
            return bool(entries) and _NUMBERS.fullmatch(body[0]) is not None and all(map(_ENTRY.fullmatch, entries))
    return False


class SvmlightStream(Stream):
    """One LIBSVM file. Indices count from 1 as in LIBSVM, or from 0 where an index 0 occurs."""

    kind = "svmlight"
    sparse = True
    labelled = True

    def __init__(self, path: Path, dtype: str, first_index: int | None = None, width: int = 0) -> None:
        self.path, self.origin = path, str(path)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.columns = width
        if first_index is None:
            first_index = 0 if any((indices == 0).any() for _, _, indices, _ in self._parsed()) else 1
        self.first_index = first_index

    def _parsed(self) -> Iterator[tuple[Array, Array, Array, Array]]:
        from flegel.datasets.formats.svmlight_lines import parse  # numba costs a process 70 MB

        line = 1
        for piece in line_pieces(self.path, 0, TEXT_PIECE_BYTES, LINE_LIMIT):
            yield parse(piece, line, self.origin)
            line += piece.count(b"\n")

    def chunks(self) -> Iterator[Chunk]:
        for labels, indptr, indices, values in self._parsed():
            if not np.isfinite(values.sum()) and not np.isfinite(values).all():
                raise DataError(f"{self.origin} has a value that is not finite; drop or fill such rows first.")
            indices = indices - self.first_index
            columns = int(indices.max()) + 1 if len(indices) else 0
            with np.errstate(over="ignore"):  # what a narrower precision cannot hold is refused by its row and column
                values = values.astype(self.dtype)
            yield Chunk(Sparse(indptr, indices.astype(np.int32), values, columns), labels)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "dtype": self.dtype.name,
            "first_index": self.first_index,
            "width": self.columns,
        }

    @classmethod
    def from_description(cls, description: Description) -> SvmlightStream:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["dtype"], description["first_index"], description["width"])
