"""Settings of transport: from how many bytes on memory is shared, mapped or sent without a copy (runtime/transport)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class TransportSettings:
    """Thresholds; what is sent does not depend on them."""

    sampled_units: Annotated[
        int,
        Setting(
            "units", "That are looked at first: where nearly all of them have changed, the others are not looked at.", 1
        ),
    ] = 32
    picked_bytes_share: Annotated[
        float,
        Setting("of the bytes", "Units are picked where that leaves less: picking costs time on both sides.", 0, 1),
    ] = 0.75
    shared_from_bytes: Annotated[
        int, Setting("bytes", "Of θ or of a report from which on shared buffers pay.", 0, 1099511627776)
    ] = 64 << 10
    rows_in_place_from_bytes: Annotated[
        int, Setting("bytes", "Of all features from which on reading rows in place pays.", 0, 1125899906842624)
    ] = 16 << 20
    slice_retry_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "After which slices that have not come are asked for again, then twice as long each time: large "
            "ones take long, and whoever asks too early has them sent twice. A server that is lost is noticed "
            "in another way.",
            0.1,
        ),
    ] = 20.0
    announced_from_bytes: Annotated[
        int, Setting("bytes", "Less is not announced: it is over within one wait of a thread.", 0, 1099511627776)
    ] = 64 << 10
    changed_rows_from_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of statistics from which on it pays to look for rows that changed, and to send only these.",
            0,
            1099511627776,
        ),
    ] = 1 << 20
    max_changed_part: Annotated[
        float, Setting("of the rows", "With more changed rows, all of them are sent.", 0, 1)
    ] = 0.5
    theta_changes_from_bytes: Annotated[
        int, Setting("bytes", "Of θ from which on it pays to look for rows that changed.", 0, 1125899906842624)
    ] = 256 << 10
    theta_least_saving: Annotated[
        float,
        Setting(
            "bytes of θ over those of the rows that changed",
            "At least: less does not pay for the copy that the worker makes.",
            1,
        ),
    ] = 2.0
    rows_in_place_range_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of adjacent rows that are fetched by one call, at least: the call costs about as much as copying so many.",
            1,
            1099511627776,
        ),
    ] = 2048
    collector_rests_above_bytes: Annotated[
        int,
        Setting("bytes", "Of a message: the garbage collector rests while a larger one is decoded.", 0, 1099511627776),
    ] = 4 << 10
    sent_without_copy_from_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Of a frame from which on it is sent without a copy: below, keeping track of the buffer costs more.",
            0,
            1099511627776,
        ),
    ] = 1 << 20
    mostly_changed_share: Annotated[
        float,
        Setting(
            "of the sampled units", "Where so many changed, the rest is not looked at: picking could not pay.", 0, 1
        ),
    ] = 0.9
