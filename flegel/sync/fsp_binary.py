"""Flexible synchronous parallelism with the simple search: the interval is divided by λ while that pays, then fixed."""

from __future__ import annotations

from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.environment import Recent
from flegel.plan.interval.interval import Step
from flegel.plan.interval.search import BinarySearch, Search
from flegel.sync.fsp import FlexibleBarrier
from flegel.sync.local_timers import EveryTimer, LocalTimers


class FSPBinary(FlexibleBarrier):
    """Flexible barriers; the interval is searched once, or again when the environment changes."""

    name = "fsp-binary"
    summary = "flexible barriers by time; halves the interval while that pays"
    stored: ClassVar = {LocalTimers: (), EveryTimer: (), BinarySearch: (), Search: (), Recent: (), Step: ()}

    def __init__(
        self,
        coordination: str = "semi",
        factor: float = 2.0,
        search: str = "once",
        timers: str = "late",
        round_end: str = "idle",
    ) -> None:
        first = active().interval.first_seconds or None
        super().__init__(BinarySearch(first, factor, search == "again"), coordination, timers, round_end)


class PublishedFSPBinary(FSPBinary):
    """What Sections 3.3, 4.2 and 5.2 of the paper say, where ours differs; each option can be given alone, too."""

    name = "fsp-binary:published"
    summary = "fsp-binary as its paper prints it: searches again when speeds change; the rest as fsp:published"
    matching = "pairs"

    def __init__(
        self,
        coordination: str = "semi",
        factor: float = 2.0,
        search: str = "again",
        timers: str = "all",
        round_end: str = "first",
    ) -> None:
        super().__init__(coordination, factor, search, timers, round_end)
