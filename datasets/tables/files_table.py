"""Several tables as one, and keys in the names of their folders. Never opens a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from flegel.datasets.rows.source import Description
from flegel.datasets.tables.columns import RawColumn, RawTable, table_from
from flegel.errors import DataError

NO_KEY = "__HIVE_DEFAULT_PARTITION__"


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


def _constant(text: str, rows: int) -> RawColumn:
    return RawColumn("cells", np.full(rows, -1 if text == NO_KEY else 0), (text,))


def folder_keys(path: Path, root: Path) -> dict[str, str]:
    """Keys such as `year=2024` in the names of the folders between a file and the folder that was given."""
    parts = path.parent.relative_to(root).parts if path.is_relative_to(root) else ()
    pairs = (part.partition("=") for part in parts if "=" in part.strip("="))
    return {unquote(name): unquote(value) for name, _, value in pairs}
