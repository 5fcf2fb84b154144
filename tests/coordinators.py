"""The coordinators of jobs on real workers, for tests that check the statistics against a recomputation.

Observers of a job get immutable snapshots only; this looks over the runtime's shoulder where it makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime.parts import observers


@contextmanager
def coordinators() -> Iterator[list[Coordinator]]:
    """Filled whenever a job that has a `watch` is looked at; the last one is that of the job that runs now."""
    found: list[Coordinator] = []
    original = observers.observe

    def observe(job: Coordinator, **more: Any) -> JobSnapshot:
        found.append(job)
        return original(job, **more)

    observers.observe = observe
    try:
        yield found
    finally:
        observers.observe = original
