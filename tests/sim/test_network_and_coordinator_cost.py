"""What messages and the coordinator's own work cost on virtual time."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from virtual_jobs import counting

from bench.common.grouped_costs import GroupedCosts
from flegel.job import Criteria, SyncSpec
from flegel.sim.coordinator_cost import MEASURED, CoordinatorCost, Costs
from flegel.sim.network import Network, NetworkSpec


def test_links_carry_one_message_after_the_other() -> None:
    network = Network(NetworkSpec(latency=0.001, hub=1e6), 4)
    first, second = network.down(0, 1000, 0.0), network.down(1, 1000, 0.0)
    assert (first, second) == (pytest.approx(0.002), pytest.approx(0.003))


def test_other_racks_are_farther_and_share_an_uplink() -> None:
    network = Network(NetworkSpec(latency=0.001, racks=2, rack_latency=0.01, uplink=1e6), 4)
    assert [network.rack(w) for w in range(4)] == [0, 0, 1, 1]
    assert network.up(0, 1000, 0.0) == pytest.approx(0.001)
    assert network.up(2, 1000, 0.0) == pytest.approx(0.012)
    assert network.up(3, 1000, 0.0) == pytest.approx(0.013)


def test_messages_of_a_pair_never_overtake_each_other_and_random_delays_are_seeded() -> None:
    def times(seed: int) -> list[float]:
        network = Network(NetworkSpec(latency=0.001, jitter=0.01), 2, seed)
        return [network.down(0, 10, i * 1e-4) for i in range(200)]

    assert times(1) == sorted(times(1)) == times(1) != times(2)


def test_one_thread_does_one_thing_at_a_time() -> None:
    desk = CoordinatorCost(Costs(merge=0.01, send=0.02), 2)
    assert desk.taken_at(0, 0, 1.0) == pytest.approx(1.01)
    assert desk.taken_at(1, 0, 1.0) == pytest.approx(1.02)
    assert desk.send_done_at(0, 0, None, 0.0) == pytest.approx(1.04)
    assert desk.idle_at(0.5) == pytest.approx(1.04)


def test_heartbeats_slow_everything_down() -> None:
    assert CoordinatorCost(Costs(beat=1e-4), 5000).strain == pytest.approx(2.0)


def cost(workers: int, costs: Costs, size: int | None = None) -> float:
    """φ of a fixed interval, in the middle of a run."""
    job = counting(
        SyncSpec("fsp", 0.05), workers=workers, costs=costs, criteria=Criteria(max_iterations=12, tolerance=0)
    )
    return sorted(row.barrier_cost for row in job.trace)[6]


def test_the_cost_of_a_barrier_grows_with_the_number_of_workers() -> None:
    few, many = cost(50, MEASURED), cost(400, MEASURED)
    assert 4 < many / few < 9


def test_heads_of_groups_make_barriers_cheaper() -> None:
    assert cost(400, GroupedCosts(**asdict(MEASURED), group=20)) < 0.5 * cost(400, MEASURED)


def test_a_tree_passes_on_one_report_a_group() -> None:
    tree = GroupedCosts(message=0.0, merge=0.01, send=0.0, group=2).thread(4)
    theta = (object(),)
    for worker in range(4):
        tree.send_done_at(worker, 8, theta, 0.0)
    assert tree.taken_at(0, 8, 0.0) == pytest.approx(0.01), "the head merges"
    assert tree.taken_at(1, 8, 0.0) == pytest.approx(0.03), "the head merges again, then the coordinator takes both"
    assert tree.taken_at(2, 8, 0.0) == pytest.approx(0.01)
