"""How a gap is written in rows of numbers: as the largest float32, which is finite in float32 and float64 alike.

Rows travel, are checked and are stored as finite numbers; only a class that declares `Accepts(gaps=True)` gets such
rows, and knows this number for what it is. Never read as a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UsageError

GAP = float(np.finfo(np.float32).max)


def with_marks(rows: Any) -> Array:
    """Rows whose NaN are written as gaps; rows without any as they are."""
    found = np.asarray(rows)
    missing = np.isnan(found)
    if not missing.any():
        return found
    observed(found)  # refuses numbers beyond the mark
    return np.where(missing, np.asarray(GAP, found.dtype), found)


def observed(rows: Any) -> Array:
    """True where a number is a value: neither NaN nor the mark of a gap. Numbers beyond the mark, such as infinite
    ones, are refused."""
    found = np.asarray(rows)
    if (np.abs(found) > GAP).any():
        raise UsageError("Rows hold an infinite number, or one beyond 3.4e38; write it as NaN where it is a gap.")
    return np.asarray(found < GAP)


def unobserved(weights: Array) -> str:
    """Names the columns of which nothing is observed; empty where there are none."""
    columns = np.flatnonzero(np.asarray(weights) <= 0)
    if not len(columns):
        return ""
    named = ", ".join(map(str, columns[:5])) + (", …" if len(columns) > 5 else "")
    if len(columns) > 1:
        return f"columns {named} (counted from 0) have no observed number"
    return f"column {named} (counted from 0) has no observed number"
