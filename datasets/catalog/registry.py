"""Data sets by name. Never opens one."""

from __future__ import annotations

from flegel.datasets.catalog.entry import CatalogEntry
from flegel.datasets.catalog.sets import ENTRIES
from flegel.errors import UsageError, nearest

_BY_NAME: dict[str, type[CatalogEntry]] = {entry.name: entry for entry in ENTRIES}


def names() -> list[str]:
    return list(_BY_NAME)


def entry(name: str) -> type[CatalogEntry]:
    if name not in _BY_NAME:
        raise UsageError(f"There is no data set {name!r}{nearest(name, names())}")
    return _BY_NAME[name]
