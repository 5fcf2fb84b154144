"""When the coordinator thinks about balance: not while everybody waits for θ, unless nobody is to train meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scene import Scene, timers, trains

from flegel.configuration.active import active
from flegel.configuration.balance import BalanceSettings
from flegel.job import Criteria
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.checkpoint.part import snapshot_of
from flegel.machine.checkpoint.resume import restore
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.events import Command, Send
from flegel.machine.coordinator.membership import Next
from flegel.messages import CheckpointPart, ReceivePoints, Train
from flegel.plan.balance.planner import Balance, BalancePlan, Proposal


class Asked(Balance):
    """Wants a move whenever it is asked, and remembers of whom it was told."""

    def __init__(self) -> None:
        super().__init__(BalanceSettings())
        self.loads: list[Any] = []
        self.carriages: list[Any] = []

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, left: Any, now: float, carriage: Any = None) -> BalancePlan:
        self.loads.append(loads)
        self.carriages.append(carriage)
        return BalancePlan((Proposal(0, 1, 64, "asked"),), "moves: asked")


def stage(mode: str, crowded: bool = False) -> tuple[Scene, Asked]:
    plan = Asked()
    balancing = BalanceControl(mode, Criteria(max_iterations=100), plan=plan, crowded=crowded)
    scene = Scene(sync="fsp", interval=10.0, balance=balancing)
    scene.loaded(1.0)
    return scene, plan


def barrier(scene: Scene, now: float, plan: bool = True) -> list[Command]:
    scene.report(0, now, visits=10)
    said = scene.report(1, now, visits=5)
    if plan and "balance" in timers(said):
        scene.timer("balance", now)
    return said


def test_everybody_trains_again_before_moves_are_planned() -> None:
    scene, plan = stage("async")
    barrier(scene, 2.0)
    assert not plan.loads, "one round says little about speeds"
    said = barrier(scene, 4.0, plan=False)
    assert sorted(trains(said)) == [0, 1] and timers(said)["balance"] == 4.0 and not plan.loads
    then = scene.timer("balance", 4.0)
    assert [c.body for c in then if isinstance(c, Send)] == [ReceivePoints(0, 0, 64)] and len(plan.loads) == 1
    barrier(scene, 5.0)
    assert scene.machine.trace[-1].reason.endswith("balance: moves: asked (T by iterations left)")


def test_workers_that_share_processors_are_watched_for_longer_before_anything_moves() -> None:
    roomy, crowded = stage("async"), stage("async", crowded=True)
    for i in range(1, 6):
        barrier(roomy[0], 1.0 + 0.05 * i)
        barrier(crowded[0], 1.0 + 0.05 * i)
    assert roomy[1].loads and not crowded[1].loads
    barrier(crowded[0], 1.0 + active().moves.crowded_seconds + 0.01)
    assert len(crowded[1].loads) == 1


def test_a_first_move_is_taken_to_last_a_round_and_two_where_processors_are_shared() -> None:
    """Four workers on two cores: guessed at one, points moved after each whim of the scheduler, for 8 % of the time."""
    roomy, crowded = stage("async"), stage("async", crowded=True)
    for scene, _ in (roomy, crowded):
        for now in (2.0, 3.0, 4.0):
            barrier(scene, now)
    assert [plan.carriages[-1].lag for _, plan in (roomy, crowded)] == [1.0, 2.0]


def test_rounds_that_were_not_thought_about_yet_are_not_forgotten() -> None:
    calm, late = stage("async"), stage("async")
    for now in (2.0, 3.0, 4.0, 5.0):
        barrier(calm[0], now)
        barrier(late[0], now, plan=now == 5.0)
    assert calm[1].loads[-1][0].seconds_per_point == late[1].loads[-1][0].seconds_per_point > 0
    assert calm[1].loads[-1][1].relative_error == late[1].loads[-1][1].relative_error


def test_where_nobody_trains_while_points_move_the_plan_comes_first() -> None:
    scene, plan = stage("sync")
    barrier(scene, 2.0)
    said = barrier(scene, 4.0)
    assert len(plan.loads) == 1
    assert [type(c.body) for c in said if isinstance(c, Send)] == [ReceivePoints]


@pytest.mark.parametrize("phase", ["over", "membership"])
def test_nothing_is_planned_while_members_change_or_a_job_that_is_over(phase: str) -> None:
    scene, plan = stage("async")
    for now in (2.0, 3.0, 4.0):
        said = barrier(scene, now, plan=False)
    assert any(isinstance(c, Send) and isinstance(c.body, Train) for c in said)
    if phase == "over":
        scene.machine.state.phase = "over"
    else:
        scene.machine.membership.redistribution.phase = "stopping"
    assert scene.timer("balance", 4.0) == [] and not plan.loads


def loads_after(pause: float, how: str) -> list[Any]:
    """What the plan hears after five rounds of a second, with such a pause before the last one."""
    scene, plan = stage("async")
    for now in (2.0, 3.0, 4.0, 5.0):
        barrier(scene, now, plan=now < 5.0)
    now = 5.0 + pause
    if how == "membership":
        scene.machine.membership.redistribution.unvisited.add(0)
        scene.machine.carry_out(Next.TELL_CHANGED, now)
    else:
        balance = scene.machine.part(BalancePart)
        assert balance is not None and scene.machine.commits.last is not None
        balance.control._balance = Balance(BalanceSettings())
        state, held = snapshot_of(scene.machine, scene.machine.commits.last, 5.0), dict[int, WorkerState]()
        again, plan = Scene(sync="fsp", interval=10.0, balance=BalanceControl("async", CRITERIA)), Asked()
        for number in scene.machine.view.workers:
            kept = CheckpointPart(0, ((10, 5),), 0, 0.0, 0)
            held[number] = WorkerState(kept, np.arange(10), np.zeros((10, 0)), np.zeros(10, np.uint8))
        restore(again.machine, state, held)
        balance = again.machine.part(BalancePart)
        assert balance is not None
        balance.control._balance = plan
        scene = again
        scene.loaded(now)
    barrier(scene, now + 1.0)
    return plan.loads[-1]


CRITERIA = Criteria(max_iterations=100)


@pytest.mark.parametrize("how", ["membership", "resumed"])
def test_a_time_in_which_nobody_was_to_train_makes_nobody_slower(how: str) -> None:
    calm, late = loads_after(0.0, how), loads_after(1000.0, how)
    assert [w.seconds_per_point for w in late] == pytest.approx([w.seconds_per_point for w in calm])
