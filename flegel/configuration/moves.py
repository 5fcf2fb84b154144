"""Settings of moves of points between workers: windows, links and memory (machine/migration, worker/mover)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class MoveSettings:
    """How many points travel at a time. They reach workers with their shard."""

    window_transfer_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "A window has as many points as travel in this time; on a busy host, handling smaller windows costs "
            "more than sending.",
            1e-06,
        ),
    ] = 0.1
    windows_under_way: Annotated[
        int, Setting("windows", "Windows that may be sent before the first of them is answered.", 1, 1000)
    ] = 4
    max_window_growth: Annotated[
        int,
        Setting(
            "ratio",
            "Of a window to the one before, at most: few small windows are sent while the speed of the link is "
            "unknown.",
            1,
        ),
    ] = 8
    max_windows_per_move: Annotated[
        int,
        Setting(
            "windows",
            "A window has at least one part in so many of a move: each becomes a block of points at the "
            "receiver, and many small blocks cost time in every later round.",
            1,
        ),
    ] = 64
    slow_link_bytes_per_second: Annotated[
        float,
        Setting(
            "bytes per second",
            "On a slower link small send buffers are tried: points that wait in the kernel's buffers delay "
            "reports by milliseconds.",
        ),
    ] = 50e6
    windows_to_judge_link: Annotated[
        int, Setting("windows", "The speed of a link is the median over so many.", 1, 1000)
    ] = 3
    small_buffer_speed_kept: Annotated[
        float,
        Setting(
            "of the former speed",
            "A link that small buffers make slower than that gets large ones for the rest of the job.",
            0,
            1,
        ),
    ] = 0.8
    max_resend_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Until a window is sent again, at most. Windows take some tenths of a second; without this limit, "
            "after a clock jumped by an hour, no window would be sent again for ten hours.",
            0.5,
        ),
    ] = 60.0
    max_window_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Largest window: large enough that the way of an answer costs little, small enough that few points "
            "are locked.",
            1,
            67108864,
        ),
    ] = 8 << 20
    first_window_bytes: Annotated[
        int, Setting("bytes", "First window, while nothing is known of the link.", 1, 67108864)
    ] = 256 << 10
    fewest_sent_windows_per_shard: Annotated[
        int, Setting("windows", "A window that travels is at most this part of the shard.", 1)
    ] = 16
    fewest_shared_windows_per_shard: Annotated[
        int,
        Setting(
            "windows",
            "A window in shared memory is at most this part of the shard: it is under way for a moment only.",
            1,
        ),
    ] = 1
    usable_free_memory_share: Annotated[
        float,
        Setting("of the free memory", "What arrives may take so much; a target that has less refuses the move.", 0, 1),
    ] = 0.5
    filling_levels: Annotated[
        int,
        Setting(
            "levels",
            "How well points fill a window is compared in so many levels (a quarter, a half, …): smaller "
            "differences do not count.",
            1,
        ),
    ] = 4
    kept_idle_links: Annotated[
        int, Setting("links", "That no move uses: the next one to that worker need not dial.", 1, 1024)
    ] = 4
    small_buffer_bytes: Annotated[
        int,
        Setting("bytes", "Of a small send buffer; the kernel holds twice that: 5 ms at 50 Mbit/s.", 1024, 1073741824),
    ] = 16 << 10
    speed_rounds_per_block: Annotated[
        int,
        Setting(
            "rounds",
            "A worker that sleeps in every other round varies by round, but not by block of so many rounds.",
            1,
        ),
    ] = 4
    warm_up_barriers: Annotated[int, Setting("barriers", "Before speeds are believed.")] = 2
    crowded_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Before speeds are believed where workers share processors: one of equals may get a third of "
            "another's time.",
        ),
    ] = 0.3
