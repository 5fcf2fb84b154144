"""Settings of balancing: which points move from slow to fast workers (plan/balance). docs/balance.md has the rules.

"Ablation" is the largest cost without the rule over twelve scenarios (docs/results/ablation.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class BalanceSettings:
    """ε is the paper's (Eq. 8); the other parameters keep measurement noise from moving data."""

    epsilon: Annotated[
        float,
        Setting(
            "passes",
            "Training is balanced where the predicted passes of every super worker are this near to the target, "
            "|P*_i − C| ≤ ε (Eq. 8 of the FSP paper). 0.5 would let passes differ by one; 0.3 leaves a margin "
            "until the next plan, and until points have moved. Ablation: 0 costs 10 % (pauses).",
        ),
    ] = 0.3
    split_passes: Annotated[
        float,
        Setting(
            "passes of the median worker",
            "Length of a split, the time that a plan looks ahead, also if the job may end before: points given to"
            " make up lost passes in a shorter time would have to come back. Shorter in proportion for a worker "
            "with fewer points than the median. Ablation: all of T costs 2.5 % (pauses).",
        ),
    ] = 3.0
    split_move_times: Annotated[
        float,
        Setting(
            "durations of a move", "Smallest length of a split. Ablation: 0 costs 3.6 % (pauses), 0.43 passes (drift)."
        ),
    ] = 2.0
    replan_passes: Annotated[
        float,
        Setting("passes", "Time from one plan to the next. Ablation: a plan at each barrier costs 3.4 % (pauses)."),
    ] = 0.25
    group_tolerance: Annotated[
        float,
        Setting(
            "relative",
            "Two workers whose N and V differ by no more belong to one super worker. Ablation: 0 costs 5.4 % (pauses).",
        ),
    ] = 0.03
    paired_splits: Annotated[
        int,
        Setting(
            "parts of the time that is left",
            "`--matching pairs`: d of the FSP paper's Section 4.2, which gives no value; each part has one matching.",
            1,
            1000,
        ),
    ] = 4
    error_multiple: Annotated[
        float,
        Setting(
            "standard errors",
            "A deviation counts only where it exceeds so many standard errors; the multiple grows with the number"
            " of workers. Ablation: 0 costs 2.2 % (none slow).",
        ),
    ] = 1.2
    short_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Decay per round of the short-term speed estimate (mean age 10 rounds). Ablation: without this "
            "estimate 1.5 %, 0.18 passes.",
            0,
            0.9999,
        ),
    ] = 0.9
    long_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Decay per round of the long-term speed estimate, used while the speed does not change (mean age 50 "
            "rounds). Ablation: without this estimate 1.1 %, 0.35 passes (shared processors).",
            0,
            0.9999,
        ),
    ] = 0.98
    min_payoff: Annotated[
        float,
        Setting(
            "latencies of a move",
            "Where speeds are uncertain, points move only if the job has so much time left. Ablation: without "
            "this rule 1.8 % (shared processors).",
        ),
    ] = 1.0
    guessed_time_share: Annotated[
        float,
        Setting(
            "of the time",
            "Where the remaining time is guessed from the objective, this share of it is compared with "
            "`min_payoff`. Ablation of the sparing rules: 1 in place of 0.5 costs 2.6 %; 3.7 % without "
            "`min_payoff` too.",
        ),
    ] = 1.0
    uncertain_error: Annotated[
        float,
        Setting(
            "relative",
            "A speed is uncertain from this standard error on; below, `min_payoff` shrinks in proportion. "
            "Ablation: 0 costs 1.9 % (pauses), ∞ 1.8 % (shared processors).",
            1e-12,
        ),
    ] = 0.03
    outlier_factor: Annotated[
        float,
        Setting(
            "ratio",
            "A worker whose pass takes longer than the median by this factor, beyond the error, is an outlier and"
            " its error is ignored: sharing a processor does not cause such ratios for long. Ablation: ∞ costs 43"
            " % (stragglers on shared processors).",
        ),
    ] = 3.0
    max_plan_age: Annotated[
        float,
        Setting(
            "times since the first plan",
            "Longest time until the next plan: early estimates rest on few rounds. Ablation: ∞ costs 5.9 % "
            "(pauses), 1.04 passes (shared processors).",
        ),
    ] = 1.0
    straggler_factor: Annotated[
        float,
        Setting(
            "ratio",
            "A worker whose seconds per point exceed the lower quartile by this factor, beyond the error, is a "
            "straggler. Ablation: never the sparing rules costs 4.1 % (shared processors), always 0.80 passes.",
        ),
    ] = 2.0


SPARING = BalanceSettings(
    split_move_times=8.0,
    replan_passes=1.0,
    min_payoff=10.0,
    guessed_time_share=0.5,
)
"""For cases in which a move costs more than small differences of passes: no worker is a straggler (differences are
noise), workers share processors (speeds change with the scheduler), or all workers wait while points move (`sync`)."""
