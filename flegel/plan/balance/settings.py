"""Parameters of balancing. docs/balance.md explains each rule. Holds values, computes nothing.

"Ablation" is the largest cost without the rule over twelve scenarios (docs/results/ablation.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BalanceSettings:
    """ε is the paper's (Eq. 8); the other parameters keep measurement noise from moving data."""

    epsilon: float = 0.3
    """Largest |P*_i − C| that counts as balanced (Eq. 8), in passes. 0.5 would let passes differ by one; 0.3 leaves a
    margin for what happens until the next plan, and until points have moved.
    Ablation: 0 costs 10 % (pauses)."""
    split_passes: float = 3.0
    """Length of a split in passes of the median worker, also if the job may end before: points given to make up lost
    passes in a shorter time would have to come back. For a worker with fewer points than the median the split is
    shorter in proportion.
    Ablation: all of T costs 2.5 % (pauses)."""
    split_move_times: float = 2.0
    """Smallest length of a split, in durations of a move.
    Ablation: 0 costs 3.6 % (pauses), 0.43 passes (drift)."""
    replan_passes: float = 0.25
    """Passes between two plans.
    Ablation: a plan at each barrier costs 3.4 % (pauses)."""
    group_tolerance: float = 0.03
    """Relative difference of N and V up to which two workers belong to one super worker.
    Ablation: 0 costs 5.4 % (pauses)."""
    error_multiple: float = 1.2
    """Standard errors that a deviation must exceed; `target_passes.error_multiple` scales it with the workers.
    Ablation: 0 costs 2.2 % (none slow)."""
    short_memory: float = 0.9
    """Decay per round of the short-term speed estimate (mean age 10 rounds).
    Ablation: without it 1.5 %, 0.18 passes."""
    long_memory: float = 0.98
    """Decay per round of the long-term estimate, used while the speed does not change (mean age 50 rounds).
    Ablation: without it 1.1 %, 0.35 passes (shared processors)."""
    min_payoff: float = 1.0
    """Smallest remaining time for a move, in latencies of a move, if speeds are uncertain.
    Ablation: without it 1.8 % (shared processors)."""
    guessed_time_share: float = 1.0
    """Share of a remaining time guessed from the objective that `min_payoff` is compared with.
    Ablation: 1 costs 2.6 %; 3.7 % without `min_payoff` too."""
    uncertain_error: float = 0.03
    """Relative standard error from which a speed counts as uncertain; below, `min_payoff` shrinks in proportion.
    Ablation: 0 costs 1.9 % (pauses), ∞ 1.8 % (shared processors)."""
    outlier_factor: float = 3.0
    """Ratio of pass times to the median, beyond the error, from which a worker is an outlier and its error is ignored:
    sharing a processor does not cause such ratios for long.
    Ablation: ∞ costs 43 % (stragglers on shared processors)."""
    max_plan_age: float = 1.0
    """Longest time until the next plan, as a multiple of the time since the first: early estimates rest on little.
    Ablation: ∞ costs 5.9 % (pauses), 1.04 passes (shared processors)."""
    straggler_factor: float = 2.0
    """Ratio of seconds per point to the lower quartile, beyond the error, that makes a worker a straggler.
    Ablation: never SPARING costs 4.1 % (shared processors), always 0.80 passes."""


SPARING = BalanceSettings(
    split_move_times=8.0,
    replan_passes=1.0,
    min_payoff=10.0,
    guessed_time_share=0.5,
)
"""For cases in which a move costs more than small differences of passes: no worker is a straggler (differences are
noise), workers share processors (speeds change with the scheduler), or all workers wait while points move (`sync`)."""

GRADIENTS = replace(SPARING, epsilon=1.0)
"""For gradient methods, which keep nothing of a point between its visits: rows should be traversed equally often over a
job, not over a pass. A perceptron, 12,000 rows, speeds 1 : 2 : 3, 10 s: 11 and 15 moves of 19,000 rows with the usual
rules, 3 moves of 3,000 and 7,000 rows with these and without making up lost passes."""
