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
    rounds_between_decisions: Annotated[
        int, Setting("rounds", "With the same workers before the first decision, and between two.", 1)
    ] = 4
    pause_between_decisions: Annotated[
        float, Setting("of the time since the last change", "Until the next decision.")
    ] = 0.1
    gain_to_rest: Annotated[float, Setting("of progress", "From which workers are sent to rest.")] = 0.05
    gain_to_recall: Annotated[
        float,
        Setting("of progress", "From which workers are called back: of those that rest, only old speeds are known."),
    ] = 0.1
    decisions_to_rest: Annotated[
        int, Setting("decisions in a row", "That must agree before workers are sent to rest.", 1)
    ] = 2
    decisions_to_recall: Annotated[
        int, Setting("decisions in a row", "That must agree before workers are called back.", 1)
    ] = 3
    recall_savings: Annotated[
        float, Setting("pauses of a change", "What calling back must have saved; twice as much each time.")
    ] = 4.0
    speed_memory: Annotated[
        float, Setting("of the past", "Kept in the speed of a worker at first: about ten rounds.", 0, 0.999)
    ] = 0.9
    long_speed_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Kept at most, after many rounds: about two hundred; between, a quarter of the rounds seen. Workers that "
            "share processors are slow for tenths of a second and should not rest for that.",
            0,
            0.9999,
        ),
    ] = 0.995
    workers_measured_one_by_one: Annotated[
        int, Setting("workers", "With more of them the coordinator's own estimate of each speed is taken.")
    ] = 256
    first_change_barriers: Annotated[
        float, Setting("barriers", "Pause of a change before one was measured, beside the points.")
    ] = 4.0
    first_change_seconds_each_point: Annotated[
        float, Setting("seconds", "For each point that is handed over, before a change was measured.")
    ] = 5e-7
