"""What a caller may say about a file beyond its path. Plain values; never reads anything."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """None everywhere means: find out."""

    label: str | int | None = None
    dtype: str | None = None
    columns: list[str | int] | None = None
    delimiter: str | None = None
    header: bool | None = None
    format: str | None = None
    width: int | None = None
    """Columns that sparse rows have at least, where a file happens not to use the last ones."""
