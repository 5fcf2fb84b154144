"""The figures of a barrier that trackers record, under the names of the trace. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot

FIGURE_NAMES = ("seconds", "iteration", "objective", "estimate", "interval", "visits", "in_flight", "moved_bytes")


def scalars(snapshot: JobSnapshot) -> dict[str, float]:
    """Figures that exist and are finite, by name; the iteration is the step and no figure."""
    found = {name: getattr(snapshot, name) for name in FIGURE_NAMES if name != "iteration"}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def settings(job: Job) -> dict[str, Any]:
    """What was asked for, flat and short enough for every tracker."""
    hyper = {f"hyper.{name}": str(value)[:200] for name, value in job.algorithm.hyper.items()}
    named = {"algorithm": job.algorithm.name, "data": job.data, "sync": job.sync.name}
    return {**named, "workers": job.workers, "seed": job.seed, "straggler": job.straggler, **hyper}
