"""Parameters of balancing. docs/balance.md explains each rule. Holds values, computes nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceSettings:
    """ε is the paper's (Eq. 8); the other parameters keep measurement noise from moving data."""

    epsilon: float = 0.3
    """Largest |P*_i − C| that counts as balanced (Eq. 8), in passes. 0.5 would let passes differ by one; 0.3 leaves a
    margin for what happens until the next plan, and until points have moved."""
    split_passes: float = 3.0
    """Length of a split in passes of the median worker, also if the job may end before: points given to make up lost
    passes in a shorter time would have to come back. For a worker with fewer points than the median the split is
    shorter in proportion."""
    split_move_times: float = 2.0
    """Smallest length of a split, in durations of a move."""
    split_time_share: float = 0.0
    """Smallest length of a split, as a share of the remaining time."""
    replan_passes: float = 0.25
    """Passes between two plans."""
    group_tolerance: float = 0.03
    """Relative difference of N and V up to which two workers belong to one super worker."""
    min_move_share: float = 0.03
    """Smallest move, as a share of the points of its source or its target; divided by the deviation in passes if
    that is above 1."""
    error_multiple: float = 1.2
    """Standard errors that a deviation must exceed; `target_passes.error_multiple` scales it with the workers."""
    error_discount: float = 0.0
    """Share of the error margin that is subtracted from what a worker gives or takes."""
    short_memory: float = 0.9
    """Decay per round of the short-term speed estimate (mean age 10 rounds)."""
    long_memory: float = 0.98
    """Decay per round of the long-term estimate, used while the speed does not change (mean age 50 rounds)."""
    reversal_factor: float = 1.5
    """Hysteresis: a worker that gave takes, and one that took gives, only above this multiple of ε."""
    reversal_passes: float = 4.0
    """Passes for which the hysteresis lasts after a move."""
    min_payoff: float = 1.25
    """Smallest remaining time for a move, in latencies of a move, if speeds are uncertain."""
    guessed_time_share: float = 1.0
    """Share of a remaining time guessed from the objective that `min_payoff` is compared with."""
    uncertain_error: float = 0.03
    """Relative standard error from which a speed counts as uncertain; below, `min_payoff` shrinks in proportion."""
    outlier_factor: float = 3.0
    """Ratio of pass times to the median, beyond the error, from which a worker is an outlier and its error is ignored:
    sharing a processor does not cause such ratios for long."""
    max_plan_age: float = 1.0
    """Longest time until the next plan, as a multiple of the time since the first: early estimates rest on little."""
    arrival_share: float = 0.8
    """Share of the remaining time within which points must have arrived; they are trained in the rest."""
    straggler_factor: float = 2.0
    """Ratio of seconds per point to the lower quartile, beyond the error, that makes a worker a straggler."""


SPARING = BalanceSettings(
    epsilon=0.4,
    split_passes=2.0,
    split_move_times=8.0,
    split_time_share=0.25,
    replan_passes=1.0,
    error_multiple=2.0,
    error_discount=1.0,
    reversal_factor=2.0,
    reversal_passes=32.0,
    min_payoff=10.0,
    guessed_time_share=0.5,
)
"""For cases in which a move costs more than small differences of passes: no worker is a straggler (differences are
noise), workers share processors (speeds change with the scheduler), or all workers wait while points move (`sync`)."""
