"""Where the seconds of a call go: functions of the engine are timed by name while it runs. Changes nothing they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from flegel.datasets.dataset import Dataset
from flegel.runtime.job import run
from flegel.runtime.job.placement import JobCluster
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.parts import lent_rows
from flegel.runtime.worker.row_sources import SharedRows

PHASES: tuple[tuple[str, Any, str], ...] = (
    ("sample_and_start", PreparedJob, "__init__"),
    ("workers", JobCluster, "start_early"),
    ("check_values", Dataset, "read"),
    ("draw_owners", Dataset, "owners"),
    ("lend_rows", lent_rows, "lend_rows"),
    ("hand_rows_out", SharedRows, "__init__"),
    ("load_and_train", run, "drive"),
    ("free_rows", SharedRows, "close"),
    ("end_of_job", JobCluster, "__exit__"),
)
"""What is timed: its name, where it is, what it is called there; public names only. Rows are lent, or else checked,
dealt and handed out."""


@contextlib.contextmanager
def timed_phases() -> Iterator[dict[str, float]]:
    """Seconds by phase, of all calls inside."""
    seconds: dict[str, float] = {}
    before = [(place, name, place.__dict__[name]) for _, place, name in PHASES]
    try:
        for phase, place, name in PHASES:
            setattr(place, name, _timed(place.__dict__[name], phase, seconds))
        yield seconds
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def _timed(function: Callable[..., Any], phase: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - began

    return timed
