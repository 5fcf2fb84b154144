"""Asynchronous parallelism: no barrier; each report is folded in when it comes, and its worker goes on at once.

Others train meanwhile under an older θ. That may diverge; the job then ends and says so.
"""

from __future__ import annotations

import math

from flegel.sync.policy import USUAL_BATCHES_PER_PASS
from flegel.sync.ssp import SSP


class ASP(SSP):
    """`ssp` without a bound."""

    name = "asp"
    summary = "no barrier at all; may diverge"

    def __init__(self, batches: int = USUAL_BATCHES_PER_PASS, waiting: str = "idle") -> None:
        super().__init__(batches=batches, waiting=waiting)
        self.staleness = math.inf
