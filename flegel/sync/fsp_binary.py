"""Flexible synchronous parallelism with the simple search: the interval is divided by λ while that pays, then fixed."""

from __future__ import annotations

from typing import ClassVar

from flegel.plan.interval.search import BinarySearch, Search, Step
from flegel.sync.fsp import FlexibleBarrier
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import Seconds


class FSPBinary(FlexibleBarrier):
    """Flexible barriers; the interval is searched once."""

    name = "fsp-binary"
    summary = "flexible barriers by time; halves the interval while that pays"
    stored: ClassVar = {LocalTimers: (), BinarySearch: (), Search: (), Step: ()}

    def __init__(self, first_interval: Seconds | None = None, coordination: str = "semi", factor: float = 2.0) -> None:
        super().__init__(BinarySearch(first_interval, factor), coordination)
