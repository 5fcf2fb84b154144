"""The interval rule on a model of training, as it is and with one of its settings switched off. Reads no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flegel.configuration.active import using
from flegel.plan.interval.interval import Round, Step
from flegel.plan.interval.multi_stage import MultiStage

PASS = 100_000  # points
MOST_ROUNDS = 20_000

SWITCHED_OFF: dict[str, dict[str, float]] = {
    "first_measured_part = 1": {"interval.first_measured_part": 1.0},
    "expected_loss = 1 (Eq. 7 for g that falls to 0)": {"interval.expected_loss": 1.0},
    "expected_loss_error = ∞ (no prior)": {"interval.expected_loss_error": 1e6},
    "stage_ends_below = 0 (stages do not end)": {"interval.stage_ends_below": 0.0},
    "environment_change = ∞": {"interval.environment_change": 1e9},
    "unchanged_within = 1": {"interval.unchanged_within": 1.0},
    "φ: mean of 1 round, not 12": {"interval.barrier_cost_rounds": 1},
    "φ: mean of 5 rounds, not 12": {"interval.barrier_cost_rounds": 5},
    "speed: 1 round, not 5": {"interval.speed_rounds": 1},
    "pass: 1 round, not 5": {"interval.pass_rounds": 1},
    "no second probe after a change above 2": {"interval.probe_again_above": 1e9},
    "κ x up to 1, not 0.9": {"interval.smallest_rest": 1e-9},
    "error of κ narrows by all of a measurement, not 1 / 1.5": {"interval.error_growth": 1.0},
    "no error added to a fit (0.02)": {"interval.fit_error_floor": 1e-9},
    "shortest η 1 µs, not 0.2 ms": {"interval.shortest_seconds": 1e-6},
    "where g does not fall: 4 η, not 2 η": {"interval.growth_where_flat": 4.0},
}
"""Settings of the interval, and the values that switch their rules off."""


@dataclass(frozen=True)
class Model:
    """Training that gains `pace` of what is left in a pass, less by κ over a round of a pass; each value may change
    when `changes_at` passes are done."""

    name: str
    phi: float = 0.002
    rate: float = 1e6
    blunting: float = 0.6
    noise: float = 0.05
    pace: float = 0.3
    changes_at: float = math.inf
    then_phi: float = 1.0
    """Factor; the next as well."""
    then_rate: float = 1.0
    then_blunting: float = 1.0
    rare: float = 1.0
    """Factor of φ in one round of ten."""
    equal_steps: bool = False
    """Each round gains the same, whatever its length: gradients of mini-batches, g falls as 1 / η."""
    left: float = 0.01


MODELS = (
    Model("φ 0.1 ms", phi=1e-4),
    Model("φ 2 ms"),
    Model("φ 30 ms", phi=0.03),
    Model("φ 300 ms", phi=0.3),
    Model("φ 300 ms, κ 3", phi=0.3, blunting=3.0),
    Model("φ 1 µs", phi=1e-6, rate=4e6),
    Model("φ ×20 in one round of ten", rare=20.0),
    Model("noise 0.4", noise=0.4),
    Model("noise 1.5", noise=1.5),
    Model("κ 3 in the first pass, then 0.6", blunting=3.0, changes_at=1.0, then_blunting=0.2),
    Model("κ 0 (frequent updates gain nothing)", blunting=0.0),
    Model("κ 3", blunting=3.0),
    Model("equal gain per round", equal_steps=True, pace=0.01, noise=0.05, left=0.02),
    Model("quick: a pass gains 80 %", pace=1.6, left=0.002),
    Model("slow: a pass gains 10 %", pace=0.1, left=0.02),
    Model("φ ×10 after 4 passes", changes_at=4.0, then_phi=10.0),
    Model("φ ÷10 after 4 passes", phi=0.01, changes_at=4.0, then_phi=0.1),
    Model("speed ÷8 after 4 passes", changes_at=4.0, then_rate=0.125),
    Model("κ ×6 after 4 passes", changes_at=4.0, then_blunting=6.0),
    Model("κ ÷20 after 4 passes", blunting=2.0, changes_at=4.0, then_blunting=0.05),
)


def seconds_to_target(model: Model, seed: int, changes: Mapping[str, float] | None = None) -> float:
    """Seconds of virtual time until `model.left` of the objective is left, with these settings changed."""
    with using(changes or {}):
        return _seconds_to_target(model, seed)


def _seconds_to_target(model: Model, seed: int) -> float:
    adjuster, rng = MultiStage(), np.random.default_rng(seed)
    step: Step = adjuster.first(0.0)
    left, work, seconds, rounds = 1.0, 0.0, 0.0, 0
    while left > model.left and rounds < MOST_ROUNDS:
        later = work >= model.changes_at
        phi = model.phi * (model.then_phi if later else 1.0) * float(rng.lognormal(0.0, 0.2))
        phi *= model.rare if rng.random() < 0.1 else 1.0
        rate = model.rate * (model.then_rate if later else 1.0) * float(rng.lognormal(0.0, 0.05))
        blunting = model.blunting * (model.then_blunting if later else 1.0)
        points = max(min(PASS * step.fraction, PASS if step.seconds is None else step.seconds * rate), 1.0)
        share = points / PASS
        effective = 1.0 if model.equal_steps else share * max(1 - blunting * share, 0.1)
        gain = left * -math.expm1(-model.pace * effective)
        left, work, rounds = left - gain, work + share, rounds + 1
        took = points / rate + phi
        seconds += took
        seen = gain * (1 + model.noise * float(rng.normal()))
        step = adjuster.next(Round(int(points), took, phi, seen if rounds > 1 else None, PASS, PASS, work))
    return seconds
