"""Open data sets by name: the real rows where they are in the cache, else a stand-in.

Never downloads anything.
"""

from __future__ import annotations

import numpy as np

from flegel.datasets.catalog.entry import CatalogEntry
from flegel.datasets.catalog.sets import ENTRIES
from flegel.datasets.dataset import Dataset
from flegel.datasets.options import Options
from flegel.errors import UsageError, nearest

_BY_NAME: dict[str, type[CatalogEntry]] = {entry.name: entry for entry in ENTRIES}


def names() -> list[str]:
    return list(_BY_NAME)


def entry(name: str) -> type[CatalogEntry]:
    if name not in _BY_NAME:
        raise UsageError(f"There is no data set {name!r}{nearest(name, names())}")
    return _BY_NAME[name]


def open_registered(name: str, rows: int | None, options: Options) -> Dataset:
    """Open the first `rows` rows of a set: the real ones where they are in the cache."""
    known = entry(name)
    path = None if known.generated else known.real_path()
    if path is not None:
        source = known.open_real(path, options)
        return Dataset(name, source, source.rows if rows is None else min(rows, source.rows))
    for option, value in zip(options._fields, options, strict=True):
        if value != getattr(Options(), option) and option not in ("dtype", "sparse"):
            raise UsageError(f"{name} is generated here, so {option}={value!r} has no effect; omit it.")
    source = known.stand_in(rows or known.default_rows)
    if options.dtype is not None:
        source.dtype = np.dtype(options.dtype)
    note = None
    if not known.generated:
        note = (
            f"{name}: the real data are not in the cache, so {source.rows:,} generated rows stand in "
            f"for them ({known.remark}); `flegel data fetch {name}` gets the real ones."
        )
    return Dataset(name, source, source.rows, stand_in=not known.generated, note=note)
