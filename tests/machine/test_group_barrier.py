"""A global barrier that waits (`--group-barrier wait`): nobody trains from a contribution until its result has come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flegel.job import Criteria
from flegel.machine.coordinator.events import Command, Note, SetTimer
from flegel.machine.group.events import FromGroup, RoundOpened, Stalled, Synchronized
from flegel.machine.group.exchange import GroupExchange
from flegel.machine.group.part import GroupPart
from flegel.machine.group.schedule import Every
from tests.machine.scene import Scene, done, trains


class Meeting(Scene):
    """One group of two; its coordinator contributes at every second barrier."""

    def __init__(self, waits: bool, criteria: Criteria | None = None) -> None:
        super().__init__(criteria=criteria)
        self.part = GroupPart(GroupExchange(self.algorithm, Every(commits=2), silence=5.0), waits, longest_wait=50.0)
        self.machine.parts = (self.part,)
        self.machine._attach_parts()
        self.loaded()
        self.hear(RoundOpened(1), 1.0)

    def hear(self, news: Any, now: float) -> list[Command]:
        return self.machine.handle(FromGroup(news), now)

    def barrier(self, now: float) -> list[Command]:
        self.report(0, now)
        return self.report(1, now)

    def result(self, round_: int, now: float) -> list[Command]:
        others = {"lyon": (np.array([100.0, 20.0]),)}
        return self.hear(Synchronized(round_, others, (), True, False, ("lyon", "paris")), now)


@pytest.mark.parametrize("waits", [False, True])
def test_who_waits_trains_on_when_the_result_has_come(waits: bool) -> None:
    scene = Meeting(waits)
    assert set(trains(scene.barrier(2.0))) == {0, 1}  # no contribution is due yet
    assert bool(trains(scene.barrier(3.0))) is not waits
    said = trains(scene.result(1, 4.0))
    assert set(said) == ({0, 1} if waits else set())
    if waits:
        theta = scene.machine.store.parameter
        assert theta[1] == 24.0, "θ is that of all groups before anybody trains"
        assert set(trains(scene.barrier(5.0))) == {0, 1}


@pytest.mark.parametrize("ending", ["late", "stalled"])
def test_a_wait_for_groups_is_bounded_and_says_so(ending: str) -> None:
    scene = Meeting(waits=True)
    scene.barrier(2.0)
    (bound,) = [c for c in scene.barrier(3.0) if isinstance(c, SetTimer) and c.timer.name == "group"]
    assert bound.at == 53.0
    said = (
        scene.hear(Stalled("lyon never came"), 9.0) if ending == "stalled" else scene.machine.handle(bound.timer, 53.0)
    )
    assert set(trains(said)) == {0, 1}
    assert any(isinstance(c, Note) and "trains on" in c.text for c in said)
    assert not trains(scene.result(1, 60.0))  # it trains already


def test_the_timer_of_an_earlier_wait_ends_no_later_one() -> None:
    scene = Meeting(waits=True)
    scene.barrier(2.0)
    (bound,) = [c for c in scene.barrier(3.0) if isinstance(c, SetTimer) and c.timer.name == "group"]
    scene.result(1, 4.0)
    scene.barrier(5.0)
    assert not trains(scene.barrier(6.0))
    assert not trains(scene.machine.handle(bound.timer, 53.0))


def test_a_limit_ends_a_job_that_waits() -> None:
    scene = Meeting(waits=True, criteria=Criteria(max_seconds=20.0, tolerance=0))
    scene.barrier(2.0)
    scene.barrier(3.0)
    scene.timer("limit", 21.0)
    assert scene.machine.verdict is not None and scene.machine.verdict.outcome == "limit"
    assert scene.machine.phase in ("resting", "over") or done(scene.timer("watch", 22.0)) is not None
