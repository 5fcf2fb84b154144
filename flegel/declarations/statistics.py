"""What the fields of the statistics are."""

from __future__ import annotations

from dataclasses import dataclass

from flegel.declarations.field_types import TypedFields


@dataclass(frozen=True, kw_only=True)
class Statistics(TypedFields):
    """`statistics = Statistics(spent=("gradient",))`. Without it every field is a sum over points, kept for ever."""

    spent: tuple[str, ...] = ()
    """Fields that are used up at a barrier (gradients) rather than kept for ever (sums)."""
    lagging: tuple[str, ...] = ()
    """Fields that depend on earlier visits of a point besides the last one: a visit improves the state that it finds
    (row factors), or counts only what has changed much (second derivatives)."""
    per_report: tuple[str, ...] = ()
    """Fields that are made once for each report rather than summed over points."""
    constant: bool = False
    """A point adds the same under every θ: moments, counts. The engine then keeps a mark in place of each point's
    contribution, counts a point at its first visit alone, and ends the job when every point has been counted: one pass
    gives the exact sums."""
