"""Settings of a worker between two barriers: its calls, its own updates of θ, parts that grow (machine/worker)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class TrainingSettings:
    """How points are visited. They reach workers with their shard."""

    batched_call_multiple: Annotated[
        int,
        Setting(
            "points",
            "Points of a call that trains batches are a multiple of it: a backend prepares each size of call "
            "separately.",
            1,
        ),
    ] = 8
    visits_shown_every_seconds: Annotated[
        float, Setting("seconds of training", "Time after which the number of visits that heartbeats tell is updated.")
    ] = 0.25
    fewest_points_per_call: Annotated[
        int,
        Setting(
            "points",
            "Points of a call of a built-in kernel, at least: a small job then has the same calls, and gives "
            "the same bits, whatever the speed of its processor.",
            1,
        ),
    ] = 2048
    signal_grace_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After a signal the visit of a point may take so long before it is abandoned: as long as a barrier costs "
            "anyway.",
            0,
        ),
    ] = 0.05
    visit_look_seconds: Annotated[
        float,
        Setting("seconds", "Between two looks whether a visit is to be abandoned: a tenth of its grace.", 0.0001),
    ] = 0.005
    most_abandoned_visits: Annotated[
        int,
        Setting(
            "visits",
            "Abandoned visits of compiled code that have not ended, each of which keeps a thread busy, before the job "
            "fails.",
            1,
        ),
    ] = 8
    remembered_steps: Annotated[
        int,
        Setting(
            "calls",
            "By so many last calls a worker with a timer of its own predicts how long the next one takes.",
            1,
            1000,
        ),
    ] = 4
    shortest_measured_step_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "A shorter call says more about the time of calling than about that of points, and is not remembered.",
        ),
    ] = 2e-4
    smallest_step_share: Annotated[
        float,
        Setting(
            "of a usual call",
            "A smaller call at the end of a round is mostly the time of calling, and is not made.",
            0,
            1,
        ),
    ] = 0.25
    training_per_update_time: Annotated[
        int,
        Setting(
            "times the duration of an update",
            "So long a worker that is alone trains before it makes θ anew: updates then take a ninth of its time.",
        ),
    ] = 8
    remembered_updates: Annotated[
        int, Setting("updates", "The duration of an update is the shortest of so many last ones.", 1, 1000)
    ] = 8
    equal_fields_within: Annotated[
        float,
        Setting(
            "of the largest number of a field",
            "The coordinator's θ counts as that of the worker where it differs by less: the rounding of another "
            "machine.",
            0,
            1,
        ),
    ] = 1e-9
    max_passes_over_parts: Annotated[
        float,
        Setting(
            "passes over all points", "Visits of parts of the points, at most: a job must come to know its objective."
        ),
    ] = 3.0
    visits_before_comparison: Annotated[
        int,
        Setting(
            "visits of the part",
            "Visits under another θ before its objective is compared with that of the former one.",
            1,
        ),
    ] = 3
    smallest_first_part: Annotated[
        float,
        Setting(
            "of all points", "Smallest first part: a visit of it costs little beside the one visit of all points.", 0, 1
        ),
    ] = 1 / 64
    first_part_evidence: Annotated[
        float,
        Setting("numbers of data for each of θ", "The first part has so many: 50 led to worse optima on real tables."),
    ] = 100.0
    largest_first_part: Annotated[
        float, Setting("of all points", "Where the first part would be larger, training begins with all points.", 0, 1)
    ] = 1 / 4
    largest_later_part: Annotated[
        float,
        Setting(
            "of all points",
            "Where a later part would be larger, all points follow: visits of larger parts cost more than they save.",
            0,
            1,
        ),
    ] = 1 / 8
    gain_per_noise_to_repeat: Annotated[
        float,
        Setting(
            "of the noise of the objective on the part",
            "What a further visit of a part must gain; otherwise the part grows.",
        ),
    ] = 0.25
    least_growth_of_part: Annotated[float, Setting("ratio", "Smallest ratio of the next part to this one.", 1)] = 3.0
    greatest_growth_of_part: Annotated[
        float, Setting("ratio", "Largest ratio of the next part to this one: the noise is known only roughly.", 1)
    ] = 8.0
    swap_candidates: Annotated[
        int,
        Setting(
            "clusters",
            "Wide clusters, and close pairs, that are compared for a swap while parts of the points grow.",
            1,
            4096,
        ),
    ] = 8
    swap_products: Annotated[
        int,
        Setting(
            "multiplications",
            "Of all pairs of clusters, at most: about a second. More clusters are not swapped.",
            0,
            1152921504606846976,
        ),
    ] = 2**35
    computing_between_sleeps_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Of a worker that is slowed by a factor on purpose; the call itself takes a part of it.",
            0.0001,
            10,
        ),
    ] = 0.002
    shortest_sleep_seconds: Annotated[
        float,
        Setting(
            "seconds", "Of such a worker: the operating system makes shorter sleeps longer than asked for.", 1e-05, 1
        ),
    ] = 0.0001
    sleep_check_seconds: Annotated[
        float, Setting("seconds", "After which a worker that sleeps so looks at the stop flag.", 1e-05, 1)
    ] = 0.00025
    partial_fit_passes: Annotated[
        int, Setting("passes", "Of `partial_fit`: one to measure the start, two to measure steps from it.", 1)
    ] = 3
