"""Settings of termination: when an objective counts as diverged, at rest or out of reach (plan/termination.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class TerminationSettings:
    """Multiples of the first objective and of the tolerance of a job."""

    diverged_multiple: Annotated[
        float,
        Setting(
            "first objectives",
            "A job whose objective is worse than the first one by so much has diverged; transients of converging "
            "jobs stay below.",
            1,
        ),
    ] = 10.0
    half_gain: Annotated[
        float,
        Setting(
            "tolerances",
            "Methods with slow gains: a job has converged only where the second half of all passes gained less "
            "than this. Where the distance to the optimum falls as 1/passes, as much remains to be gained.",
        ),
    ] = 100.0
    shrinking_gain: Annotated[
        float,
        Setting(
            "ratio",
            "Methods with slow gains: a job has converged only where the gain of the last quarter of all passes "
            "is below this part of that of the quarter before (or see `steady_gain`). It is 0.5 where the "
            "distance to the optimum falls as 1/passes.",
            0,
            1,
        ),
    ] = 0.6
    steady_gain: Annotated[
        float,
        Setting(
            "tolerances a pass",
            "Methods with slow gains: gains below this need not shrink, for they may stay equal for a thousand passes.",
        ),
    ] = 0.1
    kept_objectives_ratio: Annotated[
        float,
        Setting(
            "ratio of passes",
            "An objective is kept for these rules when so many times the passes of the last kept one are done: "
            "230 in 1,000 passes.",
            1.0001,
        ),
    ] = 1.02
    stall_passes: Annotated[
        int, Setting("passes", "A job stalls after so many passes without progress to its target (`stall_part`).", 1)
    ] = 12
    stall_part: Annotated[
        float,
        Setting(
            "of the distance to the target",
            "Less progress in `stall_passes` counts as none: the target would take 12,000 passes more.",
            0,
            1,
        ),
    ] = 1e-3
    fitted_share_of_time: Annotated[
        float,
        Setting(
            "of the elapsed time",
            "The end of a job, by which moves are planned, is predicted from the objectives of this last part of "
            "the time.",
            0,
            1,
        ),
    ] = 0.25
    fewest_fitted_barriers: Annotated[
        int,
        Setting("barriers", "Barriers that this prediction needs; with fewer no decay of progress is estimated.", 2),
    ] = 6
    divergence_retries: Annotated[
        int,
        Setting(
            "times a job",
            "So often a job that diverges goes back to its best θ; the last time under bsp, whose statistics "
            "all come from one θ.",
        ),
    ] = 2
    validated_numbers: Annotated[
        int,
        Setting(
            "rows times columns",
            "Of held-out rows that are evaluated while the job trains: milliseconds for every built-in algorithm.",
            0,
            1125899906842624,
        ),
    ] = 1 << 20
    validated_numbers_at_end: Annotated[
        int,
        Setting(
            "rows times columns",
            "Of held-out rows that are evaluated at the end: 512 MB of float64, since all are in memory at a time.",
            0,
            1125899906842624,
        ),
    ] = 1 << 26
    validation_share_of_time: Annotated[
        float,
        Setting(
            "of training time", "For evaluations of held-out rows, at most: the next one comes so much later.", 1e-06, 1
        ),
    ] = 0.02
    equal_within: Annotated[
        float, Setting("relative", "Objectives that differ by less count as equal: rounding.", 0, 1)
    ] = 1e-9
