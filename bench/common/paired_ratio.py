"""How many times as long as fsp a rival took: runs from the same start are compared, then the median is taken.

Starts differ: from one, everybody may need twice the passes that another takes. Medians of seconds alone would compare
a rival's easy start with the hard one of fsp, above all where the rival was given up after its first run.
"""

from __future__ import annotations

from statistics import median
from typing import Any


def paired_ratio(models: dict[str, Any], name: str, to: str = "fsp") -> tuple[float, bool]:
    """The ratio, and whether it is a lower bound, the last run given up. Runs stand in the order of their starts."""
    pairs = zip(models[name]["all"], models[to]["all"], strict=False)
    return median(mine / base for mine, base in pairs), not models[name]["reached"]
