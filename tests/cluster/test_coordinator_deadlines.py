"""How long a coordinator may take, on virtual time."""

from __future__ import annotations

import pytest

from flegel.cluster.slave.coordinator_deadlines import CoordinatorDeadlines
from flegel.configuration.active import active
from flegel.core.hook_limits import COMPILING_SECONDS


def after(deadlines: CoordinatorDeadlines, seconds: float, now: float = 100.0, reports: bool = False) -> str:
    """What is exceeded after so many seconds, with or without reports of its loop."""
    step = 0.0
    while step < seconds:
        step = min(step + 0.5, seconds)
        if reports:
            deadlines.progress_seen(now + step)
        why = deadlines.exceeded(now + step)
        if why:
            return why
    return ""


def in_phase(phase: str, hook: str = "", **limits: float) -> CoordinatorDeadlines:
    deadlines = CoordinatorDeadlines(limits.get("max_seconds"), limits.get("hook_timeout", 30.0))
    deadlines.phase_changed(phase, hook, 100.0)
    return deadlines


def test_a_hook_before_training_that_does_not_return_is_named() -> None:
    deadlines = in_phase("init", "initParameter", hook_timeout=10.0)
    assert not after(deadlines, 10.0)
    why = after(deadlines, 11.0)
    assert "initParameter" in why and "--hook-timeout 10" in why


def test_a_built_in_algorithm_has_more_time_for_its_first_parameters() -> None:
    deadlines = in_phase("init", "initParameter", hook_timeout=10.0)
    deadlines.start_extra = 600.0
    assert not after(deadlines, 600.0) and "initParameter" in after(deadlines, 612.0)
    deadlines.phase_changed("training", "", 1000.0)
    assert after(deadlines, 11.0, 1000.0)


def test_each_hook_has_its_own_time() -> None:
    deadlines = in_phase("init", "initParameter", hook_timeout=10.0)
    deadlines.phase_changed("init", "initState", 109.0)
    assert not deadlines.exceeded(118.0)
    assert "initState" in deadlines.exceeded(120.0)


def test_max_seconds_counts_from_the_beginning_of_the_phase_whatever_is_entered() -> None:
    deadlines = in_phase("init", "initParameter", max_seconds=5.0)
    deadlines.phase_changed("init", "initState", 104.0)
    assert not deadlines.exceeded(107.9) and "--max-seconds 5" in deadlines.exceeded(108.1)


@pytest.mark.parametrize("phase", ["training", "loading"])
def test_a_loop_that_turns_is_not_held_up_and_one_that_stops_turning_is(phase: str) -> None:
    deadlines = in_phase(phase, hook_timeout=10.0)
    assert not after(deadlines, 1000.0, reports=True)
    assert "held up by a hook" in after(deadlines, 11.0, now=1100.0)


@pytest.mark.parametrize("phase", ["reading", "loading", "saving"])
def test_reading_and_saving_have_no_limit_here(phase: str) -> None:
    assert not after(in_phase(phase, max_seconds=1.0, hook_timeout=2.0), 5000.0)


def test_compiling_has_more_time() -> None:
    deadlines = in_phase("compiling", hook_timeout=10.0)
    assert not after(deadlines, COMPILING_SECONDS + 9.0) and after(deadlines, COMPILING_SECONDS + 11.0)


def test_training_ends_by_max_seconds_even_if_the_coordinator_forgets_it() -> None:
    assert "--max-seconds 60" in after(in_phase("training", max_seconds=60.0), 84.0, reports=True)


def test_a_coordinator_that_waits_for_a_frozen_worker_is_not_ended_before_that_one_counts_as_lost() -> None:
    deadlines = in_phase("training", max_seconds=4.0)
    assert not after(
        deadlines, 4.0 + deadlines.worker_timeout + active().cluster.worker_replacement_seconds, reports=True
    )


def test_lost_workers_are_given_as_the_cause() -> None:
    deadlines = in_phase("training", max_seconds=1.0)
    assert deadlines.exceeded(105.0, "worker 0 was killed by SIGSEGV").endswith(
        "before that, worker 0 was killed by SIGSEGV"
    )
