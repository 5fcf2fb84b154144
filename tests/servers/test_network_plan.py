"""The plan of servers from what receivers timed: hosts share links, one host needs no plan, reasons are shown."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from flegel.core.sharding import Cuts, Partition, Sharding, make_cuts
from flegel.machine.server.cutting import Cutting
from flegel.machine.server.network_plan import NetworkPlan
from flegel.plan.placement.assignment import first_map
from flegel.plan.placement.slice_size import SliceRule
from flegel.plan.placement.snapshot import PlacementSnapshot, ServerSnapshot, lines, plain
from flegel.runtime.server.transfer_timer import TransferTimer

WORKERS, SERVERS = range(4), range(960, 964)
SLICES = (500_000,) * 40


def arrivals(speeds: dict[int, float], size: int = 5_000_000) -> list[tuple[int, int, int, float, float]]:
    """Every worker pushes to every server, and gets as much back; a server's link is shared by the workers."""
    return [
        pair
        for server, speed in speeds.items()
        for worker in WORKERS
        for pair in ((worker, server, size, 0.0, 4 * size / speed), (server, worker, size, 0.0, 4 * size / speed))
    ]


def plan(apart: bool = True) -> NetworkPlan:
    hosts = {worker: f"w{worker}" if apart else "here" for worker in WORKERS}
    found = NetworkPlan(SLICES, False, hosts)
    for server in SERVERS:
        found.runs_on(server, f"s{server}" if apart else "here")
    return found


def test_a_slow_server_gets_less_and_the_reason_is_kept() -> None:
    network, current = plan(), first_map(SLICES, SERVERS)
    for at in range(4):
        network.seen(arrivals({960: 2.5e6, 961: 25e6, 962: 25e6, 963: 25e6}))
        decision = network.after_fold(current, 4, 1, busy=False)
        assert decision is not None and decision.moves == (at == 3), "three rounds have to confirm a plan"
    assert decision is not None and decision.chosen.loads()[960] < current.loads()[960] / 3
    assert network.reasons[-1].startswith("moved: ") and network.moves == 1
    assert network.rate(960) == pytest.approx(2.5e6)
    assert ("w0", "s960", pytest.approx(2.5e6 / 4)) in network.matrix()
    shares = network.shares(list(SERVERS), 4)
    assert shares is not None and shares[960] < shares[961] / 5
    network.forget(960)  # its successor is taken to be like the others
    assert network.rate(961) == pytest.approx(25e6)


def rounds_until_slices_move(speeds: dict[int, float], noise: float, seed: int, most: int) -> int:
    """Rates of each round differ from the truth by chance; so many rounds at most."""
    rng, network, current = np.random.default_rng(seed), plan(), first_map(SLICES, SERVERS)
    for at in range(most):
        network.seen(arrivals({n: speed * float(np.exp(noise * rng.normal())) for n, speed in speeds.items()}))
        decision = network.after_fold(current, 4, 1, busy=False)
        if decision is not None and decision.moves:
            assert decision.chosen.loads()[960] < current.loads()[960]
            return at
    return most


def test_rounds_confirm_a_gain_that_is_within_the_noise_and_noise_alone_moves_nothing() -> None:
    unequal, equal = {960: 15e6, 961: 25e6, 962: 25e6, 963: 25e6}, dict.fromkeys(SERVERS, 25e6)
    assert max(rounds_until_slices_move(unequal, 0.25, seed, 40) for seed in range(5)) < 30
    assert min(rounds_until_slices_move(equal, 0.15, seed, 30) for seed in range(5)) == 30


def test_processes_of_one_host_need_no_plan() -> None:
    network = plan(apart=False)
    network.seen(arrivals({960: 2.5e6, 961: 25e6, 962: 25e6, 963: 25e6}))
    assert network.after_fold(first_map(SLICES, SERVERS), 4, 1, busy=False) is None
    assert network.shares(list(SERVERS), 4) is None and network.rate(960) == 0.0


@pytest.mark.parametrize("wrong", [(0, 960, -5, 0.0, 1.0), (0, 960, 5, 2.0, 1.0), (0, 960, 5, 0.0, float("nan"))])
def test_impossible_times_are_dropped(wrong: tuple[int, int, int, float, float]) -> None:
    network = plan()
    network.seen([wrong])
    assert network.after_fold(first_map(SLICES, SERVERS), 4, 1, busy=False) is None


def test_a_timer_counts_from_the_announcement() -> None:
    timer, data = TransferTimer(960), [np.zeros(20_000)]
    timer.arrived(3, data, 1.0)  # not announced
    assert timer.take() is None
    timer.announced(3, 2.0)
    timer.announced(4, 2.5)
    timer.arrived(3, data, 3.0)
    timer.arrived(3, data, 4.0)
    timer.arrived(4, data, 4.5)
    seen = timer.take()
    assert seen is not None
    assert seen.transfers == (
        (3, 960, 160_000, 0.0, 1.0),
        (3, 960, 160_000, 1.0, 2.0),
        (4, 960, 160_000, 0.5, 2.5),
    )
    assert timer.take() is None


def cuts_into(units: int, wanted: int, partition: Partition | None) -> Cuts:
    return make_cuts(Sharding({"value": 0}, {"value": 0}), np.zeros(units), np.zeros(units), wanted, partition)


def test_the_cost_of_a_slice_is_fitted_used_and_θ_cut_anew_when_it_has_changed() -> None:
    units = 4_000_000
    cutting = Cutting(SliceRule(units, "network"), partial(cuts_into, units))
    first = cutting.cut(4, 4)
    network = NetworkPlan(first.sizes, False, {w: f"w{w}" for w in WORKERS}, "network", 8.0, units)
    for server in SERVERS:
        network.runs_on(server, f"s{server}")
    current = first_map(first.sizes, SERVERS)
    assert cutting.anew(first, 4, 4, 1, network) is first, "nothing is known"
    found = []
    for _ in range(12):
        for size in (80_000, 800_000):  # 1 s for each slice, however large: 25 MB/s for four at a time
            network.seen((w, s, size, 0.0, 1.0 + 4 * size / 25e6) for w in WORKERS for s in SERVERS)
        network.after_fold(current, 4, 1, busy=False)
        found.append(cutting.anew(first, 4, 4, 1, network))
    alpha = network.slice_cost(4)
    assert alpha == pytest.approx(25e6 / 8, rel=0.01), "what a link carries in 1 s, in parameters"
    assert network.best_slice(4) == pytest.approx(8 * (units * alpha / 4) ** 0.5, rel=0.01)
    changed = [cuts for cuts in found if cuts is not first]
    probes = 2 * len(SERVERS)
    assert changed and changed[0].count - probes < (first.count - probes) / 2, "slices that cost much are large"
    assert found[0] is found[1] is first, "several folds have to say so"
    assert any(reason.startswith("cut anew: slices of ") for reason in network.reasons)


def test_more_servers_than_slices_allow_get_more_slices() -> None:
    cutting = Cutting(SliceRule(90, "network", measured=False), partial(cuts_into, 90))
    first = cutting.cut(2, 2)
    assert first.count == 4
    assert cutting.anew(first, 2, 2, 1, None) is first
    assert 12 <= cutting.anew(first, 6, 2, 1, None).count <= 14, "two for each server at least"


def test_people_see_loads_links_and_reasons() -> None:
    shown = PlacementSnapshot(
        (ServerSnapshot(0, 12_300_000, 25e6), ServerSnapshot(1, 5_000_000)), 8, 3, (("a", "b", 2.5e6),), ("kept: x",)
    )
    told = lines(plain(shown))
    assert ("server 0", "12.3 MB, link 200 Mbit/s") in told and ("server 1", "5.0 MB") in told
    assert ("link", "a → b: 20 Mbit/s") in told and ("plan", "kept: x") in told
    assert lines(plain(None)) == []
