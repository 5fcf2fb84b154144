"""Settings of audits: when statistics are checked against a recomputation, and what counts as wrong (machine/audit)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class AuditSettings:
    """How often and on how many points is checked, and which differences are rounding or lag."""

    points_each_worker: Annotated[
        int, Setting("points", "Points that are checked on each worker at a time: two tiles, visited three times each.")
    ] = 128
    first_after_seconds: Annotated[float, Setting("seconds", "Time from the start of training to the first audit.")] = (
        0.1
    )
    least_seconds_between: Annotated[float, Setting("seconds", "Shortest time between two audits.")] = 0.5
    max_share_of_time: Annotated[
        float,
        Setting("of training time", "Largest part that audits take; after a long one the next comes later.", 1e-6, 1),
    ] = 0.005
    max_recounts: Annotated[
        int,
        Setting(
            "times a job",
            "So often the statistics are counted anew: if they are wrong again, counting anew does not remove the"
            " cause.",
        ),
    ] = 2
    final_lag: Annotated[
        float,
        Setting(
            "changes of the objective in the last two passes",
            "The objective of the statistics, which lags behind, may differ by so much from that of the final θ.",
        ),
    ] = 3.0
    equal_within: Annotated[
        float, Setting("relative", "Objectives that differ by less are equal: this is the rounding of float32 kernels.")
    ] = 1e-6
    points_checked_at_end: Annotated[
        int, Setting("points", "Points whose changes are checked against fresh ones when training is over.")
    ] = 128
    equal_statistics_within: Annotated[
        float, Setting("relative", "Two ways to the same statistics differ by rounding alone.", 0, 1)
    ] = 1e-9
    equal_objectives_within: Annotated[
        float,
        Setting(
            "relative", "Where ties were decided differently, statistics differ and their objectives do not.", 0, 1
        ),
    ] = 1e-6
    max_final_pass_seconds: Annotated[
        float,
        Setting("seconds", "For the pass over all points at the end: a worker that takes longer is taken to hang."),
    ] = 600.0
    recounted_points: Annotated[
        int, Setting("points", "For which fresh states exist at a time, at least.", 64, 1099511627776)
    ] = 1 << 15
    recounted_state_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of fresh states at a time: as many points as have so many, where these are more.",
            0,
            1099511627776,
        ),
    ] = 4 << 20
    recounted_calls: Annotated[
        int,
        Setting(
            "first calls of a kernel",
            "Points of a call of the recount, over those of the first call of a kernel: on a GPU that is a million "
            "points, and few calls.",
            1,
        ),
    ] = 16
