"""Options of `open_data` that tell how a file is read. Plain values; never reads anything."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """None means that the value is detected from the file."""

    label: str | int | None = None
    dtype: str | None = None
    columns: list[str | int] | None = None
    delimiter: str | None = None
    header: bool | None = None
    format: str | None = None
    width: int | None = None
    """Least number of columns of sparse rows, for files that do not use the last columns."""
