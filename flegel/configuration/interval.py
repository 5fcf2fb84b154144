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
            "Where the search for η begins; 0: it is measured. From 10 ms and from 1 s jobs take the same time within "
            "3 % (Fig. 15, k-means on HIGGS).",
            0,
            86400,
        ),
    ] = 0.0
    first_measured_part: Annotated[
        float,
        Setting("of a pass", "The first round, in which speed and φ are measured. Ablation: a pass costs 11 %.", 0, 1),
    ] = 1 / 16
    expected_loss: Annotated[
        float, Setting("of g", "κ before anything was measured: what g loses from no interval to a whole pass.", 0, 1)
    ] = 0.6
    expected_loss_error: Annotated[
        float,
        Setting(
            "of g",
            "Standard error of `expected_loss`. FCM and GMM in jobs of 0.1, 1 and 5 s among equal workers, on virtual "
            "time: with 0.6 fsp is up to 10 % behind η by κ alone, with 0.15 up to 4 %.",
            1e-9,
        ),
    ] = 0.15
    costly_barrier: Annotated[
        float,
        Setting(
            "φ / (φ + pass)",
            "Above it equal workers probe nothing in their first rounds: rounds are long, and a probe of eight of them "
            "lasts longer than most jobs.",
            0,
            1,
        ),
    ] = 0.1
    rounds_without_probes: Annotated[int, Setting("rounds", "How many first rounds these are.")] = 32
    stage_ends_below: Annotated[
        float,
        Setting("of the prediction", "Progress below it ends a stage. Ablation: never costs 34 %.", 0, 1),
    ] = 0.7
    environment_change: Annotated[
        float,
        Setting("ratio", "Change of speed or φ that begins a new stage. Ablation: never costs 3.0 %.", 1),
    ] = 1.6
    whole_pass: Annotated[
        float,
        Setting(
            "of a pass",
            "A round that reaches it ended for lack of points, not by the signal; equal workers then get whole passes "
            "and no signal. Ablation: signals all the same cost jobs of 3,000 and 20,000 rows 12 to 18 %.",
            0,
            1,
        ),
    ] = 0.9
    shortest_seconds: Annotated[float, Setting("seconds", "Timers of workers keep no shorter interval.", 1e-6)] = 2e-4
    first_pass_leeway: Annotated[
        float,
        Setting("of the rest of the first pass", "A round that ends just before that rest does needs another one.", 1),
    ] = 1.02
    unchanged_within: Annotated[float, Setting("ratio", "η is not changed by less.", 1)] = 1.2
    probe_again_above: Annotated[
        float,
        Setting("ratio", "After such a change of η the tangent may differ. Ablation: never costs 50 %.", 1),
    ] = 2.0
    growth_where_flat: Annotated[float, Setting("ratio", "η grows by it where g does not fall.", 1)] = 2.0
    smallest_rest: Annotated[float, Setting("of g", "Least 1 − κx that a probe is weighed with.", 1e-9, 1)] = 0.1
    error_kept: Annotated[
        float,
        Setting("ratio", "Standard error of κ after a probe, over what the probe would allow: κ drifts.", 1),
    ] = 1.5
    fit_error_floor: Annotated[float, Setting("of β", "Added to the standard error of a fit of few rounds.")] = 0.02
    barrier_cost_rounds: Annotated[int, Setting("rounds", "Whose mean is φ: rare expensive barriers count.", 1)] = 12
    speed_rounds: Annotated[int, Setting("rounds", "Whose median is the speed: one bad round does not count.", 1)] = 5
    pass_rounds: Annotated[int, Setting("rounds", "Whose median is the length of a pass.", 1)] = 5
    noise_memory: Annotated[
        float,
        Setting(
            "of the past",
            "Kept in the running means of the gradient noise: about ten estimates, each often negative alone.",
            0,
            0.999,
        ),
    ] = 0.9
