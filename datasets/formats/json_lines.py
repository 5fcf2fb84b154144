"""JSON lines as tables: an object a line, whose keys are columns. Values become the cells that a text file would hold,
so that both are treated alike. Never decides what a cell means.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec

from flegel.datasets.formats.compressed import open_unpacked
from flegel.datasets.rows.file_signature import check_unchanged
from flegel.datasets.rows.source import Description
from flegel.datasets.tables.columns import CHUNK_ROWS, FileTable, RawColumn, cells
from flegel.errors import DataError
from flegel.wording import option


class JsonLinesTable(FileTable):
    """One file of JSON lines, compressed or not. A key that a line lacks is a gap there."""

    kind = "json lines"

    def __init__(self, path: Path, names: list[str] | None = None) -> None:
        self.path, self.origin = path, str(path)
        self.names = list(dict.fromkeys(key for _, row in self._rows() for key in row)) if names is None else names
        if not self.names:
            raise DataError(f"{path} holds no values; give a file with rows.")

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        rows = self._rows()
        while part := list(islice(rows, CHUNK_ROWS)):
            yield [cells([self._cell(row.get(name), name, line) for line, row in part]) for name in self._named(wanted)]

    def _named(self, wanted: Sequence[int]) -> list[str]:
        return [self.names[k] for k in wanted]

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each line that is not blank, and its number."""
        decoder = msgspec.json.Decoder()
        with open_unpacked(self.path) as file:
            stream = io.TextIOWrapper(file, "utf-8-sig")
            try:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield number, self._object(line, number, decoder)
            except UnicodeDecodeError:
                raise DataError(f"{self.origin} is not UTF-8 text throughout; convert it to UTF-8.") from None

    def _object(self, line: str, number: int, decoder: msgspec.json.Decoder[Any]) -> dict[str, Any]:
        try:
            found = decoder.decode(line)
        except msgspec.DecodeError:
            try:
                found = json.loads(line)  # takes NaN, which Python writes
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self.origin}, line {number} is no JSON ({error}); correct or remove it.") from None
        if not isinstance(found, dict):
            raise DataError(f'{self.origin}, line {number} is no object {{"name": value, …}}; write one on each line.')
        return found

    def _cell(self, value: Any, name: str, line: int) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, dict | list):
            what = "an object" if isinstance(value, dict) else "a list"
            raise DataError(
                f"{self.origin}, line {line}: {name!r} holds {what}, which is neither a number nor text; write its "
                f"parts as values of their own, or leave it out with {option('drop', name)}."
            )
        return repr(value)

    def row_name(self, row: int) -> str:
        """Its line, where no line is blank."""
        return f"line {row + 1}"

    def describe(self) -> Description:
        return {**super().describe(), "names": self.names}

    @classmethod
    def from_description(cls, description: Description) -> Self:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, list(description["names"]))
