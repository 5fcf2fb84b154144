"""From what the columns of a table hold to the treatment of the table: pure decisions, and the sentences of refusals.

Never reads a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from flegel.configuration.active import active
from flegel.core.gaps import GAP
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.options import Options
from flegel.datasets.tables import cells
from flegel.datasets.tables.cells import CellFormat
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.survey import ColumnSurvey
from flegel.datasets.tables.treatment import BOOLEAN_GAP, LEFT_OUT, MISSING_CATEGORY, ColumnTreatment, Treatment
from flegel.errors import DataError, UsageError
from flegel.wording import option


@dataclass(frozen=True)
class Evidence:
    """How numbers are written elsewhere in the same table."""

    comma: bool
    """A comma is certainly a decimal sign somewhere."""
    point: bool
    """A point is certainly a decimal sign, or a comma certainly separates thousands."""
    delimiter: str


def decide(
    table: RawTable, found: Mapping[int, ColumnSurvey], label: int | None, features: Sequence[int], options: Options
) -> Treatment:
    """The treatment of a table; `second_pass` finds the values for gaps."""
    shapes = [column.shapes for column in found.values()]
    evidence = Evidence(
        comma=options.decimal == "," or any(s["comma"] or s["dot-groups"] for s in shapes),
        point=options.decimal == "." or any(s["point"] or s["comma-groups"] for s in shapes),
        delimiter=table.delimiter,
    )
    columns = []
    codes = options.codes and options.categorical in ("auto", "ordinal")
    key, wanted = _key_column(table, features, options), named_categories(table, label, options)
    for k, name in enumerate(table.names):
        if k == label:
            columns.append(label_column(table, found[k]))
        elif k not in features:
            columns.append(ColumnTreatment(name, "drop", LEFT_OUT))
        elif is_index(table, k, found[k]) and options.columns is None:
            columns.append(ColumnTreatment(name, "drop", "left out: the index of the rows"))
        else:
            columns.append(feature_column(table, found[k], evidence, options, k == key, k in wanted))
    columns = [_with_gaps(c, found.get(k), options.missing, codes) for k, c in enumerate(columns)]
    if options.missing == "error":
        refuse_gaps(table, columns, found)
    width = sum(column.width for column in columns)
    if not width:
        raise DataError(
            f"{table.origin} has no column of features left ({_reasons(columns)}); choose some with "
            f"{option('columns')}."
        )
    used = [k for k, column in enumerate(columns) if column.used]
    timed = any(columns[k].use == "date" and found[k].timed for k in used)
    order = [*features, *(k for k in range(len(columns)) if k not in features)]
    density, rules = len(used) / width, active().tables
    return Treatment(
        width,
        columns=[columns[k] for k in order] if options.columns is not None else columns,
        named=table.named,
        missing=options.missing,
        codes=codes,
        sparse=options.sparse and width > rules.sparse_above_features and density < rules.sparse_below_density,
        dtype=options.dtype or ("float64" if timed else table.dtype(used).name),
    )


def is_index(table: RawTable, k: int, found: ColumnSurvey) -> bool:
    """Whether the writer marked the column as its index, or it is an unnamed first column of row numbers."""
    unnamed = table.names[k].startswith("Unnamed: ") or table.names[k] in ("index", "rownames")
    return k in table.indexes or (k == 0 and table.named and unnamed and found.counts_up and found.rows > 1)


def _reasons(columns: Sequence[ColumnTreatment]) -> str:
    shown = [f"{column.name!r}: {column.note}" for column in columns[:3]]
    return "; ".join(shown) + ("; …" if len(columns) > 3 else "")


def _key_column(table: RawTable, features: Sequence[int], options: Options) -> int | None:
    """The column whose values say which rows stay together."""
    if options.key is None:
        return None
    listed = [table.names[k] for k in features] if table.named else None
    return features[find_column(options.key, listed, len(features), table.origin, "column of keys")]


def named_categories(table: RawTable, label: int | None, options: Options) -> set[int]:
    """Columns that hold categories because somebody says so."""
    listed, width = table.names if table.named else None, len(table.names)
    what = "column of categories"
    found = {find_column(each, listed, width, table.origin, what) for each in options.categories or ()}
    if label in found:
        raise UsageError(f"{table.title(label)} of {table.origin} is the label; omit it in {option('categories')}.")
    return found


def feature_column(
    table: RawTable,
    found: ColumnSurvey,
    evidence: Evidence,
    options: Options,
    is_key: bool = False,
    wanted: bool = False,
) -> ColumnTreatment:
    """What becomes of a column of features; texts of the column of keys become numbers. `wanted`: it was named as one
    of categories."""
    if not found.present:
        blank = table.named and found.name.startswith("Unnamed: ")
        drop = blank or options.missing != "error"
        return ColumnTreatment(found.name, "drop" if drop else "number", "left out: no values")
    if found.kinds == {"date"}:
        return ColumnTreatment(found.name, "date", "days since 1970-01-01")
    if found.kinds == {"boolean"}:
        return ColumnTreatment(found.name, "boolean", "0 or 1")
    if found.kinds <= {"number", "boolean"}:
        return ColumnTreatment(found.name, "number")
    if not found.kinds <= {"cells", "category"}:
        kinds = " and ".join(sorted(found.kinds))
        raise DataError(
            f"{table.origin}: {table.title(found.place)} holds {kinds} in different files; make them alike, "
            f"or leave it out with {option('drop', table.option(found.place))}."
        )
    if is_key:
        return category_column(table, found, "ordinal")
    if wanted:
        how = "auto" if options.categorical == "drop" else options.categorical
        return category_column(table, found, how, wanted=True, codes=options.codes)
    numbers = sum(found.shapes[name] for name in cells.NUMBERS)
    dates = sum(found.shapes[name] for name in cells.DATES)
    if numbers == found.present:
        return _number(table, found, evidence)
    if found.shapes["boolean"] == found.present and len(found.pairs) == 1:
        zero, one = cells.BOOLEANS[min(found.pairs)]
        return ColumnTreatment(found.name, "boolean", f"{zero} → 0, {one} → 1")
    if dates == found.present:
        return _date(table, found)
    if found.shapes["duration"] == found.present:
        return ColumnTreatment(found.name, "number", "days of a duration")
    if options.categorical == "auto" and max(numbers, dates) >= found.present / 2:
        raise _mixed(table, found, "number" if numbers > dates else "date")
    return category_column(table, found, options.categorical, codes=options.codes)


def _mixed(table: RawTable, found: ColumnSurvey, what: str) -> DataError:
    """The refusal of a column of numbers or dates (`what`) in which some cells are something else: names the first."""
    usual = cells.NUMBERS if what == "number" else cells.DATES
    row, text = min((cell for shape, cell in found.first.items() if shape not in usual), key=lambda cell: cell[0])
    others = found.present - sum(found.shapes[name] for name in usual)
    more = f" (and {others - 1:,} more cells of that column)" if others > 1 else ""
    return DataError(
        f"{table.origin}, {table.row_name(row)}, {table.title(found.place)}: {text[:40]!r} is not a {what}{more}; "
        f"correct it, leave the column out with {option('drop', table.option(found.place))}, or take it as text with "
        f"{option('categorical', 'onehot')}."
    )


UNCLEAR = ("comma-group", "dot-groups", "comma", "comma-groups", "dot-group")
"""Shapes of numbers that say what the comma means, or leave it open, the likelier culprits first."""


def _number(table: RawTable, found: ColumnSurvey, evidence: Evidence) -> ColumnTreatment:
    """Treat the column as numbers, or ask the user where a comma could be a decimal sign or separate thousands."""
    written = number_format(found, evidence)
    if written is None:
        row, text = next(found.first[name] for name in UNCLEAR if name in found.first)
        raise DataError(
            f"{table.origin}, {table.row_name(row)}, {table.title(found.place)}: {text!r} is either a decimal comma or "
            "separates thousands; write it with a point, pass decimal=',' or decimal='.' to open_data, or leave the "
            f"column out with {option('drop', table.option(found.place))}."
        )
    notes = ["decimal comma"] * (written.decimal == ",")
    notes += [f"thousands separated by {'blanks' if written.thousands == ' ' else written.thousands!r}"] * bool(
        written.thousands
    )
    return ColumnTreatment(found.name, "number", ", ".join(notes), written)


def number_format(found: ColumnSurvey, evidence: Evidence) -> CellFormat | None:
    """How the numbers of a column are written; None where that cannot be told."""
    shapes = {name for name in cells.NUMBERS if found.shapes[name]}
    blank = " " if found.spaced else ""
    comma = bool(shapes & {"comma", "dot-groups"})
    point = bool(shapes & {"point", "comma-groups"})
    if comma and point:
        return None
    if comma:
        return CellFormat(",", blank or ("." if shapes & {"dot-group", "dot-groups"} else ""))
    if point:
        return CellFormat(".", blank or ("," if shapes & {"comma-group", "comma-groups"} else ""))
    if shapes >= {"comma-group", "dot-group"}:
        return None
    if "comma-group" in shapes:
        if evidence.comma != evidence.point:
            return CellFormat(",", blank) if evidence.comma else CellFormat(".", blank or ",")
        by_delimiter = {";": CellFormat(",", blank), ",": CellFormat(".", blank or ",")}
        return by_delimiter.get(evidence.delimiter)
    if "dot-group" in shapes and evidence.comma and not evidence.point:
        return CellFormat(",", blank or ".")
    return CellFormat(".", blank)


def _date(table: RawTable, found: ColumnSurvey) -> ColumnTreatment:
    orders = {name for name in ("day-first", "month-first") if found.shapes[name]}
    if len(orders) == 2 or (found.shapes["day-or-month"] and not orders):
        row, text = found.first["day-or-month" if not orders else "month-first"]
        raise DataError(
            f"{table.origin}, {table.row_name(row)}, {table.title(found.place)}: it cannot be told which number "
            f"of {text!r} is the day; write dates as 2024-12-31, or leave the column out with "
            f"{option('drop', table.option(found.place))}."
        )
    order = orders.pop() if orders else ""
    note = "days since 1970-01-01" + (f", {order.replace('-', ' ')}" if order else "")
    return ColumnTreatment(found.name, "date", note, CellFormat(dates=order))


def category_column(
    table: RawTable, found: ColumnSurvey, how: str, wanted: bool = False, codes: bool = False
) -> ColumnTreatment:
    """A column of text. It is `wanted`: nothing is a reason to leave it out. `codes`: auto makes them of it."""
    name = found.name
    if how == "drop":
        return ColumnTreatment(name, "drop", f"left out: text ({option('categorical', 'drop')})")
    if found.texts is None:
        if how == "auto":
            return ColumnTreatment(name, "drop", "left out: too many different texts")
        raise DataError(
            f"{table.origin}: {table.title(found.place)} has too many different texts for categories; leave it "
            f"out with {option('drop', table.option(found.place))}."
        )
    different = len(found.texts)
    optional = how == "auto" and not wanted
    if optional and different == 1:
        return ColumnTreatment(name, "drop", f"left out: always {next(iter(found.texts))[:30]!r}")
    if optional and found.present > active().tables.names_above_rows and different > found.present / 2:
        note = (
            f"left out: {different:,} different texts in {found.rows:,} rows; "
            f"{option('categorical', 'ordinal' if codes else 'onehot')} keeps it"
        )
        return ColumnTreatment(name, "drop", note)
    categories = sorted(found.texts)
    if how == "ordinal" or (how == "auto" and codes):
        note = f"{_shown(categories)} → 0 … {different - 1}"
        return ColumnTreatment(name, "ordinal", note, categories=categories)
    return ColumnTreatment(name, "onehot", f"{different:,} columns: {_shown(categories)}", categories=categories)


def _shown(categories: Sequence[str]) -> str:
    few = ", ".join(category[:20] for category in categories[:4])
    return f"{few}, …" if len(categories) > 4 else few


def label_column(table: RawTable, found: ColumnSurvey) -> ColumnTreatment:
    """Numbers stay numbers; anything else names classes."""
    if not found.present:
        raise DataError(
            f"{table.origin}: the label {table.title(found.place)} has no values; choose another {option('label')}."
        )
    if found.kinds <= {"number", "boolean"}:
        return ColumnTreatment(found.name, "label", "label")
    numbers = sum(found.shapes[name] for name in cells.NUMBERS)
    if found.kinds == {"cells"} and numbers == found.present:
        written = number_format(found, Evidence(False, False, table.delimiter))
        if written is not None:
            return ColumnTreatment(found.name, "label", "label", written)
    if found.kinds & {"date"}:
        raise DataError(
            f"{table.origin}: the label {table.title(found.place)} holds dates; choose another {option('label')}."
        )
    if found.texts is None:
        raise DataError(
            f"{table.origin}: the label {table.title(found.place)} has too many different texts for classes; choose "
            f"another {option('label')}."
        )
    classes = sorted(found.texts)
    return ColumnTreatment(found.name, "label", f"label, {len(classes)} classes: {_shown(classes)}", categories=classes)


def _with_gaps(
    column: ColumnTreatment, found: ColumnSurvey | None, missing: str, codes: bool = False
) -> ColumnTreatment:
    """The column with a rule for gaps, where the policy has one besides refusing and leaving rows out."""
    gaps = found.missing if found is not None else 0
    counted = f"{gaps:,} gap{'s' * (gaps != 1)}"
    note = f"{column.note}; " if column.note else ""
    if column.use == "drop" or (column.use == "label" and not gaps):
        return column
    if missing == "drop" or column.use == "label":
        left = f"{note}{counted}: those rows are left out"
        return msgspec.structs.replace(column, note=left if gaps and missing != "error" else column.note)
    if missing == "error":
        return column
    if codes and column.use == "boolean":
        own = f"{note}{counted}: a category of its own, {BOOLEAN_GAP:g}"
        return msgspec.structs.replace(column, fill=BOOLEAN_GAP, note=own if gaps else column.note)
    if codes and column.use == "ordinal" and gaps:
        more = [*column.categories, MISSING_CATEGORY]
        return msgspec.structs.replace(column, categories=more, note=f"{note}{counted}: a category of its own")
    if column.use == "onehot":
        if not gaps:
            return column
        more = [*column.categories, MISSING_CATEGORY]
        return msgspec.structs.replace(column, categories=more, note=f"{note}{counted}: one column more")
    if missing == "keep":
        return msgspec.structs.replace(column, fill=GAP, note=f"{note}{counted}: kept" if gaps else column.note)
    if column.use == "ordinal":
        return msgspec.structs.replace(column, fill=-1.0, note=f"{note}{counted}: -1" if gaps else column.note)
    indicator = missing == "indicator" and gaps > 0
    by = "mean" if missing == "indicator" else missing
    filled = f"{note}{counted}: {by}{', and a column that marks them' if indicator else ''}"
    return msgspec.structs.replace(column, fill=0.0, indicator=indicator, note=filled if gaps else column.note)


def refuse_gaps(table: RawTable, columns: Sequence[ColumnTreatment], found: Mapping[int, ColumnSurvey]) -> None:
    """--missing error: one sentence with the column, the count and the ways out."""
    gaps = [(found[k], c) for k, c in enumerate(columns) if c.use != "drop" and found[k].missing]
    if not gaps:
        return
    worst, column = max(gaps, key=lambda each: each[0].missing)
    more = len(gaps) - 1
    others = f"; so {'has' if more == 1 else 'have'} {more} more column{'s' * (more > 1)}" if more else ""
    first = table.row_name(worst.first_gap)
    if column.use == "label":
        raise DataError(
            f"{table.origin}: {worst.missing:,} of {worst.rows:,} rows (first: {first}) have no label in "
            f"{table.title(worst.place)}{others}; leave such rows out with {option('missing', 'drop')}, or "
            "fill them in."
        )
    raise DataError(
        f"{table.origin}: {table.title(worst.place)} has no value in {worst.missing:,} of {worst.rows:,} rows (first: "
        f"{first}){others}; use {option('missing', 'drop')} (leaves such rows out), "
        f"{option('missing', 'mean')} or {option('missing', 'median')} (fills gaps in) or "
        f"{option('missing', 'indicator')} (fills them in and adds a column that marks them), "
        f"{option('missing', 'keep')} with an algorithm that knows gaps (gapkmeans, gapgmm, gappca, nmf), or "
        f"{option('drop', table.option(worst.place))}."
    )
