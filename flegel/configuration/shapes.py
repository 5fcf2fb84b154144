"""Settings of shapes: which kernel or method serves so many rows, columns and clusters (algorithms)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class ShapeSettings:
    """Thresholds; all workers of a job have the same."""

    lr_full_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Up to which all second derivatives are summed, 512 kB per report: 255 columns for two classes.",
            0,
            1125899906842624,
        ),
    ] = 2**16
    lr_late_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Up to which, 8 MB per report, they are summed where their diagonal and L-BFGS are slow: 1,023 "
            "columns for two classes, 212 for 23. Beyond, a pass that sums them costs as much as some hundred "
            "others.",
            0,
            1125899906842624,
        ),
    ] = 2**20
    lr_wide_columns: Annotated[
        int,
        Setting(
            "columns",
            "Beyond, steps begin with the diagonal of the second derivatives alone: the few leading directions "
            "that would fit into a metric cost hundreds of products with the sample, and L-BFGS finds them in "
            "as many passes. θ is then held from the beginning, as moving steps would need a bound on the "
            "curvature in all directions.",
            1,
        ),
    ] = 1024
    lr_all_eigenvectors_columns: Annotated[
        int,
        Setting(
            "columns", "Up to which all eigenvectors are found at once; beyond, only the leading ones by iteration.", 1
        ),
    ] = 1024
    kmeans_float32_first_clusters: Annotated[
        int, Setting("clusters", "From which on it pays to compare in float32 first where points are float64.", 1)
    ] = 16
    kmeans_bounds_columns: Annotated[
        int,
        Setting(
            "columns",
            "From which on, and from `kmeans_bounds_products` on, bounds serve dense rows. Processor time of "
            "passes 1 to 5 from random rows on AVX-512, both kernels on each of {32, 64, 96, 384} columns × k "
            "{16, 64, 256, 1,024, 4,096}: later passes are equal at 32 × 1,024, 64 × 512, 96 × 256 and 384 × "
            "64, and bounds gain with every product more.",
            1,
        ),
    ] = 256
    kmeans_bounds_products: Annotated[
        int, Setting("columns × clusters", "As `kmeans_bounds_columns`.", 1, 1099511627776)
    ] = 49_152
    kmeans_narrow_bounds_columns: Annotated[
        int,
        Setting(
            "columns",
            "The same for narrower rows: there the first pass with bounds takes 1.4 times as long as that of "
            "tiles (at 96 × 1,024 longer than faiss), so they serve from twice as many products on. Rows of "
            "fewer columns are always tiles.",
            1,
        ),
    ] = 32
    kmeans_narrow_bounds_products: Annotated[
        int, Setting("columns × clusters", "As `kmeans_narrow_bounds_columns`.", 1, 1099511627776)
    ] = 131_072
    compiled_sparse_products: Annotated[
        int,
        Setting(
            "multiplications",
            "Of sparse rows from which on compiled code is worth loading (20 ms): interpreted, so many take 15 ms.",
            0,
            1099511627776,
        ),
    ] = 1 << 20
    fcm_products_from: Annotated[
        int,
        Setting(
            "numbers of all centroids",
            "From which on rows are compared with them by matrix products, which at 128 columns × 256 clusters take a"
            " twentieth of the time of differences.",
            1,
            1099511627776,
        ),
    ] = 4096
    gmm_products_from: Annotated[
        int,
        Setting(
            "numbers of all means",
            "From which on rows are compared with them by matrix products: at 128 columns × 256 components that takes"
            " a twentieth of the time of differences; below 64 × 64 half of it.",
            1,
            1099511627776,
        ),
    ] = 4096
    gmm_rows_evaluated_at_once: Annotated[
        int, Setting("rows", "That a mixture evaluates at a time outside of training.", 1)
    ] = 16384
    lr_products_outputs: Annotated[
        int,
        Setting(
            "outputs",
            "From which on, and from `lr_products_products` on, logistic regression multiplies blocks of dense rows "
            "by BLAS.",
            2,
        ),
    ] = 32
    lr_products_products: Annotated[
        int, Setting("columns × outputs", "As `lr_products_outputs`.", 1, 1099511627776)
    ] = 2**14
