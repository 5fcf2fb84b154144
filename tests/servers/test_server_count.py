"""The number of parameter servers by load and by plan: the rules alone, jobs on virtual time, and real jobs."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import flegel
from bench.faults.scenarios import Scenario, scaled
from bench.faults.served_job import ServedJob
from flegel.algorithms import KMeans
from flegel.configuration.active import active
from flegel.errors import UsageError
from flegel.job import parse_server_count
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.server.care import FIRST_SERVER
from flegel.plan.placement.server_count import CountByLoad, CountByPlan, CountChange

ROWS = np.random.default_rng(1).normal(size=(600, 3)) + np.repeat(np.arange(3) * 8.0, 200)[:, None]


class Served:
    """A job whose folds take `fixed` seconds and `work` more, which servers share; workers compute for 1 s."""

    def __init__(self, rule: CountByLoad, work: float, fixed: float = 0.0, most: int = 64, starts: bool = True) -> None:
        self.rule, self.work, self.fixed, self.most, self.starts = rule, work, fixed, most, starts
        self.seen = [1]

    def folds(self, rounds: int = 40) -> list[int]:
        """Numbers of servers, in the order in which the job had them."""
        for _ in range(rounds * (active().placement.load_folds + 1)):
            wait = self.fixed + self.work / self.seen[-1]
            change = self.rule.after_fold(wait, 1.0 + wait, self.seen[-1], self.most)
            if change is not None and (self.starts or change.servers < self.seen[-1]):
                self.seen.append(change.servers)
        return self.seen


def test_servers_come_while_the_job_waits_for_them_and_stay() -> None:
    assert Served(CountByLoad(1, 64), work=1.0).folds() == [1, 2, 3, 4], "1/4 of 1 s is 20 % of the time"
    assert Served(CountByLoad(1, 3), work=1.0).folds() == [1, 2, 3], "no more than were allowed"
    assert Served(CountByLoad(1, 64), work=1.0, most=2).folds() == [1, 2], "no more than θ has slices"


def test_a_server_that_does_not_help_leaves_again_and_does_not_come_back() -> None:
    assert Served(CountByLoad(1, 64), work=0.0, fixed=1.0).folds() == [1, 2, 1]
    longer = Served(CountByLoad(1, 64), work=0.0, fixed=1.0)
    longer.folds()
    longer.fixed, longer.work = 0.0, 4.0
    assert longer.folds()[3:6] == [2, 3, 4], "folds became four times as long"


def test_servers_leave_while_the_job_hardly_waits() -> None:
    idle = Served(CountByLoad(2, 64), work=0.01)
    idle.seen = [6]
    assert idle.folds() == [6, 5, 4, 3, 2]


def test_a_server_that_cannot_start_is_not_asked_for_again() -> None:
    asked: list[CountChange] = []
    rule = CountByLoad(1, 8)
    for _ in range(10 * (active().placement.load_folds + 1)):
        if (change := rule.after_fold(1.0, 2.0, 1, 64)) is not None:
            asked.append(change)
    assert [change.servers for change in asked] == [2]


def test_a_plan_gives_the_last_number_that_is_due() -> None:
    plan = CountByPlan([(60.0, 2), (10.0, 4), (30.0, 6)])
    assert plan.at(5.0, 1) is None and plan.at(12.0, 1) == CountChange(4, "planned for 10 s")
    assert plan.at(13.0, 3) is None, "somebody has asked for another number meanwhile"
    assert plan.at(100.0, 3) == CountChange(2, "planned for 60 s") and plan.at(1000.0, 5) is None


@pytest.mark.parametrize(
    ("word", "found"),
    [("fixed", None), ("load", (1, 64)), ("load:2-8", (2, 8)), ("30s:6,5min:2", [(30.0, 6), (300.0, 2)])],
)
def test_forms_of_the_option(word: str, found: Any) -> None:
    assert parse_server_count(word) == found


@pytest.mark.parametrize("word", ["", "auto", "load:8-2", "load:0-4", "load:x", "30s", "30s:0", "30s:65", "x:2", "5:"])
def test_what_is_none_of_them_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="must be fixed, load, load:1-8"):
        parse_server_count(word)


def test_a_rule_without_servers_or_beside_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="give servers= too"):
        flegel.run(KMeans(k=2), ROWS, server_count="load", progress=False)
    with pytest.raises(UsageError, match="one server on each host of workers"):
        flegel.run(KMeans(k=2), ROWS, servers="colocated", server_count="load", progress=False)


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_job_follows_its_plan_and_no_bit_changes(replicas: int) -> None:
    scenario = Scenario(7, servers=1, slices=3, replicas=replicas, iterations=150)
    job = ServedJob(scenario)
    job.care._count_rule = CountByPlan([(0.04, 3), (0.3, 2)])
    found = job.run()
    assert len(job.care.wanted) == 2 and job.care._joins == 2 and job.care._left == 1
    calm = ServedJob(scenario.without_faults).run()
    assert found.theta == calm.theta and found.objectives == calm.objectives


def test_a_further_server_that_does_not_start_ends_no_job() -> None:
    job = ServedJob(Scenario(7, servers=2, slices=3, replicas=1))
    care, now = job.care, 0.0
    care._timeouts = Timeouts(start=5.0, silence=1e9)
    for number in care.wanted:
        care._live[number] = "somewhere"
    care._follow_count(CountChange(3, "the test wants it"), now)
    assert len(care.wanted) == 3 and list(care._starting) == [FIRST_SERVER + 2]
    care._heard_at = dict.fromkeys(care._live, 0.0)
    care.look(6.0)
    assert len(care.wanted) == 2 and not care._starting and care.lost == 0


def test_laws_hold_while_the_rule_changes_servers_that_are_killed() -> None:
    for seed in range(3):
        job = ServedJob(scaled(seed))
        job.care._count_rule = CountByPlan([(0.03 * at, at % 3 + 1) for at in range(1, 12)])
        job.run()


@pytest.fixture(scope="module")
def cluster() -> Any:
    with flegel.LocalCluster(2) as made:
        yield made


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.parameter, other.parameter, strict=True))


@pytest.mark.parametrize("rule", ["load:1-3", "300ms:3,600ms:2"])
def test_a_real_job_gets_servers_by_its_rule_and_no_bit_changes(cluster: Any, rule: str) -> None:
    """With these settings every wait is a load, and every server helps."""
    settings = {"placement.load_folds": 3, "placement.busy_servers": 0.0, "placement.server_gain": 0.0}

    class Joined(flegel.Callback):
        def after_barrier(self, snapshot: Any) -> str | None:
            return "servers joined" if snapshot.servers is not None and snapshot.servers.joined else None

    options: dict[str, Any] = {"cluster": cluster, "sync": "bsp", "tolerance": 0, "seed": 1, "progress": False}
    found = flegel.run(
        KMeans(k=9), ROWS, servers=1, server_count=rule, max_iterations=100_000, callbacks=[Joined()],
        settings=settings, **options,
    )  # fmt: skip
    assert found.servers["joined"] >= 1 and found.reason == "servers joined"
    assert same(found, flegel.run(KMeans(k=9), ROWS, max_iterations=found.iterations, **options))


@pytest.mark.parametrize("victim", [FIRST_SERVER, 0], ids=["server", "worker"])
def test_a_process_is_killed_while_a_job_follows_its_plan(cluster: Any, victim: int) -> None:
    """All that was planned comes to pass, and no bit changes; the points of a lost worker may be added up in another
    order."""
    killed: list[int] = []
    calm_rounds: list[int] = []

    class Killing(flegel.Callback):
        def after_barrier(self, snapshot: Any) -> str | None:
            seen = snapshot.servers
            if seen is None or seen.wanted < 2:
                return None
            if not killed:  # while servers come, or on a busy machine later
                killed.append(cluster.registry.processes[victim].pid)
                os.kill(killed[0], signal.SIGKILL)
            settled = len(seen.servers) == seen.wanted == 2 and len(snapshot.workers) == 2
            calm_rounds[:] = [*calm_rounds, snapshot.iteration] if settled else []
            return "the plan is done" if len(calm_rounds) > 5 else None

    options: dict[str, Any] = {"cluster": cluster, "sync": "bsp", "tolerance": 0, "seed": 1, "progress": False}
    found = flegel.run(
        KMeans(k=9), ROWS, servers=1, server_count="200ms:3,1s:2", max_iterations=1_000_000, callbacks=[Killing()],
        **options,
    )  # fmt: skip
    assert killed and found.reason == "the plan is done" and found.servers["lost"] == (victim >= FIRST_SERVER)
    calm = flegel.run(KMeans(k=9), ROWS, max_iterations=found.iterations, **options)
    assert found.objective == pytest.approx(calm.objective, rel=1e-9)
    assert victim < FIRST_SERVER or same(found, calm)
