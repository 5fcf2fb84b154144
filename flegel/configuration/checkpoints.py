"""Settings of checkpoints: how long a job trains on before it is stopped for one (machine/checkpoint)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class CheckpointSettings:
    """Waits before a checkpoint, and the distance of commit records."""

    wait_for_barrier_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Time that a due checkpoint waits for a barrier, at most half the time between two checkpoints; then "
            "a round that may be stopped is stopped.",
        ),
    ] = 1.0
    suspend_within_seconds: Annotated[
        float, Setting("seconds", "Time that a job which is to be suspended waits for its last checkpoint.")
    ] = 10.0
    seconds_between_commits: Annotated[float, Setting("seconds", "Shortest time between two commit records.")] = 0.1
