"""Settings of processors: threads or processes, how many workers a small job gets, blocks of a team."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class ProcessorSettings:
    """Where workers run. The number of workers and threads itself is an option (`--workers`, `--threads`)."""

    expected_passes: Annotated[
        int,
        Setting(
            "passes",
            "Of training, where nothing is known: k-means and LR take 5 to 30 on small tables.",
            1,
        ),
    ] = 20
    cold_start_seconds: Annotated[
        float, Setting("seconds", "Until the first processes have loaded their shards; 0.9 to 2.4 were measured.")
    ] = 1.2
    warm_start_seconds: Annotated[
        float, Setting("seconds", "That waiting processes take for loading; 0.03 to 0.3 were measured.")
    ] = 0.1
    assumed_speed: Annotated[
        float,
        Setting(
            "multiplications per second",
            "Of one worker, before a kernel was timed; kernels reach 1e9 to 2e10.",
            1,
            1e18,
        ),
    ] = 1e9
    work_per_worker: Annotated[
        int,
        Setting(
            "multiplications",
            "Of a pass, of each worker at least: 0.3 to 2 ms, the time of a barrier.",
            1,
            1125899906842624,
        ),
    ] = 1 << 21
    sparse_columns: Annotated[int, Setting("numbers", "In a sparse row, at most, as far as that is known.", 1)] = 256
    work_per_thread: Annotated[
        int,
        Setting(
            "multiplications",
            "Of a pass, of each thread of a team at least: 0.1 to 1 ms, several times what it takes to begin together.",
            1,
            1125899906842624,
        ),
    ] = 1 << 20
    fixed_block_work: Annotated[
        int, Setting("multiplications", "In a fixed block of a team: 0.2 to 1 ms.", 1, 1125899906842624)
    ] = 1 << 22
    fixed_block_work_by_calls: Annotated[
        int,
        Setting(
            "multiplications",
            "The same of kernels that the interpreter calls for each block: 1 to 4 ms, and 10 to 30 µs under "
            "its lock, which sixteen threads share.",
            1,
            1125899906842624,
        ),
    ] = 1 << 24
    block_work_per_statistic: Annotated[
        int,
        Setting(
            "multiplications",
            "In a fixed block for each number of the statistics, which are cleared and added for each block.",
        ),
    ] = 64
    block_rows_of_unknown_work: Annotated[
        int,
        Setting("points", "Of a fixed block where nothing is known of the cost of a visit. A multiple of 1,024.", 1024),
    ] = 1024
    block_statistics_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of memory for the statistics of fixed blocks; with more blocks all threads meet in between.",
            1,
            1099511627776,
        ),
    ] = 64 << 20
    large_statistics_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of the statistics, from which on a block whose length may depend on speed has `rows_of_large_statistics` "
            "points, however long they take: what a kernel makes ready of θ takes as long as some 300 points, and "
            "shorter blocks would be slower, and so be cut still shorter.",
            1,
        ),
    ] = 1 << 14
    rows_of_large_statistics: Annotated[int, Setting("points", "As `large_statistics_numbers`.", 1)] = 1024
    work_of_large_statistics: Annotated[
        int,
        Setting(
            "multiplications", "Of such a block, at most: the stop flag is read after about 5 ms.", 1, 1125899906842624
        ),
    ] = 200_000_000
    longest_block_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Of a block whose length may depend on speed: so long a thread does not look at the stop flag.",
            1e-06,
            10,
        ),
    ] = 5e-4
    two_step_block_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "The same of kernels that decide first and add later. Each call makes its buffers anew, which takes wide "
            "k-means 0.2 ms; the stop flag is read inside a block, too.",
            1e-06,
            10,
        ),
    ] = 2e-3
    called_block_seconds_per_thread: Annotated[
        float,
        Setting(
            "seconds",
            "The same for each thread of a team whose kernel the interpreter calls: a call holds its lock for "
            "up to 30 µs, so that the lock is taken an eighth of the time at most, however many threads there "
            "are.",
            1e-06,
            10,
        ),
    ] = 2.5e-4
    remembered_calls: Annotated[
        int,
        Setting(
            "calls",
            "Whose cost besides visits is remembered; the least of them counts, in others a thread waited for "
            "its core.",
            2,
            1000,
        ),
    ] = 8
    fewest_points_per_thread: Annotated[int, Setting("points", "Of the first calls, for each thread of a team.", 1)] = (
        2048
    )
    compiled_call_seconds: Annotated[
        float,
        Setting(
            "seconds", "Of a call inside compiled code, besides visits: the arguments, a look at each other, the sums."
        ),
    ] = 2e-5
    compile_ahead_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of all rows: reading more takes as long as a process takes to import the compiler.",
            0,
            1125899906842624,
        ),
    ] = 1 << 20
    gpu_share: Annotated[
        int,
        Setting(
            "shares of one core",
            "First share of a GPU beside processors. On an H200 k-means (11 M × 28, k = 100) takes 2.4 ms a "
            "pass, on sixteen cores 44 ms: a GPU is as fast as 290 cores there. Others are slower; balance "
            "corrects it.",
            1,
        ),
    ] = 200
    gpu_share_of_networks: Annotated[
        int,
        Setting("shares of one core", "The same for networks, whose micro-batches are too small to use a GPU well.", 1),
    ] = 30
    core_speed: Annotated[
        float,
        Setting(
            "multiplications per second",
            "Of one core in compiled kernels; 1e9 to 4e10 were measured. Enough to tell a pass of milliseconds "
            "from one of seconds, which is what decides whether processors help a GPU.",
            1,
            1e18,
        ),
    ] = 1e10
    sparse_rows_at_once: Annotated[
        int,
        Setting(
            "rows",
            "Sparse rows that a thread multiplies at a time: a start of k-means, for which all workers wait, is made "
            "of such products.",
            1,
        ),
    ] = 1 << 11
    threaded_sum_from_numbers: Annotated[
        int, Setting("numbers", "Of a sum from which on several threads are quicker than one.", 1, 1099511627776)
    ] = 1 << 17
    tiles_laid_out_at_once: Annotated[
        int, Setting("tiles", "That a thread lays out before it takes more: some milliseconds.", 1)
    ] = 1024
    points_copied_without_compiler: Annotated[
        int, Setting("points", "For which it is not worth waking the compiler.", 0)
    ] = 1024
    observer_switch_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After which a thread of an observer yields the interpreter; Python's 5 ms would delay barriers.",
            1e-05,
            1,
        ),
    ] = 5e-4
