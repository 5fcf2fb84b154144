"""The gradient noise scale from norms of gradient sums, and the interval that it gives."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from flegel.plan.interval.gradient_noise import (
    GradientNoise,
    NoiseEstimate,
    best_interval,
    can_be_told,
    from_reports,
    from_two_batches,
    gain,
    worth,
)
from flegel.plan.interval.interval import Round
from flegel.plan.interval.multi_stage import MultiStage

TRUE, SPREAD, WIDTH = 0.1, 1.0, 50  # each component of the gradient, its deviation, number of components
SCALE = SPREAD**2 / TRUE**2


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """The sum of so many sample gradients."""
    return rng.normal(count * TRUE, SPREAD * math.sqrt(count), WIDTH)


def test_reports_of_unequal_workers_give_the_noise_scale() -> None:
    rng, noise = np.random.default_rng(0), GradientNoise()
    for _ in range(400):
        counts = rng.integers(1, 200, 6)
        sums = [drawn(rng, int(n)) for n in counts]
        squares = [float(s @ s) for s in sums]
        pooled = np.sum(sums, axis=0)
        noise = noise.add(from_reports(squares, list(counts), float(pooled @ pooled)), memory=0.99)
    assert noise.scale == pytest.approx(SCALE, rel=0.1)


def test_the_beginning_of_a_batch_and_the_whole_batch_give_it_too() -> None:
    rng, noise = np.random.default_rng(1), GradientNoise()
    for _ in range(2000):
        first = drawn(rng, 10)
        whole = first + drawn(rng, 190)
        estimate = from_two_batches(float(first @ first) / 10**2, 10, float(whole @ whole) / 200**2, 200)
        noise = noise.add(estimate, memory=0.998)
    assert noise.scale == pytest.approx(SCALE, rel=0.1)


@pytest.mark.parametrize(
    ("counts", "known"), [([5], False), ([5, 0, 0], False), ([5, 5], True), ([5, 0, 1], True), ([], False)]
)
def test_one_worker_alone_tells_nothing(counts: list[float], known: bool) -> None:
    assert (from_reports([1.0] * len(counts), counts, 1.0) is not None) is known


def test_estimates_that_are_not_finite_or_of_equal_batches_change_nothing() -> None:
    noise = GradientNoise().add(NoiseEstimate(2.0, 1.0))
    assert noise.add(None) == noise.add(NoiseEstimate(math.nan, 1.0)) == noise
    assert from_two_batches(1.0, 8, 1.0, 8) is None
    assert noise.scale == pytest.approx(2.0)
    assert GradientNoise().scale is None
    assert GradientNoise().add(NoiseEstimate(1.0, -1.0)).scale == math.inf


def test_the_first_few_updates_never_tell_a_noise_scale_far_above_the_true_one() -> None:
    """Two workers of 25 samples each, three updates; the true scale is that of one update's batch."""
    rng, raw, bounded = np.random.default_rng(2), [], []
    for _ in range(300):
        noise = GradientNoise()
        for _ in range(3):
            gradients = rng.standard_normal((2, 20)) / math.sqrt(25) + math.sqrt(1 / 50)
            squares = [float(g @ g) * 25**2 for g in gradients]
            pooled = float(gradients.sum(axis=0) @ gradients.sum(axis=0)) * 25**2
            noise = noise.add(from_reports(squares, [25, 25], pooled))
        raw.append(noise.scale or 0.0)
        bounded.append(min(raw[-1], can_be_told(50, 3)))
    assert max(raw) > 10 * 50 and max(bounded) < 2 * 50
    assert np.median(bounded) == pytest.approx(50, rel=0.5)


def test_the_interval_is_the_best_of_all_intervals() -> None:
    phi, scale, rate = 2e-3, 700.0, 50_000.0
    etas = np.geomspace(1e-4, 1.0, 2001)
    speed = [rate * eta * worth(rate * eta, scale) / (eta + phi) for eta in etas]
    assert best_interval(phi, scale, rate) == pytest.approx(etas[int(np.argmax(speed))], rel=0.01)


def test_a_call_in_each_round_makes_the_best_interval_longer() -> None:
    """As on a GPU: 2 ms a call, a microsecond a sample."""
    phi, scale, rate, call = 1e-3, 200.0, 1e6, 2e-3
    batches = np.geomspace(8, 1e5, 4001)
    speed = [b * worth(b, scale) / (b / rate + call + phi) for b in batches]
    best = float(batches[int(np.argmax(speed))])
    assert best_interval(phi, scale, rate, call) == pytest.approx(call + best / rate, rel=0.01)


@pytest.mark.parametrize(("call", "each"), [(3e-3, 7e-5), (2e-3, 1e-6), (0.0, 1e-4)])
def test_a_job_whose_rounds_are_mostly_calls_finds_the_best_batch(call: float, each: float) -> None:
    """Two workers that begin with eight samples a round. Without the time of a call they would stay near that."""
    phi, scale, interval, eta, samples = 5e-3, 200.0, MultiStage(), 0.0, 8.0
    interval.first(0.0)
    for _ in range(40):
        trained = call + samples * each
        last = Round(
            visits=round(2 * samples), seconds=trained + phi, barrier_cost=phi, gain=0.1, full_pass=60_000,
            points=60_000, laps=0.1, noise=scale, call=call,
        )  # fmt: skip
        eta = interval.next(last).seconds or 0.0
        samples = max((eta - call) / each, 8.0)
    batches = np.geomspace(16, 1e5, 4001)
    speed = [b * worth(b, scale) / (b / 2 * each + call + phi) for b in batches]
    best = float(batches[int(np.argmax(speed))])
    assert 2 * samples == pytest.approx(best, rel=0.2)


def test_the_gain_of_a_step_grows_with_its_batch_up_to_a_bound() -> None:
    assert gain(64, 64, 500.0) == pytest.approx(1.0)
    assert gain(8, 4, 1e9) == pytest.approx(2.0, rel=1e-3)
    assert gain(8, 4, math.inf) == 2.0
    assert gain(1e9, 64, 640.0) == pytest.approx(11.0, rel=1e-3)


def test_the_interval_of_a_job_follows_the_noise_without_probes() -> None:
    interval = MultiStage()
    interval.first(0.0)
    steps = []
    for scale in [math.nan, *[400.0] * 6, *[40_000.0] * 12]:
        last = Round(
            visits=500,
            seconds=0.012,
            barrier_cost=0.002,
            gain=0.1,
            full_pass=60_000,
            points=60_000,
            laps=0.1,
            noise=scale,
        )
        steps.append(interval.next(last).seconds)
    assert steps[6] == pytest.approx(best_interval(0.002, 400.0, 50_000.0), rel=0.01)
    assert steps[-1] == pytest.approx(best_interval(0.002, 40_000.0, 50_000.0), rel=0.2)
    known = [s for s in steps[1:] if s is not None]
    assert all(after <= 2.01 * before for before, after in pairwise(known))
