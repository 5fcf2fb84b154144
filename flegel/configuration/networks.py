"""Settings of networks that workers train: micro-batches, running means, memory (torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class NetworkSettings:
    """They reach workers with their shard."""

    micro_batch_interval_part: Annotated[
        float,
        Setting(
            "of an interval", "That a micro-batch may take: so long a worker may answer late to a signal.", 0.001, 1
        ),
    ] = 0.1
    fewest_samples: Annotated[
        int, Setting("samples", "Of a micro-batch: below, calls cost more than samples on any device.", 1)
    ] = 8
    timings_before_choice: Annotated[
        int,
        Setting(
            "timings",
            "Of a size of micro-batches before it counts; the first prepares the library's plan and is left out.",
            2,
            1000,
        ),
    ] = 3
    most_timings_counted: Annotated[
        int,
        Setting("timings", "Of a size, where the cost of a call is found: more of one size say no more about it.", 1),
    ] = 8
    faster_timing_weight: Annotated[
        float, Setting("of the newest", "Weight of a timing below the mean so far.", 0, 1)
    ] = 0.5
    slower_timing_weight: Annotated[
        float, Setting("of the newest", "The same above the mean: others may have had the processor.", 0, 1)
    ] = 0.05
    kept_block_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of the largest blocks of memory that are kept for the next micro-batch. Otherwise thousands of pages a "
            "micro-batch are given back and cleared again, which takes a tenth of its time.",
            131072,
            1073741824,
        ),
    ] = 32 << 20
    kept_bytes: Annotated[int, Setting("bytes", "Of all memory that is kept so.", 131072, 1099511627776)] = 512 << 20
    rounds_per_noise_estimate: Annotated[
        int,
        Setting(
            "rounds",
            "Of so many, one has at least two micro-batches: a single worker estimates the noise from their sizes.",
            1,
        ),
    ] = 8
    processor_samples: Annotated[
        int, Setting("samples", "Of a micro-batch on processors, at most, where the user does not say.", 1)
    ] = 256
    gpu_samples: Annotated[int, Setting("samples", "The same on a GPU.", 1)] = 4096
    noise_passes: Annotated[
        float,
        Setting(
            "passes",
            "Over which the gradient noise is averaged: of a small batch ‖G‖² is mostly chance, and B changes slowly.",
            0.001,
            1000,
        ),
    ] = 0.25
    fades_per_pass: Annotated[
        float,
        Setting(
            "powers of e",
            "By which the weight of a loss in the running means falls during a pass: e⁻⁴, 2 %, so they tell about the"
            " last pass.",
            0.01,
            100,
        ),
    ] = 4.0
    probed_rows: Annotated[int, Setting("rows", "On which a module is tried before it is trained.", 1, 4096)] = 4
    forward_rows: Annotated[
        int, Setting("rows", "Of one forward pass of a finished model: its activations fit into any memory.", 1)
    ] = 1024
