"""Stragglers from a line of text."""

from __future__ import annotations

import pytest

from flegel.errors import UsageError
from flegel.plan.stragglers import NONE, parse_stragglers


def slow(text: str, worker: int, seconds: float = 0.0, workers: int = 16, seed: int = 0):
    return parse_stragglers(text, workers, seed).slowdown(worker, workers, seconds)


def test_the_papers_pattern_sleeps_after_so_many_points() -> None:
    hit = slow("0-3:32ms/1000", 3)
    assert (hit.pause, hit.every) == (0.032, 1000)
    assert hit.delay(2000, 0.5) == pytest.approx(0.064)
    assert slow("0-3:32ms/1000", 4) == NONE


def test_a_factor_stretches_computing() -> None:
    assert slow("0-3+7:8x", 7).delay(123, 0.1) == pytest.approx(0.7)
    assert slow("0-3+7:8x", 6) == NONE
    assert slow("all:2x", 15).factor == 2


def test_a_transient_straggler_comes_and_goes() -> None:
    assert [slow("2:8x@10s-20s", 2, t).factor for t in (9.9, 10, 19.9, 20)] == [1, 8, 8, 1]
    assert slow("2:8x@10s-", 2, 1e6).factor == 8


def test_moving_stragglers_are_so_many_at_any_time_and_visit_everybody() -> None:
    seen = set()
    for second in range(0, 40, 5):
        hit = {w for w in range(16) if slow("moving4:8x~5s", w, second).factor == 8}
        assert len(hit) == 4
        seen |= hit
    assert seen == set(range(16))


def test_random_stragglers_are_decided_by_the_seed() -> None:
    def drawn(seed: int, second: float) -> set[int]:
        return {w for w in range(16) if slow("random3:8x~2s", w, second, seed=seed).factor == 8}

    assert all(len(drawn(1, t)) == 3 for t in range(10))
    assert drawn(1, 4) == drawn(1, 5)
    assert [drawn(1, t) for t in range(0, 20, 2)] != [drawn(2, t) for t in range(0, 20, 2)]


def test_patterns_add_up() -> None:
    both = slow("0:8x,0-1:10ms/500", 0)
    assert (both.factor, both.pause, both.every) == (8, 0.01, 500)
    assert slow("0:natural2", 0).load == 2


@pytest.mark.parametrize(
    "text",
    ["8x", "0:", ":8x", "0-3:fast", "0-99:8x", "3-1:8x", "0:0.5x", "0:8x@20s-10s", "0:8x@5s", "moving:8x", "0:8x~5s",
     "random99:8x", "0:32ms/0", "x:8x", "0:-3ms/1000"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_stragglers(text, 16)
