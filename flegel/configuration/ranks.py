"""Settings of the ranks of a module that PyTorch trains with flexible barriers (torch/flexible)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class RankSettings:
    """A process reads them once, from FLEGEL_SETTINGS or the block around it; all ranks must have the same."""

    sign_of_life_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Between two signs of life of a rank that can be replaced, and between two looks at those of others.",
            0.001,
            60,
        ),
    ] = 0.1
    urgent_sign_of_life_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "The same while a message has failed or a generation is being connected: all ranks wait.",
            0.001,
            60,
        ),
    ] = 0.02
    first_meeting_seconds: Annotated[
        float, Setting("seconds", "That the first ranks wait for each other, as in PyTorch's init_process_group.", 1)
    ] = 1800.0
    store_operation_seconds: Annotated[
        float, Setting("seconds", "That an operation of the store may take before the store counts as gone.", 0.1)
    ] = 10.0
    silence_after_failure_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Without a sign of life for so long, once a message has failed in the generation, a rank is lost: four "
            "signs of life are missing then, and many more of processes that have seen the failure.",
            0.01,
        ),
    ] = 0.4
    compiling_silence_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Without a sign of life for so long a rank is lost that has said it compiles: the compiler keeps Python's "
            "lock, and signs of life came up to 1.4 s apart on two cores with a load of 17.",
            0.01,
        ),
    ] = 10.0
    compile_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "That others wait at a barrier for a rank that compiles: small modules took 150 s on a loaded machine.",
            1,
        ),
    ] = 1800.0
    abandoned_after_silences: Annotated[
        float,
        Setting(
            "limits of silence",
            "Silence of all members after which a process that waits to join gives up or, at a site, begins again.",
            1,
        ),
    ] = 10.0
    rejoin_seconds: Annotated[
        float, Setting("seconds", "Before a process asks again to be given the state of the training.", 0.001, 3600)
    ] = 0.5
    nccl_poll_seconds: Annotated[
        float, Setting("seconds", "Between two questions whether a message of NCCL has ended.", 1e-05, 1)
    ] = 0.0005
    message_bytes: Annotated[
        int,
        Setting(
            "bytes", "Of gradients in one message, at most: PyTorch's buckets have the same size.", 1024, 1099511627776
        ),
    ] = 25 << 20
    compressed_from_values: Annotated[
        int,
        Setting(
            "values",
            "Of a message that is compressed, at least: below, its latency costs more than its bytes.",
            1,
            1099511627776,
        ),
    ] = 4096
    barriers_per_finite_check: Annotated[
        int,
        Setting(
            "barriers",
            "Of so many, the gradients of one are searched for values that are not finite: weights stay so from then "
            "on.",
            1,
        ),
    ] = 16
    claimed_intervals: Annotated[
        float,
        Setting(
            "intervals", "That the samples claimed by a rank cover: the running interval and one of reserve.", 1, 1000
        ),
    ] = 2.0
    even_barriers_claimed: Annotated[
        int,
        Setting(
            "barriers",
            "Of ranks that are equally fast, for which samples are claimed at once: dealing costs 0.1 ms and more.",
            1,
        ),
    ] = 16
    even_barriers_per_report: Annotated[
        int,
        Setting(
            "barriers",
            "Of ranks that are equally fast, of which one carries reports: the others cost DDP's calls and about 60 "
            "more. A rank that waits for long reports at once, so a larger number only delays what is seen of small "
            "differences.",
            1,
            100000,
        ),
    ] = 16
    barriers_per_noise_measurement: Annotated[
        int,
        Setting(
            "barriers",
            "Between two measurements of the gradient noise once its scale is known: two norms cost as much as "
            "reading all parameters twice.",
            1,
        ),
    ] = 4
    remembered_intervals: Annotated[
        int, Setting("intervals", "Whose micro-batches predict how long the next one takes.", 1, 1000)
    ] = 8
    remembered_waits: Annotated[
        int,
        Setting(
            "barriers", "Whose waiting counts; more if they were shorter than `remembered_wait_seconds`.", 1, 100000
        ),
    ] = 32
    remembered_wait_seconds: Annotated[
        float,
        Setting(
            "seconds of training",
            "In which waiting counts, if these are more barriers: pauses of a second are seen in them, however short "
            "micro-batches are, although the longest wait is left out.",
        ),
    ] = 5.0
    first_judged_barrier: Annotated[
        int,
        Setting(
            "barriers", "Before it timings are those of the start: compiling, first allocations, empty caches.", 1, 1000
        ),
    ] = 4
    longest_interval_in_waits: Annotated[
        float,
        Setting(
            "mean waits of a barrier",
            "Up to which waiting makes an interval longer: a third of the time is waited then, where delays are as "
            "long as the interval and come at random. The gradient noise may ask for less.",
            0,
            1000,
        ),
    ] = 2.0
    uneven_from_ratio: Annotated[
        float,
        Setting(
            "of the interval to a micro-batch of the fastest rank",
            "From which on ranks count as uneven: that rank would make two micro-batches.",
            1,
            1000,
        ),
    ] = 1.5
    even_below_ratio: Annotated[
        float,
        Setting(
            "of the interval to a micro-batch of the fastest rank",
            "Below which uneven ranks count as even again: the distance to `uneven_from_ratio` keeps ranks near the "
            "limit from changing at every barrier.",
            1,
            1000,
        ),
    ] = 1.25
    told_batch_ratio: Annotated[
        float,
        Setting(
            "of the samples of a step to those of DDP",
            'From which the rule "auto" warns that it changes the learning rate.',
            1,
        ),
    ] = 1.5
    least_noise_weight: Annotated[
        float,
        Setting(
            "weight of the estimate",
            "From which the estimate of the noise is used: about 16 estimates, because a single one is mostly chance.",
            0,
            1,
        ),
    ] = 0.8

    site_start_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "That the first rank of a site waits, at the beginning, for what the sites have in common: half of the "
            "time after which the other ranks exclude one that does not arrive.",
            0,
            3600,
        ),
    ] = 30.0
    site_rest_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Between two barriers of the ranks of a site that has ended and waits for the other sites: far below the "
            "time after which a rank is excluded.",
            0.01,
            10,
        ),
    ] = 0.3
    site_poll_seconds: Annotated[
        float, Setting("seconds", "Between two looks of a site's leader for news of other sites, at rest.", 0.001, 10)
    ] = 0.02
    generation_check_seconds: Annotated[
        float,
        Setting("seconds", "After which a wait for a message looks whether the generation is still whole.", 0.001, 10),
    ] = 0.05
