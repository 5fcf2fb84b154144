"""Workers that call a library, on virtual time: calls have a cost of their own, and are finished once begun."""

from __future__ import annotations

import pytest

from flegel.plan.stragglers import parse_stragglers
from flegel.sim.trainer import CallPace, Pace


def pace(straggler: str = "") -> CallPace:
    return CallPace(Pace(10_000.0, parse_stragglers(straggler, 2, 0), 0, 2), call=1e-3, smallest=8, largest=256)


def test_each_call_takes_its_time_besides_its_points() -> None:
    assert pace().seconds_for(100, 0.0) == pytest.approx(1e-3 + 0.01)
    assert pace().seconds_for(512, 0.0) == pytest.approx(2e-3 + 0.0512), "two calls of the largest size"
    assert pace("0:8x").seconds_for(100, 0.0) == pytest.approx(8 * 0.011), "a slow worker's calls are slow as well"


def test_a_worker_that_knows_the_end_of_the_round_plans_a_call_that_ends_there() -> None:
    points, seconds = pace().in_time(5e-3, 0.0, 1000)
    assert points == 40 and seconds == pytest.approx(5e-3)
    points, seconds = pace().in_time(1e-4, 0.0, 1000)
    assert points == 8 and seconds == pytest.approx(1.8e-3), "one short call is always made"


def test_a_signal_does_not_interrupt_a_planned_call() -> None:
    worker = pace()
    planned = worker.in_time(5e-3, 0.0, 1000)
    assert worker.points_in(2e-3, 0.0, 1000) == planned
    worker.seconds_for(1000, 1.0)  # the next round
    points, seconds = worker.points_in(5e-3, 1.0, 1000)
    assert points == 64 and seconds == pytest.approx(2 * (1e-3 + 3.2e-3)), "the call that the signal finds is finished"
