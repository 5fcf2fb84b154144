"""Settings of barriers: when a round of a synchronization model ends, and who keeps its own time (sync)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class BarrierSettings:
    """Rounds of flexible barriers, lateness of reports, first updates."""

    idle_speed_ending_round: Annotated[
        float, Setting("of the mean speed", "A round ends when workers this fast together have visited their shares.")
    ] = 0.75
    whole_pass_patience: Annotated[
        float, Setting("usual rounds", "A round of whole passes ends after it, without the workers that are late.", 1)
    ] = 1.5
    equal_speed: Annotated[
        float, Setting("of the mean speed", "Over the whole job, above which no worker counts as slow.", 0, 1)
    ] = 0.7
    lateness_weight: Annotated[float, Setting("of a mean", "Weight of the newest lateness of a report.", 0, 1)] = 0.3
    judged_rounds: Annotated[
        int, Setting("rounds", "By which a worker's lateness is judged; the worst of them does not count.", 2)
    ] = 8
    fewest_judged_rounds: Annotated[int, Setting("rounds", "Before a worker is said to be late.", 1)] = 3
    usual_scatter: Annotated[
        float,
        Setting(
            "median distances from the median",
            "Lateness that is usual: reports are taken in one by one, and one is always last.",
        ),
    ] = 3.0
    punctual_within_seconds: Annotated[float, Setting("seconds", "A report that is less late is punctual.")] = 0.003
    patience_kept: Annotated[
        float,
        Setting("of the past", "Wait for workers that cannot be earlier, kept from one round to the next.", 0, 1),
    ] = 0.95
    shortest_training: Annotated[
        float, Setting("of η", "However late a worker is, it is left that much time to train.", 0, 1)
    ] = 0.25
    unequal_idle: Annotated[
        float,
        Setting(
            "of all workers' time",
            "auto: waiting under bsp above which speeds count as different. Equal workers wait 2 to 8 % by chance.",
            0,
            1,
        ),
    ] = 0.15
    rounds_to_choose: Annotated[
        int, Setting("rounds", "auto: in a row that must agree before the choice changes; one is noisy.", 1)
    ] = 2
    first_update_evidence: Annotated[
        float,
        Setting(
            "numbers of data for each of θ",
            "The first update rests on so much: θ from few points leads k-means to worse optima "
            "(docs/adr/first-pass.md).",
        ),
    ] = 500.0
    psp_shorter_horizon: Annotated[
        float,
        Setting(
            "of predicted utilization",
            "psp: what a shorter horizon is worth. Speeds foretell those of the next round to some percent only. With "
            "0.005, four equal workers whose times vary by 2 % did 35 iterations between updates; with 0.05 one.",
            0,
            1,
        ),
    ] = 0.05
    psp_shorter_horizon_of_networks: Annotated[
        float,
        Setting(
            "of predicted utilization",
            "The same for networks: gradients are spent by an update. Speeds 1 : 2 : 3 on two cores made an update in "
            "420 ms with 0.05, twice the time of bsp-mini.",
            0,
            1,
        ),
    ] = 0.15
    bsp_mini_first_batches: Annotated[int, Setting("of a pass", "bsp-mini: batches where its search begins.", 1)] = 32
