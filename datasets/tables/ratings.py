"""Ratings: lines of (user, item, rating), in any kind of table, as sparse rows, one row per user.

Users and items become rows and columns in the order of their numbers, or of their names where some are text; items
without a rating have no column. If a pair occurs twice, the last rating is used. Never fills in a missing rating.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Chunk, Description, Stream
from flegel.datasets.tables import cells
from flegel.datasets.tables.columns import RawColumn, RawTable, table_from, text_of
from flegel.errors import DataError, UsageError
from flegel.wording import option

_THINGS = ["item", "movie", "product", "book", "artist", "song", "track", "business", "joke"]
_USERS = {f"{name}{end}" for name in ("user", "reviewer", "customer", "u") for end in ("", "id")}
_ITEMS = {f"{name}{end}" for name in (*_THINGS, "i") for end in ("", "id")} | {"asin", "isbn"}
_RATINGS = {"rating", "ratings", "score", "stars", "overall", "plays", "playcount", "count"}

TIMES = (1e8, 1e14)
"""Seconds or milliseconds since 1970, from 1973 on."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*")
_COUNTED = [("", 0), ("column_", 1), ("f", 0), ("_c", 0), ("V", 1)]
"""How libraries name columns of a file without a header: pandas, Polars, Arrow, Spark, R."""


class RatingColumns(NamedTuple):
    """Positions in a table."""

    user: int
    item: int
    rating: int


def has_names(table: RawTable) -> bool:
    """Whether somebody named the columns: the default names of libraries only count them."""
    counted = ([f"{prefix}{first + k}" for k in range(len(table.names))] for prefix, first in _COUNTED)
    return table.named and list(table.names) not in counted


def find_rating_columns(table: RawTable, options: Options) -> RatingColumns:
    """The columns of a table that is said to hold ratings: as chosen, by their names, else the first three."""
    width, names = len(table.names), table.names if table.named else None
    if options.columns is not None:
        if len(options.columns) != 3:
            raise UsageError(
                f"{option('columns')} names {len(options.columns)} columns; ratings need user,item,rating."
            )
        return RatingColumns(*(find_column(c, names, width, table.origin, "column") for c in options.columns))
    found = _by_name(table.names) if has_names(table) else None
    if found is None and width < 3:
        raise DataError(f"{table.origin} has {width} columns; ratings need three: user, item and rating.")
    if found is None and has_names(table) and width > 4:
        raise DataError(
            f"{table.origin}: none of its columns is a rating by its name; use {option('columns', 'user,item,rating')}."
        )
    return found or RatingColumns(0, 1, 2)


def recognized(table: RawTable, likely: bool) -> bool:
    """Whether a table is a list of ratings: by the names of its columns, else by what three or four columns hold.

    `likely`: the algorithm factorizes ratings. Without that, columns without names are never taken for ratings unless
    '::' separates them, as in MovieLens' files.
    """
    width = len(table.names)
    if has_names(table):
        return (likely or width <= 4) and _by_name(table.names) is not None
    if width not in (3, 4) or not (likely or table.delimiter == "::"):
        return False
    try:
        first = next(table.chunks(range(width)), None)
        if first is not None and table.delimiter == "::":
            return _whole(first[0]) is not None and _whole(first[1]) is not None and _numbers(first[2]) is not None
        return first is not None and _look_like_ratings(first)
    except DataError:
        return False  # the reader of the table says what is wrong with it


def may_be_ratings(table: RawTable) -> bool:
    """Whether the first two of three or four columns hold whole numbers, as users and items do."""
    if len(table.names) not in (3, 4):
        return False
    try:
        first = next(table.chunks([0, 1]), None)
    except DataError:
        return False
    return first is not None and all(_whole(column) is not None for column in first)


def _by_name(names: Sequence[str]) -> RatingColumns | None:
    """By their usual names; `user_id:token` is user_id and its type."""
    low = [re.sub(r"[^a-z]", "", name.partition(":")[0].lower()) for name in names]
    found = [next((k for k, name in enumerate(low) if name in known), None) for known in (_USERS, _ITEMS, _RATINGS)]
    places = [k for k in found if k is not None]
    return RatingColumns(*places) if len(places) == 3 else None


def _numbers(column: RawColumn) -> Array | None:
    """The values of a column of plain numbers; None where one is text."""
    if not column.textual:
        return column.values if column.kind == "number" else None
    texts = cells.plain_numbers(column.texts)
    return None if texts is None else np.append(texts, np.nan)[column.values]


def _whole(column: RawColumn) -> Array | None:
    """The values of a column of whole numbers from 0; None for any other."""
    found = _numbers(column)
    if found is None or not (np.isfinite(found) & (found >= 0) & (found == np.floor(found))).all():
        return None
    return found


def _look_like_ratings(columns: Sequence[RawColumn]) -> bool:
    rules = active().tables
    user, item, rating = _whole(columns[0]), _whole(columns[1]), _numbers(columns[2])
    if user is None or item is None or rating is None or not np.isfinite(rating).all():
        return False
    rows = len(user)
    distinct = [len(np.unique(ids)) for ids in (user, item)]
    pairs = len(np.unique(np.stack([user, item]), axis=1).T)
    return (
        pairs >= rules.least_distinct_pairs * rows
        and min(distinct) <= rules.most_distinct_ids * rows
        and len(np.unique(rating)) <= rules.most_rating_levels
        and (len(columns) == 3 or _are_times(columns[3]))
    )


def _are_times(column: RawColumn) -> bool:
    if column.kind == "date":
        return True
    found = _whole(column)
    if found is not None:
        return bool((found >= TIMES[0]).all() and (found < TIMES[1]).all())
    return column.textual and all(map(_DATE.fullmatch, column.texts))


class _Ids:
    """Different users or items, as texts; whole numbers however they are written are one text."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.numbers: dict[str, int] = {}
        self.parts: list[Array] = []

    def add(self, column: RawColumn, where: Callable[[int], str]) -> None:
        """Number the users (or items) of one chunk. The same name has the same number in all chunks."""
        if column.textual:
            codes, texts = column.values, column.texts
        else:
            values, codes = np.unique(column.values, return_inverse=True)
            codes = np.where(np.isnan(column.values), -1, codes)
            texts = tuple(text_of(float(value)) for value in values)
        known = np.empty(len(texts) + 1, np.int64)
        known[-1] = -1
        for k, text in enumerate(texts):
            plain = self._plain(text)
            known[k] = -1 if plain is None else self.numbers.setdefault(plain, len(self.numbers))
        found = known[codes]
        if (found < 0).any():
            row = int(np.flatnonzero(found < 0)[0])
            text = texts[codes[row]] if codes[row] >= 0 else ""
            fault = f"{text!r} is no integer and no name" if text and not cells.is_missing(text) else "is missing"
            raise DataError(f"{where(row)}: the {self.what} {fault}; correct or remove the line.")
        self.parts.append(found)

    @staticmethod
    def _plain(text: str) -> str | None:
        """An id as it is kept; None for a gap or a number with decimals."""
        if text.isdigit():
            return str(int(text))
        if cells.is_missing(text):
            return None
        if cells.PLAIN.fullmatch(text):
            value = float(text)
            return str(int(value)) if np.isfinite(value) and value == int(value) else None
        return text

    def sorted(self) -> tuple[list[str], Array]:
        """The ids in order, and the place in it of each line's."""
        names = list(self.numbers)
        by_number = all(re.fullmatch(r"-?\d+", name) for name in names)
        order = sorted(range(len(names)), key=(lambda k: int(names[k])) if by_number else (lambda k: names[k]))
        place = np.empty(len(names), np.int64)
        place[order] = np.arange(len(names))
        return [names[k] for k in order], place[np.concatenate(self.parts)]


class RatedRows(NamedTuple):
    """Sparse rows of users, and the names of users and items."""

    rows: Sparse
    users: list[str]
    items: list[str]


def rated_rows(table: RawTable, columns: RatingColumns, dtype: np.dtype[Any]) -> RatedRows:
    """All ratings of a table."""
    users, items = _Ids("user"), _Ids("item")
    ratings: list[Array] = []
    start = 0
    for user, item, rating in table.chunks(columns):
        first = start

        def where(row: int, first: int = first) -> str:
            return f"{table.origin}, {table.row_name(first + row)}"

        users.add(user, where)
        items.add(item, where)
        ratings.append(_rating_values(rating, table.title(columns.rating), where))
        start += len(user.values)
    if not start:
        raise DataError(f"{table.origin} has no ratings; give a file with at least one.")
    user_names, rows = users.sorted()
    item_names, places = items.sorted()
    values = np.concatenate(ratings)
    order = np.lexsort((places, rows))  # stable: of several ratings of a pair the last stays
    rows, places, values = rows[order], places[order], values[order]
    last = np.append((np.diff(rows) != 0) | (np.diff(places) != 0), True)
    rows, places, values = rows[last], places[last], values[last]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(user_names)))))
    return RatedRows(
        Sparse(indptr, places.astype(np.int32), values.astype(dtype), len(item_names)), user_names, item_names
    )


def _rating_values(column: RawColumn, title: str, where: Callable[[int], str]) -> Array:
    found = _numbers(column)
    if found is None:
        bad = next(k for k, text in enumerate(column.texts) if cells.plain_numbers([text]) is None)
        row = int(np.flatnonzero(column.values == bad)[0])
        raise DataError(
            f"{where(row)}, {title}: the rating {column.texts[bad]!r} is not a number; correct or remove the line, or "
            f"choose the columns by {option('columns', 'user,item,rating')}."
        )
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise DataError(f"{where(row)}, {title}: the rating is missing or not finite; correct or remove the line.")
    return found


def aligned(found: RatedRows, items: Sequence[str], say: Callable[[str], None]) -> Sparse:
    """The same rows with the columns of a model; ratings of items that it does not know are left out, which is said."""
    place = {name: k for k, name in enumerate(items)}
    columns = np.array([place.get(name, -1) for name in found.items], np.int64)
    new = int((columns < 0).sum())
    if new:
        say(f"{new:,} of {len(found.items):,} items did not occur in training; their ratings are left out.")
    mapped = columns[found.rows.indices]
    kept = mapped >= 0
    owner = np.repeat(np.arange(len(found.users)), np.diff(found.rows.indptr))[kept]
    order = np.lexsort((mapped[kept], owner))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(found.users)))))
    return Sparse(indptr, mapped[kept][order].astype(np.int32), found.rows.values[kept][order], len(items))


class RatingsStream(Stream):
    """The ratings of a table, in one chunk: a user's may be anywhere in it."""

    kind = "ratings"
    sparse = True

    def __init__(self, table: RawTable, places: RatingColumns, dtype: str) -> None:
        self.table, self.places, self.origin = table, places, table.origin
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.columns = 0

    def chunks(self) -> Iterator[Chunk]:
        found = rated_rows(self.table, self.places, self.dtype)
        self.names, self.row_names, self.columns = found.items, found.users, len(found.items)
        yield Chunk(found.rows, None)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "table": self.table.describe(),
            "places": list(self.places),
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> RatingsStream:
        return cls(table_from(description["table"]), RatingColumns(*description["places"]), description["dtype"])
