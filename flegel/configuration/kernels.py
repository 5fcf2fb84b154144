"""Settings of kernels: tuned numbers that compiled code holds as constants (algorithms, core/team_loop).

A process reads them once, when its first job begins or its first kernel is loaded (`compiled`), and the cache of
compiled code has a folder for each choice. A job that asks for other ones than its process has is refused in a
sentence. Sizes of register tiles follow from the registers of the machine (algorithms/simd/registers.py), and are no
settings: other ones would need other code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class KernelSettings:
    """How often a kernel looks up, how long it adds in float32, and what it takes together."""

    sparse_rows_between_stop_reads: Annotated[
        int, Setting("rows", "Sparse rows that k-means visits between two looks at the stop flag.", 1)
    ] = 16
    soft_terms_per_lane: Annotated[
        int,
        Setting(
            "terms",
            "Summed per lane in the precision of the features, by mixtures and fuzzy c-means, before they are added to "
            "float64 sums.",
            1,
        ),
    ] = 256
    fcm_steep: Annotated[
        float,
        Setting(
            "‖y‖² per column",
            "Above which fuzzy c-means computes a float32 tile in float64; ordinary rows have about 1.",
        ),
    ] = 1024.0
    gmm_steep: Annotated[
        float,
        Setting(
            "Σ y² / variance",
            "Above which, and `gmm_steep_per_column` for each column, a mixture computes a float32 tile in float64: "
            "with 256 sums a lane, float32 keeps a variance to 256 · 4096 / 2^24, 6 %, of one point.",
        ),
    ] = 4096.0
    gmm_steep_per_column: Annotated[
        float, Setting("Σ y² / variance", "Added for each column: so much is ordinary.")
    ] = 64.0
    near_cache_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of short centroids that several panels of k-means with bounds are multiplied with before the next ones.",
            1,
            1 << 30,
        ),
    ] = 24 * 1024
    bands_multiplied_from: Annotated[
        float,
        Setting(
            "of the pairs of points and bands",
            "From which on a panel of k-means with bounds is multiplied with all centroids.",
            0,
            1,
        ),
    ] = 0.4
    nmf_entries_at_once: Annotated[
        int,
        Setting("entries", "Of a row gathered at a time: their factors fit into the first-level cache.", 1, 1 << 16),
    ] = 128
    lr_tiles_in_float32: Annotated[
        int,
        Setting(
            "tiles",
            "A float32 part of the gradient adds up 4 products a tile; after so many it goes into the float64 sum.",
            1,
        ),
    ] = 16
    team_looks_before_sleep: Annotated[
        int,
        Setting(
            "looks",
            "At a number that is about to change before a thread of a team sleeps: 50 to 100 µs, the time of "
            "`updateParameter`.",
        ),
    ] = 60_000
    nearest_ahead_columns: Annotated[
        int,
        Setting(
            "columns",
            "Of rows whose nearest row of θ is found for a whole tile ahead of hooks, at most: a tile has to stay in "
            "the cache.",
            0,
        ),
    ] = 512
    sums_ahead_registers: Annotated[
        int,
        Setting(
            "registers",
            "That a row may fill where sums are made for a whole tile ahead of hooks; longer rows fill vectors by "
            "themselves.",
            0,
        ),
    ] = 4
    sums_ahead_rows: Annotated[
        int, Setting("rows of θ", "In a table of such sums, which has to stay in the cache.", 0)
    ] = 512
    soft_filled_vectors: Annotated[
        int,
        Setting(
            "vectors",
            "That a register tile of sums of soft clusterings runs over, so that its own loads and stores cost little.",
            1,
            4096,
        ),
    ] = 16
    soft_one_tile_clusters: Annotated[
        int, Setting("clusters", "Above which one tile takes long enough between two looks at the stop flag.", 1)
    ] = 512
    soft_grid_points: Annotated[
        int,
        Setting(
            "points",
            "Between two places at which all sums of soft clusterings, and of logistic regression over dense rows, are "
            "added up, at most; the next lower power of 2 counts.",
            64,
            1073741824,
        ),
    ] = 1 << 16
    soft_least_grid_points: Annotated[int, Setting("points", "The same, at least.", 64, 1073741824)] = 1 << 11
    soft_grid_work: Annotated[
        int,
        Setting(
            "columns² × numbers of the state × points",
            "Between these places, at most: a call has to return.",
            1,
            1125899906842624,
        ),
    ] = 1 << 29
    nmf_row_solved_below_gain: Annotated[
        float,
        Setting(
            "of the squares that a row explains",
            "Gain of a sweep below which a row is solved. Where a factorization leaves 0.1 % of the squares, 1e-6 "
            "stopped 0.6 % above the row's least error.",
            0,
            1,
        ),
    ] = 1e-10
    nmf_kl_row_solved_below_gain: Annotated[
        float, Setting("relative", "The same for the Kullback-Leibler divergence.", 0, 1)
    ] = 1e-9
    nmf_most_sweeps: Annotated[int, Setting("sweeps", "Over a row until it counts as solved all the same.", 1)] = 500
    nmf_most_exchanges: Annotated[
        int, Setting("steps", "Of the exact solution of a row; each frees a weight or sets one to 0.", 1)
    ] = 50
    lr_bent_part: Annotated[
        float,
        Setting(
            "of a point's curvature",
            "A logistic regression has converged only where no point's curvature changed by more in its last step: "
            "what a Newton step promises is right within about so much then. A row far longer than the others changes "
            "its own by two thirds in each step until the others' second derivatives show; without this rule such "
            "jobs ended 0.04 to 22 % above the minimum.",
            0,
            1,
        ),
    ] = 0.3
    lr_points_by_tile: Annotated[
        int,
        Setting(
            "points",
            "Of a tile whose curvature is outdated from which on the whole tile is added to a diagonal at once: it "
            "takes as long as eight points one by one.",
            1,
            65,
        ),
    ] = 8
