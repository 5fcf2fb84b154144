"""Detects the dialect of a text table (delimiter, header, columns, label), and explains lines that do not parse.

Reads only the beginning of a file.
"""

from __future__ import annotations

import csv
import itertools
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from flegel.datasets.source import column_name, ways_out
from flegel.datasets.tables.columns import unique_names
from flegel.errors import DataError, nearest
from flegel.wording import option

HEAD_BYTES = 1 << 18
LINE_LIMIT = 16 << 20
"""Longer lines are refused: the file is most likely no table."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_CANDIDATES = {".csv": ",;\t|", ".tsv": "\t,;|", ".tab": "\t,;|"}


class MissingCell(DataError):
    """A cell has no value; `column` is its number."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


@dataclass
class Dialect:
    """How one text table is written."""

    delimiter: str
    header: int
    """Bytes before the first row: byte-order mark and header line."""
    width: int
    features: list[int]
    label: int | None = None
    names: list[str] | None = None
    """Names of all columns of the file."""
    text_label: bool = False
    skip_lines: int = field(default=0)
    """Lines before the first row, for line numbers in messages."""

    @property
    def feature_names(self) -> list[str] | None:
        return None if self.names is None else [self.names[i] for i in self.features]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def split(line: str, delimiter: str) -> list[str]:
    """Fields of one line; a blank as delimiter means any run of blanks and tabs."""
    if delimiter == " ":
        return line.split()
    if len(delimiter) > 1:
        return [cell.strip() for cell in line.split(delimiter)]
    if '"' in line:
        try:
            return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
        except csv.Error:  # unbalanced quotes, for example: the cell is no number in either case
            return [cell.strip() for cell in line.split(delimiter)]
    return [cell.strip() for cell in line.split(delimiter)]


def head_lines(head: bytes, origin: str, whole: bool) -> tuple[list[str], int]:
    """The complete lines at the beginning of a file, decoded, and the bytes of a byte-order mark."""
    if not head.strip():
        raise DataError(f"{origin} is empty; give a file with rows.")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{origin} is UTF-16 text; convert it to UTF-8 first.")
    mark = 3 if head[:3] == b"\xef\xbb\xbf" else 0
    body = head[mark:]
    if b"\0" in body:
        raise DataError(f"{origin} is not text (it contains zero bytes); rename it if its extension is wrong.")
    if not whole:
        end = body.rfind(b"\n") + 1
        if end == 0:
            raise DataError(f"{origin}: line 1 is longer than {len(body):,} bytes; is this a table of numbers?")
        body = body[:end]
    lines: list[str] = []
    for number, raw in enumerate(body.split(b"\n"), 1):
        try:
            lines.append(raw.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError:
            raise DataError(f"{origin}, line {number} is not UTF-8 text; convert the file to UTF-8.") from None
        if len(lines) > 200:
            break
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{origin} is empty; give a file with rows.")
    return lines, mark


def find_delimiter(lines: list[str], suffix: str, given: str | None) -> str:
    """The given delimiter, or the first common one that splits all lines into the same number of fields."""
    if given is not None:
        return {"tab": "\t", "\\t": "\t", "space": " "}.get(given, given)
    candidates: list[str] = [*_CANDIDATES.get(suffix, ",\t;|"), " "]
    some = lines[:50]
    if "::" in some[0]:
        candidates.insert(0, "::")
    rows = {c: [split(line, c) for line in some] for c in candidates}
    even = [c for c in candidates if len(rows[c][0]) > 1 and len(set(map(len, rows[c]))) == 1]
    if even:
        numbers = {c: _numbers_among(rows[c], c) for c in even}
        best = max(even, key=lambda c: (c != " ") + numbers[c] / max(1, max(numbers.values())))
        return best if best != " " or len(even) == 1 else even[0]
    widths = {c: [len(row) for row in rows[c]] for c in candidates}
    usual = {
        c: max(set(counts), key=counts.count) for c, counts in widths.items() if c != " " or suffix not in _CANDIDATES
    }
    shared = {c: widths[c].count(usual[c]) for c in usual if usual[c] > 1}
    return max(shared, key=lambda c: (shared[c], usual[c])) if shared else candidates[0]


_WRITTEN_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?")


def _numbers_among(rows: list[list[str]], delimiter: str) -> float:
    """Part of the cells that look like numbers, gaps or dates; a table that is split at the wrong sign has fewer."""
    cells = [cell for row in rows for cell in row]
    good = sum(1 for cell in cells if is_number(cell) or is_missing(cell) or _WRITTEN_NUMBER.fullmatch(cell))
    return good / len(cells)


def has_header(rows: list[list[str]]) -> bool:
    """Whether the first line names the columns: text above numbers, or words that never occur below.

    Words that stand in their column again further down are values. Numbers in the first line make it data, unless they
    count up as years and positions do.
    """
    first, rest = rows[0], rows[1:]
    text = [i for i, cell in enumerate(first) if not _is_value(cell) and not is_missing(cell)]
    if not text:
        return False
    if not rest:
        return len(text) == len(first)
    columns = [[row[i] for row in rest if i < len(row) and not is_missing(row[i])] for i in range(len(first))]
    if any(columns[i] and all(map(_is_value, columns[i])) for i in text):
        return True
    if any(first[i] in columns[i] for i in text):
        return False
    numbers = [cell for cell in first if _is_value(cell)]
    if not numbers:
        return True
    steps = [int(cell) for cell in numbers if cell.isdigit()]
    return len(steps) == len(numbers) > 1 and all(b - a == 1 for a, b in itertools.pairwise(steps))


def _is_value(cell: str) -> bool:
    """A number, written in any way, or a date."""
    return is_number(cell) or (bool(cell) and cell[-1].isdigit() and _VALUE.fullmatch(cell) is not None)


_VALUE = re.compile(r"[+-]?\d[\d.,:/T \u00a0'’+-]*\d|\d")


def find_column(wanted: str | int, names: list[str] | None, width: int, origin: str, what: str) -> int:
    """A column by name, or by number from 0 (from the end where negative)."""
    if isinstance(wanted, str):
        if names and wanted in names:
            return names.index(wanted)
        name = wanted
        try:
            wanted = int(name)
        except ValueError:
            if not names:
                raise DataError(
                    f"{origin} has no column names, so give the {what} as a number from 0 to {width - 1}."
                ) from None
            raise DataError(f"{origin} has no column {name!r}{nearest(name, names)}") from None
    if not -width <= wanted < width:
        raise DataError(f"{origin} has {width} columns, so there is no {what} {wanted} (they count from 0).")
    return wanted % width


def detect_dialect(
    head: bytes,
    whole: bool,
    origin: str,
    suffix: str,
    *,
    label: str | int | None = None,
    columns: list[str | int] | None = None,
    drop: list[str | int] | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
) -> Dialect:
    """The dialect of a file that begins with `head` (`whole`: there is nothing more)."""
    lines, mark = head_lines(head, origin, whole)
    separator = find_delimiter(lines, suffix, delimiter)
    if lines[0].startswith("#") and (header is not False):
        lines[0] = lines[0].lstrip("# ")
        header = True
    rows = [split(line, separator) for line in lines[:50]]
    named = has_header(rows) if header is None else header
    if named and header and all(map(is_number, rows[0])):
        raise DataError(f"{origin}: line 1 holds only numbers, so it is no header; omit header=True.")
    names = rows[0] if named else None
    data = rows[1:] if named else rows
    if not data:
        raise DataError(f"{origin} has a header but no rows; give a file with at least one row.")
    width = len(names) if names else len(data[0])
    indexed = columns is None and names is not None and names[0] == "" and _counts_up(data)
    if names is not None:
        names = unique_names(names)
    at = None if label is None else find_column(label, names, width, origin, "label column")
    if columns is None:
        features = [i for i in range(width) if i != at and not (indexed and i == 0)]
    else:
        features = [find_column(c, names, width, origin, "column") for c in columns]
    left_out = {find_column(c, names, width, origin, "column") for c in drop or ()}
    features = [i for i in features if i not in left_out and i != at]
    if not features:
        raise DataError(f"{origin} has no column but the label; give a file with features.")
    below = [row[at] for row in data if at < len(row)] if at is not None else []
    dialect = Dialect(
        delimiter=separator,
        header=mark + (head[mark:].index(b"\n") + 1 if named else 0),
        width=width,
        features=features,
        label=at,
        names=names,
        text_label=bool(below) and not all(is_number(cell) or is_missing(cell) for cell in below),
        skip_lines=int(named),
    )
    for number, line in enumerate(lines[dialect.skip_lines : 50], dialect.skip_lines + 1):
        advice = "if line 1 names the columns, omit header=False" if header is False and number == 1 else ""
        check_line(line, number, dialect, origin, advice)
    return dialect


def _counts_up(rows: list[list[str]]) -> bool:
    """Whether the first column holds row numbers from 0 or 1: an index, where it has no name."""
    first = [row[0] for row in rows if row]
    return len(first) > 1 and first[0] in ("0", "1") and first == [str(int(first[0]) + k) for k in range(len(first))]


def check_line(line: str, number: int, dialect: Dialect, origin: str, advice: str = "") -> None:
    """Raise where a line does not parse; `advice` replaces the general advice for text in a column of numbers."""
    where = f"{origin}, line {number}"
    if not line.strip():
        raise DataError(f"{where} is empty; remove the line.")
    cells = split(line, dialect.delimiter)
    if len(cells) != dialect.width:
        separator = {"\t": "tabs", " ": "blanks"}.get(dialect.delimiter, f"{dialect.delimiter!r}")
        raise DataError(
            f"{where} has {len(cells)} field{'s' * (len(cells) != 1)} where {dialect.width} are expected "
            f"(fields are split at {separator}); correct or remove the line."
        )
    wanted = dialect.features if dialect.text_label or dialect.label is None else [*dialect.features, dialect.label]
    for column in sorted(wanted):
        cell = cells[column]
        if is_number(cell):
            continue
        name = column_name(dialect.names, column)
        if is_missing(cell):
            raise MissingCell(f"{where}, {name} has no value ({cell!r}); {ways_out()}.", column)
        raise DataError(f"{where}, {name}: {cell[:40]!r} is not a number; {advice or _advice(cell, column, dialect)}.")


def _advice(cell: str, column: int, dialect: Dialect) -> str:
    """What to do about a cell that is not a number."""
    other = [c for c in ",;\t|" if c != dialect.delimiter and c in cell]
    if dialect.width == 1 and other:
        return f"if {other[0]!r} separates the fields, pass delimiter={other[0]!r} to open_data"
    name = dialect.names[column] if dialect.names else column
    drop = (
        f"correct it, leave the column out with {option('drop', name)}, or take it as text with "
        f"{option('categorical', 'onehot')}"
    )
    return f"if it is the label, use {option('label', name)}; else {drop}" if column in (0, dialect.width - 1) else drop


def diagnose(text: bytes, first_line: int, dialect: Dialect, origin: str, error: Exception | str) -> DataError:
    """The error for the first bad line of a text that a parser refused."""
    for number, raw in enumerate(text.removesuffix(b"\n").split(b"\n"), first_line):
        if len(raw) > LINE_LIMIT:
            return DataError(
                f"{origin}, line {number} is longer than {LINE_LIMIT:,} bytes; is this a table of numbers?"
            )
        try:
            check_line(raw.decode("utf-8").removesuffix("\r"), number, dialect, origin)
        except UnicodeDecodeError:
            return DataError(f"{origin}, line {number} is not UTF-8 text; convert the file to UTF-8.")
        except DataError as problem:
            return problem
    return DataError(
        f"{origin}, near line {first_line}, does not parse ({str(error).splitlines()[0]}); correct the file."
    )
