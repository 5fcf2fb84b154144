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
            "Only workers slower than this may rest. Workers that share processors differ by a factor of three to"
            " five for a while, and what fewer workers save is a guess until it was tried.",
            0,
            1,
        ),
    ] = 0.1
    growing_cost: Annotated[
        float,
        Setting(
            "of a barrier",
            "Part of the cost that is assumed to grow with the number of workers until barriers of two numbers of"
            " workers were measured.",
            0,
            1,
        ),
    ] = 0.5
    first_barrier_seconds: Annotated[
        float,
        Setting(
            "seconds", "Cost of a barrier with one worker until one was measured; 1.8 ms were seen on sixteen cores."
        ),
    ] = 1.5e-3
    first_barrier_seconds_each: Annotated[
        float,
        Setting(
            "seconds", "Added to `first_barrier_seconds` for each further worker; 5 to 8 ms were seen with sixteen."
        ),
    ] = 3e-4
    cost_memory: Annotated[
        float,
        Setting("of the past", "Weight of the past in the mean cost of barriers: about the last five count.", 0, 0.999),
    ] = 0.8
    sure_gain: Annotated[
        float, Setting("of progress", "Predicted gain from which workers rest already before training begins.")
    ] = 0.1
    rounds_between_decisions: Annotated[
        int, Setting("rounds", "Rounds with the same workers before the first decision, and between two decisions.", 1)
    ] = 4
    pause_between_decisions: Annotated[
        float, Setting("of the time since the last change", "Pause until the next decision.")
    ] = 0.1
    gain_to_rest: Annotated[float, Setting("of progress", "Predicted gain from which workers are sent to rest.")] = 0.05
    gain_to_recall: Annotated[
        float,
        Setting(
            "of progress",
            "Predicted gain from which workers are called back: of those that rest, only old speeds are known.",
        ),
    ] = 0.1
    decisions_to_rest: Annotated[
        int, Setting("decisions in a row", "Decisions that must agree before workers are sent to rest.", 1)
    ] = 2
    decisions_to_recall: Annotated[
        int, Setting("decisions in a row", "Decisions that must agree before workers are called back.", 1)
    ] = 3
    recall_savings: Annotated[
        float,
        Setting(
            "pauses of a change",
            "Workers are called back where this would have saved so much; twice as much each time.",
        ),
    ] = 4.0
    speed_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Weight of the past in the mean speed of a worker at first: about ten rounds count.",
            0,
            0.999,
        ),
    ] = 0.9
    long_speed_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Largest weight of the past in that mean, after many rounds: about two hundred count; before, a "
            "quarter of the rounds seen. Workers that share processors are slow for tenths of a second and should"
            " not rest for that.",
            0,
            0.9999,
        ),
    ] = 0.995
    workers_measured_one_by_one: Annotated[
        int, Setting("workers", "With more workers than this, the coordinator's own estimate of each speed is used.")
    ] = 256
    first_change_barriers: Annotated[
        float,
        Setting(
            "barriers",
            "Cost of a change of the training workers until one was measured, besides the points that are handed over.",
        ),
    ] = 4.0
    first_change_seconds_each_point: Annotated[
        float, Setting("seconds", "Cost of handing over one point at such a change, until one was measured.")
    ] = 5e-7
