"""Jester's dense tables of ratings: the number of ratings, then one column per item, 99 where it is not rated.

They become sparse rows. Such a table is recognized by its counts, never by the name of its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets.formats.compressed import line_pieces, suffixes
from flegel.datasets.formats.text_dialect import LINE_LIMIT, find_delimiter, is_number, number_dialect, split
from flegel.datasets.formats.text_parse import parse
from flegel.datasets.formats.text_stream import TEXT_PIECE_BYTES
from flegel.datasets.rows.file_stream import FileStream
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Chunk
from flegel.errors import DataError

NOT_RATED = 99.0  # in place of a rating, by the format
CHECKED_LINES = 50
"""Lines whose counts must be right."""
LEAST_LINES = 3
"""Fewer lines could be right by chance."""


def is_jester(path: Path, head: bytes, whole: bool) -> bool:
    """Whether every line at the beginning of a file counts its own ratings, some of which are missing."""
    if b"99" not in head:
        return False
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()][: CHECKED_LINES + 1]
    lines = lines if whole else lines[:-1]
    if len(lines) < LEAST_LINES:
        return False
    delimiter = find_delimiter(lines, suffixes(path)[0], None)
    rows = [split(line, delimiter) for line in lines]
    if len(rows[0]) < 3 or any(not is_number(cell) for row in rows for cell in row):
        return False
    numbers = [[float(cell) for cell in row] for row in rows]
    missing = [row[1:].count(NOT_RATED) for row in numbers]
    return any(missing) and all(row[0] == len(row) - 1 - gaps for row, gaps in zip(numbers, missing, strict=True))


class JesterStream(FileStream):
    """One such table, compressed or not."""

    kind = "jester"
    sparse = True

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.origin = path, str(path)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.dialect, _ = number_dialect(path, Options())
        if self.dialect.width < 2:
            raise DataError(f"{path} has one column; the format needs a count and at least one rating.")
        self.columns = self.dialect.width - 1

    def chunks(self) -> Iterator[Chunk]:
        """A row for each line, whose first field must be the number of its ratings."""
        line = self.dialect.skip_lines + 1
        for piece in line_pieces(self.path, self.dialect.header, TEXT_PIECE_BYTES, LINE_LIMIT):
            body = piece.rstrip(b"\r\n \t")
            if not body:
                continue
            lines = body.count(b"\n") + 1
            columns, _ = parse(body + b"\n", self.dialect, np.dtype(np.float64), lines, line, self.origin)
            table = np.stack(columns, axis=1)
            given = table[:, 1:] != NOT_RATED
            wrong = np.flatnonzero(given.sum(axis=1) != table[:, 0])
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"{self.origin}, line {line + row} announces {table[row, 0]:g} ratings and has {given[row].sum()}; "
                    "correct its first field."
                )
            indptr = np.concatenate(([0], np.cumsum(given.sum(axis=1))))
            values = table[:, 1:][given].astype(self.dtype)
            yield Chunk(Sparse(indptr, np.nonzero(given)[1].astype(np.int32), values, self.columns), None)
            line += lines
