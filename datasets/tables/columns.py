"""Columns of a table before anything is decided about them, and the interface of tables that give them in chunks.

A column holds numbers (numbers, dates as days, booleans; NaN where there is no value) or text (numbers of different
texts, -1 where there is no value). Never decides what a column is used for.
"""

from __future__ import annotations

import decimal
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.chosen_columns import chosen_columns
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Description, column_name
from flegel.datasets.tables.cells import is_missing
from flegel.errors import DataError
from flegel.wording import number, option

CHUNK_ROWS = 1 << 16  # of a table that are treated at a time


class RawColumn(NamedTuple):
    """Some rows of one column."""

    kind: str
    """`number`, `date`, `boolean` (values), or `cells`, `category` (codes and texts). Cells may be numbers as text."""
    values: Array
    """float64, NaN where missing; of text the number of each row's text, -1 where missing."""
    texts: tuple[str, ...] = ()

    @property
    def textual(self) -> bool:
        return self.kind in ("cells", "category")

    def rows(self, start: int, stop: int) -> RawColumn:
        return self._replace(values=self.values[start:stop])


TABLES: dict[str, type[RawTable]] = {}
"""Classes by their `kind`, which is how a description names them. Defining a class with a `kind` enters it."""


class RawTable(ABC):
    """Named columns, read in order."""

    kind: ClassVar[str]
    names: list[str]
    """Of all columns; made up where `named` is False."""
    named: bool = True
    origin: str
    indexes: frozenset[int] = frozenset()
    """Columns that the writer of the table marked as its index."""
    remarks: Sequence[str] = ()
    """What was detected and a person should know: the encoding, for example."""
    delimiter: str = ""
    """Of text tables: it tells what a comma inside of a cell means."""

    @abstractmethod
    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        """The wanted columns, in the given order, in chunks of rows."""

    @abstractmethod
    def row_name(self, row: int) -> str:
        """Where a row is found, for messages: 'line 12', 'row 3'."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            TABLES[cls.kind] = cls

    def chosen(self, options: Options) -> tuple[int | None, list[int]]:
        """The label and the features, by position."""
        return chosen_columns(self.names if self.named else None, len(self.names), options, self.origin)

    def whole(self, k: int) -> Array:
        """All of a column, as it is written there."""
        parts = [column for (column,) in self.chunks([k])]
        return np.concatenate(
            [np.array([*part.texts, None], object)[part.values] if part.textual else part.values for part in parts]
        )

    def title(self, k: int) -> str:
        """A column for messages: 'column 3 (eta)', counted from 1 as people do."""
        return column_name(self.names if self.named else None, k)

    def option(self, k: int) -> str:
        """A column as options name it: by name, or by number from 0."""
        return self.names[k] if self.named else str(k)

    def describe(self) -> Description:
        """Plain JSON from which another process opens the same table."""
        raise DataError(f"{self.origin} is in the memory of this process only; save it to a file.")

    @classmethod
    def from_description(cls, description: Description) -> RawTable:
        """The table that `describe` was called on, or an equal one."""
        raise DataError(f"A table of kind {cls.kind!r} is in the memory of one process only; save it to a file.")

    def dtype(self, wanted: Sequence[int]) -> np.dtype[Any]:
        """The type of features made of these columns."""
        return np.dtype(np.float32)


def table_from(description: Description) -> RawTable:
    """The table that `describe` was called on, or an equal one."""
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in TABLES:
        raise DataError(f"This version of Flegel has no table of kind {kind!r}; install one version.")
    return TABLES[kind].from_description(description)


class FileTable(RawTable):
    """A table in a file that needs no further options."""

    path: Path

    @abstractmethod
    def __init__(self, path: Path) -> None: ...

    def row_name(self, row: int) -> str:
        return f"row {number(row)}"

    def describe(self) -> Description:
        return {"kind": self.kind, "path": str(self.path), "signature": signature(self.path)}

    @classmethod
    def from_description(cls, description: Description) -> Self:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path)


def cells(values: Sequence[str | None] | Array) -> RawColumn:
    """A column of text as it was read; blanks around a text are no part of it."""
    import pandas

    codes, texts = pandas.factorize(np.asarray(values, object))
    return RawColumn("cells", codes, tuple(text.strip() for text in texts))


def text_of(value: Any) -> str:
    """A category as text; 2.0 is '2', because gaps turn whole numbers into floats."""
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


WHOLE = re.compile(r"([+-]?\d+)\.0*")
"""A whole number as a text file holds it where others of its column have decimals or are missing."""


def category_name(text: str) -> str:
    """How a category is written: 2.0 is 2."""
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text


def category_texts(raw: RawColumn) -> tuple[tuple[str, ...], Array]:
    """The different categories of a column of any kind, and the number of each row's; a gap is "" or -1."""
    if raw.textual:
        return tuple(map(category_name, raw.texts)) if raw.kind == "cells" else raw.texts, raw.values
    uniques, codes = np.unique(raw.values, return_inverse=True)
    if raw.kind == "boolean":
        return tuple("" if np.isnan(value) else str(bool(value)) for value in uniques.tolist()), codes
    return tuple("" if np.isnan(value) else text_of(value) for value in uniques.tolist()), codes


def as_category(raw: RawColumn) -> RawColumn:
    """A column of any kind as one of categories."""
    texts, codes = category_texts(raw)
    gap = [raw.kind != "category" and is_missing(text) for text in texts]
    known = {text: k for k, text in enumerate(dict.fromkeys(t for t, g in zip(texts, gap, strict=True) if not g))}
    places = np.array([-1 if g else known[t] for t, g in zip(texts, gap, strict=True)] + [-1], np.int64)
    return RawColumn("category", places[codes], tuple(known))


def column_of(values: Any, name: str, origin: str) -> RawColumn:
    """A column of a frame, a table or an array of any type."""
    import pandas

    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        if values.dtype.kind in "fiub":
            return RawColumn("number", np.where(mask, np.nan, np.asarray(values.data, np.float64)))
        values = pandas.Series(without(np.asarray(values.data, object), mask))
    kind = type(values).__module__.partition(".")[0]
    if kind == "pyarrow":
        return _arrow_column(values, name, origin)
    if kind == "polars":
        return _arrow_column(values.to_arrow(), name, origin)
    series = values if isinstance(values, pandas.Series) else pandas.Series(np.asarray(values))
    return _pandas_column(series, name, origin)


def without(values: Array, missing: Array) -> Array:
    """Objects with None where they are missing."""
    kept = values.astype(object)
    kept[missing] = None
    return kept


def _pandas_column(series: Any, name: str, origin: str) -> RawColumn:
    """One column of a data frame as numbers or coded texts: booleans become 0 and 1, times become days."""
    import pandas

    kind = series.dtype
    if isinstance(kind, pandas.CategoricalDtype):
        texts = tuple(text_of(value) for value in kind.categories)
        return RawColumn("category", np.asarray(series.cat.codes, np.int64), texts)
    if isinstance(kind, pandas.SparseDtype):
        return _pandas_column(series.sparse.to_dense(), name, origin)
    if isinstance(kind, pandas.PeriodDtype):
        series = series.dt.to_timestamp()
        kind = series.dtype
    if pandas.api.types.is_bool_dtype(kind):
        return RawColumn("boolean", series.to_numpy(np.float64, na_value=np.nan))
    if pandas.api.types.is_complex_dtype(kind):
        raise DataError(f"{origin}: column {name!r} holds complex numbers; split it into two columns, or drop it.")
    if pandas.api.types.is_numeric_dtype(kind):
        return RawColumn("number", series.to_numpy(np.float64, na_value=np.nan))
    if pandas.api.types.is_datetime64_any_dtype(kind):
        if getattr(kind, "tz", None) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        return RawColumn("date", days(np.asarray(series, "datetime64[us]")))
    if pandas.api.types.is_timedelta64_dtype(kind):
        return RawColumn("number", days(np.asarray(series, "timedelta64[us]")))
    return _object_column(series.to_numpy(object, na_value=None), name, origin)


def days(moments: Array) -> Array:
    """Days since 1970-01-01, or of a duration; NaN for no time."""
    found = moments.astype(np.int64) / 86_400e6
    found[np.isnat(moments)] = np.nan
    return found


def _object_column(values: Array, name: str, origin: str) -> RawColumn:
    """A column of Python objects: all of one sort, or refused."""
    import datetime

    import pandas

    missing = np.asarray(pandas.isna(values), bool)
    present = values[~missing]
    sorts = {type(value) for value in present.tolist()}
    if not sorts or all(issubclass(sort, str | np.str_) for sort in sorts):
        return cells(without(values, missing))
    if all(issubclass(sort, bytes | np.bytes_) for sort in sorts):
        texts = [None if gap else value.decode("utf-8", "replace") for value, gap in zip(values, missing, strict=True)]
        return cells(texts)
    if all(issubclass(sort, datetime.time) for sort in sorts):  # as text files hold them
        return cells([None if gap else str(value) for value, gap in zip(values, missing, strict=True)])
    if all(issubclass(sort, bool | np.bool_) for sort in sorts):
        return RawColumn("boolean", np.where(missing, np.nan, values).astype(np.float64))
    if all(issubclass(sort, int | float | np.number | decimal.Decimal | bool | np.bool_) for sort in sorts):
        return RawColumn("number", np.where(missing, np.nan, values).astype(np.float64))
    if all(issubclass(sort, datetime.date | np.datetime64) for sort in sorts):
        moments = pandas.to_datetime(pandas.Series(without(values, missing)), utc=True)
        return _pandas_column(moments, name, origin)
    if all(issubclass(sort, str | int | float | np.number | bool) for sort in sorts):
        return cells([None if gap else text_of(value) for value, gap in zip(values, missing, strict=True)])
    strange = sorted(sort.__name__ for sort in sorts)
    raise DataError(
        f"{origin}: column {name!r} holds {' and '.join(strange[:3])} objects, which are neither numbers nor text; "
        f"leave it out with {option('drop')} or write numbers there."
    )


def _arrow_column(column: Any, name: str, origin: str) -> RawColumn:
    """A column of a PyArrow table."""
    import pyarrow

    types, kind = pyarrow.types, column.type
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
        column = column.chunk(0) if isinstance(column, pyarrow.ChunkedArray) else column
    if types.is_dictionary(kind):
        named = [None if value is None else text_of(value) for value in column.dictionary.to_pylist()]
        codes = column.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        known = {text: code for code, text in enumerate(dict.fromkeys(text for text in named if text is not None))}
        places = np.array([-1 if text is None else known[text] for text in named] + [-1], np.int64)
        return RawColumn("category", places[codes], tuple(known))
    if types.is_boolean(kind):
        return RawColumn("boolean", _floats(column.cast(pyarrow.int8())))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return RawColumn("number", _floats(column.cast(pyarrow.float64(), safe=False)))
    if types.is_date(kind) or types.is_timestamp(kind):
        moments = column.cast(pyarrow.timestamp("us"), safe=False)
        return RawColumn("date", days(np.asarray(moments.to_numpy(zero_copy_only=False), "datetime64[us]")))
    if types.is_duration(kind):
        lengths = column.cast(pyarrow.duration("us"), safe=False).to_numpy(zero_copy_only=False)
        return RawColumn("number", days(np.asarray(lengths, "timedelta64[us]")))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        encoded = column.cast(pyarrow.large_string()).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        texts = tuple(text.strip() for text in encoded.dictionary.to_pylist())
        return RawColumn("cells", np.asarray(codes, np.int64), texts)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_time(kind):
        return _object_column(np.array([*column.to_pylist(), None], object)[:-1], name, origin)
    if types.is_null(kind):
        return RawColumn("number", np.full(len(column), np.nan))
    raise DataError(
        f"{origin}: column {name!r} holds {kind}, which is neither numbers nor text; leave it out with "
        f"{option('drop')}."
    )


def _floats(column: Any) -> Array:
    import pyarrow

    return np.array(column.cast(pyarrow.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False))


def unique_names(names: Sequence[Any]) -> list[str]:
    """Names as pandas makes them: 'a', 'a.1' for a second 'a', 'Unnamed: 3' where there is none."""
    found: list[str] = []
    taken: set[str] = set()
    for k, name in enumerate(names):
        text = ".".join(map(str, name)) if isinstance(name, tuple) else str(name)
        text = text.strip() or f"Unnamed: {k}"
        free, count = text, 0
        while free in taken:
            count += 1
            free = f"{text}.{count}"
        taken.add(free)
        found.append(free)
    return found
