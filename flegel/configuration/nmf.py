"""Settings of matrix factorization: steps, regularization and when a sample is solved (algorithms/nmf)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class FactorizationSettings:
    """Of both solvers, by steps and by sweeps."""

    adagrad_offset: Annotated[
        float, Setting("typical visits", "Initial value of AdaGrad's sums: keeps a column's first steps short.")
    ] = 6.0
    penalty_where_missing: Annotated[
        float,
        Setting(
            "as `penalty`",
            "The default where entries are missing: the best for held-out ratings of MovieLens (RMSE 0.889, "
            "0.874 and 0.901 with 0.015, 0.03 and 0.06; rank 10, 10 passes).",
        ),
    ] = 0.03
    many_entries: Annotated[
        float,
        Setting(
            "entries",
            "From which on a pass has so many steps that a minimum to the last digit is not expected.",
            0,
            1000000000000000.0,
        ),
    ] = 1e6
    sample_solved_below_gain: Annotated[
        float, Setting("relative", "Gain of a pass over the sample below which H has come to rest.", 0, 1)
    ] = 1e-7
    sample_solved_below_half_gain: Annotated[
        float, Setting("relative", "The same of the second half of all passes, besides.", 0, 1)
    ] = 1e-4
    joined_columns: Annotated[int, Setting("columns", "Of H that a thread updates at a time.", 1)] = 2048
    cost_of_workers: Annotated[
        float,
        Setting(
            "of the passes",
            "Relative increase of the passes needed (sgd), per other worker and per pass between two barriers.",
        ),
    ] = 0.2
    extrapolation_tries: Annotated[
        int, Setting("times", "Shorter extrapolations that are tried where one would raise the objective.")
    ] = 4
