"""How long a coordinator may take, on virtual time."""

from __future__ import annotations

import pytest

from flegel.cluster.slave.coordinator_deadlines import COMPILING, CoordinatorDeadlines


def after(hours: CoordinatorDeadlines, seconds: float, now: float = 100.0, turns: bool = False) -> str:
    """The verdict when so much time has passed, with or without signs of its loop."""
    step = 0.0
    while step < seconds:
        step = min(step + 0.5, seconds)
        if turns:
            hours.turned(now + step)
        why = hours.verdict(now + step)
        if why:
            return why
    return ""


def told(phase: str, hook: str = "", **limits: float) -> CoordinatorDeadlines:
    hours = CoordinatorDeadlines(limits.get("max_seconds"), limits.get("hook_timeout", 30.0))
    hours.told(phase, hook, 100.0)
    return hours


def test_a_hook_before_training_that_does_not_return_is_named() -> None:
    hours = told("init", "initParameter", hook_timeout=10.0)
    assert not after(hours, 10.0)
    why = after(hours, 11.0)
    assert "initParameter" in why and "--hook-timeout 10" in why


def test_each_hook_has_its_own_time() -> None:
    hours = told("init", "initParameter", hook_timeout=10.0)
    hours.told("init", "initState", 109.0)
    assert not hours.verdict(118.0)
    assert "initState" in hours.verdict(120.0)


def test_max_seconds_counts_from_the_beginning_of_the_phase_whatever_is_entered() -> None:
    hours = told("init", "initParameter", max_seconds=5.0)
    hours.told("init", "initState", 104.0)
    assert not hours.verdict(107.9) and "--max-seconds 5" in hours.verdict(108.1)


@pytest.mark.parametrize("phase", ["training", "loading"])
def test_a_loop_that_turns_is_not_held_up_and_one_that_stops_turning_is(phase: str) -> None:
    hours = told(phase, hook_timeout=10.0)
    assert not after(hours, 1000.0, turns=True)
    assert "held up by a hook" in after(hours, 11.0, now=1100.0)


@pytest.mark.parametrize("phase", ["reading", "loading", "saving"])
def test_reading_and_saving_have_no_limit_here(phase: str) -> None:
    assert not after(told(phase, max_seconds=1.0, hook_timeout=2.0), 5000.0)


def test_compiling_has_more_time() -> None:
    hours = told("compiling", hook_timeout=10.0)
    assert not after(hours, COMPILING + 9.0) and after(hours, COMPILING + 11.0)


def test_training_ends_by_max_seconds_even_if_the_coordinator_forgets_it() -> None:
    assert "--max-seconds 60" in after(told("training", max_seconds=60.0), 64.0, turns=True)


def test_lost_workers_are_given_as_the_cause() -> None:
    hours = told("training", max_seconds=1.0)
    assert hours.verdict(105.0, "worker 0 was killed by SIGSEGV").endswith(
        "before that, worker 0 was killed by SIGSEGV"
    )
