"""How much longer a job will take: limits, targets and tolerances, extrapolated from its past."""

from __future__ import annotations

import math

import pytest

from flegel.job import Criteria
from flegel.plan.balance.remaining_time import RemainingTime


def test_the_horizon_takes_the_earliest_end() -> None:
    horizon = RemainingTime(Criteria(target=10.0, max_seconds=100.0))
    assert horizon.remaining() == (100.0, "time limit", True)
    assert "time limit" not in RemainingTime(Criteria(max_seconds=math.inf)).remaining().why
    for i in range(1, 11):
        horizon.note(float(i), i, 100.0 - 2 * i, i / 2)
    seconds, reason, sure = horizon.remaining()
    assert not sure
    assert math.isclose(seconds, 35.0, rel_tol=1e-3) and "target" in reason


def test_the_horizon_without_any_hint_is_as_long_as_the_past() -> None:
    horizon = RemainingTime(Criteria())
    horizon.note(7.0, 3, None, 0.5)
    assert horizon.remaining()[0] == 7.0


def test_the_remaining_time_accounts_for_decaying_progress() -> None:
    """f = 10 + 90·e^(−t) is at 10.9 after 4.605 s. A straight line says "within the next second" all the time."""
    horizon = RemainingTime(Criteria(target=10.9))
    for step in range(1, 91):
        now = step * 0.05
        horizon.note(now, step, 10.0 + 90.0 * math.exp(-now), 1.0)
        if now >= 2.5:  # before, the job is taken to be half over at most
            seconds, reason, _ = horizon.remaining()
            assert seconds == pytest.approx(4.605 - now, rel=0.05, abs=0.01)
            assert "decaying progress" in reason


def test_the_horizon_of_a_target_out_of_reach_is_as_long_as_the_past() -> None:
    horizon = RemainingTime(Criteria(target=9.0))
    for step in range(1, 91):
        horizon.note(step * 0.05, step, 10.0 + 90.0 * math.exp(-step * 0.05), 1.0)
    assert horizon.remaining()[0] == pytest.approx(4.5)


def test_steady_progress_is_extrapolated_linearly() -> None:
    horizon = RemainingTime(Criteria(target=0.0))
    for step in range(1, 11):
        horizon.note(step * 0.1, step, 100.0 - step, 1.0)
    assert horizon.remaining() == (pytest.approx(9.0, rel=1e-3), "objective extrapolated linearly to the target", False)


def test_the_horizon_follows_a_decaying_change() -> None:
    horizon = RemainingTime(Criteria(tolerance=1e-4))
    for i in range(1, 41):
        horizon.note(i / 4, i, 1.0 + math.exp(-i / 4), i / 4)
    seconds, reason, sure = horizon.remaining()
    assert not sure
    assert "decays" in reason or "nearly" in reason
    assert 0 < seconds < 20
