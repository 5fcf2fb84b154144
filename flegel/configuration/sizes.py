"""Settings of k-means with limits on sizes, of the assignments behind it, and with a number of clusters that is found
(algorithms/clusters)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class SizeSettings:
    """All workers of a job have the same."""

    sample_rows: Annotated[
        int, Setting("rows", "Fewest on which prices are found: each pass assigns them anew, on one core.", 2, 2**31)
    ] = 4096
    rows_per_cluster: Annotated[int, Setting("rows", "Of these for each cluster, at least.", 1, 2**31)] = 64
    corrected: Annotated[
        float,
        Setting("of a deviation", "Of sizes on these rows from those of all, taken over in a pass.", 0.0, 1.0),
    ] = 0.7
    passes_that_gain: Annotated[
        int, Setting("passes", "Together lower the objective, or θ stays: equal rows may go to and fro.", 1, 10_000)
    ] = 8
    most_rounds: Annotated[
        int,
        Setting(
            "rounds",
            "Of exact assignments and means, at most: 14 runs on samples took 6 in the median, up to 30.",
            1,
            10_000,
        ),
    ] = 30
    settled_gain: Annotated[
        float, Setting("of the objective", "Gain of such a round below which it is the last one.", 0.0, 1.0)
    ] = 1e-5
    most_newton_steps: Annotated[
        int,
        Setting("steps", "For prices, each a pass over the costs, at most; 283 assignments took 0 to 15.", 1, 10_000),
    ] = 40
    fruitless_newton_steps: Annotated[
        int, Setting("steps", "After which prices stay as they are: equal rows, or wide gaps.", 1, 10_000)
    ] = 4
    left_to_paths: Annotated[
        float, Setting("of all rows", "That paths may move: below it they are faster than another step.", 0.0, 1.0)
    ] = 0.002
    first_band: Annotated[
        float, Setting("of the mean cost", "How near a border rows are counted in the first step.", 1e-12, 1.0)
    ] = 0.01
    least_candidates: Annotated[
        int, Setting("rows", "Of a cluster, kept in the order of what a move costs.", 1, 2**31)
    ] = 64
    resting_gain: Annotated[
        float,
        Setting(
            "of the objective",
            "Gain of a pass below which the number of clusters is judged anew (AutoKMeans): splits gain far more.",
            0.0,
            1.0,
        ),
    ] = 1e-3
