"""What only the rows that are kept can tell: means and medians for gaps, and categories that are left.

Reads the table once more, and only where gaps are treated. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.treatment import ColumnTreatment, Treatment, category_codes, label_values, numbers_of


def finish(table: RawTable, how: Treatment, gaps: bool) -> Treatment:
    """The treatment with values for gaps, or without categories that occur only in rows that are left out."""
    if how.missing in ("mean", "median", "indicator"):
        return _with_fill_values(table, how)
    return _with_kept_categories(table, how) if how.missing == "drop" and gaps else how


def _labelled_chunks(table: RawTable, how: Treatment, wanted: list[ColumnTreatment]) -> Iterator[list[Array]]:
    """Values, or numbers of categories, of the wanted columns in rows that have a label; then the labels, if any."""
    label = next((column for column in how.columns if column.use == "label"), None)
    places = [table.names.index(column.name) for column in ([*wanted, label] if label else wanted)]
    start = 0
    for raws in table.chunks(places):
        where = partial(_row_name, table, start)
        start += len(raws[0].values)
        found = []
        for column, raw in zip(wanted, raws, strict=False):
            coded = column.use in ("onehot", "ordinal")
            found.append(category_codes(column, raw, None) if coded else numbers_of(column, raw, where))
        if label is not None:
            labels = label_values(label, raws[-1], where)
            found = [values[~np.isnan(labels)] for values in [*found, labels]]
        yield found


def _row_name(table: RawTable, first: int, row: int) -> str:
    return table.row_name(first + row)


def _with_fill_values(table: RawTable, how: Treatment) -> Treatment:
    """Means or medians of the columns of numbers."""
    kept = {"ordinal", "boolean"} if how.codes else {"ordinal"}
    filled = [k for k, c in enumerate(how.columns) if c.fill is not None and c.use not in kept]
    if not filled:
        return how
    median = how.missing == "median"
    parts: list[list[Array]] = [[] for _ in filled]
    sums, counts = [0.0] * len(filled), [0] * len(filled)
    for chunk in _labelled_chunks(table, how, [how.columns[k] for k in filled]):
        for i, values in enumerate(chunk[: len(filled)]):
            present = values[~np.isnan(values)]
            if median:
                parts[i].append(present)
            sums[i] += float(present.sum())
            counts[i] += len(present)
    columns = list(how.columns)
    for i, k in enumerate(filled):
        value = float(np.median(np.concatenate(parts[i]))) if median else sums[i] / max(1, counts[i])
        columns[k] = msgspec.structs.replace(columns[k], fill=value if counts[i] else 0.0)
    return msgspec.structs.replace(how, columns=columns)


def _with_kept_categories(table: RawTable, how: Treatment) -> Treatment:
    """Categories and classes of complete rows only."""
    inputs = how.inputs
    coded = [i for i, column in enumerate(inputs) if column.use in ("onehot", "ordinal")]
    label = next((column for column in how.columns if column.use == "label" and column.categories), None)
    if not coded and label is None:
        return how
    seen = {inputs[i].name: np.zeros(len(inputs[i].categories), bool) for i in coded}
    classes = np.zeros(len(label.categories) if label else 0, bool)
    for chunk in _labelled_chunks(table, how, inputs):
        complete = np.ones(len(chunk[0]), bool)
        for i, values in enumerate(chunk[: len(inputs)]):
            complete &= values != -2 if i in coded else ~np.isnan(values)
        for i in coded:
            kept = chunk[i][complete]
            seen[inputs[i].name][kept[kept >= 0]] = True
        if label is not None:
            classes[chunk[-1][complete].astype(np.int64)] = True
    columns = []
    for column in how.columns:
        if column.name in seen:
            kept_names = [name for name, there in zip(column.categories, seen[column.name], strict=True) if there]
            column = msgspec.structs.replace(column, categories=kept_names)
        elif label is not None and column is label:
            kept_names = [name for name, there in zip(label.categories, classes, strict=True) if there]
            column = msgspec.structs.replace(column, categories=kept_names)
        columns.append(column)
    return msgspec.structs.replace(how, columns=columns, width=sum(column.width for column in columns))
