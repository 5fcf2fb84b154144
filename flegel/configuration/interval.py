"""Settings of the interval: how η, the time between two barriers, is found (plan/interval)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class IntervalSettings:
    """g(η) is the progress per unit of training, φ the cost of a barrier, κ the part of g that a whole pass loses."""

    first_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "The interval η with which its search begins; 0: it is measured. With 10 ms and with 1 s jobs take "
            "the same time within 3 % (k-means on HIGGS, the experiment of the FSP paper's Fig. 15).",
            0,
            86400,
        ),
    ] = 0.0
    rollback_first_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "`--probes rollback`: the interval with which each stage is measured. The FSP paper's (footnote 1).",
            1e-6,
            86400,
        ),
    ] = 0.2
    first_measured_part: Annotated[
        float,
        Setting(
            "of a pass",
            "Length of the first round, in which speed and φ are measured. Ablation: a whole pass costs 11 %.",
            0,
            1,
        ),
    ] = 1 / 16
    expected_loss: Annotated[
        float,
        Setting(
            "of g",
            "κ before anything was measured: the part of g that is lost when η grows from nearly 0 to a whole pass.",
            0,
            1,
        ),
    ] = 0.6
    expected_loss_error: Annotated[
        float,
        Setting(
            "of g",
            "Standard error of `expected_loss`. FCM and GMM in jobs of 0.1, 1 and 5 s among equal workers, on "
            "virtual time: with 0.6 fsp is up to 10 % slower than with η from κ alone, with 0.15 up to 4 %.",
            1e-9,
        ),
    ] = 0.15
    costly_barrier: Annotated[
        float,
        Setting(
            "φ / (φ + pass)",
            "Where barriers cost more than this, equal workers do not probe in their first rounds "
            "(`rounds_without_probes`): rounds are long, and a probe of eight of them lasts longer than most "
            "jobs.",
            0,
            1,
        ),
    ] = 0.1
    rounds_without_probes: Annotated[
        int,
        Setting(
            "rounds",
            "Number of first rounds in which equal workers do not probe where barriers are costly (`costly_barrier`).",
        ),
    ] = 32
    stage_ends_below: Annotated[
        float,
        Setting(
            "of the prediction",
            "A stage ends when progress falls below this part of the prediction. Ablation: without this rule 34 %.",
            0,
            1,
        ),
    ] = 0.7
    environment_change: Annotated[
        float,
        Setting(
            "ratio",
            "A change of the speed or of φ by this factor begins a new stage. Ablation: without this rule 3.0 %.",
            1,
        ),
    ] = 1.6
    whole_pass: Annotated[
        float,
        Setting(
            "of a pass",
            "A round that visits this part of a pass counts as ended for lack of points, not by the signal; equal"
            " workers then get whole passes and no signal. Ablation: signals all the same cost jobs of 3,000 and "
            "20,000 rows 12 to 18 %.",
            0,
            1,
        ),
    ] = 0.9
    whole_pass_alone_above: Annotated[
        float,
        Setting(
            "φ / pass",
            "A worker that is alone gets whole passes where a barrier costs more than this, also where the algorithm "
            "says that a part of a pass is worth as much: a thread that wakes up late trains hardly anything in a part "
            "of a millisecond. LR of 1,000 rows: 9 to 10 rounds in place of 12.",
            0,
        ),
    ] = 0.5
    shortest_seconds: Annotated[
        float, Setting("seconds", "The shortest η: the timers of workers cannot keep a shorter one.", 1e-6)
    ] = 2e-4
    first_pass_leeway: Annotated[
        float,
        Setting(
            "of the rest of the first pass",
            "Factor on the predicted rest of the first pass when it is divided into rounds: a round that ended "
            "just before the pass does would need another, very short one.",
            1,
        ),
    ] = 1.02
    unchanged_within: Annotated[
        float, Setting("ratio", "A new η that differs from the present one by a smaller factor is not adopted.", 1)
    ] = 1.2
    probe_again_above: Annotated[
        float,
        Setting(
            "ratio",
            "A change of η by more than this factor begins a new stage with a new probe: the tangent of g may be "
            "another one there. Ablation: without this rule 50 %.",
            1,
        ),
    ] = 2.0
    growth_where_flat: Annotated[
        float, Setting("ratio", "Factor by which η grows where a probe finds that g does not fall with η.", 1)
    ] = 2.0
    smallest_rest: Annotated[
        float,
        Setting(
            "of g",
            "Lower limit of 1 − κx, the part of g that is left at the present η, where a probe is weighed against"
            " what is known already.",
            1e-9,
            1,
        ),
    ] = 0.1
    error_growth: Annotated[
        float,
        Setting(
            "ratio",
            "Standard error of κ after a probe, as a multiple of what the probes alone would allow: κ drifts.",
            1,
        ),
    ] = 1.5
    fit_error_floor: Annotated[
        float, Setting("absolute, as β", "Added to the standard error of β, which is fitted to few rounds.")
    ] = 0.02
    barrier_cost_rounds: Annotated[
        int, Setting("rounds", "φ is the mean over so many last rounds, so that rare expensive barriers count.", 1)
    ] = 12
    speed_rounds: Annotated[
        int,
        Setting("rounds", "The speed is the median over so many last rounds, so that one bad round does not count.", 1),
    ] = 5
    pass_rounds: Annotated[
        int, Setting("rounds", "The length of a pass is the median over so many last rounds.", 1)
    ] = 5
    largest_call_share: Annotated[
        float,
        Setting(
            "of a round's training",
            "A call of a library counts as at most this part of the training of a round: the time of the visits is "
            "what remains, and a small remainder is mostly error.",
            0,
            0.99,
        ),
    ] = 0.9
    noise_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Weight of the past in the running means of the gradient noise: about ten estimates count; a single "
            "one is often negative.",
            0,
            0.999,
        ),
    ] = 0.9
    max_interval_costs: Annotated[
        float,
        Setting(
            "costs of a barrier",
            "Longest interval of networks, and of a worker that makes θ by itself between barriers: these then take 5 "
            "% of the time, and a longer one gains little.",
            1,
        ),
    ] = 20.0
