"""Tables in files besides text: Parquet and Arrow, Excel, several files as one, keys in the names of folders.

Never decides what a column is used for.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.file_signature import check_unchanged, signature
from flegel.datasets.formats.arrays import open_npy
from flegel.datasets.formats.arrow_tables import open_blocks
from flegel.datasets.formats.text_dialect import has_header
from flegel.datasets.source import Description
from flegel.datasets.tables.columns import CHUNK_ROWS, RawColumn, RawTable, column_of, text_of, unique_names
from flegel.datasets.tables.object_table import ObjectTable
from flegel.datasets.tables.text_table import TextTable
from flegel.errors import DataError, UsageError
from flegel.wording import number

NO_KEY = "__HIVE_DEFAULT_PARTITION__"


class ArrowTable(RawTable):
    """A Parquet or Arrow file, block by block."""

    kind = "arrow"

    def __init__(self, path: Path) -> None:
        self.path, self.origin = path, str(path)
        self.blocks = open_blocks(path)
        stored = list(self.blocks.schema.names)
        self.names = unique_names(stored)
        marked = (self.blocks.schema.pandas_metadata or {}).get("index_columns", [])
        self.indexes = frozenset(
            k for k, name in enumerate(stored) if name in marked or name.startswith("__index_level_")
        )

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        stored = self.blocks.schema.names
        for block, rows in enumerate(self.blocks.counts):
            if rows:
                table = self.blocks.read(block, sorted({stored[k] for k in wanted}))
                yield [column_of(table.column(stored[k]), self.names[k], self.origin) for k in wanted]

    def row_name(self, row: int) -> str:
        return f"row {number(row)}"

    def describe(self) -> Description:
        return {"kind": self.kind, "path": str(self.path), "signature": signature(self.path)}

    @classmethod
    def from_description(cls, description: Description) -> ArrowTable:
        check_unchanged(Path(description["path"]), description)
        return cls(Path(description["path"]))


class ExcelTable(RawTable):
    """The first sheet of a workbook that has rows; it is read whole."""

    kind = "excel"

    def __init__(self, path: Path) -> None:
        self.path, self.origin = path, str(path)
        sheet, rows, others = _read_sheet(path)
        header = has_header([[_as_cell(value) for value in row] for row in rows[:100]])
        if header and len(rows) < 2:
            raise DataError(f"{path} has a header but no rows; give a file with at least one row.")
        self.named, self._first = header, 2 if header else 1
        width = max(map(len, rows))
        padded = [[*row, *[None] * (width - len(row))] for row in rows]
        names = [_as_cell(value) for value in padded[0]] if header else [str(k) for k in range(width)]
        columns = list(zip(*padded[header:], strict=True))
        self._table = ObjectTable(dict(zip(unique_names(names), map(_objects, columns), strict=True)))
        self._table.origin, self.names = self.origin, self._table.names
        if others:
            self.remarks = (f"{path.name} has {others + 1} sheets; {sheet!r} was read.",)

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        return self._table.chunks(wanted)

    def row_name(self, row: int) -> str:
        return f"row {row + self._first}"

    def describe(self) -> Description:
        return {"kind": self.kind, "path": str(self.path), "signature": signature(self.path)}

    @classmethod
    def from_description(cls, description: Description) -> ExcelTable:
        check_unchanged(Path(description["path"]), description)
        return cls(Path(description["path"]))


def _objects(values: Sequence[Any]) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _as_cell(value: Any) -> str:
    return "" if value is None else text_of(value).strip()


def _read_sheet(path: Path) -> tuple[str, list[list[Any]], int]:
    """Name and rows of the first sheet with rows, and how many further sheets have some."""
    try:
        import openpyxl
    except ImportError:
        raise UsageError(
            f"{path} is an Excel file, which needs openpyxl: pip install 'flegel[excel]', or save it as CSV."
        ) from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no complete Excel file ({error}); save it again.") from None
    found = []
    for sheet in book.worksheets:
        rows = [list(row) for row in sheet.iter_rows(values_only=True)]
        rows = [row for row in rows if any(value is not None for value in row)]
        if rows:
            used = max(k + 1 for row in rows for k, value in enumerate(row) if value is not None)
            found.append((sheet.title, [row[:used] for row in rows]))
    book.close()
    if not found:
        raise DataError(f"{path} is empty; give a file with rows.")
    return found[0][0], found[0][1], len(found) - 1


class FilesTable(RawTable):
    """Several tables with the same columns, in any order; keys in the names of their folders are columns too."""

    kind = "files"

    def __init__(self, tables: Sequence[RawTable], keys: Sequence[dict[str, str]], origin: str) -> None:
        first = tables[0]
        self.tables, self.keys, self.origin = tables, keys, origin
        self.named, self.delimiter, self.indexes = first.named, first.delimiter, first.indexes
        extra = [name for name in keys[0] if name not in first.names]
        self.names = [*first.names, *extra]
        self.remarks = tuple(dict.fromkeys(text for table in tables for text in table.remarks))
        self._places = [self._align(table) for table in tables]
        self._starts = [0]
        for key in keys:
            if list(key) != list(keys[0]):
                raise DataError(f"The folders of {origin} have different keys; give files with the same keys.")

    def _align(self, table: RawTable) -> list[int]:
        """Where the columns of the first table are in this one."""
        first = self.tables[0]
        if len(table.names) != len(first.names):
            raise DataError(
                f"{table.origin} has {len(table.names)} columns where {first.origin} has {len(first.names)}; "
                "give files with the same columns."
            )
        if not (table.named and first.named):
            return list(range(len(first.names)))
        other = [name for name in table.names if name not in first.names]
        if other:
            raise DataError(
                f"{table.origin} has a column {other[0]!r} that {first.origin} does not have; "
                "give files with the same columns."
            )
        return [table.names.index(name) for name in first.names]

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        own = len(self.tables[0].names)
        self._starts = [0]
        inner = [k for k in wanted if k < own]
        for table, places, keys in zip(self.tables, self._places, self.keys, strict=True):
            rows = 0
            asked = [places[k] for k in inner] or [0]
            for chunk in table.chunks(asked):
                count = len(chunk[0].values)
                rows += count
                found = dict(zip(inner, chunk, strict=False))
                yield [found[k] if k < own else _constant(keys[self.names[k]], count) for k in wanted]
            self._starts.append(self._starts[-1] + rows)

    def row_name(self, row: int) -> str:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        number = min(number, len(self.tables) - 1)
        table = self.tables[number]
        return f"{table.row_name(row - self._starts[number])} of {Path(table.origin).name}"

    def describe(self) -> Description:
        tables = [table.describe() for table in self.tables]
        return {"kind": self.kind, "tables": tables, "keys": list(self.keys), "origin": self.origin}

    @classmethod
    def from_description(cls, description: Description) -> FilesTable:
        tables = [table_from(each) for each in description["tables"]]
        return cls(tables, description["keys"], description["origin"])


class NpyTable(RawTable):
    """A `.npy` file of numbers, of which columns are chosen or gaps are treated."""

    kind = "npy"
    named = False

    def __init__(self, path: Path) -> None:
        self.path, self.origin = path, str(path)
        array = open_npy(path)
        if array.dtype.kind not in "fiub" or array.ndim == 0 or 0 in array.shape:
            raise DataError(f"{path} holds {array.dtype} values of shape {array.shape}; give rows of numbers.")
        self.array: Array = array.reshape(len(array), -1)
        self.names = [str(k) for k in range(self.array.shape[1])]

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        for start in range(0, len(self.array), CHUNK_ROWS):
            part = self.array[start : start + CHUNK_ROWS]
            yield [RawColumn("number", np.array(part[:, k], np.float64)) for k in wanted]

    def row_name(self, row: int) -> str:
        return f"row {number(row)}"

    def dtype(self, wanted: Sequence[int]) -> np.dtype[np.generic]:
        return np.result_type(self.array.dtype, np.float32)

    def describe(self) -> Description:
        return {"kind": self.kind, "path": str(self.path), "signature": signature(self.path)}

    @classmethod
    def from_description(cls, description: Description) -> NpyTable:
        check_unchanged(Path(description["path"]), description)
        return cls(Path(description["path"]))


def _constant(text: str, rows: int) -> RawColumn:
    return RawColumn("cells", np.full(rows, -1 if text == NO_KEY else 0), (text,))


def folder_keys(path: Path, root: Path) -> dict[str, str]:
    """Keys such as `year=2024` in the names of the folders between a file and the folder that was given."""
    parts = path.parent.relative_to(root).parts if path.is_relative_to(root) else ()
    pairs = (part.partition("=") for part in parts if "=" in part.strip("="))
    return {unquote(name): unquote(value) for name, _, value in pairs}


def table_from(description: Description) -> RawTable:
    """The table that `describe` was called on, or an equal one."""
    kinds: dict[str, Any] = {table.kind: table for table in (TextTable, ArrowTable, ExcelTable, NpyTable, FilesTable)}
    if description.get("kind") not in kinds:
        raise DataError(
            f"This version of Flegel has no table of kind {description.get('kind')!r}; install one version."
        )
    found: RawTable = kinds[description["kind"]].from_description(description)
    return found
