"""Ratings as sparse rows, one row per user: MovieLens `.dat` and `.csv`, and the dense tables of Jester, where 99 means
"not rated".

Users and items become rows and columns in the order of their numbers; items without a rating have no column. Never
fills in a missing rating.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.file_signature import check_unchanged, signature
from flegel.datasets.formats.compressed import line_pieces, read_head
from flegel.datasets.formats.text_dialect import LINE_LIMIT, Dialect, detect_dialect, find_delimiter, head_lines, split
from flegel.datasets.formats.text_parse import parse
from flegel.datasets.formats.text_stream import PIECE
from flegel.datasets.source import Chunk, Description, Stream
from flegel.errors import DataError

_USERS = ("userid", "user_id", "user")
_ITEMS = ("movieid", "movie_id", "itemid", "item_id", "item", "movie")
_RATINGS = ("rating", "score")
JESTER_MISSING = 99.0


def rating_columns(names: list[str]) -> list[int] | None:
    """Columns of user, item and rating by their usual names."""
    low = [name.strip().lower() for name in names]
    found = [next((low.index(n) for n in known if n in low), None) for known in (_USERS, _ITEMS, _RATINGS)]
    return None if None in found else [i for i in found if i is not None]


def is_ratings_file(path: Path, suffix: str) -> bool:
    """Whether the beginning of a file is a list of (user, item, rating)."""
    head, whole = read_head(path, 1 << 14)
    if not head.strip():
        return False
    try:
        lines, _ = head_lines(head, str(path), whole)
        first = lines[0]
        if suffix == ".dat" and first.count("::") >= 2:
            return True
        return rating_columns(split(first, find_delimiter(lines, suffix, None))) is not None
    except DataError:
        return False


class _FileStream(Stream):
    """A stream that is described by a path, the suffix of its format and a type."""

    path: Path
    suffix: str

    def __init__(self, path: Path, suffix: str, dtype: str) -> None:
        raise NotImplementedError

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "suffix": self.suffix,
            "signature": signature(self.path),
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> Self:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["suffix"], description["dtype"])


class RatingsStream(_FileStream):
    """(user, item, rating) lines; if a pair occurs twice, the last rating is used."""

    kind = "ratings"
    sparse = True

    def __init__(self, path: Path, suffix: str, dtype: str) -> None:
        self.path, self.suffix, self.origin = path, suffix, str(path)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.columns = 0
        head, whole = read_head(path, 1 << 16)
        self.double_colon = b"::" in head.split(b"\n", 1)[0]
        head = self._with_commas(head)
        self.dialect = detect_dialect(head, whole, self.origin, ".csv" if self.double_colon else suffix)
        triple = rating_columns(self.dialect.names) if self.dialect.names else [0, 1, 2]
        if triple is None or self.dialect.width < 3:
            raise DataError(f"{path} is no list of ratings; name its columns userId, movieId and rating.")
        self.dialect.features, self.dialect.label = triple, None

    def _with_commas(self, text: bytes) -> bytes:
        return text.replace(b"::", b",") if self.double_colon else text

    def chunks(self) -> Iterator[Chunk]:
        users, items, values = self._triples()
        user_ids, rows = np.unique(users, return_inverse=True)
        item_ids, columns = np.unique(items, return_inverse=True)
        order = np.lexsort((np.arange(len(rows)), columns, rows))
        rows, columns, values = rows[order], columns[order], values[order]
        last = np.append((np.diff(rows) != 0) | (np.diff(columns) != 0), True)
        rows, columns, values = rows[last], columns[last], values[last]
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(user_ids)))))
        self.names = [str(int(t)) for t in item_ids]
        self.columns = len(item_ids)
        yield Chunk(Sparse(indptr, columns.astype(np.int32), values.astype(self.dtype), len(item_ids)), None)

    def _triples(self) -> tuple[Array, Array, Array]:
        parts: list[list[Array]] = []
        line = self.dialect.skip_lines + 1
        for piece in line_pieces(self.path, self._header(), PIECE, LINE_LIMIT):
            body = self._with_commas(piece).rstrip(b"\r\n \t") + b"\n"
            lines = body.count(b"\n")
            if body.strip():
                columns, _ = parse(body, self.dialect, np.dtype(np.float64), lines, line, self.origin)
                parts.append([columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2]])
                if (parts[-1][0] != columns[0]).any() or (parts[-1][1] != columns[1]).any():
                    raise DataError(
                        f"{self.origin}, near line {line}: a user or an item is no integer; number them first."
                    )
                if not np.isfinite(columns[2]).all():
                    row = int(np.flatnonzero(~np.isfinite(columns[2]))[0])
                    raise DataError(
                        f"{self.origin}, line {line + row} has a rating that is not finite; drop such lines first."
                    )
            line += lines
        if not parts:
            raise DataError(f"{self.origin} has no ratings; give a file with at least one.")
        users, items, values = (np.concatenate([part[k] for part in parts]) for k in range(3))
        return users, items, values

    def _header(self) -> int:
        return self.dialect.header  # a header line never contains '::' in MovieLens' files


class JesterStream(_FileStream):
    """A dense table: the number of ratings, then one column per item, 99 where it is not rated."""

    kind = "jester"
    sparse = True

    def __init__(self, path: Path, suffix: str, dtype: str) -> None:
        self.path, self.suffix, self.origin = path, suffix, str(path)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        head, whole = read_head(path, 1 << 18)
        self.dialect: Dialect = detect_dialect(head, whole, self.origin, suffix)
        if self.dialect.width < 2:
            raise DataError(f"{path} has one column; the format needs a count and at least one rating.")
        self.columns = self.dialect.width - 1

    def chunks(self) -> Iterator[Chunk]:
        line = self.dialect.skip_lines + 1
        for piece in line_pieces(self.path, self.dialect.header, PIECE, LINE_LIMIT):
            body = piece.rstrip(b"\r\n \t")
            if not body:
                continue
            lines = body.count(b"\n") + 1
            columns, _ = parse(body + b"\n", self.dialect, np.dtype(np.float64), lines, line, self.origin)
            table = np.stack(columns, axis=1)
            given = table[:, 1:] != JESTER_MISSING
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
