"""Settings of k-means besides its starts: bounds of wide rows, directions, blocks of sums (algorithms/kmeans)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class KMeansSettings:
    """All workers of a job have the same."""

    summed_numbers: Annotated[
        int,
        Setting(
            "numbers", "Taken together in sums over all centroids: they stay in the cache of a core.", 1, 1099511627776
        ),
    ] = 2**14
    compared_by_differences: Annotated[
        int,
        Setting(
            "numbers of centroids × spare rows",
            "Up to which centroids without points are replaced by comparing differences; beyond, by matrix products.",
            0,
            1099511627776,
        ),
    ] = 2**24
    relocation_numbers: Annotated[
        int,
        Setting("float64 numbers", "That exist at a time beside θ where clusters are empty: 32 MB.", 1, 1099511627776),
    ] = 2**22
    splitting_step: Annotated[
        float,
        Setting(
            "deviations in one column",
            "From the centroid of a wide cluster to where an empty one is put: 48 % of normal points are beyond its "
            "middle, and the distances differ by more than the rounding of float32.",
            1e-3,
            1.0,
        ),
    ] = 0.1
    sparse_pieces: Annotated[
        int,
        Setting(
            "pieces",
            "In which clusters of sparse rows are summed by several threads: enough that none waits long for another.",
            1,
        ),
    ] = 32
    sparse_scores_at_once: Annotated[
        int,
        Setting(
            "scores",
            "Of sparse rows with centroids that exist at a time, 16 MB: not as many as there are rows.",
            1,
            1099511627776,
        ),
    ] = 1 << 21
    sparse_candidate_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of sparse rows that exist as dense ones at a time while a start is drawn from them: 32 MB.",
            1,
            1099511627776,
        ),
    ] = 1 << 22
    swap_clusters_at_once: Annotated[
        int, Setting("clusters", "Whose distances to all others exist at a time where swaps are looked for.", 1)
    ] = 256
    direction_iterations: Annotated[
        int,
        Setting(
            "iterations",
            "Of the subspace iteration that finds leading directions; the leading components of a decaying spectrum "
            "are right to a few percent after two.",
            0,
            1000,
        ),
    ] = 2
    direction_oversampling: Annotated[
        int,
        Setting(
            "directions", "Iterated besides those wanted, and then dropped (Halko, Martinsson and Tropp 2011).", 0, 4096
        ),
    ] = 8
    bounds_basis_rows: Annotated[
        int, Setting("rows", "Of a shard from which the directions of short rows are found, for bounds.", 64)
    ] = 1024
    bounds_trial_rows: Annotated[int, Setting("rows", "On which numbers of directions are tried, at most.", 8)] = 64
    bounds_trial_products: Annotated[int, Setting("multiplications", "Of these trials, at most.", 1, 1099511627776)] = (
        2**27
    )
    bounds_full_distance_cost: Annotated[
        float,
        Setting(
            "numbers of a product",
            "Cost of a number of a full distance: it is computed in float64, and its centroid comes from a far cache.",
            0,
            10000,
        ),
    ] = 12.0
    bounds_shortened_rows: Annotated[
        int, Setting("rows", "That are shortened at once: about half a millisecond.", 64)
    ] = 1024
    bounds_block_numbers: Annotated[
        int,
        Setting("numbers", "Of the short rows of a block, at most: they stay in the second cache.", 1, 1099511627776),
    ] = 96 * 1024
    bounds_block_points: Annotated[int, Setting("points", "Of a block, at most.", 16, 65536)] = 256
    bounds_least_bands: Annotated[
        int, Setting("bands", "Of centroids of which bounds may be kept, however narrow rows are.", 1)
    ] = 32
    moved_part_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of points that make a part of its own worth while where several threads move points: 10 to 50 µs of "
            "additions, more than taking it costs.",
            1,
            1099511627776,
        ),
    ] = 2**16
    most_moved_parts: Annotated[
        int,
        Setting(
            "parts",
            "Of points that move, at most: four for each of sixteen threads, so that none waits long for the last one.",
            1,
            4096,
        ),
    ] = 64
