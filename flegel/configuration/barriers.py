"""Settings of barriers: when a round of a synchronization model ends, and who keeps its own time (sync)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class BarrierSettings:
    """Rounds of flexible barriers, lateness of reports, first updates."""

    idle_speed_ending_round: Annotated[
        float,
        Setting(
            "of the mean speed",
            "A round ends when the workers that have visited all their points, and are idle, together have this speed.",
        ),
    ] = 0.75
    whole_pass_patience: Annotated[
        float,
        Setting(
            "usual rounds",
            "A round of whole passes ends after so many times its usual length, without the workers that are late.",
            1,
        ),
    ] = 1.5
    equal_speed: Annotated[
        float,
        Setting("of the mean speed", "A worker counts as slow below this speed, measured over the whole job.", 0, 1),
    ] = 0.7
    lateness_weight: Annotated[
        float, Setting("of a mean", "Weight of the newest report in the mean lateness of a worker.", 0, 1)
    ] = 0.3
    judged_rounds: Annotated[
        int,
        Setting("rounds", "A worker's lateness is judged by so many last rounds; the worst of them does not count.", 2),
    ] = 8
    fewest_judged_rounds: Annotated[
        int, Setting("rounds", "Rounds that are needed before a worker is said to be late.", 1)
    ] = 3
    usual_scatter: Annotated[
        float,
        Setting(
            "median distances from the median",
            "Lateness up to this is usual: reports are taken in one by one, and one is always last.",
        ),
    ] = 3.0
    punctual_within_seconds: Annotated[float, Setting("seconds", "A report that is less late counts as punctual.")] = (
        0.003
    )
    patience_kept: Annotated[
        float,
        Setting(
            "of the past",
            "Weight of the past in the time that a round waits for workers which cannot report earlier.",
            0,
            1,
        ),
    ] = 0.95
    shortest_training: Annotated[
        float, Setting("of η", "However late a worker is, its own timer leaves it this part of η to train.", 0, 1)
    ] = 0.25
    unequal_idle: Annotated[
        float,
        Setting(
            "of all workers' time",
            "Model `auto`: waiting under bsp above which the speeds of workers count as different. Equal workers "
            "wait 2 to 8 % by chance.",
            0,
            1,
        ),
    ] = 0.15
    rounds_to_choose: Annotated[
        int,
        Setting(
            "rounds",
            "Model `auto`: rounds in a row that must agree before the choice changes; a single one is noisy.",
            1,
        ),
    ] = 2
    stale_update_loss: Annotated[
        float,
        Setting(
            "of an update's worth",
            "Model `auto`, networks: what a gradient loses with each update that others make while it is computed. "
            "To a loss of 1.0, 4 and 16 workers without barriers need 1.2 to 1.8 and 2.7 to 4.6 times as many updates "
            "of 16 samples as one (mlp and cnn, Adam), which is 0.07 to 0.25.",
            0,
            10,
        ),
    ] = 0.15
    clear_gain: Annotated[
        float,
        Setting(
            "ratio",
            "Model `auto`, networks: predicted gain above which updates at barriers are given up for updates of single "
            "reports, or the other way round. Predictions are known to about as much.",
            1,
        ),
    ] = 1.15
    first_update_evidence: Annotated[
        float,
        Setting(
            "numbers of data for each of θ",
            "The first update rests on so many: θ from few points leads k-means to worse optima "
            "(docs/adr/first-pass.md).",
        ),
    ] = 500.0
    psp_shorter_horizon: Annotated[
        float,
        Setting(
            "of predicted utilization",
            "Model `psp`: predicted utilization that is given up for a shorter time between two updates. Speeds "
            "predict those of the next round to some percent only. With 0.005, four equal workers whose times "
            "vary by 2 % did 35 iterations between updates; with 0.05 one.",
            0,
            1,
        ),
    ] = 0.05
    psp_shorter_horizon_of_networks: Annotated[
        float,
        Setting(
            "of predicted utilization",
            "The same for networks, whose gradients are used up by an update. With speeds 1 : 2 : 3 on two cores "
            "and 0.05 an update took 420 ms, twice the time of bsp-mini.",
            0,
            1,
        ),
    ] = 0.15
    bsp_mini_first_batches: Annotated[
        int,
        Setting(
            "batches a pass", "Model `bsp-mini`: number of mini-batches with which the search for their size begins.", 1
        ),
    ] = 32
    measured_parts_of_a_pass: Annotated[
        float, Setting("parts of a pass", "One part of a pass in so many tells the speed of a worker.", 1)
    ] = 20.0
    psp_max_horizon: Annotated[
        int,
        Setting(
            "iterations of the slowest worker",
            "Model `psp`: longest horizon that is looked at; with more the promise hardly grows, and to look "
            "through a thousand took longer than to train.",
            1,
        ),
    ] = 16
    workers_per_changed_worker: Annotated[
        int,
        Setting(
            "workers",
            "For each one that has reported: with fewer, all workers are counted anew instead of those that reported.",
            1,
        ),
    ] = 8
