"""Text tables as they are: any encoding, line ending, delimiter, quoting; cells are split here, and stay text.

Never decides what a cell means. Plain UTF-8 tables of numbers do not come here: `formats.text_source` parses them.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets.file_signature import check_unchanged, signature
from flegel.datasets.formats.compressed import open_unpacked
from flegel.datasets.formats.text_dialect import find_delimiter, has_header, is_missing, is_number
from flegel.datasets.formats.text_parse import import_pyarrow_csv
from flegel.datasets.source import Description
from flegel.datasets.tables.columns import RawColumn, RawTable, cells, unique_names
from flegel.errors import DataError

BATCH = 1 << 15
BLOCK = 4 << 20
csv.field_size_limit(16 << 20)


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


def detect(
    head: bytes, whole: bool, origin: str, suffix: str, delimiter: str | None, header: bool | None
) -> CellDialect:
    """The dialect of a file that begins with `head`."""
    encoding = find_encoding(head, whole, origin)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head, final=whole)
    lines = [line for line in text.splitlines() if line.strip()][:200]
    if not whole and len(lines) > 1:
        lines = lines[:-1] if len(lines) < 200 else lines
    if not lines:
        raise DataError(f"{origin} is empty; give a file with rows.")
    separator = find_delimiter(lines, suffix, delimiter)
    rows = [row for row in split_lines("\n".join(lines), separator) if any(cell.strip() for cell in row)]
    rows = [[cell.strip() for cell in row] for row in rows[:100]]
    if not rows:
        raise DataError(f"{origin} has only empty cells; give a file with at least one value.")
    named = has_header(rows) if header is None else header
    _check_given(rows, lines, delimiter, header, origin)
    if named and len(rows) < 2:
        raise DataError(f"{origin} has a header but no rows; give a file with at least one row.")
    widths = [len(row) for row in (rows[1:] if named else rows)]
    usual = max(set(widths), key=widths.count)
    indexed = named and usual == len(rows[0]) + 1
    names = (["", *rows[0]] if indexed else rows[0]) if named else [str(k) for k in range(usual)]
    if named and names[0].startswith("#"):
        names[0] = names[0].lstrip("# ")
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


def _encoded(column: Any) -> RawColumn:
    """A column of PyArrow's strings."""
    found = column.dictionary_encode()
    texts = tuple(text.strip() for text in found.dictionary.to_pylist())
    return RawColumn("cells", found.indices.to_numpy().astype(np.int64), texts)


class TextTable(RawTable):
    """One text file, compressed or not."""

    kind = "text"

    def __init__(self, path: Path, dialect: CellDialect) -> None:
        self.path, self.dialect = path, dialect
        self.origin, self.names, self.named = str(path), dialect.names, dialect.header
        self.delimiter = dialect.delimiter
        self.indexes = frozenset({0} if dialect.indexed else ())
        if dialect.encoding == "cp1252":
            self.remarks = (f"{path.name} is not UTF-8; it was read as Windows-1252 (Latin-1).",)

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        pyarrow = import_pyarrow_csv() if self.dialect.simple else None
        if pyarrow is not None:
            yield from self._arrow_chunks(pyarrow, wanted)
            return
        for rows in self._batches():
            columns = list(zip(*rows, strict=True))
            yield [cells(columns[k]) for k in wanted]

    def _arrow_chunks(self, pyarrow: Any, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        """Split by PyArrow; what it refuses is split again here, which names the line."""
        step = len(self.delimiter)  # PyArrow splits at one character: '::' leaves an empty column between two
        names = [str(k) for k in range(self.dialect.width)]
        split = [names[k // step] if k % step == 0 else f"-{k}" for k in range(len(names) * step - step + 1)]
        csv_module = pyarrow.csv
        encoding = {"utf-8-sig": "utf-8"}.get(self.dialect.encoding, self.dialect.encoding)
        try:
            with open_unpacked(self.path) as file:
                reader = csv_module.open_csv(
                    pyarrow.PythonFile(file, mode="r"),
                    csv_module.ReadOptions(
                        use_threads=False, block_size=BLOCK, column_names=split, skip_rows=int(self.dialect.header),
                        encoding=encoding,
                    ),
                    csv_module.ParseOptions(
                        delimiter=self.delimiter[0], newlines_in_values=True, ignore_empty_lines=len(names) > 1
                    ),
                    csv_module.ConvertOptions(
                        column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False,
                        include_columns=[names[k] for k in dict.fromkeys(wanted)],
                    ),
                )  # fmt: skip
                for batch in reader:
                    if batch.num_rows:
                        yield [_encoded(batch.column(names[k])) for k in wanted]
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            for _ in self._batches():
                pass
            raise DataError(
                f"{self.origin} cannot be split into cells ({str(error).splitlines()[0]}); check its quotes."
            ) from None

    def _batches(self) -> Iterator[list[list[str]]]:
        """Rows of cells; each has as many as the table has columns."""
        width = self.dialect.width
        batch: list[list[str]] = []
        with open_unpacked(self.path) as file:
            stream = io.TextIOWrapper(file, self.dialect.encoding, newline="")
            lines = self._lines(stream)
            skip = self.dialect.header
            while True:
                try:
                    number, row = next(lines)
                except StopIteration:
                    break
                except csv.Error as error:
                    raise DataError(f"{self.origin} cannot be split into cells ({error}); check its quotes.") from None
                except UnicodeDecodeError:
                    raise DataError(
                        f"{self.origin} is not {self.dialect.encoding} text throughout; convert it to UTF-8."
                    ) from None
                if skip or (len(row) < 2 and not (width == 1 and row) and not "".join(row).strip()):
                    skip = skip and not "".join(row).strip()
                    continue
                if len(row) != width:
                    raise self._ragged(number, len(row))
                batch.append(row)
                if len(batch) == BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _lines(self, stream: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
        if self.delimiter == " " or len(self.delimiter) > 1:
            stream.reconfigure(newline=None)
            between = None if self.delimiter == " " else self.delimiter
            yield from ((number, line.rstrip("\n").split(between)) for number, line in enumerate(stream, 1))
            return
        reader = csv.reader(stream, delimiter=self.delimiter, skipinitialspace=True)
        for row in reader:
            yield reader.line_num, row

    def _ragged(self, line: int, found: int) -> DataError:
        separator = {"\t": "tabs", " ": "blanks"}.get(self.delimiter, repr(self.delimiter))
        return DataError(
            f"{self.origin}, line {line} has {found} field{'s' * (found != 1)} where {self.dialect.width} are expected "
            f"(fields are split at {separator}); correct or remove the line."
        )

    def row_name(self, row: int) -> str:
        """Its line, where no text spans several lines and no line is blank."""
        return f"line {row + 1 + self.dialect.header}"

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "dialect": asdict(self.dialect),
        }

    @classmethod
    def from_description(cls, description: Description) -> TextTable:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, CellDialect(**description["dialect"]))
