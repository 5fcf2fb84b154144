"""Text tables as they are: any encoding, line ending, delimiter, quoting; cells are split here, and stay text.

Never decides what a cell means. Plain UTF-8 tables of numbers do not come here: `text_source` parses them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets.formats.arrow_loans import Loan
from flegel.datasets.formats.compressed import open_unpacked
from flegel.datasets.formats.text_dialect import CellDialect
from flegel.datasets.formats.text_parse import import_pyarrow_csv
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.source import Description
from flegel.datasets.tables.columns import RawColumn, RawTable, cells
from flegel.errors import DataError

ROWS_PER_BATCH = 1 << 15  # that are parsed at a time
BYTES_PER_BLOCK = 4 << 20  # the same by Arrow
csv.field_size_limit(16 << 20)


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
        loan, reader = Loan(), None
        try:
            with open_unpacked(self.path) as file:
                reader = csv_module.open_csv(
                    pyarrow.PythonFile(loan.file(file, encoding), mode="r"),
                    csv_module.ReadOptions(
                        use_threads=False,
                        block_size=BYTES_PER_BLOCK,
                        column_names=split,
                        skip_rows=int(self.dialect.header),
                    ),
                    csv_module.ParseOptions(
                        delimiter=self.delimiter[0], newlines_in_values=True, ignore_empty_lines=len(names) > 1
                    ),
                    csv_module.ConvertOptions(
                        column_types=dict.fromkeys(names, pyarrow.string()),
                        strings_can_be_null=False,
                        include_columns=[names[k] for k in dict.fromkeys(wanted)],
                    ),
                )
                for batch in reader:
                    if batch.num_rows:
                        yield [_encoded(batch.column(names[k])) for k in wanted]
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            for _ in self._batches():
                pass
            raise DataError(
                f"{self.origin} cannot be split into cells ({str(error).splitlines()[0]}); check its quotes."
            ) from None
        finally:
            del reader
            loan.wait()

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
                if len(batch) == ROWS_PER_BATCH:
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
