"""When the coordinator thinks about balance: not while everybody waits for θ, unless nobody is to train meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from scene import Scene, timers, trains

from flegel.machine.balancing import Balancing
from flegel.machine.events import Command, Send
from flegel.messages import Take, Train
from flegel.plan.balance import Balance, Plan, Proposal, Rules
from flegel.spec import Criteria


class Asked(Balance):
    """Wants a move whenever it is asked, and remembers of whom it was told."""

    def __init__(self) -> None:
        super().__init__(Rules())
        self.loads: list[Any] = []

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, remaining: float, now: float, carriage: Any = None) -> Plan:
        self.loads.append(loads)
        return Plan((Proposal(0, 1, 64, "asked"),), "moves: asked")


def stage(mode: str) -> tuple[Scene, Asked]:
    plan = Asked()
    scene = Scene(sync="fsp", interval=10.0, balancing=Balancing(mode, Criteria(max_iterations=100), plan=plan))
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
    barrier(scene, 3.0)
    said = barrier(scene, 4.0, plan=False)
    assert sorted(trains(said)) == [0, 1] and timers(said)["balance"] == 4.0 and not plan.loads
    then = scene.timer("balance", 4.0)
    assert [c.body for c in then if isinstance(c, Send)] == [Take(0, 0, 64)] and len(plan.loads) == 1
    barrier(scene, 5.0)
    assert scene.machine.trace[-1].reason.endswith("balance: moves: asked (T by iterations left)")


def test_rounds_that_were_not_thought_about_yet_are_not_forgotten() -> None:
    calm, late = stage("async"), stage("async")
    for now in (2.0, 3.0, 4.0, 5.0):
        barrier(calm[0], now)
        barrier(late[0], now, plan=now == 5.0)
    assert calm[1].loads[-1][0].seconds == late[1].loads[-1][0].seconds > 0
    assert calm[1].loads[-1][1].doubt == late[1].loads[-1][1].doubt


def test_where_nobody_trains_while_points_move_the_plan_comes_first() -> None:
    scene, plan = stage("sync")
    barrier(scene, 2.0)
    barrier(scene, 3.0)
    said = barrier(scene, 4.0)
    assert len(plan.loads) == 1
    assert [type(c.body) for c in said if isinstance(c, Send)] == [Take]


@pytest.mark.parametrize("phase", ["over", "crew"])
def test_nothing_is_planned_for_a_crew_that_changes_or_a_job_that_is_over(phase: str) -> None:
    scene, plan = stage("async")
    for now in (2.0, 3.0, 4.0):
        said = barrier(scene, now, plan=False)
    assert any(isinstance(c, Send) and isinstance(c.body, Train) for c in said)
    if phase == "over":
        scene.machine.phase = "over"
    else:
        scene.machine.crew.phase = "stopping"
    assert scene.timer("balance", 4.0) == [] and not plan.loads
