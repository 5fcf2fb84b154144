"""Settings of a cluster: signs of life of slaves, repeated orders, lost attempts (cluster/master, cluster/slave)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class ClusterSettings:
    """Who counts as lost. Master and slaves read them from FLEGEL_SETTINGS when they start."""

    slave_silence_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Without a heartbeat (one a second) for so long, a slave is silent and gets no new jobs. If its "
            "connection is closed too, the slave and all its processes are lost.",
            1,
        ),
    ] = 6.0
    frozen_slave_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After which a silent slave with an open connection is lost: its process is stopped, and its "
            "workers may go on.",
            1,
        ),
    ] = 30.0
    master_pause_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "A longer time between two ticks (there are two a second) means that the master itself was stopped.",
            0.6,
        ),
    ] = 3.0
    slave_return_seconds: Annotated[
        float,
        Setting(
            "seconds", "Within which slaves with running jobs must send a heartbeat after the master was restarted.", 1
        ),
    ] = 30.0
    repeat_order_seconds: Annotated[
        float,
        Setting(
            "seconds", "After which an order is sent again if no heartbeat shows its effect: three heartbeats.", 0.1
        ),
    ] = 3.0
    lost_attempts: Annotated[
        int, Setting("attempts", "Without a checkpoint that a job may lose through no fault of its own.", 1)
    ] = 3
    overtaking_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After which smaller jobs no longer overtake a waiting job that does not fit; otherwise it might "
            "never start.",
        ),
    ] = 60.0
    overtime_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "That a job may take beyond its `--max-seconds` before its slave ends it: it ends by itself at the "
            "next barrier.",
            0.1,
        ),
    ] = 3.0
    excused_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "In which a coordinator may be stopped (SIGSTOP, a sleeping host) without that counting as time of "
            "a hook, in all.",
        ),
    ] = 600.0
    worker_replacement_seconds: Annotated[
        float,
        Setting(
            "seconds", "To replace a worker that is lost near the time limit, and for the new one to visit its points."
        ),
    ] = 10.0
