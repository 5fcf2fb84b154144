"""Detects the dialect of a text table (encoding, delimiter, header), which of its columns are read as numbers, and
explains lines that do not parse.

Reads only the beginning of a file.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flegel.datasets.formats.compressed import read_head, suffixes
from flegel.datasets.rows.chosen_columns import chosen_columns
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import column_name, ways_out
from flegel.datasets.tables.cells import PLAIN, is_missing
from flegel.datasets.tables.columns import unique_names
from flegel.errors import DataError
from flegel.wording import option

HEAD_BYTES = 1 << 18  # at the beginning of a file by which it is judged
HEAD_LINES = 200
"""Lines at the beginning of a file by which it is judged; all of a file of up to HEAD_BYTES must be plain numbers to be
read as such."""
LINE_LIMIT = 16 << 20
"""Longer lines are refused: the file is most likely no table."""
_CANDIDATES = {".csv": ",;\t|", ".tsv": "\t,;|", ".tab": "\t,;|"}


class MissingCell(DataError):
    """A cell has no value; `column` is its number."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class CellDialect:
    """How a text table is split into cells."""

    encoding: str
    delimiter: str
    header: bool
    names: list[str]
    indexed: bool = False
    """Rows have one cell more than the header: the first is the index (as R writes it)."""
    simple: bool = False
    """PyArrow splits it alike, many times faster: no blanks before quotes, no bare carriage return at the beginning."""

    @property
    def width(self) -> int:
        return len(self.names)


@dataclass
class Dialect:
    """How the numbers of one text table are read."""

    delimiter: str
    header: int
    """Bytes before the first row: byte-order mark and header line."""
    width: int
    features: list[int]
    label: int | None = None
    names: list[str] | None = None
    """Names of all columns of the file."""
    text_label: bool = False
    skip_lines: int = 0
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


def find_encoding(head: bytes, whole: bool, origin: str) -> str:
    """UTF-8 and UTF-16 by their marks or by content, else Windows-1252, which every byte of Latin-1 text is."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if head.startswith(mark):
            return name
    zeros = head[:4096].count(b"\0")
    if zeros:
        sample = head[:4096]
        if sample[1::2].count(b"\0") == zeros and zeros > len(sample) // 3:
            return "utf-16-le"
        if sample[::2].count(b"\0") == zeros and zeros > len(sample) // 3:
            return "utf-16-be"
        raise DataError(f"{origin} is not text (it contains zero bytes); rename it if its extension is wrong.")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def split_lines(text: str, delimiter: str) -> Iterator[list[str]]:
    """Cells of each line; a blank as delimiter means any run of blanks and tabs."""
    if delimiter == " ":
        return (line.split() for line in io.StringIO(text, newline=None))
    if len(delimiter) > 1:
        return (line.rstrip("\n").split(delimiter) for line in io.StringIO(text, newline=None))
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)


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


def detect(
    head: bytes, whole: bool, origin: str, suffix: str, delimiter: str | None, header: bool | None
) -> CellDialect:
    """The dialect of a file that begins with `head` (`whole`: there is nothing more)."""
    encoding = find_encoding(head, whole, origin)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head, final=whole)
    lines = [line for line in text.splitlines() if line.strip()][: HEAD_LINES + 1]
    if not lines:
        raise DataError(f"{origin} is empty; give a file with rows.")
    if not whole and len(lines) == 1:
        raise DataError(f"{origin}: line 1 is longer than {len(head):,} bytes; is this a table of numbers?")
    lines = lines if whole else lines[:-1]
    commented = lines[0].startswith("#") and header is not False
    lines[0] = lines[0].lstrip("# ") if commented else lines[0]
    separator = find_delimiter(lines, suffix, delimiter)
    rows = [row for row in split_lines("\n".join(lines), separator) if any(cell.strip() for cell in row)]
    rows = [[cell.strip() for cell in row] for row in rows[:100]]
    if not rows:
        raise DataError(f"{origin} has only empty cells; give a file with at least one value.")
    named = commented or (has_header(rows) if header is None else header)
    _check_given(rows, lines, delimiter, header, origin)
    if named and len(rows) < 2:
        raise DataError(f"{origin} has a header but no rows; give a file with at least one row.")
    widths = [len(row) for row in (rows[1:] if named else rows)]
    usual = max(set(widths), key=widths.count)
    indexed = named and usual == len(rows[0]) + 1
    names = (["", *rows[0]] if indexed else rows[0]) if named else [str(k) for k in range(usual)]
    simple = separator != " " and "\r" not in text.replace("\r\n", "") and not text[:1].isspace()
    simple = simple and re.search(re.escape(separator) + r'[ \t]+"', text) is None
    simple = simple and (len(separator) == 1 or (set(separator) == {":"} and ":" not in text.replace(separator, "")))
    return CellDialect(encoding, separator, named, unique_names(names), indexed, simple)


def _check_given(
    rows: list[list[str]], lines: list[str], delimiter: str | None, header: bool | None, origin: str
) -> None:
    """Refuse a delimiter or a header that the file contradicts."""
    if header and all(map(is_number, rows[0])):
        raise DataError(f"{origin}: line 1 holds only numbers, so it is no header; omit header=True.")
    below = rows[1:]
    if header is False and below and all(is_number(row[k]) for row in below for k in range(len(row))):
        text = [cell for cell in rows[0] if not is_number(cell) and not is_missing(cell)]
        if text:
            raise DataError(f"{origin}: line 1 names the columns ({text[0]!r}, …); omit header=False.")
    if delimiter is not None and len(rows[0]) == 1:
        other = next((c for c in ",;\t|" if all(c in line for line in lines)), None)
        if other is not None:
            raise DataError(f"{origin}: no line has the delimiter {delimiter!r}; pass delimiter={other!r}, or omit it.")


def detect_dialect(path: Path, options: Options) -> CellDialect:
    """The dialect of a file."""
    head, whole = read_head(path, HEAD_BYTES)
    return detect(head, whole, str(path), suffixes(path)[0], options.delimiter, options.header)


def number_dialect(path: Path, options: Options) -> tuple[Dialect, bool]:
    """How the chosen columns of a file are read as numbers, and whether they are plain: UTF-8, one sign between cells,
    no index, no gap and no other cell than a number at its beginning."""
    head, whole = read_head(path, HEAD_BYTES)
    found = detect(head, whole, str(path), suffixes(path)[0], options.delimiter, options.header)
    text = head.decode("utf-8-sig", "replace").rstrip()
    lines = text.split("\n") if whole else text.split("\n", HEAD_LINES + 1)[:-1]
    rows = [split(line.rstrip("\r"), found.delimiter) for line in lines[found.header :]]
    counted = found.header and split(lines[0], found.delimiter)[:1] == [""] and _counts_up(rows[:50])
    names = found.names if found.header else None
    label, features = chosen_columns(names, found.width, options, str(path), frozenset({0} if counted else ()))
    labels = [] if label is None else [row[label] for row in rows if label < len(row)]
    mark = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    dialect = Dialect(
        delimiter=found.delimiter,
        header=mark + (head[mark:].find(b"\n") + 1 if found.header else 0),
        width=found.width,
        features=features,
        label=label,
        names=names,
        text_label=not all(is_number(cell) or is_missing(cell) for cell in labels),
        skip_lines=int(found.header),
    )
    plain = found.encoding in ("utf-8", "utf-8-sig") and not found.indexed and len(found.delimiter) == 1
    plain = plain and b"\r" not in head.replace(b"\r\n", b"") and not any(map(is_missing, labels))
    return dialect, plain and all(
        len(row) == found.width and all(PLAIN.fullmatch(row[k]) for k in features) for row in rows
    )


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
