"""Settings of resting: which workers train and which rest because barriers cost more with them (plan, machine)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class RestingSettings:
    """Costs of barriers before they are measured, and how sure a change has to be."""

    may_rest_below: Annotated[
        float,
        Setting(
            "of the fastest worker's speed",
            "Faster workers never rest. Workers that share processors differ by three to five for a while, and what "
            "fewer workers save is a guess until it was tried.",
            0,
            1,
        ),
    ] = 0.1
    growing_cost: Annotated[
        float, Setting("of a barrier", "Taken to grow with the workers while one number of them was seen only.", 0, 1)
    ] = 0.5
    first_barrier_seconds: Annotated[
        float,
        Setting("seconds", "Barrier of one worker before one was measured; 1.8 ms were seen on sixteen cores."),
    ] = 1.5e-3
    first_barrier_seconds_each: Annotated[
        float, Setting("seconds", "For each further worker; 5 to 8 ms were seen with sixteen.")
    ] = 3e-4
    cost_memory: Annotated[
        float, Setting("of the past", "Kept in the mean cost of barriers: about five.", 0, 0.999)
    ] = 0.8
    sure_gain: Annotated[float, Setting("of progress", "From which workers rest before training began.")] = 0.1
