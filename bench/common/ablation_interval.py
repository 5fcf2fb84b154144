"""The interval rule on a model of training, as it is and with one of its numbers edited. Reads no clock.

An `Edit` replaces one piece of the source of `flegel/plan/interval/multi_stage.py`, so that a number is measured where
it stands. An edit whose text is not there exactly once is an error: the list and the rule stay in step.
"""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from flegel.plan.interval import multi_stage
from flegel.plan.interval.search import Round, Step

PASS = 100_000  # points
MOST_ROUNDS = 20_000


@dataclass(frozen=True)
class Edit:
    """One number switched off."""

    name: str
    old: str
    new: str


EDITS = (
    Edit("FIRST_FRACTION = 1", "FIRST_FRACTION = 1 / 16", "FIRST_FRACTION = 1.0"),
    Edit("USUAL_LOSS = 1 (Eq. 7 for g that falls to 0)", "DOUBT = 0.6,", "DOUBT = 1.0,"),
    Edit("USUAL_DOUBT = ∞ (no prior)", "DOUBT = 0.6, 0.15", "DOUBT = 0.6, 1e6"),
    Edit("PROBE with one long round", "PROBE = (1, 1, 2, 1, 1, 2, 1, 1)", "PROBE = (1, 1, 1, 2, 1, 1, 1)"),
    Edit("BEHIND = 0 (stages do not end)", "BEHIND = 0.7", "BEHIND = 0.0"),
    Edit("CHANGED = ∞", "CHANGED = 1.6", "CHANGED = math.inf"),
    Edit("STEADY = 1", "STEADY = 1.2", "STEADY = 1.0"),
    Edit("φ: mean of 1 round, not 12", "Recent(12), Recent(5), Recent(5)", "Recent(1), Recent(5), Recent(5)"),
    Edit("φ: mean of 5 rounds, not 12", "Recent(12), Recent(5), Recent(5)", "Recent(5), Recent(5), Recent(5)"),
    Edit("speed: 1 round, not 5", "Recent(12), Recent(5), Recent(5)", "Recent(12), Recent(1), Recent(5)"),
    Edit("pass: 1 round, not 5", "Recent(12), Recent(5), Recent(5)", "Recent(12), Recent(5), Recent(1)"),
    Edit("probe always upwards", "up = 2.0 * self._eta <= longest", "up = True"),
    Edit("no second probe after a change above 2", "if apart > 2.0:", "if False:"),
    Edit("κ x up to 1, not 0.9", "max(1.0 - self._loss * x, 0.1)", "max(1.0 - self._loss * x, 1e-9)"),
    Edit("a contradiction does not widen the prior", "doubt *= max(1.0, ", "doubt *= max(1.0, 0.0 * "),
    Edit("prior narrows by all of a measurement, not 1 / 1.5", "= 1.5 * (old", "= 1.0 * (old"),
    Edit("no error added to a fit (0.02)", "* spread) + 0.02", "* spread) + 1e-9"),
    Edit("fit without the decay of progress", "n.mean(), work - work.mean()]", "n.mean()]"),
    Edit("g from the last round, not two", "g[usual][-2:]", "g[usual][-1:]"),
    Edit("shortest η 1 µs, not 0.2 ms", "SHORTEST = 2e-4", "SHORTEST = 1e-6"),
    Edit("where g does not fall: 4 η, not 2 η", "return 2.0 * eta", "return 4.0 * eta"),
)  # fmt: skip


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


def edited(edit: Edit) -> ModuleType:
    """The rules with this edit, as a module."""
    source = inspect.getsource(multi_stage)
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.name}: {edit.old!r} stands {source.count(edit.old)} times in multi_stage.py, not once")
    module = ModuleType("edited_multi_stage")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source.replace(edit.old, edit.new), edit.name, "exec"), module.__dict__)
    return module


def seconds_to_target(model: Model, seed: int, rules: ModuleType = multi_stage) -> float:
    adjuster, rng = rules.MultiStage(), np.random.default_rng(seed)
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
