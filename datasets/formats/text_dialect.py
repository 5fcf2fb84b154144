"""Detects the dialect of a text table (delimiter, header, columns, label), and explains lines that do not parse.

Reads only the beginning of a file.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from typing import Any

from flegel.datasets.source import column_name
from flegel.errors import DataError, nearest

HEAD_BYTES = 1 << 18
LINE_LIMIT = 16 << 20
"""Longer lines are refused: the file is most likely no table."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_CANDIDATES = {".csv": ",;\t|", ".tsv": "\t,;|", ".tab": "\t,;|"}


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
    return True


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def split(line: str, delimiter: str) -> list[str]:
    """Fields of one line; a blank as delimiter means any run of blanks and tabs."""
    if delimiter == " ":
        return line.split()
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
    candidates = _CANDIDATES.get(suffix, ",\t;| ")
    some = lines[:50]
    widths = {c: [len(split(line, c)) for line in some] for c in candidates + ("" if " " in candidates else " ")}
    for candidate, counts in widths.items():
        if counts[0] > 1 and len(set(counts)) == 1:
            return candidate
    usual = {c: max(set(counts), key=counts.count) for c, counts in widths.items()}
    best = max(usual, key=lambda c: usual[c])
    return best if usual[best] > 1 else candidates[0]


def has_header(rows: list[list[str]]) -> bool:
    """Whether the first line names the columns: text above numbers, or only text where it is the only line."""
    first, rest = rows[0], rows[1:]
    text = [i for i, cell in enumerate(first) if not is_number(cell) and not is_missing(cell)]
    if not text:
        return False
    if not rest:
        return len(text) == len(first)
    for i in text:
        below = [row[i] for row in rest if i < len(row) and not is_missing(row[i])]
        if below and all(map(is_number, below)):
            return True
    return False


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
    if names is not None and len(set(names)) != len(names):
        names = [f"{name}.{i}" if names.index(name) != i else name for i, name in enumerate(names)]
    at = None if label is None else find_column(label, names, width, origin, "label column")
    if columns is None:
        features = [i for i in range(width) if i != at]
    else:
        features = [find_column(c, names, width, origin, "column") for c in columns]
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
            raise DataError(f"{where}, {name} has no value ({cell!r}); drop or fill such rows first.")
        raise DataError(f"{where}, {name}: {cell[:40]!r} is not a number; {advice or _advice(cell, column, dialect)}.")


def _advice(cell: str, column: int, dialect: Dialect) -> str:
    """What to do about a cell that is not a number."""
    other = [c for c in ",;\t|" if c != dialect.delimiter and c in cell]
    if dialect.width == 1 and other:
        return f"if {other[0]!r} separates the fields, pass delimiter={other[0]!r} to open_data"
    drop = "correct or remove the line, or omit the column with columns=[…] of open_data"
    if column in (0, dialect.width - 1):
        return f"if it is the label, use --label {dialect.names[column] if dialect.names else column}; else {drop}"
    return drop


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
