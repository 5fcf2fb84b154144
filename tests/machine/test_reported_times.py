"""Times that a worker cannot have counted: whatever its clock does, no model divides by them or believes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import Scene, timers, trains

from flegel.machine.coordinator.events import Note
from flegel.machine.coordinator.reported_times import checked, credible
from flegel.machine.migration.endpoints import MigrationSource
from flegel.messages import Report
from flegel.sync import models
from flegel.sync.psp import iterations

HOUR = 3600.0
WRONG = (math.nan, math.inf, -math.inf, -HOUR, -1e-9, 5e-324, 1e300, HOUR)
CHECKED_MODELS = tuple(name for name in models() if name != "auto")


def told(compute: float, respond: float = 0.01, wait: float = 0.02, visits: int = 10, round: int = 0) -> Report:
    return Report(round, visits, True, 0, 0, compute, respond, wait)


def test_a_report_whose_times_can_be_true_is_left_as_it_is() -> None:
    body = told(0.5)
    assert checked(body, 20.0, 0.6) is body
    assert checked(told(0.0, visits=0), 0.0, 0.6).compute == 0.0


@pytest.mark.parametrize(
    ("compute", "respond", "wait"), [(0.000192, 0.0357, 0.00331), (0.03, 0.0, 0.0), (0.0001, 0.0, 0.9)]
)
def test_times_of_an_overloaded_host_are_neither_replaced_nor_blamed_on_a_clock(
    compute: float, respond: float, wait: float
) -> None:
    """A process that waited for its turn counts more than the round that the coordinator saw: 5 ms here."""
    body = told(compute, respond, wait)
    assert checked(body, 20.0, 0.005) is body
    assert credible(respond, 0.005) == respond
    jumped = checked(told(compute + HOUR, respond, wait), 20_000.0, 0.005)
    assert (jumped.compute, jumped.respond, jumped.wait) == (0.0005, respond, wait), "an hour is no scheduling noise"


@pytest.mark.parametrize("wrong", WRONG)
def test_seconds_that_cannot_be_true_are_estimated_from_the_speed_of_earlier_reports(wrong: float) -> None:
    body = checked(told(wrong, wrong, wrong), 20.0, 0.6)
    assert body.compute == 0.5
    # A wait of a denormal number of seconds is one of none: only computing has a lower limit.
    assert body.respond in (0.0, 5e-324) and body.wait in (0.0, 5e-324)
    assert checked(told(wrong), 0.0, 0.6).compute == 0.0, "not measured, where no speed is known"
    assert checked(told(wrong), 1.0, 0.6).compute <= 0.6 * 1.25, "nothing took longer than there was time"


def test_where_the_coordinators_own_clock_went_back_only_impossible_numbers_are_replaced() -> None:
    assert checked(told(0.5), 20.0, -HOUR) == told(0.5)
    assert checked(told(math.inf), 20.0, -HOUR).compute == 0.5


@given(
    compute=st.floats(), respond=st.floats(), wait=st.floats(), visits=st.integers(0, 2**62),
    rate=st.floats(min_value=0, allow_infinity=False), elapsed=st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
def test_whatever_is_said_the_times_are_numbers_and_so_are_speeds(
    compute: float, respond: float, wait: float, visits: int, rate: float, elapsed: float
) -> None:
    body = checked(told(compute, respond, wait, visits), rate, elapsed)
    for seconds in (body.compute, body.respond, body.wait):
        assert 0.0 <= seconds < math.inf
    if visits and body.compute > 0:
        assert visits / body.compute <= 1.01e12


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1e300), max_size=6), st.integers(1, 31))
def test_psp_finds_counts_for_any_ratio_of_speeds(times: dict[int, float], most: int) -> None:
    counts, use = iterations(times, most)
    assert set(counts) == set(times) and all(1 <= n <= most for n in counts.values()) and 0 <= use <= 1.0 + 1e-9


@pytest.mark.parametrize("model", CHECKED_MODELS)
@pytest.mark.parametrize("wrong", WRONG)
def test_no_model_fails_over_a_workers_clock_and_speeds_stay_those_of_before(model: str, wrong: float) -> None:
    scene = Scene(3, model, points=100)
    said, now = scene.loaded(1.0), 1.0
    notes: list[str] = []
    training = {w: order.round for w, order in trains(said).items()}
    for step in range(120):
        now += 0.01
        if not training:
            break
        for worker in sorted(training):
            compute = wrong if worker == 1 and step > 20 else 0.005
            body = told(compute, compute, compute, 10, training.pop(worker))
            said = scene.say(worker, body, now, (np.array([-1.0, 1.0]),))
            notes += [c.text for c in said if isinstance(c, Note)]
            training |= {w: order.round for w, order in trains(said).items()}
        due = timers(said).get("policy")
        if not training and due is not None:
            training |= {w: o.round for w, o in trains(scene.timer("policy", due)).items()}
    assert step > 30, "the model went on"
    assert scene.machine.view.workers[1].rate == pytest.approx(2000, rel=0.2)
    assert sum("clock" in note for note in notes) == 1, "said once"


@pytest.mark.parametrize("wrong", WRONG)
def test_what_another_clock_counted_is_no_longer_than_it_was_here(wrong: float) -> None:
    assert credible(wrong, 2.0) in (0.0, 5e-324)
    assert credible(1.5, 2.0) == 1.5


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_source_whose_clock_jumps_sends_lost_windows_again_within_a_minute(jump: float) -> None:
    source = MigrationSource(0, 640, window=64)
    source.start()
    source.was_cut(0, 64, 1.0)
    source.was_cut(1, 64, 1.0)
    source.answered(0, False, 1.1 + jump)
    assert source.patience <= 60.0
