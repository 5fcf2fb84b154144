"""Settings of programs on GPUs: blocks of rows, tiles of kernels (algorithms, runtime/backends/torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class GpuSettings:
    """What one call takes at a time, and from which size on another program is faster."""

    kmeans_block_rows: Annotated[int, Setting("rows", "Of a block of k-means on a GPU.", 1024, 1073741824)] = 2**22
    kmeans_product_numbers: Annotated[
        int,
        Setting(
            "distances",
            "Of one product with all clusters, at most, where no kernel keeps them in registers.",
            1,
            1099511627776,
        ),
    ] = 2**30
    kmeans_moved_numbers: Annotated[
        int, Setting("float64 numbers", "Of rows that change their cluster together, at most.", 1, 1099511627776)
    ] = 2**27
    kmeans_product_clusters: Annotated[
        int, Setting("clusters", "Up to which sums of clusters are made by a product on a GPU.", 0)
    ] = 512
    kmeans_additions_from_sums: Annotated[
        int, Setting("clusters × columns", "From which on rows that move add to the sums one by one.", 1, 1099511627776)
    ] = 4096
    gmm_block_numbers: Annotated[
        int, Setting("numbers", "Of the largest product of a mixture's block on a GPU.", 1, 1099511627776)
    ] = 2**26
    lr_block_numbers: Annotated[
        int,
        Setting(
            "numbers", "Of rows and intermediate results of a block of logistic regression on a GPU.", 1, 1099511627776
        ),
    ] = 2**28
    blocks_per_multiprocessor: Annotated[
        int,
        Setting(
            "blocks", "Of kernels of k-means: a block goes on to further rows while others wait for memory.", 1, 1024
        ),
    ] = 8
    registers_for_rows: Annotated[
        int,
        Setting(
            "registers",
            "Of a thread of k-means for its rows: two rows where they fit, so that a value from shared memory serves "
            "two multiplications.",
            0,
            255,
        ),
    ] = 64

    warps_per_block: Annotated[int, Setting("warps", "Of 32 threads, in a block of the kernels of k-means.", 1, 32)] = 8
    tile_rows: Annotated[
        int,
        Setting(
            "rows",
            "Of a tile of distances by Triton; the next lower power of 2 counts, here and below. Tiles of wide rows "
            "are the fastest of ten on an H200 for 96 to 1,536 columns: 0.65 to 0.7 of the time of a product by "
            "cuBLAS in float32 and a minimum; twice the rows or centroids take 1.4 to 1.7 times as long, 4 warps 1.6 "
            "times.",
            16,
            1024,
        ),
    ] = 128
    tile_centroids: Annotated[int, Setting("centroids", "Of a tile of wide rows.", 16, 1024)] = 128
    tile_columns: Annotated[int, Setting("columns", "Of a tile of wide rows, multiplied at a time.", 16, 1024)] = 32
    tile_warps: Annotated[
        int, Setting("warps", "Of a tile of wide rows with more than `tile_few_centroids`, and of narrow rows.", 1, 32)
    ] = 8
    tile_stages: Annotated[int, Setting("stages", "Of loads under way, of a tile of wide rows.", 1, 16)] = 3
    tile_few_centroids: Annotated[
        int, Setting("centroids", "Of a tile of narrow rows, and of wide rows with no more centroids.", 16, 1024)
    ] = 64
    tile_few_warps: Annotated[int, Setting("warps", "Of a tile of wide rows with few centroids.", 1, 32)] = 4
    tile_few_stages: Annotated[int, Setting("stages", "The same, of loads under way.", 1, 16)] = 4
    narrow_columns: Annotated[
        int,
        Setting(
            "columns", "Up to which a program keeps its rows in registers while it goes through the centroids.", 0, 128
        ),
    ] = 64
    memory_share_for_points: Annotated[
        float, Setting("of the memory that is free when a shard was brought", "For points that may come.", 0, 1)
    ] = 0.8
    first_points_per_call: Annotated[
        int,
        Setting(
            "points", "Of the first calls on a GPU: with fewer the time is that of starting kernels.", 64, 1099511627776
        ),
    ] = 1 << 16
    streamed_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of a part of the rows that is brought to a GPU where not all of them fit: 64 MiB take 1.5 ms through "
            "PCIe 5, long beside the 10 µs of starting a copy; two parts are there.",
            64,
            1099511627776,
        ),
    ] = 1 << 26
    usable_memory_share: Annotated[
        float,
        Setting("of the free memory", "Used by rows: statistics, states and blocks under way need some, too.", 0.01, 1),
    ] = 0.7
