"""What the papers print, to the letter: each plan beside a calculation by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.configuration.active import active
from flegel.job import Criteria
from flegel.machine.server.network_plan import NetworkPlan
from flegel.machine.worker.visit_schedule import VisitSchedule
from flegel.plan.balance.pairs import PairedBalance, pairs, points_of_pair
from flegel.plan.balance.remaining_time import RemainingTime, TimeLeft
from flegel.plan.balance.target_passes import SuperWorker, WorkerLoad
from flegel.plan.interval.interval import MARK, REWIND, Round
from flegel.plan.interval.rollback_stages import RollbackStages
from flegel.plan.placement.assignment import first_map
from flegel.plan.placement.published_loads import elastic, pairwise
from flegel.plan.placement.slice_size import (
    SliceRule,
    best_size,
    decide_cut,
    exchange_time,
    partition,
    partition_rate,
)
from flegel.plan.placement.water_filling import colocated, water_filling

# -- 004, Section 3.3: probes with a rollback, Eq. 7 -------------------------------------------------------------------

PHI = 0.05


def round_of(seconds: float, gain: float | None, phi: float = PHI) -> Round:
    return Round(
        visits=100, seconds=seconds + phi, barrier_cost=phi, gain=gain, full_pass=1000, points=1000.0, laps=2.0
    )


def test_a_stage_has_two_rounds_a_rollback_and_one_of_twice_their_length() -> None:
    stages = RollbackStages()
    assert stages.first(0.0).seconds == 0.2  # footnote 1 of the paper
    assert stages.next(round_of(0.2, None)).cursor == ""
    steps = [stages.next(round_of(0.2, 1.0)) for _ in range(3)]
    assert [(s.seconds, s.cursor) for s in steps] == [(0.2, MARK), (0.2, ""), (0.4, REWIND)]


def test_the_interval_is_the_maximum_of_equation_7() -> None:
    slope, height = -1.0, 2.0
    stages = RollbackStages()
    stages.next(round_of(0.2, 1.0))
    for eta in (0.2, 0.2, 0.4):
        step = stages.next(round_of(eta, eta * (slope * eta + height)))
    wanted = -PHI + math.sqrt(PHI**2 - height * PHI / slope)
    assert step.seconds == pytest.approx(wanted)

    def progress(eta: float) -> float:
        return eta / (eta + PHI) * (slope * eta + height)

    assert progress(wanted) >= max(progress(wanted * 0.99), progress(wanted * 1.01))


def test_a_stage_whose_line_promises_nothing_ends_when_the_objective_gets_worse() -> None:
    stages = RollbackStages()
    stages.next(round_of(0.2, 1.0))
    for eta in (0.2, 0.2, 0.4):
        step = stages.next(round_of(eta, 0.0))
    eta = step.seconds or 0.0
    assert stages.next(round_of(eta, 0.0)).cursor == ""
    worse = stages.next(round_of(eta, -0.1))
    assert worse.cursor == MARK and "which was no progress" in worse.reason


def test_a_stage_ends_when_the_objective_is_a_round_behind_its_prediction() -> None:
    stages = RollbackStages()
    stages.next(round_of(0.2, 1.0))
    for eta in (0.2, 0.2, 0.4):
        step = stages.next(round_of(eta, eta * (2.0 - eta)))
    eta = step.seconds or 0.0
    promised = eta * (2.0 - eta)
    assert stages.next(round_of(eta, promised)).cursor == ""
    assert stages.next(round_of(eta, 0.5 * promised)).cursor == ""
    late = stages.next(round_of(eta, 0.0))
    assert late.cursor == MARK and "behind its prediction" in late.reason


def test_a_line_that_rises_gives_a_pass_and_one_below_zero_changes_nothing() -> None:
    for gains, wanted in (((0.2, 0.2, 0.6), 1000 / (100 / 0.4)), ((0.2, 0.2, 5.0), 0.2)):
        stages = RollbackStages()
        stages.next(round_of(0.2, 1.0))
        for eta, gain in zip((0.2, 0.2, 0.4), gains, strict=True):
            step = stages.next(round_of(eta, gain))
        assert step.seconds == pytest.approx(wanted)


def test_after_a_rollback_the_same_points_come_again_and_then_the_others() -> None:
    schedule = VisitSchedule(100)

    def visit(points: int) -> list[tuple[int, int]]:
        seen = []
        while points and (run := schedule.next(points)) is not None:
            schedule.advance(run, run.end)
            seen.append((run.start, run.end))
            points -= run.end - run.start
        return seen

    visit(100)
    schedule.begin("mark")
    assert visit(10) == [(0, 10)]
    schedule.begin()
    assert visit(10) == [(10, 20)]
    schedule.begin("rewind")
    assert visit(30) == [(0, 10), (10, 20), (20, 30)]
    schedule.begin()
    assert visit(5) == [(30, 35)] and schedule.pass_sum == 100 + 20 + 30 + 5


def test_points_that_have_gone_meanwhile_are_not_visited_again() -> None:
    schedule = VisitSchedule(512)
    run = schedule.next(512)
    assert run is not None
    schedule.advance(run, 512)
    schedule.begin("mark")
    run = schedule.next(512)
    assert run is not None
    schedule.advance(run, 512)
    gone = schedule.cut((0, 0), 128)
    assert gone is not None
    schedule.begin("rewind")
    seen = 0
    while (run := schedule.next(512)) is not None:
        assert run.end <= gone.start or run.start >= gone.end
        schedule.advance(run, run.end)
        seen += run.end - run.start
    assert seen == 512 - gone.points


# -- 004, Section 4.2: pairs, Eq. 8 and 9, the linear T ----------------------------------------------------------------


def group(worker: int, points: float, speed: float, passes: float, members: int = 1) -> SuperWorker:
    load = WorkerLoad(worker, int(points), speed, passes)
    return SuperWorker(tuple(replace(load, worker=worker + i) for i in range(members)))


@given(
    slower=st.floats(1.1, 20.0),
    behind=st.floats(0.0, 3.0),
    split=st.floats(0.5, 50.0),
    slow_members=st.integers(1, 4),
    fast_members=st.integers(1, 4),
)
def test_delta_solves_equation_9_or_shares_the_lost_passes(
    slower: float, behind: float, split: float, slow_members: int, fast_members: int
) -> None:
    slow, fast = group(0, 10_000, 1e-4 * slower, 1.0, slow_members), group(9, 10_000, 1e-4, 1.0 + behind, fast_members)
    delta, beta = points_of_pair(slow, fast, split), slow_members / fast_members
    assert 0.0 < delta < slow.points
    lost = behind * beta * delta * fast.seconds_per_point
    mine = slow.passes + split / ((slow.points - delta) * slow.seconds_per_point)
    theirs = fast.passes + (split - lost) / ((fast.points + beta * delta) * fast.seconds_per_point)
    shared = (slow.points - delta) * slow.seconds_per_point - beta * delta * fast.seconds_per_point
    assert mine == pytest.approx(theirs, rel=1e-6) or shared == pytest.approx(0.0, abs=1e-6)


def test_the_least_is_paired_with_the_most() -> None:
    groups = [group(i, 1000, 1e-3, float(i)) for i in range(5)]
    named = [(slow.members[0].worker, fast.members[0].worker) for slow, fast in pairs(groups, 1.0)]
    assert named == [(0, 4), (1, 3)]


def test_a_cycle_has_d_parts_of_the_time_that_was_left_and_ends_when_passes_are_equal() -> None:
    plan = PairedBalance()
    loads = [WorkerLoad(0, 50_000, 8e-6, 1.0), WorkerLoad(1, 50_000, 1e-6, 4.0)]
    made = plan.plan(loads, TimeLeft(8.0, "linear"), 0.0)
    parts = active().balance.paired_splits
    assert [(p.source, p.target) for p in made.proposals] == [(0, 1)] and "Eq. 9" in made.proposals[0].reason
    assert not plan.due(8.0 / parts - 0.01) and plan.due(8.0 / parts) and plan.part == 1
    even = [WorkerLoad(0, 50_000, 8e-6, 4.0), WorkerLoad(1, 50_000, 1e-6, 4.1)]
    assert plan.plan(even, TimeLeft(100.0, "linear"), 3.0).proposals == () and plan.part == 0


def test_the_papers_remaining_time_is_a_line() -> None:
    linear, ours = (RemainingTime(Criteria(target=0.0), linear=flag) for flag in (True, False))
    for at in range(20):
        for each in (linear, ours):
            each.note(float(at), at, math.exp(-0.2 * at), float(at))
    assert "linearly" in linear.remaining().why and "decaying" in ours.remaining().why
    assert linear.remaining().seconds < ours.remaining().seconds
    straight = RemainingTime(Criteria(target=0.0), linear=True)
    for at in range(20):
        straight.note(float(at), at, 10.0 - 0.25 * at, float(at))
    assert straight.remaining().seconds == pytest.approx((10.0 - 0.25 * 19) / 0.25)


# -- 003: Algorithm 1, Eq. 14, Elastic, Eq. 4, a plan in every round ---------------------------------------------------

RATES = st.lists(st.floats(1e5, 5e7), min_size=3, max_size=12)


@given(rates=RATES, total=st.floats(1e6, 1e9))
def test_algorithm_1_comes_near_the_optimum_and_loads_add_up(rates: list[float], total: float) -> None:
    links = colocated(dict(enumerate(rates)), total)
    found, best = pairwise(links, total), water_filling(links, total)
    assert sum(found.carried.values()) == pytest.approx(total) and min(found.carried.values()) >= 0.0
    if all(best.carried.values()):  # otherwise times cannot all become equal, and the algorithm takes what it has
        spread = [links[server].seconds(m) for server, m in found.carried.items()]
        similar = max(spread) - min(spread) < active().placement.pairwise_similar_seconds
        assert similar or max(spread) <= 1.2 * best.seconds


def test_equation_14_as_printed_does_not_end_with_equal_times() -> None:
    rng, failed = random.Random(7), 0
    for _ in range(300):
        links = colocated({n: rng.uniform(1e5, 5e6) for n in range(rng.randint(3, 12))}, 6e7)
        found = pairwise(links, 6e7, printed=True)
        seconds = [links[n].seconds(m) for n, m in found.carried.items()]
        even = max(link.seconds(6e7 / len(links)) for link in links.values())
        failed += max(seconds) - min(seconds) > 1.0 and (min(found.carried.values()) < 0.0 or max(seconds) > even)
    assert failed > 250


def test_elastic_divides_by_rates_alone() -> None:
    links = colocated({0: 1e6, 1: 3e6, 2: 4e6}, 8e6)
    assert elastic(links, 8e6).carried == pytest.approx({0: 1e6, 1: 3e6, 2: 4e6})
    assert elastic(links, 8e6).seconds >= water_filling(links, 8e6).seconds


@pytest.mark.parametrize(("load", "rounds"), [("network", 4), ("elastic", 1), ("published", 1)])
def test_the_papers_schemes_plan_in_every_round(load: str, rounds: int) -> None:
    slices, servers = (500_000,) * 40, range(960, 964)
    network = NetworkPlan(slices, False, {worker: f"w{worker}" for worker in range(4)}, load)
    for server in servers:
        network.runs_on(server, f"s{server}")
    current = first_map(slices, servers)
    needed = 0
    for _ in range(5):
        needed += 1
        took = {server: 80.0 if server == 960 else 8.0 for server in servers}
        network.seen([(w, s, 5_000_000, 0.0, t) for s, t in took.items() for w in range(4)])
        decision = network.after_fold(current, 4, 1, busy=False)
        if decision is not None and decision.moves:
            break
    assert needed == rounds and decision is not None and decision.chosen.loads()[960] < current.loads()[960]


@pytest.mark.parametrize("load", ["published", "elastic", "even"])
def test_the_size_of_slices_is_that_of_equation_4(load: str) -> None:
    total, alpha = 57_000_000, active().placement.first_slice_cost
    size = math.sqrt(total * alpha / 12)
    assert SliceRule(total, load).count(alpha, 12, 12) == round(total / round(size))
    assert SliceRule(total, load).count(4 * alpha, 12, 12) == round(total / round(2 * size)), "α is used"


def test_slices_are_smaller_than_the_best_ones_only_as_far_as_equation_1_is_flat() -> None:
    total, alpha = 57_000_000, active().placement.first_slice_cost
    rule = SliceRule(total, "network")
    size, best = rule.size(alpha, 12, 12), best_size(total, alpha, 12)
    assert size < best / 3
    assert exchange_time(size, total, alpha, 12) == pytest.approx(
        1.05 * exchange_time(best, total, alpha, 12), rel=1e-3
    )
    assert SliceRule(total, "network", measured=False).size(alpha, 12, 12) == best
    assert rule.count(0.0, 12, 12) == 64 * 12, "slices that cost nothing"
    assert rule.count(alpha, 12, 12) > rule.count(10 * alpha, 12, 12)


def test_probes_are_drawn_by_equation_5_and_every_server_can_have_two() -> None:
    assert partition_rate(12, 100) == pytest.approx(2 * 12 / 100 * 0.6)
    for nodes, total, size in ((4, 1_000_000, 20_000), (12, 3_000_000, 100_000), (2, 90_000, 30_000)):
        pieces = partition(total, size, 1_000, nodes)
        assert sum(pieces) == total and max(pieces) <= size
        assert sum(piece <= 1_000 for piece in pieces) >= 2 * nodes
        assert pieces == partition(total, size, 1_000, nodes), "all workers agree"
    drawn = [piece for piece in partition(100_000_000, 10_000, 100, 50) if piece == 100]
    assert 60 * 0.6 < len(drawn) < 160, "2·N·γ in the mean, and no fewer than two for each server"


@pytest.mark.parametrize("load", ["network", "published"])
def test_slices_of_measured_jobs_have_probes_and_others_have_none(load: str) -> None:
    rule = SliceRule(10_000_000, load)
    sizes = rule.sizes(10_000_000, 40, servers=4)
    assert sum(sizes) == 10_000_000 and sum(size == 10_000 for size in sizes) >= 8
    assert set(map(len, [set(SliceRule(10_000_000, load, measured=False).sizes(10_000_000, 40, servers=4))])) == {1}
    assert sum(rule.sizes(7, 7, servers=4)) == 7


def test_θ_is_cut_anew_where_that_pays_and_not_otherwise() -> None:
    now = {"total": 4e8, "alpha": 1e5, "nodes": 8, "rate": 1e8, "copies": 1}
    best = math.sqrt(now["total"] * now["alpha"] / now["nodes"])
    assert not decide_cut(size=1.5 * best, better=best, rounds=1e6, **now).wanted, "Eq. 1 is flat"
    assert decide_cut(size=best / 100, better=best, rounds=1e6, **now).wanted
    short = decide_cut(size=best / 20, better=best, rounds=1, **now)
    assert not short.wanted and short.reason.startswith("kept: slices of ")
