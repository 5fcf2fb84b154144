"""Medians, intervals and turns: properties that hold for any numbers."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.compare.stats import first_reaching, loosened, median, spread, thinned, turns

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(numbers)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-9)


@given(numbers)
def test_the_interval_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.runs == len(values) and 0 <= found.coverage < 1


@given(numbers, st.randoms())
def test_the_order_of_measurements_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert spread(shuffled) == spread(values)


@given(st.integers(1, 60))
def test_more_values_never_cover_less_than_asked_once_they_can(count: int) -> None:
    found = spread(list(range(count)), 0.95)
    if count >= 6:
        assert found.coverage >= 0.95
    else:
        assert (found.low, found.high) == (0, count - 1)


def test_coverage_of_few_values_is_known() -> None:
    assert spread([1, 2, 3]).coverage == pytest.approx(0.75)
    assert spread([1, 2, 3, 4, 5]).coverage == pytest.approx(0.9375)


def test_coverage_is_what_happens() -> None:
    """Of many samples of nine, the interval misses the true median about as often as it says."""
    import numpy as np

    rng = np.random.default_rng(1)
    samples = rng.exponential(size=(4000, 9))
    hits = [s.low <= np.log(2) <= s.high for s in (spread(row.tolist()) for row in samples)]
    assert np.mean(hits) == pytest.approx(spread(list(range(9))).coverage, abs=0.02)


@given(st.integers(1, 8), st.integers(0, 24))
def test_everybody_runs_once_a_round_and_in_every_place_alike(candidates: int, rounds: int) -> None:
    order = turns(list(range(candidates)), rounds)
    assert all(sorted(turn) == list(range(candidates)) for turn in order)
    for place in range(candidates):
        counts = [sum(turn[place] == c for turn in order) for c in range(candidates)]
        assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(), max_size=50), st.integers(2, 20))
def test_thinning_keeps_ends_and_order(items: list[int], most: int) -> None:
    kept = thinned(list(enumerate(items)), most)
    assert len(kept) == min(len(items), most)
    assert kept == sorted(set(kept))
    if items:
        assert kept[0][0] == 0 and kept[-1][0] == len(items) - 1


@given(st.floats(-1e9, 1e9), st.floats(0, 0.5), st.booleans())
def test_a_loosened_target_is_never_harder(value: float, within: float, maximize: bool) -> None:
    target = loosened(value, within, maximize)
    assert target <= value if maximize else target >= value


def test_the_first_time_a_target_is_reached() -> None:
    curve = [(0.1, None), (0.2, 9.0), (0.3, 5.0), (0.4, 6.0)]
    assert first_reaching(curve, 6.0, maximize=False) == 0.3
    assert first_reaching(curve, 4.0, maximize=False) is None
    assert first_reaching(curve, 9.0, maximize=True) == 0.2
