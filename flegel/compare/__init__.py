"""Synchronization models against each other, fairly. `compare` runs a contest; `record` keeps what came out."""

from __future__ import annotations

from flegel.compare.contest import Contest, compare, hold, in_memory, setting
from flegel.compare.record import Attempt, Bench, Chart, Comparison, Document, Picture, Series, Table, read, write

__all__ = [
    "Attempt",
    "Bench",
    "Chart",
    "Comparison",
    "Contest",
    "Document",
    "Picture",
    "Series",
    "Table",
    "compare",
    "hold",
    "in_memory",
    "read",
    "setting",
    "write",
]
