"""Settings of liveness: signs of life, how long is waited for whom, when a job gives up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class LivenessSettings:
    """Who counts as lost or stuck. Limits that users choose are options (`--hook-timeout`)."""

    heartbeat_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Time between two heartbeats of a worker. The shortest `--worker-timeout` is two of the default ones.",
            0.01,
            1,
        ),
    ] = 1.0
    silence_check_seconds: Annotated[
        float, Setting("seconds", "Time between two checks which workers are silent or stuck.", 0.01, 60)
    ] = 1.0
    coordinator_pause_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "If more time passes between two checks, the coordinator itself was held up, and the time counts as "
            "silence of no worker. Three checks, because a busy host delays them.",
            0.1,
        ),
    ] = 3.0
    beats_of_stuck_worker: Annotated[
        float,
        Setting(
            "heartbeats per second",
            "A worker counts as stuck in a hook if it gave so many all the time: one that was frozen meanwhile "
            "has not.",
            0,
            1,
        ),
    ] = 0.5
    hook_timeouts_of_module: Annotated[
        float,
        Setting(
            "hook timeouts",
            "The module of a class may take so many in a worker: it imports libraries such as PyTorch, perhaps from a "
            "cold disk and beside others.",
            1,
        ),
    ] = 4.0
    crashes_in_a_row: Annotated[
        int,
        Setting(
            "crashes",
            "Without a whole pass over the lost points in between; then the fault is in the code, and the job fails.",
            1,
        ),
    ] = 3
    crashes: Annotated[int, Setting("crashes", "Of all workers together; then the job fails.", 1)] = 10
    losses_in_a_row: Annotated[
        int,
        Setting("workers", "Lost by no fault of their code, without a whole pass in between; then the job fails.", 1),
    ] = 10
    clock_drift: Annotated[
        float,
        Setting(
            "ratio",
            "How much faster than the coordinator's clock a worker's may run. Real ones differ by less than 0.1 "
            "%, those of the fault simulation by up to 5 %; a jump between two reports is larger than a quarter "
            "of their distance, or harmless.",
            1,
        ),
    ] = 1.25
    scheduling_noise_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "By so much a reported time may exceed what the coordinator's clock allows. Orders wait in a queue "
            "and phases overlap while an overloaded host lets one of the processes wait: 36 ms of reacting were "
            "counted in a round of less than 29 ms, with healthy clocks. A clock that was set differs by more; "
            "smaller errors are averaged out with later rounds.",
        ),
    ] = 1.0
    exchange_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "A worker waits so long for the others' parts of a fold (all-reduce); the coordinator ends a fold "
            "after 60.",
        ),
    ] = 90.0
    worker_start_seconds: Annotated[
        float, Setting("seconds", "Until all worker processes of a job have said hello; then the job fails.", 0.1)
    ] = 120.0
    deaths_while_starting: Annotated[
        int, Setting("workers", "That may die before their hello; then the start has failed.", 1)
    ] = 3
    driver_check_seconds: Annotated[
        float,
        Setting(
            "seconds", "Time between two checks of processes, requests and the display by the coordinator.", 0.001, 10
        ),
    ] = 0.1
    disconnected_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "A worker without a connection counts as lost after this time, also while its process seems to live.",
        ),
    ] = 1.0
    quiet_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After so long without a message, background work begins: those who were answered have the "
            "processors they need.",
            0,
            10,
        ),
    ] = 0.03
    longest_deferral_seconds: Annotated[
        float, Setting("seconds", "Background work of the coordinator is deferred so long at most.")
    ] = 1.0
    spare_start_delay_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After a replacement is up, until the next spare process is started: the job has its processors back then.",
        ),
    ] = 0.5
    hook_look_seconds: Annotated[
        float, Setting("seconds", "Time between two checks of a hook that runs in the coordinator.", 0.001, 60)
    ] = 0.25
    hook_interrupted_again_seconds: Annotated[
        float, Setting("seconds", "Until a hook that caught its interruption is interrupted again.", 0.01)
    ] = 1.0
    hook_watch_pause_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "If more time passes between two checks of a hook, this process was paused meanwhile, and the time "
            "does not count.",
            0.1,
        ),
    ] = 2.0
    rank_beat_seconds: Annotated[
        float, Setting("seconds", "Time between two signs of life of a rank (FlexibleDDP).", 0.01, 60)
    ] = 1.0
    rank_silence_seconds: Annotated[
        float, Setting("seconds", "Without a sign of life for so long a rank counts as stopped.", 0.1)
    ] = 5.0
    arrived_rank_factor: Annotated[
        float,
        Setting(
            "ratio",
            "Times `rank_silence_seconds`, for a rank at the barrier: a slow exchange delays its signs of life too.",
            1,
        ),
    ] = 3.0
    server_failed_starts: Annotated[
        int,
        Setting(
            "times",
            "Starts of one server that fail in a row, or losses of it without a fold in between; then the job has "
            "failed.",
            1,
        ),
    ] = 5
