"""Settings of groups at several sites: rounds, waits, and when another group counts as gone (machine/group)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class SiteSettings:
    """How groups exchange what they have learned. Give all groups of a job the same."""

    outer_rate: Annotated[
        float,
        Setting(
            "of the mean change",
            "Step of the Nesterov exchange along the mean change of all groups: the value of the DiLoCo paper.",
            0,
            10,
        ),
    ] = 0.7
    largest_result_rounding: Annotated[
        float,
        Setting(
            "of the change",
            "Where all contributions of a round are int8 or int4, its θ is written in 16 bits unless rounding that "
            "would be more than this part of what the round changed: less than the rounding of int4 itself.",
            0,
            1,
        ),
    ] = 0.05
    outer_momentum: Annotated[
        float, Setting("of the past", "Momentum of the Nesterov exchange: the value of the DiLoCo paper.", 0, 0.999)
    ] = 0.9
    max_passes_alone: Annotated[
        float,
        Setting(
            "passes",
            "Of a group over its own rows between two exchanges: after more it is near its own optimum and "
            "learns nothing new.",
            0.001,
        ),
    ] = 8.0
    contribute_again_seconds: Annotated[
        float, Setting("seconds", "Until a resting group contributes again, where nothing has changed.", 0.01)
    ] = 1.0
    remembered_arrivals: Annotated[
        int,
        Setting(
            "rounds",
            "From so many rounds it is learned when a group contributes: enough for a tail of 3 %, few enough to "
            "follow a site that changes.",
            2,
        ),
    ] = 32
    max_grace_moments: Annotated[
        int,
        Setting(
            "moments",
            "Among so many moments the best end of a grace window is searched: with 1,000 groups a decision takes "
            "some ten milliseconds.",
            2,
        ),
    ] = 64
    outlier_deviations: Annotated[
        float,
        Setting(
            "standard deviations",
            "A change of θ that is larger than what its group sent before by more is an outlier: the value of EDiT.",
            0.1,
        ),
    ] = 3.0
    least_change_deviation: Annotated[
        float,
        Setting(
            "of the logarithm",
            "Sizes of a group's changes vary by at least so much: one less than 1.5 times as large as usual is never "
            "an outlier (e to the power of 3 deviations).",
            0.001,
        ),
    ] = 0.135
    changes_before_outliers: Annotated[
        int,
        Setting("changes", "So many changes of a group must be known before one of them can be an outlier.", 2),
    ] = 5
    changes_remembered: Annotated[
        int,
        Setting(
            "changes", "The usual size of a change is a mean over about so many: it shrinks as training goes on.", 2
        ),
    ] = 16
    max_sending_share: Annotated[
        float,
        Setting(
            "of the time between two contributions",
            "`--wire auto`: sending a contribution may take so much of it. What a group learns meanwhile reaches the "
            "others one round later; beyond a tenth that costs more than rounding, which is made up for later.",
            0.001,
            1,
        ),
    ] = 0.1
    max_latency_object_bytes: Annotated[
        int,
        Setting(
            "bytes",
            "Puts of objects up to this size tell the latency of the link, larger ones its rate: beats have some "
            "hundred bytes, and 4 KiB take 33 ms at 1 Mbit/s.",
            1,
        ),
    ] = 4 << 10
    remembered_puts: Annotated[
        int,
        Setting(
            "puts",
            "The link is measured by the medians of so many: one slow call does not move them, and they follow a link "
            "that changes.",
            1,
        ),
    ] = 8
    kept_rounds: Annotated[int, Setting("rounds", "Objects of older rounds are removed from the store.", 2)] = 4
    stalled_after_silences: Annotated[
        float,
        Setting(
            "limits of silence",
            "Without progress for so long a job counts as stalled: repairs by other groups take at most two, "
            "one after the other.",
            1,
        ),
    ] = 4.0
    absent_after_silences: Annotated[
        float,
        Setting(
            "limits of silence", "For a group to appear (10 min by default): people start sites one after another.", 1
        ),
    ] = 20.0
    evaluation_seconds: Annotated[
        float, Setting("seconds", "For another group's pass over its rows at the end, as the audit allows it.", 0.1)
    ] = 600.0
    remake_after_beats: Annotated[
        float,
        Setting(
            "beats",
            "Until a damaged result is made again: by then, a group that has applied it has said so in a beat.",
            0,
        ),
    ] = 3.0
    wait_for_evaluation_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "The coordinator waits so long for the objective of all groups: longer than a group waits for the "
            "evaluations of the others.",
            0.1,
        ),
    ] = 660.0
    timeouts_waiting_for_result: Annotated[
        float,
        Setting(
            "times --group-timeout",
            "`--group-barrier wait`: so long nobody trains because the result of a round has not come. Groups that are "
            "silent are not waited for after one; a group that is alive may be this slow.",
            1,
        ),
    ] = 10.0
    first_retry_delay_seconds: Annotated[
        float, Setting("seconds", "Until a store call that failed is made again; it doubles from try to try.", 0.001)
    ] = 0.05
    max_retry_delay_seconds: Annotated[
        float, Setting("seconds", "Longest time until a store call that failed is made again.", 0.001)
    ] = 2.0
    wait_reported_every_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Between two lines about one wait: a reader of a log sees that the job lives, and a wait of ten "
            "minutes takes 20 lines.",
            0.1,
        ),
    ] = 30.0
    wait_reported_after_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Groups may wait so long for each other in a round without a word: three beats, by which a group "
            "that lives has been heard of.",
        ),
    ] = 3.0
    hysteresis: Annotated[
        float, Setting("of the load", "By so much another group must be better before a slave moves to it.")
    ] = 0.2
    stay_seconds: Annotated[
        float,
        Setting("seconds", "After a move a slave stays for so long: the loads that groups tell are at most that old."),
    ] = 10.0
    concurrent_store_calls: Annotated[int, Setting("calls", "Calls of the object store at the same time.", 1, 64)] = 4
    last_beat_seconds: Annotated[
        float, Setting("seconds", "For the last beat of a group when its job has ended.", 0.1)
    ] = 5.0
    store_start_seconds: Annotated[
        float, Setting("seconds", "For the object store to answer at the start of a job.", 0.1)
    ] = 20.0
    watched_beats: Annotated[
        float,
        Setting(
            "beats",
            "For so long an object of a group of the same name is watched: one that lives has changed it by then.",
            1,
        ),
    ] = 3.5
    slave_silence_seconds: Annotated[
        float, Setting("seconds", "A group that has been silent for so long is not offered slaves.", 0.1)
    ] = 30.0
    connections_per_measurement: Annotated[
        int, Setting("connections", "The distance to a group is the shortest of so many connection times.", 1, 1000)
    ] = 3
    registration_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Until the master of a group lists a slave process that was started for it; then the process is ended.",
            0.1,
        ),
    ] = 60.0
    beats_until_late: Annotated[
        float,
        Setting(
            "intervals between beats", "A beat or an answer that is older is late: one may be lost on its way.", 1, 1000
        ),
    ] = 3.0
