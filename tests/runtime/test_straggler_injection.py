"""Slowness on purpose: how long to compute, how long to sleep, and who may end that."""

from __future__ import annotations

import pytest

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.core.stop_flag import new_flag
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime import clock
from flegel.runtime.worker.straggler_injection import StragglerInjection


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(clock, "sleep", lambda seconds: slept.append(seconds) or seconds)
    return slept


def drag(pattern: str) -> StragglerInjection:
    made = StragglerInjection(parse_stragglers(pattern, 2, 0), 0, 2)
    made.look(0.0)
    return made


@pytest.mark.parametrize(("each", "wanted"), [(1e-4, TILE), (1e-5, 192), (1e-6, 1984)])
def test_a_slice_takes_as_long_as_it_should(each: float, wanted: int, no_sleep: list[float]) -> None:
    slow = drag("0:8x")
    assert slow.slice(0, 9000, 9000, TILE) == TILE
    slow.pay(TILE, TILE * each, new_flag())
    assert slow.slice(0, 9000, 9000, TILE) == wanted
    assert (
        sum(no_sleep) == pytest.approx(7 * TILE * each, abs=active().training.shortest_sleep_seconds)
        and max(no_sleep) <= active().training.sleep_check_seconds
    )


def test_a_signal_ends_the_sleep_of_a_factor_and_the_rest_is_slept_later(no_sleep: list[float]) -> None:
    slow, flag = drag("0:8x"), new_flag()
    flag[0] = 1
    slow.pay(1000, 0.01, flag)
    assert not no_sleep
    flag[0] = 0
    slow.pay(0, 0.0, flag)
    assert sum(no_sleep) == pytest.approx(0.07, abs=active().training.shortest_sleep_seconds)


def test_nothing_ends_a_pause(no_sleep: list[float]) -> None:
    paused, flag = drag("0:32ms/1000"), new_flag()
    flag[0] = 1
    paused.pay(2500, 0.01, flag)
    assert no_sleep == [pytest.approx(0.064)]
    paused.pay(500, 0.01, flag)
    assert no_sleep[1:] == [pytest.approx(0.032)]


def test_a_slice_ends_at_a_tile_and_at_the_end() -> None:
    paused = drag("0:32ms/1000")
    assert paused.slice(0, 5000, 5000, TILE) == 960
    assert paused.slice(0, 5000, 5000, 1) == 1000
    assert paused.slice(4800, 200, 5000, TILE) == 5000
    assert paused.slice(0, 300, 5000, TILE) == 300
