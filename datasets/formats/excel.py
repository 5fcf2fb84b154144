"""Excel workbooks as tables. Needs openpyxl, an optional dependency."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets.formats.text_dialect import has_header
from flegel.datasets.tables.columns import FileTable, RawColumn, text_of, unique_names
from flegel.datasets.tables.object_table import ObjectTable
from flegel.errors import DataError, UsageError, in_words


class ExcelTable(FileTable):
    """The first sheet of a workbook that has rows; it is read whole."""

    kind = "excel"

    def __init__(self, path: Path) -> None:
        """Read one sheet whole; short rows are filled with empty cells up to the widest one."""
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
        raise DataError(f"{path} is no complete Excel file ({in_words(error)}); save it again.") from None
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
