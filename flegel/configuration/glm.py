"""Settings of generalized linear models: where they start, and when curvature is counted again (algorithms/glm)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class GeneralizedLinearSettings:
    """Newton's steps of Poisson, gamma and Huber regression and of linear support vector machines."""

    bend_change_counted: Annotated[
        float,
        Setting(
            "part of a row's curvature",
            "By which it must have changed to be counted again. A step with curvature that is wrong by so much leaves "
            "so much of the way, and its square of what the objective lacks; the last passes, in which rows change by "
            "less, cost no more than their gradients.",
            0,
            1,
        ),
    ] = 0.05
    left_by_whole_step: Annotated[
        float,
        Setting(
            "of the distance to the minimum",
            "That a Newton step may leave if its distance is believed although rows have changed their curvature; 0: "
            "such a distance is measured once more. Over 239 drawn tables it saved 0.6 passes of each job, and none "
            "ended further from its minimum than 1e-8; with 0.1 it saved 0.1 more.",
            0,
            1,
        ),
    ] = 0.01
    start_share: Annotated[
        int,
        Setting(
            "rows",
            "θ(0) is the minimum over one row of the table in so many; its four to six passes take a third of a pass "
            "over all rows, and save two.",
            2,
        ),
    ] = 16
    start_rows_per_column: Annotated[
        int,
        Setting("rows", "Of θ(0) for each column at least; with fewer, its minimum is too far from that of all.", 1),
    ] = 64
    start_steps: Annotated[int, Setting("steps", "Of the search for θ(0), at most.", 1)] = 8
    start_gap: Annotated[
        float,
        Setting("of the objective", "What that search may leave; rows that are left out change more.", 0, 1),
    ] = 1e-5
