"""Flexible synchronous parallelism with the simple search: the interval is divided by λ while that pays, then fixed."""

from __future__ import annotations

from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.interval import Step
from flegel.plan.interval.search import BinarySearch, Search
from flegel.sync.fsp import FlexibleBarrier
from flegel.sync.local_timers import LocalTimers


class FSPBinary(FlexibleBarrier):
    """Flexible barriers; the interval is searched once."""

    name = "fsp-binary"
    summary = "flexible barriers by time; halves the interval while that pays"
    stored: ClassVar = {LocalTimers: (), BinarySearch: (), Search: (), Step: ()}

    def __init__(self, coordination: str = "semi", factor: float = 2.0) -> None:
        super().__init__(BinarySearch(active().interval.first_seconds or None, factor), coordination)
