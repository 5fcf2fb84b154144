"""The only place that reads a clock. Everything else is told the time."""

from __future__ import annotations

import time
from datetime import timedelta

now = time.monotonic
"""Seconds on a clock that never goes back; comparable between processes of one host."""

thread_seconds = time.thread_time
"""Seconds that a processor has worked for this thread."""


def sleep(seconds: float) -> float:
    """Suspend this thread; returns how long that really took."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began


def wall(at: float | None = None) -> str:
    """Date and time for people, in UTC: now, or so many seconds after 1970."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def microseconds() -> int:
    """Microseconds since 1970: for names that must grow from one process to the next."""
    return time.time_ns() // 1000


def resolution() -> float:
    """Seconds between two times that `now` can tell apart."""
    return time.get_clock_info("monotonic").resolution


def span(seconds: float) -> timedelta:
    """Seconds as PyTorch's messages take them."""
    return timedelta(seconds=seconds)
