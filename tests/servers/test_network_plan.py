"""The plan of servers from what receivers timed: hosts share links, one host needs no plan, reasons are shown."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.machine.server.network_plan import NetworkPlan
from flegel.plan.placement.assignment import first_map
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


def test_people_see_loads_links_and_reasons() -> None:
    shown = PlacementSnapshot(
        (ServerSnapshot(0, 12_300_000, 25e6), ServerSnapshot(1, 5_000_000)), 8, 3, (("a", "b", 2.5e6),), ("kept: x",)
    )
    told = lines(plain(shown))
    assert ("server 0", "12.3 MB, link 200 Mbit/s") in told and ("server 1", "5.0 MB") in told
    assert ("link", "a → b: 20 Mbit/s") in told and ("plan", "kept: x") in told
    assert lines(plain(None)) == []
