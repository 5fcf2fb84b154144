"""Settings of starts: the sample that θ(0) is made from, and how long starts are tried on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class StartSettings:
    """How θ(0) is found. It is made once, by one process, while all workers wait."""

    sample_rows: Annotated[int, Setting("rows", "Of the sample, at most.", 1024, 1073741824)] = 100_000
    sample_numbers: Annotated[
        int,
        Setting(
            "numbers", "Of a dense sample, at most: 400 MB as float64, of which hooks make copies.", 1, 1099511627776
        ),
    ] = 50_000_000
    fewest_sample_rows: Annotated[int, Setting("rows", "Of the sample, however wide they are.", 1024, 1073741824)] = (
        4096
    )
    head_rows: Annotated[
        int,
        Setting(
            "rows",
            "At the beginning of the table that are always in the sample; the others are drawn evenly. Fewer "
            "than the sample has.",
            1,
            1024,
        ),
    ] = 1024
    timed_rows: Annotated[
        int, Setting("rows", "On which a kernel is timed before it is decided where workers run: 0.05 to 2 ms.", 64)
    ] = 2048
    quantile_rows: Annotated[int, Setting("rows", "From which the quantiles of a column are computed, at most.", 2)] = (
        8192
    )
    clipped_deviations: Annotated[
        float,
        Setting(
            "robust deviations from the median",
            "Where numbers are cut for starts that should not give outliers clusters of their own.",
            0.1,
        ),
    ] = 8.0
    polishing_work: Annotated[
        int,
        Setting(
            "multiplications",
            "Of further passes over the sample for the start that is chosen: about 20 ms.",
            0,
            1099511627776,
        ),
    ] = 2**23
    lloyd_passes: Annotated[
        int, Setting("passes", "Over the sample for one start; the first few bring most of the decrease.", 1)
    ] = 10
    lloyd_passes_of_many: Annotated[
        int, Setting("passes", "The same of each of more starts than an estimator tries by itself.", 1)
    ] = 30
    trial_passes: Annotated[int, Setting("passes", "Of these, after which several starts are compared.", 1)] = 3
    group_representatives: Annotated[
        int, Setting("means", "That a group at several sites shows to others in place of its rows.", 1, 4096)
    ] = 512
    group_represented_rows: Annotated[int, Setting("rows", "From which these means are made, at most.", 1)] = 20_000
    drawn_evenly: Annotated[
        float,
        Setting(
            "of the rows",
            "Part of the rows of a trial that is drawn evenly; the others by their squared distance to the origin.",
            0.01,
            1,
        ),
    ] = 0.5
    refills: Annotated[
        int, Setting("times", "That chances above 1 are given to other rows; each makes a few more certain.")
    ] = 4
    swap_rounds: Annotated[
        int,
        Setting(
            "rounds",
            "Of swaps. Twice as many, with passes between them, lowered the median objective on 3 of 14 tables, "
            "by 0.04 % at most, and the start took up to 1.8 times as long.",
        ),
    ] = 8
    fruitless_swap_rounds: Annotated[
        int,
        Setting(
            "rounds",
            "Of swaps, one after the other, that lowered nothing: then the others are left out. Over 150 jobs of 1,000 "
            "rows the mean objective was 0.001 % higher than with all rounds, with two 0.04 %.",
            1,
        ),
    ] = 3
    swap_candidates: Annotated[int, Setting("rows", "That are tried as centroids in a round of swaps.", 1, 4096)] = 8
    swap_distances: Annotated[
        int,
        Setting(
            "rows times centroids",
            "Up to which swaps are tried: where there are more clusters, one swap changes little.",
            0,
            1099511627776,
        ),
    ] = 2**22
    least_swap_gain: Annotated[float, Setting("relative", "A swap that gains less is rounding.", 0, 1)] = 1e-6
    kmeans_trial_rows: Annotated[
        int, Setting("rows", "Of the sample on which starts of k-means are tried, where clusters are few.", 1)
    ] = 4096
    kmeans_sparse_trial_rows: Annotated[int, Setting("rows", "The same of sparse rows.", 1)] = 4096
    kmeans_fewest_trial_rows: Annotated[int, Setting("rows", "The same, at least.", 1)] = 2048
    kmeans_most_trial_rows: Annotated[int, Setting("rows", "The same, at most, unless clusters are very many.", 1)] = (
        32768
    )
    kmeans_rows_per_cluster: Annotated[
        int, Setting("rows", "The same for each cluster, where clusters are many.", 1)
    ] = 20
    kmeans_fewest_rows_per_cluster: Annotated[
        int, Setting("rows", "The same for each cluster, where clusters are very many.", 1)
    ] = 4
    kmeans_trial_work: Annotated[
        int,
        Setting(
            "multiplications", "In a pass over these rows, at most: fewer rows where k·d is large.", 1, 1099511627776
        ),
    ] = 2**24
    kmeans_spare_rows: Annotated[
        int, Setting("rows", "Of the sample, at most, that θ keeps as places for clusters that become empty.", 1)
    ] = 64
    kmeans_spare_numbers: Annotated[
        int, Setting("numbers", "In them, at most: fewer where rows are wide.", 1, 1099511627776)
    ] = 2**20
    kmeans_sample_from_clusters: Annotated[
        int,
        Setting(
            "clusters",
            "From which on, together with `kmeans_sample_from_columns`, a start is made along a few directions "
            "of a sample: below, three starts in all columns take less than a second.",
            1,
        ),
    ] = 64
    kmeans_sample_from_columns: Annotated[int, Setting("columns", "As `kmeans_sample_from_clusters`.", 1)] = 64
    fcm_fewest_trial_rows: Annotated[
        int, Setting("rows", "Of the sample on which starts of fuzzy c-means are tried, at least.", 1)
    ] = 2048
    fcm_most_trial_rows: Annotated[int, Setting("rows", "The same, at most.", 1)] = 16384
    fcm_rows_per_cluster: Annotated[
        int,
        Setting(
            "rows",
            "The same for each cluster, at most. With eight times as many the start took four times as long as training"
            " at 20,000 rows and ten clusters, and led to the same objective.",
            1,
        ),
    ] = 64
    fcm_trial_work: Annotated[
        int,
        Setting(
            "distances times columns", "In a pass over these rows: fewer rows where k·d is large.", 1, 1099511627776
        ),
    ] = 2**24
    fcm_trial_passes: Annotated[int, Setting("passes", "Of a trial of fuzzy c-means, at most.", 1)] = 30
    fcm_trial_ends_below_gain: Annotated[
        float, Setting("relative", "Gain of a pass below which a trial ends.", 0, 1)
    ] = 1e-5
    fcm_start_step: Annotated[
        float,
        Setting(
            "of the way to the weighted means",
            "Of a pass of a start of fuzzy c-means that goes on in the direction of the last one. Below 2 the "
            "objective falls at each; with 1.5 three starts on 1,000 rows took 43 passes in place of 61.",
            1,
            1.9,
        ),
    ] = 1.5
    fcm_start_ends_below_gain: Annotated[float, Setting("relative", "The same for the start that is chosen.", 0, 1)] = (
        1e-10
    )
    gmm_fewest_trial_rows: Annotated[
        int, Setting("rows", "Of the sample on which starts of mixtures are tried, at least.", 1)
    ] = 4096
    gmm_most_trial_rows: Annotated[int, Setting("rows", "The same, at most.", 1)] = 16384
    gmm_rows_per_component: Annotated[
        int, Setting("rows", "The same for each component, where components are many.", 1)
    ] = 200
    gmm_trial_passes: Annotated[
        int,
        Setting("passes", "Of EM over these rows: enough to tell starts apart; the best one makes as many more.", 1),
    ] = 10
    gmm_costly_pass: Annotated[
        int,
        Setting(
            "multiplications",
            "Of a pass over these rows from which on starts have `gmm_costly_rows_per_component`, and together"
            " `gmm_passes_before_training`: fractions of a second.",
            1,
            1e18,
        ),
    ] = 2**26
    gmm_costly_rows_per_component: Annotated[
        int, Setting("rows", "As `gmm_rows_per_component` where a pass is costly.", 1)
    ] = 64
    gmm_passes_before_training: Annotated[
        int,
        Setting(
            "passes",
            "Over as many rows as the job has, at most, that costly starts take together. With 128 columns and 256"
            " components, or 32 columns, 64 components and full covariances, more of them (50 of 20,000 rows took 11 s)"
            " did not lead to more likely mixtures.",
            1,
        ),
    ] = 8
    gmm_ends_below_gain: Annotated[
        float, Setting("relative", "Gain of a pass over the sample below which EM has come to rest.", 0, 1)
    ] = 1e-8
    wide_directions: Annotated[
        int,
        Setting(
            "directions",
            "Along which a start of k-means on a sample of wide rows compares: it chooses as well as along 768 "
            "columns.",
            1,
            4096,
        ),
    ] = 64
    wide_basis_rows: Annotated[int, Setting("rows", "Of the sample from which these directions are found.", 64)] = 4096
    wide_passes: Annotated[
        int, Setting("passes", "Of Lloyd's algorithm over the sample; training goes on from there.", 0, 1000)
    ] = 6
    wide_candidates: Annotated[
        int,
        Setting(
            "rows",
            "Drawn for each centroid, of which the best is kept. As many clumps as clusters, k = 1,000: with three "
            "the objective after eight passes was 6 to 14 % above that of scikit-learn after ten, with six 2 to 28 % "
            "below it; normal rows: 0.1 % above. One seed each, on the data by which six was chosen.",
            1,
            256,
        ),
    ] = 6
    wide_candidates_at_once: Annotated[
        int, Setting("rows", "Candidates whose distances are computed at once, at most.", 256, 65536)
    ] = 256
    wide_products_at_once: Annotated[
        int, Setting("numbers", "Products of rows with centroids that stay in the cache of a core.", 1)
    ] = 2**19
    wide_two_levels_from_clusters: Annotated[
        int,
        Setting(
            "clusters",
            "From which on a start is made in two levels, groups first. They save at most half of its time, and the "
            "objective is worse where clumps lie across the borders of groups: at k = 1,000 they saved 0.3 s, and it "
            "was 1 % (normal rows) to 12 % higher than that of scikit-learn, seven times as high where clumps were "
            "narrow.",
            4,
            1099511627776,
        ),
    ] = 16384
    wide_neighbouring_groups: Annotated[
        int, Setting("groups", "Nearest to its own, with whose centroids a row is compared in two levels.", 1, 1000)
    ] = 8
    wide_refining_passes: Annotated[
        int, Setting("passes", "Over centroids of neighbouring groups, after those inside the groups.", 0, 1000)
    ] = 3
    wide_relocated_part: Annotated[
        float,
        Setting(
            "of the centroids",
            "That go to another place before each of these passes, at most. Without it a group that got one centroid "
            "too few keeps two clumps in one cluster: where there are about as many clumps as clusters, the objective"
            " was 24 % higher than with one level.",
            0,
            1,
        ),
    ] = 1 / 8
    kmeans_followed_rows: Annotated[
        int,
        Setting(
            "rows",
            "Of the sample that are assigned to many centroids that are given: they say which of these are near many "
            "rows, and which rows are far from all. More would take as long as a pass.",
            1,
        ),
    ] = 4096
    kmeans_places_work: Annotated[
        int,
        Setting(
            "multiplications",
            "In a pass over the rows among which places are looked for where centroids that are given are far from all "
            "rows: about 30 ms.",
            1,
            1099511627776,
        ),
    ] = 2**30
    quantile_numbers: Annotated[
        int, Setting("numbers", "From which the quantiles of wide rows are computed, about 50 ms.", 1, 1099511627776)
    ] = 2**20
    fewest_quantile_rows: Annotated[int, Setting("rows", "From which they are computed in any case.", 2)] = 1024
    probe_rows: Annotated[
        int,
        Setting(
            "rows",
            "On which hooks are tried, and for whose form kernels are compiled, before workers have their shards.",
            64,
            65536,
        ),
    ] = 256
    estimator_starts: Annotated[
        int, Setting("starts", 'That the estimator tries on a sample for n_init="auto".', 1, 1000)
    ] = 3
    canonical_order_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of sets of rows that estimators bring into canonical order, at most; it takes some milliseconds.",
            0,
            1099511627776,
        ),
    ] = 1 << 18
