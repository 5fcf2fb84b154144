"""Settings of termination: when an objective counts as diverged, at rest or out of reach (plan/termination.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class TerminationSettings:
    """Multiples of the first objective and of the tolerance of a job."""

    diverged_multiple: Annotated[
        float, Setting("first objectives", "Worse by so much is diverged; transients of converging runs stay below.", 1)
    ] = 10.0
    half_gain: Annotated[
        float,
        Setting(
            "tolerances",
            "Methods with slow gains: gain of the second half of all passes at rest; where F − F* ∝ 1/passes it is "
            "what remains.",
        ),
    ] = 100.0
    shrinking_gain: Annotated[
        float,
        Setting(
            "ratio",
            "Methods with slow gains: gain of the last quarter of all passes over the quarter before, at rest; 0.5 "
            "where F − F* ∝ 1/passes.",
            0,
            1,
        ),
    ] = 0.6
    steady_gain: Annotated[
        float, Setting("tolerances a pass", "Gains that do not shrink may go on for a thousand passes.")
    ] = 0.1
    kept_objectives_ratio: Annotated[
        float, Setting("ratio of passes", "Between two objectives that are kept: 230 in 1,000 passes.", 1.0001)
    ] = 1.02
    stall_passes: Annotated[int, Setting("passes", "Without progress to the target: the job stalls.", 1)] = 12
    stall_part: Annotated[
        float,
        Setting(
            "of the distance to the target", "Less progress in `stall_passes` would take 12,000 passes more.", 0, 1
        ),
    ] = 1e-3
    fitted_share_of_time: Annotated[
        float,
        Setting("of the elapsed time", "Whose objectives predict the end of a job, by which moves are planned.", 0, 1),
    ] = 0.25
    fewest_fitted_barriers: Annotated[
        int, Setting("barriers", "Of that prediction; with fewer no decay of progress is estimated.", 2)
    ] = 6
