"""Real worker processes are killed (-9) while workers join or are scaled: the job ends, and every point counts once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stories import Story, check_kmeans, train

import flegel
from flegel import LocalCluster
from flegel.machine.coordinator.membership import Membership
from flegel.messages import PointsAssigned
from flegel.runtime.processes.worker_cluster import WorkerCluster

pytestmark = pytest.mark.processes

JOINER = 2


def scaled(cluster: LocalCluster, *numbers: int) -> Callable[[Any], bool]:
    """So many workers are asked for, one number right after the other, in a thread of a user."""

    def act(machine: Any) -> bool:
        def ask() -> None:
            for number in numbers:
                cluster.scale(number)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return True

    return act


def settled(rows: np.ndarray, *workers: int) -> Callable[[Any], bool]:
    """One of these numbers of workers has all points, nobody is awaited, and some rounds have passed."""
    rounds: list[int] = []

    def act(machine: Any) -> bool:
        members = machine.membership
        there = len(machine.view.workers) in workers and not members.roster.hired
        calm = there and members.steady and machine.state.points == len(rows)
        rounds[:] = [*rounds, machine.iteration] if calm else []
        return bool(rounds) and machine.iteration > rounds[0] + 3

    return act


def kill_when(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, moment: str) -> list[int]:
    """Kill the joiner at this moment, once; returns a list that has its process number from then on."""
    killed: list[int] = []

    def kill() -> None:
        if not killed:
            killed.append(cluster.registry.processes[JOINER].pid)
            os.kill(killed[0], signal.SIGKILL)

    start, joined, welcome, answer = (
        WorkerCluster.start_worker, Membership.joined, Membership.welcome, Membership.answer,
    )  # fmt: skip

    def start_worker(self: WorkerCluster, worker: int) -> bool:
        found = start(self, worker)
        if moment == "its process is there" and worker == JOINER:
            kill()
        return found

    def on_joined(self: Membership, worker: int, now: float) -> None:
        if moment == "it has said hello" and worker == JOINER:
            kill()
        joined(self, worker, now)

    def on_welcome(self: Membership, worker: int, *rest: Any) -> Any:
        if moment == "it is ready for points" and worker == JOINER:
            kill()
        return welcome(self, worker, *rest)

    def on_answer(self: Membership, worker: int, body: Any, arrays: Any) -> None:
        if moment == "it has its points" and worker == JOINER and isinstance(body, PointsAssigned):
            kill()
        answer(self, worker, body, arrays)

    monkeypatch.setattr(WorkerCluster, "start_worker", start_worker)
    monkeypatch.setattr(Membership, "joined", on_joined)
    monkeypatch.setattr(Membership, "welcome", on_welcome)
    monkeypatch.setattr(Membership, "answer", on_answer)
    return killed


@pytest.mark.parametrize(
    "moment", ["its process is there", "it has said hello", "it is ready for points", "it has its points"]
)
def test_a_worker_that_is_killed_while_it_joins_costs_no_point(
    monkeypatch: pytest.MonkeyPatch, points: np.ndarray, moment: str
) -> None:
    """Before it was ready for points it is done without; from then on it is replaced."""
    with LocalCluster(workers=2) as cluster:
        killed = kill_when(monkeypatch, cluster, moment)
        there = 2 if moment in ("its process is there", "it has said hello") else 3
        story = Story(scaled(cluster, 3), lambda machine: bool(killed), settled(points, there))
        result, machine = train("kmeans", points, cluster, story, workers=2, sync="bsp")
        check_kmeans(points, result, machine)
        lost = [i["worker"] for i in result.incidents if i["kind"] == "lost"]
        assert lost == ([JOINER] if there == 3 else [])
        calm = flegel.run(
            "kmeans", points, cluster=cluster, workers=2, sync="bsp", tolerance=0, max_iterations=result.iterations,
            resting="off",
        )  # fmt: skip
    assert result.objective == pytest.approx(calm.objective, rel=1e-9)


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_workers_scaled_in_quick_succession_while_one_is_killed_count_every_point_once(
    points: np.ndarray, victim: int, sync: str
) -> None:
    """2 to 5 to 1 to 4, none of which is waited for; worker 0 stays all the time, and worker 1 is to leave."""
    with LocalCluster(workers=2) as cluster:

        def kill(machine: Any) -> bool:
            os.kill(cluster.registry.processes[victim].pid, signal.SIGKILL)
            return True

        story = Story(scaled(cluster, 5), kill, scaled(cluster, 1, 4), settled(points, 4))
        result, machine = train("kmeans", points, cluster, story, workers=2, sync=sync)
        check_kmeans(points, result, machine)
        assert len(machine.view.workers) == 4
