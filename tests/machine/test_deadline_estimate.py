"""A worker that keeps its own time does not begin what it will not finish."""

from __future__ import annotations

from flegel.machine.worker.deadline_estimate import DeadlineEstimate


def test_a_worker_that_knows_nothing_begins():
    assert DeadlineEstimate(other_workers=15).fitting(0.001, least=64) is None


def test_the_next_step_ends_with_the_round():
    seen = DeadlineEstimate(other_workers=15)
    seen.add(10_000, 0.010, away=False)
    assert seen.fitting(0.005, least=64) == 5_000


def test_less_than_the_least_step_is_not_begun():
    seen = DeadlineEstimate(other_workers=15)
    seen.add(10_000, 0.010, away=False)
    assert seen.fitting(0.00005, least=64) == 0
    assert seen.fitting(0.00005, least=1) == 50
    assert seen.fitting(-1.0, least=1) == 0


def test_calls_without_work_do_not_make_points_seem_slow():
    seen = DeadlineEstimate(other_workers=15)
    seen.add(10_000, 0.010, away=False)
    seen.add(64, 0.00005, away=False)
    assert seen.fitting(0.005, least=64) == 5_000


def test_who_was_away_for_long_does_not_leave_again_before_the_end():
    seen = DeadlineEstimate(other_workers=15)
    for _ in range(3):
        seen.add(960, 0.032, away=True)
    assert seen.fitting(0.020, least=64) == 0
    assert seen.fitting(0.050, least=64) == 1_500


def test_a_pause_that_no_longer_happens_is_forgotten():
    seen = DeadlineEstimate(other_workers=15)
    seen.add(960, 0.032, away=True)
    seen.add(10_000, 0.010, away=False)
    assert seen.fitting(0.005, least=64)
    for _ in range(4):
        seen.add(960, 0.001, away=True)
    assert seen.fitting(0.005, least=64)


def test_a_little_late_is_better_than_idle_for_long():
    alone, among = DeadlineEstimate(other_workers=1), DeadlineEstimate(other_workers=15)
    for seen in (alone, among):
        seen.add(960, 0.032, away=True)
    assert alone.fitting(0.020, least=64), "12 ms of one other against 20 of its own"
    assert not among.fitting(0.020, least=64)
    assert among.fitting(0.031, least=64), "15 ms of fifteen others against 31 of its own"


def test_a_step_that_nothing_calls_back_is_as_large_as_ends_in_time() -> None:
    seen = DeadlineEstimate(other_workers=3)
    assert seen.batch(0.012, multiple=8) is None
    for _ in range(4):
        seen.add(96, 0.0096, away=True)
    assert seen.batch(0.012, multiple=8) == 120
    assert seen.batch(0.0119, multiple=8) == 112
    assert seen.batch(0.002, multiple=8) == 0, "less than a quarter of a usual step is mostly the time of its call"
    assert seen.batch(0.0001, multiple=8, first=True) == 8
    seen.add(96, 0.1, away=True)
    assert seen.batch(0.012, multiple=8) == 120, "a single hitch says nothing"


def test_steps_that_are_mostly_the_time_of_their_call_grow_with_the_time_that_is_left() -> None:
    """4 ms a call and 0.1 ms a sample: eight samples take 4.8 ms, and 60 fit into 10 ms."""
    seen = DeadlineEstimate(other_workers=1)
    for _ in range(4):
        seen.add(8, 0.0048, away=False)
    assert seen.batch(0.0101, multiple=4, first=True, call=0.004) == 60
    assert seen.batch(0.0101, multiple=4, first=True) == 16, "in proportion to steps of eight"
    assert seen.batch(0.003, multiple=4, call=0.004) == 0, "not even a call fits"
