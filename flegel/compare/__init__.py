"""Fair comparisons of synchronization models: `compare` runs one, `record` is what it finds. Changes no job."""

from __future__ import annotations

from flegel.compare.comparison import ComparisonSettings, compare, in_memory, run_comparison, run_environment
from flegel.compare.record import Attempt, Comparison, Picture, read, write

__all__ = [
    "Attempt",
    "Comparison",
    "ComparisonSettings",
    "Picture",
    "compare",
    "in_memory",
    "read",
    "run_comparison",
    "run_environment",
    "write",
]
