"""`Treatment`: how the columns of a table become rows of numbers. It is part of a model, and `predict` applies it.

Columns are found by name, in any order; a table without names is taken by position. Plain data: it survives JSON. Never
decides anything: `survey` does that once, for the data of training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from flegel.core.gaps import GAP, with_marks
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.scale import Scaling
from flegel.datasets.rows.scale import apply as apply_scaling
from flegel.datasets.tables.cells import (
    CellFormat,
    boolean_value,
    date_value,
    duration_value,
    is_missing,
    number_value,
    plain_numbers,
)
from flegel.datasets.tables.columns import RawColumn, RawTable, category_name, category_texts
from flegel.datasets.tables.new_gaps import BY_TRAINING, REFUSED, fill_in, told_left_out
from flegel.datasets.tables.object_table import ObjectTable
from flegel.datasets.tables.ratings import aligned, find_rating_columns, has_names, rated_rows
from flegel.errors import DataError, UsageError, nearest, warn
from flegel.wording import counted, number, option

Use = Literal["number", "boolean", "date", "onehot", "ordinal", "drop", "label"]
MISSING_CATEGORY = "(missing)"
BOOLEAN_GAP = 2.0
"""The code of a gap in a column of booleans, for an algorithm that knows categories."""
LEFT_OUT = "left out"
"""Why a column is no feature that was not chosen, or dropped."""
Say = Callable[[str], None]


class ColumnTreatment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of one column."""

    name: str
    use: Use
    note: str = ""
    """Why, for people."""
    written: CellFormat = CellFormat()
    categories: list[str] = []
    """Sorted; of a one-hot or ordinal column. A gap is a category of its own where `MISSING_CATEGORY` is the last."""
    fill: float | None = None
    """The value for a gap; None where gaps are errors."""
    indicator: bool = False
    """A further column says where there were gaps."""

    @property
    def used(self) -> bool:
        return self.use not in ("drop", "label")

    @property
    def width(self) -> int:
        """Features that it becomes."""
        if self.use == "onehot":
            return len(self.categories)
        return (1 + self.indicator) if self.used else 0

    @property
    def feature_names(self) -> list[str]:
        if self.use == "onehot":
            return [f"{self.name}={category}" for category in self.categories]
        return ([self.name] + [f"{self.name} is missing"] * self.indicator) if self.used else []


MANY_FEATURES = 1000
"""Features of one column of text that are worth a word."""


class Treatment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From a table to rows. Without `columns` it is plain: `width` columns of numbers, taken as they are."""

    width: int
    names: list[str] | None = None
    """Of the columns of a plain table, where it has names."""
    label_place: int | None = None
    """Where a plain table without names had its label; such a table has one column more."""
    columns: list[ColumnTreatment] = []
    named: bool = True
    """`columns` are found by name; by position otherwise."""
    missing: str = "error"
    sparse: bool = False
    codes: bool = False
    """Ordinal columns and booleans are categories to the algorithm: codes, which are never scaled."""
    dtype: str = "float32"
    shift: list[float] = []
    rating_columns: list[str | int] = []
    """Columns of user, item and rating, by name or number, of a table that is a list of ratings; `names` are items."""
    factor: list[float] = []
    """Rows are scaled as (row - shift) * factor, where these are given."""

    def __post_init__(self) -> None:
        if self.columns and self.width != sum(column.width for column in self.columns):
            raise ValueError("the treatment of its columns gives another number of features than it says")
        if self.factor and not len(self.factor) == len(self.shift) == self.width:
            raise ValueError("the scaling in it is for another number of features")

    @property
    def plain(self) -> bool:
        return not self.columns

    @property
    def feature_names(self) -> list[str] | None:
        if self.plain:
            return self.names
        return [name for column in self.columns for name in column.feature_names]

    @property
    def inputs(self) -> list[ColumnTreatment]:
        """Columns that are needed for a prediction."""
        return [column for column in self.columns if column.used]

    @property
    def category_places(self) -> list[int]:
        """Features that hold codes of categories, each of them one column of the table."""
        places = np.cumsum([0] + [column.width for column in self.columns])
        uses = [column.use for column in self.columns]
        return [int(at) for at, use in zip(places, uses, strict=False) if use in ("ordinal", "boolean")]

    @property
    def scaling(self) -> Scaling | None:
        return Scaling(np.array(self.shift), np.array(self.factor)) if self.factor else None

    def scaled_by(self, scaling: Scaling | None) -> Treatment:
        """The same, with rows scaled."""
        if scaling is None:
            return self
        return msgspec.structs.replace(self, shift=scaling.shift.tolist(), factor=scaling.factor.tolist())

    def advice(self) -> str | None:
        """A sentence where one column of text makes most of many features."""
        widest = max(self.columns, key=lambda column: column.width, default=None)
        if widest is None or widest.width < MANY_FEATURES or 2 * widest.width < self.width:
            return None
        return (
            f"{widest.name!r} makes {widest.width:,} of {self.width:,} features; "
            f"{option('drop', widest.name)} leaves it out, "
            "if it only tells rows apart."
        )

    def unscaled(self) -> Array:
        """Which features stay as they are under --scale: one-hot columns, booleans and indicators are 0 or 1."""
        marks: list[bool] = []
        for column in self.columns:
            plain = column.use in ("number", "date") or (column.use == "ordinal" and not self.codes)
            marks += [not plain] * (column.width - column.indicator) + [True] * column.indicator
        return np.array(marks, bool) if marks else np.zeros(self.width, bool)

    def feature_of(self, wanted: str | int, origin: str, what: str) -> int:
        """The feature that a column became which holds weights or keys: by the column's name, or by its number among
        the columns of features."""
        columns = [column for column in self.columns if column.use != "label" and column.note != LEFT_OUT]
        names = [column.name for column in columns] if self.named else None
        column = columns[find_column(wanted, names, len(columns), origin, what)]
        if column.width != 1:
            why = column.note if not column.used else f"it becomes {counted(column.width, 'feature')}"
            raise UsageError(f"Column {column.name!r} of {origin} cannot be the {what}: {why}; choose another one.")
        at = next(k for k, each in enumerate(self.columns) if each is column)
        return sum(each.width for each in self.columns[:at])

    def without(self, feature: int, note: str = "the weight of each row") -> Treatment:
        """The same without one feature, which holds what `note` says."""
        at = 0
        for k, column in enumerate(self.columns):
            if column.used and at == feature and column.width == 1:
                left = msgspec.structs.replace(column, use="drop", note=note)
                columns = [*self.columns[:k], left, *self.columns[k + 1 :]]
                return msgspec.structs.replace(self, columns=columns, width=self.width - 1, shift=[], factor=[])
            at += column.width
        raise UsageError(f"Only a column of numbers without gaps can hold {note}; choose another column.")

    def without_last(self, features: int) -> Treatment:
        """The same without the last features, for tables that lack what a model predicts."""
        if not features:
            return self
        kept = self.width - features
        columns, names = list(self.columns), None if self.names is None else self.names[:kept]
        while columns and sum(column.width for column in columns) > kept:
            columns = [column for column in columns if column is not [c for c in columns if c.used][-1]]
        cut = {"shift": self.shift[:kept], "factor": self.factor[:kept]}
        return msgspec.structs.replace(self, width=kept, columns=columns, names=names, **cut)

    def apply(self, table: Any, say: Say | None = None) -> Array | Sparse:
        """Rows of a frame, a table, an array or sparse rows, as the model knows them; scaled where it was.

        `say` is told about texts that did not occur in training; a warning is given by default. The rows never share
        memory with `table` where they were changed.
        """
        return self.apply_to_complete(table, say=say)[0]

    def apply_to_complete(
        self, table: Any, missing: str | None = None, say: Say | None = None
    ) -> tuple[Array | Sparse, Array | None]:
        """As `apply`, with another policy for gaps than that of training; and which rows of the table were taken, where
        `drop` left some out (None: all)."""
        given = table if isinstance(table, RawTable) else ObjectTable(table)
        tell, complete = say or warn, None
        if self.rating_columns and not (isinstance(given, ObjectTable) and given.width == self.width):
            if missing is not None:
                raise UsageError(f"A list of ratings has no gaps to treat; omit {option('missing', missing)}.")
            rows: Array | Sparse = self._rated_rows(given, tell)
        elif self.plain:
            rows, complete = self._plain_rows(given, missing, tell)
        else:
            if isinstance(given, ObjectTable) and given.sparse is not None:
                raise UsageError("This model was trained on a table with names; give a frame instead of sparse rows.")
            rows, complete = self._encoded_rows(given, missing, tell)
        how = self.scaling
        if how is not None:
            own = rows.copy() if isinstance(rows, np.ndarray) and self.plain else rows
            rows = apply_scaling(own, how)
        return rows, None if complete is None or complete.all() else complete

    def for_new_rows(self, missing: str) -> Treatment:
        """The same with this policy for gaps in place of that of training; NaN where values of the given rows are to be
        found (`fill_in`)."""
        if missing == "indicator" and self.missing != "indicator":
            raise UsageError(
                f"This model has no columns that mark gaps, so {option('missing', missing)} cannot be applied; use "
                f"{option('missing', 'mean')}, or train with {option('missing', missing)}."
            )
        if missing == "keep" and self.factor:
            raise UsageError(
                "The columns of this model are scaled, and gaps that are kept cannot be; use "
                f"{option('missing', 'mean')}."
            )
        if missing in (*REFUSED, self.missing) or self.plain:
            return self
        columns = []
        for column in self.columns:
            if column.use in ("onehot", "ordinal"):
                fill = -1.0 if column.use == "ordinal" else 0.0  # as a text that training did not have
            elif missing == "keep":
                fill = GAP
            elif column.fill in (None, GAP) or self.missing not in BY_TRAINING.get(missing, ()):
                fill = float("nan")
            else:
                fill = float(column.fill or 0.0)
            columns.append(msgspec.structs.replace(column, fill=fill))
        return msgspec.structs.replace(self, columns=columns)

    def _encoded_rows(self, given: RawTable, missing: str | None, say: Say) -> tuple[Array | Sparse, Array]:
        """All rows of a table, chunk by chunk, and which of them are complete; what is said is said once."""
        how = self if missing is None else self.for_new_rows(missing)
        said: dict[str, list[int]] = {}
        parts: list[Array | Sparse] = []
        complete: list[Array] = []
        start = 0
        for raws in given.chunks(self.places(given)):
            where = partial(_row_name, given, start)
            rows, taken = how.encode(
                raws,
                where,
                given.origin,
                lambda text: said.setdefault(text, []).append(1),
                drop=missing == "drop",
                strict=missing in REFUSED,
            )
            parts.append(rows)
            complete.append(taken)
            start += len(raws[0].values)
        if not parts:
            raise DataError(f"{given.origin} has no rows; give at least one.")
        for text in said:
            say(text)
        taken = np.concatenate(complete)
        told_left_out(taken, say)
        whole = join_rows(parts, self.width)
        if missing is not None:
            fill_in(whole, missing, how.feature_names, say)
        return whole, taken

    def _rated_rows(self, given: RawTable, say: Say) -> Sparse:
        """A row for each user of a list of ratings, in the order of their numbers or names."""
        names = set(given.names) if has_names(given) else set(range(len(given.names)))
        chosen = self.rating_columns if names.issuperset(self.rating_columns) else None
        places = find_rating_columns(given, Options(columns=chosen))
        return aligned(rated_rows(given, places, np.dtype(self.dtype)), self.names or (), say)

    def _plain_rows(self, given: RawTable, missing: str | None, say: Say) -> tuple[Array | Sparse, Array | None]:
        """Numbers as they are, in the order of training, and which rows are complete; every number must be finite, but
        for gaps that `missing` treats."""
        rows, complete = self._plain_numbers(given), None
        if missing is not None:
            self.for_new_rows(missing)  # refuses what cannot be
        if isinstance(rows, Sparse):
            return rows, None
        gaps = np.isnan(rows)
        if missing not in (None, "error") and gaps.any():
            if missing == "drop":
                complete = np.asarray(~gaps.any(axis=1))
                told_left_out(complete, say)
                rows = rows[complete]
            elif missing == "keep":
                rows = with_marks(rows)
            else:
                rows = rows.copy()
                fill_in(rows, missing or "", self.names, say)
        for at in np.argwhere(~np.isfinite(rows))[:1].tolist():
            name = repr(self.names[at[1]]) if self.names else str(number(at[1]))
            raise _no_number(f"row {number(at[0])}", f"column {name}", rows[at[0], at[1]])
        return rows, complete

    def _plain_numbers(self, given: RawTable) -> Array | Sparse:
        """Sparse rows of finite numbers, or dense ones, which may have gaps."""
        if isinstance(given, ObjectTable) and given.sparse is not None:
            check_width(given.sparse.columns, self.width)
            bad = np.flatnonzero(~np.isfinite(given.sparse.values))
            if len(bad):
                row = int(np.searchsorted(given.sparse.indptr, bad[0], side="right"))
                raise _no_number(
                    f"row {number(row - 1)}",
                    f"column {number(given.sparse.indices[bad[0]])}",
                    given.sparse.values[bad[0]],
                )
            return given.sparse
        if isinstance(given, ObjectTable) and given.matrix is not None:
            rows = given.matrix
            if given.width == self.width + 1 and self.label_place is not None:
                rows = np.delete(rows, self.label_place, axis=1)
            check_width(rows.shape[1], self.width)
            if rows.dtype.kind != "f":
                rows = rows.astype(self.dtype)
        else:
            places = self.places(given) if self.names and given.named else list(range(len(given.names)))
            if len(places) == self.width + 1 and self.label_place is not None and not given.named:
                del places[self.label_place]
            rows = self.numbers_at(given, places)
        return rows

    def numbers_at(self, given: RawTable, places: list[int]) -> Array:
        """Columns of a table of plain numbers, NaN where there is no value."""
        check_width(len(places), self.width)
        columns = [ColumnTreatment(given.names[k], "number") for k in places]
        how = Treatment(self.width, columns=columns, dtype=self.dtype)
        parts = [how.gapped(raws, given.row_name) for raws in given.chunks(places)]
        return np.concatenate(parts) if parts else np.empty((0, self.width))

    def gapped(self, columns: Sequence[RawColumn], where: Callable[[int], str]) -> Array:
        """Columns of numbers side by side, NaN where there is no value."""
        out = np.empty((len(columns[0].values), len(columns)), self.dtype)
        for k, (column, raw) in enumerate(zip(self.columns, columns, strict=True)):
            out[:, k] = numbers_of(column, raw, where)
        return out

    def places(self, given: RawTable) -> list[int]:
        """Where the needed columns are in a table: by name where both have names, by position otherwise."""
        wanted = self.names or [] if self.plain else [column.name for column in self.inputs]
        if given.named and (self.plain or self.named):
            missing = [name for name in wanted if name not in given.names]
            if missing:
                more = f" and {len(missing) - 1} more columns" if len(missing) > 1 else ""
                raise DataError(
                    f"{given.origin} has no column {missing[0]!r}{more}, which the model was trained on"
                    f"{nearest(missing[0], given.names)}"
                )
            place = {name: k for k, name in enumerate(given.names)}
            return [place[name] for name in wanted]
        width = len(given.names)
        if self.named or self.plain:  # trained by name, given without: in the order of training
            check_width(width, len(wanted))
            return list(range(width))
        label = next((int(column.name) for column in self.columns if column.use == "label"), len(self.columns))
        numbers = [int(name) for name in wanted]
        if width == len(self.columns):
            return numbers
        if width == sum(column.use != "label" for column in self.columns):
            return [k - (k > label) for k in numbers]
        check_width(width, len(wanted))
        return list(range(width))

    def encode(
        self,
        columns: Sequence[RawColumn],
        where: Callable[[int], str],
        origin: str,
        say: Say | None = None,
        drop: bool = False,
        strict: bool = False,
    ) -> tuple[Array | Sparse, Array]:
        """Features of raw `inputs`, unscaled, and which rows are complete; with `drop` the others are left out, and
        are errors otherwise. `strict`: a gap has no value, whatever the training put in its place."""
        rows = len(columns[0].values)
        complete = np.ones(rows, bool)
        encoded = []
        for column, raw in zip(self.inputs, columns, strict=True):
            values = (
                category_codes(column, raw, say)
                if column.use in ("onehot", "ordinal")
                else numbers_of(column, raw, where)
            )
            if column.use not in ("onehot", "ordinal"):
                gaps = np.isnan(values)
            elif strict and column.categories[-1:] == [MISSING_CATEGORY]:
                gaps = (values == -2) | (values == len(column.categories) - 1)
            else:
                gaps = values == -2
            if (strict or column.fill is None) and gaps.any():
                if not drop:
                    raise _gap(column.name, gaps, where, origin, known=column.fill is not None)
                complete &= ~gaps
            elif column.use == "onehot" and gaps.any() and say is not None:
                told = _counted(int(gaps.sum()))
                say(f"{told} no value in column {column.name!r}, for which the model has no column: 0 in all of it.")
            encoded.append((column, values, gaps))
        kept = [(c, v[complete], g[complete]) for c, v, g in encoded] if not complete.all() else encoded
        count = int(complete.sum())
        features = _sparse(kept, count, self) if self.sparse else _dense(kept, count, self)
        return features, complete


def _row_name(table: RawTable, first: int, row: int) -> str:
    return table.row_name(first + row)


def join_rows(parts: Sequence[Array | Sparse], width: int) -> Array | Sparse:
    """Rows one after the other."""
    sparse = [part for part in parts if isinstance(part, Sparse)]
    if not sparse:
        return parts[0] if len(parts) == 1 else np.concatenate([np.asarray(part) for part in parts])
    ends = np.cumsum([0] + [int(part.indptr[-1]) for part in sparse]).tolist()
    indptr = np.concatenate([[0]] + [part.indptr[1:] + end for part, end in zip(sparse, ends, strict=False)])
    indices, values = (np.concatenate([part[k] for part in sparse]) for k in (1, 2))
    return Sparse(indptr, indices, values, width)


def _gap(name: str, gaps: Array, where: Callable[[int], str], origin: str, known: bool) -> DataError:
    """`known`: the model knows a value for a gap there, which the caller does not want."""
    first = where(int(np.flatnonzero(gaps)[0]))
    several = f" (and {gaps.sum() - 1:,} more)" if gaps.sum() > 1 else ""
    if known:
        return DataError(
            f"{origin}: {first}{several} has no value in column {name!r}; omit {option('missing', 'error')} for the "
            f"values of training, or use {option('missing', 'drop')}."
        )
    return DataError(
        f"{origin}: {first}{several} has no value in column {name!r}, and the model was trained without gaps there; "
        f"fill the value in, leave such rows out with {option('missing', 'drop')}, use {option('missing', 'mean')} or "
        f"{option('missing', 'median')} of these rows, or train with one of these or {option('missing', 'indicator')}."
    )


def numbers_of(column: ColumnTreatment, raw: RawColumn, where: Callable[[int], str]) -> Array:
    """Values of a column of numbers, dates or booleans; NaN for gaps."""
    if not raw.textual:
        accepted = {"number": ("number", "boolean"), "boolean": ("boolean", "number"), "date": ("date",)}[column.use]
        if raw.kind not in accepted:
            raise DataError(
                f"Column {column.name!r} held {column.use}s in training and holds {raw.kind}s here; "
                f"give {column.use}s there."
            )
        return raw.values
    values = np.full(len(raw.texts) + 1, np.nan)  # by text; the last is that of gaps, whose number is −1
    if column.use == "number" and column.written == CellFormat():
        plain = plain_numbers(raw.texts)
        if plain is not None:
            values[:-1] = plain
            return values[raw.values]
    for k, text in enumerate(raw.texts):
        found = _value(column, text)
        if found is None and not is_missing(text):
            row = int(np.flatnonzero(raw.values == k)[0]) if (raw.values == k).any() else None
            if row is not None:
                raise DataError(
                    f"{where(row)}, column {column.name!r}: {text[:40]!r} is no {column.use}, which this column holds; "
                    "correct it."
                )
        values[k] = np.nan if found is None else found
    return values[raw.values]


def label_values(column: ColumnTreatment, raw: RawColumn, where: Callable[[int], str]) -> Array:
    """Labels as numbers, classes by their place among `categories`; NaN where there is none."""
    if not column.categories:
        return numbers_of(msgspec.structs.replace(column, use="number"), raw, where)
    codes = category_codes(column, raw, None)
    return np.where(codes < 0, np.nan, codes.astype(np.float64))


def _value(column: ColumnTreatment, text: str) -> float | None:
    if column.use == "date":
        return date_value(text, column.written)
    if column.use == "boolean":
        return boolean_value(text)
    found = number_value(text, column.written)
    return duration_value(text) if found is None else found


def category_codes(column: ColumnTreatment, raw: RawColumn, say: Say | None) -> Array:
    """The number of each row's category: -1 for one that training did not have, -2 for a gap."""
    place = {name: k for k, name in enumerate(column.categories)}
    gap = place.get(MISSING_CATEGORY, -2)
    texts, codes = (raw.texts, raw.values) if raw.textual else category_texts(raw)
    found = np.full(len(texts) + 1, gap)
    for k, text in enumerate(texts):
        if not (raw.kind != "category" and is_missing(text)):
            found[k] = place[text] if text in place else place.get(category_name(text), -1)
    result = found[codes]
    unseen = np.unique(codes[result == -1])
    if len(unseen) and say is not None:
        shown = ", ".join(repr(texts[k][:40]) for k in unseen[:3].tolist()) + (", …" if len(unseen) > 3 else "")
        how = "0 in all columns of it" if column.use == "onehot" else "coded as -1"
        say(
            f"{_counted(int((result == -1).sum()))} a value in column {column.name!r} that training did not have "
            f"({shown}): {how}."
        )
    return result


def _counted(rows: int) -> str:
    return "1 row has" if rows == 1 else f"{rows:,} rows have"


_Encoded = list[tuple[ColumnTreatment, Array, Array]]


def _dense(encoded: _Encoded, rows: int, how: Treatment) -> Array:
    out = np.zeros((rows, how.width), how.dtype)
    at = 0
    for column, values, gaps in encoded:
        if column.use == "onehot":
            known = np.flatnonzero(values >= 0)
            out[known, at + values[known]] = 1.0
        else:
            out[:, at] = _filled(column, values, gaps)
            if column.indicator:
                out[:, at + 1] = gaps
        at += column.width
    return out


def _sparse(encoded: _Encoded, rows: int, how: Treatment) -> Sparse:
    """Entries that are not 0, row by row."""
    places, columns, entries = [], [], []
    at = 0
    for column, values, gaps in encoded:
        if column.use == "onehot":
            known = np.flatnonzero(values >= 0)
            parts = [(known, at + values[known], np.ones(len(known)))]
        else:
            filled = _filled(column, values, gaps)
            parts = [(at_rows := np.flatnonzero(filled), np.full(len(at_rows), at), filled[at_rows])]
            if column.indicator:
                missing = np.flatnonzero(gaps)
                parts.append((missing, np.full(len(missing), at + 1), np.ones(len(missing))))
        for row, index, value in parts:
            places.append(row)
            columns.append(index)
            entries.append(value)
        at += column.width
    row = np.concatenate(places) if places else np.empty(0, np.int64)
    order = np.argsort(row, kind="stable")
    indptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=indptr[1:])
    return Sparse(
        indptr,
        np.concatenate(columns)[order].astype(np.int32),
        np.concatenate(entries)[order].astype(how.dtype),
        how.width,
    )


def _filled(column: ColumnTreatment, values: Array, gaps: Array) -> Array:
    if column.use == "ordinal":
        return np.where(gaps, -1.0, values.astype(np.float64))
    if column.fill == GAP and (np.abs(values[~gaps]) >= GAP).any():
        raise DataError(
            f"{column.name!r} holds a number of 3.4e38 or more, which marks a gap here; leave it out, or use "
            f"{option('missing', 'mean')}."
        )
    return values if column.fill is None else np.where(gaps, column.fill, values)


def check_width(columns: int, wanted: int) -> None:
    if columns != wanted:
        raise UsageError(f"This model was trained on {wanted} columns; these data have {columns}.")


def _no_number(row: str, column: str, value: Any) -> DataError:
    return DataError(f"{row.capitalize()}, {column} is {value}; every value must be a finite number, so fill it in.")
