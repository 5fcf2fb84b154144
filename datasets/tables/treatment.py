"""`Treatment`: how the columns of a table become rows of numbers. It is part of a model, and `predict` applies it.

Columns are found by name, in any order; a table without names is taken by position. Plain data: it survives JSON. Never
decides anything: `survey` does that once, for the data of training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.scale import Scaling
from flegel.datasets.scale import apply as apply_scaling
from flegel.datasets.tables.cells import CellFormat, boolean_value, date_value, is_missing, number_value
from flegel.datasets.tables.columns import RawColumn, RawTable, text_of
from flegel.datasets.tables.object_table import ObjectTable
from flegel.errors import DataError, UsageError, nearest

Use = Literal["number", "boolean", "date", "onehot", "ordinal", "drop", "label"]
MISSING_CATEGORY = "(missing)"
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


class Treatment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From a table to rows. Without `columns` it is plain: `width` columns of numbers, taken as they are."""

    width: int
    names: list[str] | None = None
    """Of the columns of a plain table, where it has names."""
    columns: list[ColumnTreatment] = []
    named: bool = True
    """`columns` are found by name; by position otherwise."""
    missing: str = "error"
    sparse: bool = False
    dtype: str = "float32"
    shift: list[float] = []
    factor: list[float] = []
    """Rows are scaled as (row - shift) * factor, where these are given."""

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
    def scaling(self) -> Scaling | None:
        return Scaling(np.array(self.shift), np.array(self.factor)) if self.factor else None

    def scaled_by(self, scaling: Scaling | None) -> Treatment:
        """The same, with rows scaled."""
        if scaling is None:
            return self
        return msgspec.structs.replace(self, shift=scaling.shift.tolist(), factor=scaling.factor.tolist())

    def unscaled(self) -> Array:
        """Which features stay as they are under --scale: one-hot columns, booleans and indicators are 0 or 1."""
        marks: list[bool] = []
        for column in self.columns:
            plain = column.use in ("number", "date", "ordinal")
            marks += [not plain] * (column.width - column.indicator) + [True] * column.indicator
        return np.array(marks, bool) if marks else np.zeros(self.width, bool)

    def apply(self, table: Any, say: Say | None = None) -> Array | Sparse:
        """Rows of a frame, a table, an array or sparse rows, as the model knows them; scaled where it was.

        `say` is told about texts that did not occur in training; a warning is given by default. The rows never share
        memory with `table` where they were changed.
        """
        given = ObjectTable(table)
        if self.plain:
            rows = self._plain_rows(given)
        else:
            if given.sparse is not None:
                raise UsageError("This model was trained on a table with names; give a frame instead of sparse rows.")
            places = self.places(given)
            raws = [given.column(k) for k in places]
            rows = self.encode(raws, given.row_name, given.origin, say or _warn)[0]
        how = self.scaling
        if how is None:
            return rows
        own = rows.copy() if isinstance(rows, np.ndarray) and self.plain else rows
        return apply_scaling(own, how)

    def _plain_rows(self, given: ObjectTable) -> Array | Sparse:
        """Numbers as they are, in the order of training; every one must be finite."""
        if given.sparse is not None:
            check_width(given.sparse.columns, self.width)
            bad = np.flatnonzero(~np.isfinite(given.sparse.values))
            if len(bad):
                row = int(np.searchsorted(given.sparse.indptr, bad[0], side="right"))
                raise _no_number(
                    f"row {row}", f"column {given.sparse.indices[bad[0]] + 1}", given.sparse.values[bad[0]]
                )
            return given.sparse
        if given.matrix is not None:
            check_width(given.width, self.width)
            rows = given.matrix
            if rows.dtype.kind != "f":
                rows = rows.astype(self.dtype)
        else:
            places = self.places(given) if self.names and given.named else list(range(given.width))
            check_width(len(places), self.width)
            rows = np.empty((given.length, self.width), self.dtype)
            for at, k in enumerate(places):
                raw = given.column(k)
                rows[:, at] = _numbers(ColumnTreatment(given.names[k], "number"), raw, given.row_name)
        for at in np.argwhere(~np.isfinite(rows))[:1].tolist():
            name = repr(self.names[at[1]]) if self.names else str(at[1] + 1)
            raise _no_number(f"row {at[0] + 1}", f"column {name}", rows[at[0], at[1]])
        return rows

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
        features = [k for k, column in enumerate(c for c in self.columns if c.use != "label") if column.used]
        if width == len(self.columns) and len(self.columns) > len(wanted):
            return [k for k, column in enumerate(self.columns) if column.used]
        if width == sum(column.use != "label" for column in self.columns):
            return features
        check_width(width, len(wanted))
        return list(range(width))

    def encode(
        self,
        columns: Sequence[RawColumn],
        where: Callable[[int], str],
        origin: str,
        say: Say | None = None,
        drop: bool = False,
    ) -> tuple[Array | Sparse, Array]:
        """Features of raw `inputs`, unscaled, and which rows are complete; with `drop` the others are left out, and
        are errors otherwise."""
        rows = len(columns[0].values)
        complete = np.ones(rows, bool)
        encoded = []
        for column, raw in zip(self.inputs, columns, strict=True):
            values = _codes(column, raw, say) if column.use in ("onehot", "ordinal") else _numbers(column, raw, where)
            gaps = values == -2 if column.use in ("onehot", "ordinal") else np.isnan(values)
            if column.fill is None and gaps.any():
                if not drop:
                    raise _gap(column.name, gaps, where, origin)
                complete &= ~gaps
            encoded.append((column, values, gaps))
        kept = [(c, v[complete], g[complete]) for c, v, g in encoded] if not complete.all() else encoded
        count = int(complete.sum())
        features = _sparse(kept, count, self) if self.sparse else _dense(kept, count, self)
        return features, complete


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _gap(name: str, gaps: Array, where: Callable[[int], str], origin: str) -> DataError:
    first = where(int(np.flatnonzero(gaps)[0]))
    several = f" and {gaps.sum() - 1:,} more" if gaps.sum() > 1 else ""
    return DataError(
        f"{origin}: {first}{several} has no value in column {name!r}, and the model was trained without gaps there; "
        "fill the value in, or train with --missing mean, median or indicator."
    )


def _numbers(column: ColumnTreatment, raw: RawColumn, where: Callable[[int], str]) -> Array:
    """Values of a column of numbers, dates or booleans; NaN for gaps."""
    if not raw.textual:
        accepted = {"number": ("number", "boolean"), "boolean": ("boolean", "number"), "date": ("date",)}[column.use]
        if raw.kind not in accepted:
            raise DataError(
                f"Column {column.name!r} held {column.use}s in training and holds {raw.kind}s here; "
                f"give {column.use}s there."
            )
        return raw.values
    values = np.full(len(raw.texts) + 1, np.nan)
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


def _value(column: ColumnTreatment, text: str) -> float | None:
    if column.use == "date":
        return date_value(text, column.written)
    return boolean_value(text) if column.use == "boolean" else number_value(text, column.written)


def _codes(column: ColumnTreatment, raw: RawColumn, say: Say | None) -> Array:
    """The number of each row's category: -1 for one that training did not have, -2 for a gap."""
    place = {name: k for k, name in enumerate(column.categories)}
    gap = place.get(MISSING_CATEGORY, -2)
    if raw.textual:
        texts, codes = raw.texts, raw.values
    else:
        uniques, codes = np.unique(raw.values, return_inverse=True)
        texts = tuple("" if np.isnan(value) else text_of(value) for value in uniques.tolist())
    found = np.full(len(texts) + 1, gap)
    for k, text in enumerate(texts):
        if not (raw.kind != "category" and is_missing(text)):
            found[k] = place.get(text, -1)
    result = found[codes]
    unseen = np.unique(codes[result == -1])
    if len(unseen) and say is not None:
        shown = ", ".join(repr(texts[k][:40]) for k in unseen[:3].tolist()) + (", …" if len(unseen) > 3 else "")
        how = "have 0 in all columns of it" if column.use == "onehot" else "are coded -1"
        say(
            f"{(result == -1).sum():,} rows have a value in column {column.name!r} that training did not have "
            f"({shown}); they {how}."
        )
    return result


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
    return values if column.fill is None else np.where(gaps, column.fill, values)


def check_width(columns: int, wanted: int) -> None:
    if columns != wanted:
        raise UsageError(f"This model was trained on {wanted} columns; these data have {columns}.")


def _no_number(row: str, column: str, value: Any) -> DataError:
    return DataError(f"{row.capitalize()}, {column} is {value}; every value must be a finite number, so fill it in.")
