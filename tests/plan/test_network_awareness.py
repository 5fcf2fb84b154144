"""Loads, slice sizes, throughput, re-planning: the optimum is exact, the forecast sane, decisions have reasons."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.common.placement_bounds import even, flat_range, gain_bound, seconds_of_round
from flegel.plan.placement.assignment import first_map
from flegel.plan.placement.published_loads import elastic
from flegel.plan.placement.replanning import decide
from flegel.plan.placement.slice_map import cut
from flegel.plan.placement.slice_size import SliceCost, best_size
from flegel.plan.placement.throughput import ThroughputForecast, Transfer, trains
from flegel.plan.placement.water_filling import LinkLoad, colocated, dedicated, slowest, water_filling

few = settings(max_examples=40, deadline=None)
rates = st.lists(st.floats(1, 1000), min_size=3, max_size=12).map(lambda some: dict(enumerate(some)))


@few
@given(rates, st.floats(1, 1e6), st.booleans(), st.data())
def test_no_other_load_is_faster_than_water_filling(
    speeds: dict[int, float], total: float, beside: bool, data: st.DataObject
) -> None:
    links = colocated(speeds, total) if beside else dedicated(speeds, 8)
    found = water_filling(links, total)
    assert isclose(sum(found.carried.values()), total, rel_tol=1e-9)
    assert min(found.carried.values()) >= 0
    active = [links[server].seconds(found.carried[server]) for server in found.active]
    assert isclose(min(active), max(active), rel_tol=1e-9)  # every server that carries anything ends at the same time
    idle = [links[server].seconds(0.0) for server in links if server not in found.active]
    assert all(seconds >= max(active) * (1 - 1e-9) for seconds in idle)  # and who carries nothing would end later
    weights = [data.draw(st.floats(0, 1)) + 1e-6 for _ in links]
    other = {server: total * weight / sum(weights) for server, weight in zip(links, weights, strict=True)}
    for rival in (slowest(links, other), even(links, total).seconds, elastic(links, total).seconds):
        assert found.seconds <= rival * (1 + 1e-9)


@few
@given(rates)
def test_the_gain_beside_workers_stays_below_its_bound(speeds: dict[int, float]) -> None:
    links = colocated(speeds, 1.0)
    assert even(links, 1.0).seconds / water_filling(links, 1.0).seconds <= gain_bound(len(speeds)) * (1 + 1e-9)


def test_the_bound_is_reached_by_one_slow_node() -> None:
    links = colocated(dict(enumerate([1.0] + [1000.0] * 11)), 1.0)
    assert even(links, 1.0).seconds / water_filling(links, 1.0).seconds == pytest.approx(gain_bound(12)) == 22 / 12


def test_two_nodes_have_nothing_to_gain_and_split_by_rate() -> None:
    found = water_filling(colocated({0: 1.0, 1: 3.0}, 8.0), 8.0)
    assert found.carried == {0: 2.0, 1: 6.0} and found.seconds == 8.0


def test_a_link_without_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="positive rate"):
        LinkLoad(0.0, 1.0, 1.0)


@few
@given(st.integers(10_000, 10**8), st.floats(1e2, 1e6), st.integers(2, 64))
def test_the_best_size_of_a_slice_is_the_minimum_and_the_flat_range_is_flat(
    total: int, alpha: float, nodes: int
) -> None:
    least = seconds_of_round((total * alpha / nodes) ** 0.5, total, alpha, nodes, 1e8)
    low, high = flat_range(total, alpha, nodes)
    for size in (low, (low * high) ** 0.5, high):
        assert seconds_of_round(size, total, alpha, nodes, 1e8) <= 1.0101 * least
    if low > 1:
        assert seconds_of_round(0.9 * low, total, alpha, nodes, 1e8) > 1.009 * least
    assert seconds_of_round(1.1 * high, total, alpha, nodes, 1e8) > 1.009 * least


def test_the_papers_range_of_sizes_is_within_ours() -> None:
    total, alpha = 25_557_032, 1.2e5  # ResNet-50 and 12 nodes: 003, Fig. 6
    low, high = flat_range(total, alpha, 12, 0.05)
    assert best_size(total, alpha, 12) == pytest.approx(505_539, rel=1e-3)
    assert low < 10**5.5 and high > 10**5.7
    assert best_size(1000, alpha, 12, servers=4) == 125  # two slices for each server at least


def test_the_cost_of_a_slice_is_fitted_from_two_sizes() -> None:
    cost = SliceCost()
    assert cost.fitted() is None and cost.alpha(12) is None
    for size, _ in product((10_000, 200_000), range(40)):
        cost = cost.seen(size, 0.004 + size * 2e-7)
    assert cost.alpha(1) == pytest.approx(20_000) and cost.alpha(12) == pytest.approx(240_000)
    for size, _ in product((10_000, 200_000), range(300)):
        cost = cost.seen(size, 0.001 + size * 2e-7)
    assert cost.alpha(1) == pytest.approx(5_000, rel=0.01)


def all_pairs(speeds: dict[int, float], size: float) -> list[Transfer]:
    """Everybody to everybody at once, each flow at the smaller of two fair shares."""
    others = len(speeds) - 1
    return [
        Transfer(i, j, size, 0.0, size / (min(speeds[i], speeds[j]) / others))
        for i, j in product(speeds, speeds)
        if i != j
    ]


def test_slow_links_are_recognized_in_one_round_and_a_change_in_one_more() -> None:
    speeds = {0: 20.0, 1: 100.0, 2: 200.0, 3: 200.0}
    flows = all_pairs(speeds, 100.0)
    forecast = ThroughputForecast().after_round(flows, max(flow.ended for flow in flows))
    found = forecast.rates(speeds)
    assert found[0] == pytest.approx(20.0) and found[0] < found[1] < found[2] <= 200.0
    assert forecast.pairs[0, 1] == pytest.approx(20 / 3)
    flows = all_pairs({**speeds, 0: 180.0}, 100.0)
    later = forecast.after_round(flows, max(flow.ended for flow in flows))
    assert later.rates(speeds)[0] > 100.0
    assert later.without(0).rates([0, 2])[0] == later.rates([2])[2]  # not measured any more: as the others


def test_noise_of_equal_links_moves_nothing_and_is_forgotten_when_rates_are_steady() -> None:
    forecast, current = ThroughputForecast(), first_map(cut(16_000_000, 100_000, 4, 10_000), range(4))
    draws = [(0.9, 1.1, 1.0, 1.05), (1.1, 0.9, 1.0, 1.0), (0.95, 1.0, 1.1, 0.9)]
    for factors in draws:
        flows = all_pairs({node: 100e6 * factor for node, factor in enumerate(factors)}, 1e6)
        forecast = forecast.after_round(flows, max(flow.ended for flow in flows))
        links = colocated(forecast.rates(range(4)), 16e6)
        assert not decide(current, links, 1, 1000, forecast.noise).moves
    assert 0.05 < forecast.noise < 0.2
    for _ in range(6):
        forecast = forecast.after_round(flows, max(flow.ended for flow in flows))
    assert forecast.noise < 0.02


def test_transfers_at_different_times_do_not_add_up() -> None:
    flows = [Transfer(0, 1, 10.0, 0.0, 1.0), Transfer(0, 2, 10.0, 1.0, 2.0)]
    assert ThroughputForecast().after_round(flows, 2.0).sent[0] == pytest.approx(10.0)


def test_slices_without_a_pause_between_them_are_one_transfer() -> None:
    seen = [Transfer(0, 1, 5.0, 0.0, 0.004), Transfer(0, 1, 5.0, 0.004, 0.02), Transfer(0, 1, 5.0, 0.5, 0.6)]
    assert trains(seen) == [Transfer(0, 1, 10.0, 0.0, 0.02), Transfer(0, 1, 5.0, 0.5, 0.6)]
    assert trains([seen[0], replace(seen[1], target=2)]) == [seen[0], replace(seen[1], target=2)]


def test_what_was_read_ahead_counts_over_the_round() -> None:
    flows = [Transfer(0, 1, 10.0, 0.5, 0.501)]
    assert ThroughputForecast().after_round(flows, 2.0).received[1] == pytest.approx(5.0)
    nothing = ThroughputForecast()
    assert nothing.after_round([], 2.0) is nothing


UNEVEN = colocated({0: 20e6, 1: 200e6, 2: 200e6, 3: 200e6}, 16e6)
EVEN = colocated(dict.fromkeys(range(4), 200e6), 16e6)


@pytest.mark.parametrize(
    ("links", "remaining", "moves", "reason"),
    [
        (UNEVEN, 100, True, "moved: .* a round over 100 remaining rounds saves .* servers 0 are full"),
        (UNEVEN, 0.01, False, "kept: .* the saving must exceed 2 times the cost"),
        (EVEN, 1000, False, "kept: "),
        (colocated({0: 190e6, 1: 200e6, 2: 210e6, 3: 200e6}, 16e6), 1000, False, "kept: .* noise of the forecast"),
    ],
)
def test_a_plan_changes_only_when_it_pays(
    links: dict[int, LinkLoad], remaining: float, moves: bool, reason: str
) -> None:
    current = first_map(cut(16_000_000, 100_000, 4, 10_000), range(4))
    decision = decide(current, links, 1, remaining)
    assert (decision.moves, decision.chosen is not current) == (moves, moves), decision.reason
    assert re.match(reason, decision.reason), decision.reason
    few_slices = first_map((8_000_000,) * 8, range(4))
    assert "too large, or too few" in decide(few_slices, UNEVEN, 1, 100).reason
    if moves:
        assert decision.seconds_planned < 0.75 * decision.seconds_now
