"""Speeds over virtual time: staircases are integrated exactly, random numbers come from the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.errors import UsageError
from flegel.plan.stragglers import parse_stragglers
from flegel.sim.speeds import Course, Drift, Speeds, Spot, draw, parse_drift, parse_spot, parse_spread, recorded
from flegel.sim.trainer import Pace

STEPS = st.lists(st.tuples(st.floats(0.01, 5), st.sampled_from([0.0, 0.25, 1.0, 3.0])), min_size=1, max_size=8)


def course(steps: list[tuple[float, float]]) -> Course:
    times = [0.0, *np.cumsum([length for length, _ in steps]).tolist()]
    return recorded(times, [*(factor for _, factor in steps), 1.0])


@given(STEPS, st.floats(0, 10), st.floats(0.001, 10))
def test_work_and_the_time_it_takes_are_inverse(steps: list[tuple[float, float]], begin: float, work: float) -> None:
    end = course(steps).until(begin, work)
    assert course(steps).work(begin, end) == pytest.approx(work, rel=1e-9, abs=1e-9)


def test_a_worker_that_stops_for_good_never_finishes() -> None:
    assert math.isinf(recorded([0.0, 1.0], [1.0, 0.0]).until(0.5, 2.0))


@given(STEPS, st.floats(0, 5), st.integers(1, 2000))
def test_a_pace_agrees_with_itself(steps: list[tuple[float, float]], at: float, points: int) -> None:
    pace = Pace(100.0, course=course(steps))
    seconds = pace.seconds_for(points, at)
    done, took = pace.points_in(seconds, at, points + 10)
    assert done in (points - 1, points, points + 1)
    assert took >= seconds - 1e-9


def test_a_revoked_worker_answers_when_it_is_back() -> None:
    pace = Pace(100.0, course=recorded([0.0, 1.0, 4.0], [1.0, 0.0, 1.0]))
    assert pace.points_in(2.0, 0.0, 1000) == (100, pytest.approx(4.0, abs=1e-6))


def test_a_worker_with_a_clock_of_its_own_sleeps_no_pause_that_ends_too_late() -> None:
    pace = Pace(1000.0, parse_stragglers("0:32ms/10", 16, 0), 0, 16)  # ten points and a pause: 42 ms
    assert pace.in_time(0.100, 0.0, 500) == (20, pytest.approx(0.084))
    assert pace.in_time(0.001, 0.0, 500) == (10, pytest.approx(0.042)), "one step at least"
    pace.did(4, 0.0)
    assert pace.in_time(0.100, 0.0, 500) == (16, pytest.approx(0.080))
    assert Pace(1000.0).in_time(0.1, 0.0, 500) == (500, math.inf)


def test_the_seed_decides_and_workers_differ() -> None:
    speeds = Speeds("lognormal:0.5", Drift(0.3, 2.0), Spot(60.0, 5.0))
    one, two, other = (draw(speeds, 50, seed) for seed in (1, 1, 2))
    times = np.linspace(0, 300, 40)
    assert one[0] == two[0] != other[0]
    assert [one[1][3].at(t) for t in times] == [two[1][3].at(t) for t in times]
    assert [one[1][3].at(t) for t in times] != [one[1][4].at(t) for t in times]


def test_revocations_are_as_frequent_as_asked_for() -> None:
    _, courses = draw(Speeds(spot=Spot(360.0, 10.0)), 40, 0)
    away = np.mean([[courses[w].at(t) == 0 for t in np.arange(0, 500, 1.0)] for w in courses])
    assert away == pytest.approx(0.5, abs=0.06), "ten seconds up on average, ten seconds away"


def test_tiers_have_their_shares() -> None:
    found = parse_spread("tiers:1x0.7+0.25x0.3")(np.random.default_rng(0), 10)
    assert list(found) == [1.0] * 7 + [0.25] * 3


@pytest.mark.parametrize("text", ["lognormal", "lognormal:-1", "uniform:2-1", "tiers:1", "fast", "equal:2"])
def test_a_spread_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--spread"):
        parse_spread(text)


def test_drift_and_spot_are_read() -> None:
    assert parse_drift("0.2~10s") == Drift(0.2, 10.0)
    assert parse_spot("0.5/h:30s") == Spot(0.5, 30.0)
    for parse, text in ((parse_drift, "0.2"), (parse_drift, "x~1s"), (parse_spot, "0.5:30s"), (parse_spot, "0/h:30s")):
        with pytest.raises(UsageError):
            parse(text)


def test_a_share_of_stragglers_is_drawn_by_the_seed() -> None:
    slow = parse_stragglers("5%:8x", 1000, 3)
    hit = [w for w in range(1000) if slow.slowdown(w, 1000, 0.0).factor == 8]
    assert len(hit) == 50 and slow.steady
    assert hit == [w for w in range(1000) if slow.slowdown(w, 1000, 99.0).factor == 8]
    anew = parse_stragglers("5%:8x~10s", 1000, 3)
    assert not anew.steady
    assert hit != [w for w in range(1000) if anew.slowdown(w, 1000, 15.0).factor == 8]
    for wrong in ("0%:8x", "101%:8x"):
        with pytest.raises(UsageError):
            parse_stragglers(wrong, 10)
