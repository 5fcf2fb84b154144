"""Barriers or single reports for networks: by the cost of a barrier, calls, workers, their speeds and the noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.configuration.active import using
from flegel.plan.update_choice import UpdateCosts, WorkerCost, barrier_progress, choose_updates

FOUR = UpdateCosts([WorkerCost(14_000.0, 1e-3)] * 4, barrier=4e-3, answer=1e-3, noise=40.0)


def test_where_gradients_agree_the_number_of_updates_decides() -> None:
    found = choose_updates(FOUR, single=False)
    assert found.single and found.gain > 1.5
    assert found.reason.startswith("an update of each report: single reports are worth")
    assert "φ=4 ms" in found.reason and "call 1 ms" in found.reason and "noise scale 40" in found.reason


def test_where_gradients_are_mostly_chance_barriers_lose_nothing() -> None:
    noisy = choose_updates(replace(FOUR, noise=1e6), single=False)
    assert not noisy.single and noisy.gain < 1.0
    assert noisy.reason.startswith("an update at each barrier")


def test_cheap_barriers_and_few_workers_stay_synchronous() -> None:
    cheap = replace(FOUR, workers=[WorkerCost(14_000.0, 5e-5)] * 2, barrier=5e-5, answer=5e-5, noise=400.0)
    assert not choose_updates(cheap, single=False).single


def test_answers_that_take_as_long_as_many_barriers_speak_for_barriers() -> None:
    """A coordinator that is busy with single reports answers late."""
    assert not choose_updates(replace(FOUR, answer=40e-3), single=True).single


def test_a_slow_worker_makes_gradients_old() -> None:
    slow = replace(FOUR, workers=[WorkerCost(14_000.0, 1e-3)] * 3 + [WorkerCost(14_000.0 / 8, 8e-3)])
    found = choose_updates(slow, single=False)
    assert found.gain < choose_updates(FOUR, single=False).gain
    assert found.seconds[3] > 5 * found.seconds[0], "a call of its own is the least that it can report"


def test_the_present_way_is_left_for_a_clear_gain_only() -> None:
    """Somewhere between, both ways keep what they have."""
    scales = [10.0**k for k in (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)]
    both = [choose_updates(replace(FOUR, noise=b), single=True).single for b in scales]
    from_barriers = [choose_updates(replace(FOUR, noise=b), single=False).single for b in scales]
    assert sum(both) > sum(from_barriers) > 0
    assert both == sorted(both, reverse=True), "more noise never speaks for single reports"


def test_stale_updates_that_are_worth_nothing_leave_barriers() -> None:
    with using({"barriers.stale_update_loss": 10.0}):
        assert not choose_updates(FOUR, single=True).single


@given(
    workers=st.lists(st.tuples(st.floats(10, 1e6), st.floats(0, 0.1)), min_size=2, max_size=16),
    barrier=st.floats(0, 1),
    answer=st.floats(0, 1),
    noise=st.floats(1e-3, 1e9),
)
def test_every_measurement_gives_a_finite_choice(
    workers: list[tuple[float, float]], barrier: float, answer: float, noise: float
) -> None:
    costs = UpdateCosts([WorkerCost(*each) for each in workers], barrier, answer, noise)
    found = choose_updates(costs, single=False)
    assert found.gain > 0.0 and len(found.seconds) == len(workers) and all(t > 0 for t in found.seconds)
    assert barrier_progress(costs) > 0.0
    assert found.gain == pytest.approx(choose_updates(costs, single=True).gain)
