"""Workers are lost, frozen, hired, join and leave at any step: nothing hangs, and the conservation laws hold."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from unordered_world import World

from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.sync import models

MODELS = list(models())


class MembershipChanges(RuleBasedStateMachine):
    """Any story of messages, kernels, losses, hires, joins and leaves."""

    @initialize(
        sync=st.sampled_from(MODELS),
        workers=st.integers(1, 4),
        layout=st.sampled_from(["rows", "tiles"]),
        replace=st.booleans(),
        collect=st.booleans(),
        rest=st.integers(0, 5),
        resting=st.integers(0, 2),
    )
    def begin(
        self, sync: str, workers: int, layout: str, replace: bool, collect: bool, rest: int, resting: int
    ) -> None:
        resting = tuple(range(workers, workers + resting))
        self.world = World(
            workers + len(resting), sync, rest=rest, layout=layout, replace=replace, collect=collect, iterations=25,
            resting=resting,
        )  # fmt: skip
        self.random = Random(0)
        self.deaths = self.crashes = 0

    @rule(steps=st.integers(1, 60), random=st.randoms(use_true_random=False))
    def things_take_their_course(self, steps: int, random: Random) -> None:
        for _ in range(steps):
            self.world.step(random)

    @rule(n=st.integers(0, 3), how=st.sampled_from(["killed", "crashed", "frozen"]))
    def a_worker_is_lost(self, n: int, how: str) -> None:
        alive = sorted(self.world.workers)
        if len(alive) > 1 and self.deaths < 9:
            self.deaths += 1
            crashed = how == "crashed" and self.crashes < 2  # a third one may rightly end the job
            self.crashes += crashed
            self.world.lose(alive[n % len(alive)], crashed, how == "frozen")

    @rule(workers=st.integers(1, 6))
    def somebody_scales(self, workers: int) -> None:
        self.world.tell(ScaleTo(workers))

    @rule(n=st.integers(0, 3))
    def a_worker_is_asked_to_leave(self, n: int) -> None:
        alive = sorted(self.world.workers)
        if alive:
            self.world.tell(LeaveJob(alive[n % len(alive)]))

    @rule(a=st.integers(0, 5), b=st.integers(0, 5), points=st.integers(1, 300))
    def somebody_should_give_points(self, a: int, b: int, points: int) -> None:
        self.world.wish.wanted.append((a, b, points))

    @rule(a=st.integers(0, 5), b=st.integers(0, 5))
    def workers_are_to_rest(self, a: int, b: int) -> None:
        self.world.resting.wanted.append((a, b))

    @rule()
    def all_are_called_back(self) -> None:
        self.world.resting.wanted.append(())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish(self.random)
            assert self.world.done is not None
            error = self.world.done.error
            assert error is None or "no worker is left" in str(error) or "in a row" in str(error), error


TestMembershipChanges = MembershipChanges.TestCase
if os.environ.get("FLEGEL_PROFILE") != "nightly":
    TestMembershipChanges.settings = settings(max_examples=25, stateful_step_count=25)


@pytest.mark.parametrize("sync", MODELS)
def test_every_model_survives_the_loss_of_a_worker_in_every_phase(sync: str) -> None:
    for at in range(0, 120, 13):
        world, random = World(3, sync, iterations=12), Random(at)
        for _ in range(at):
            world.step(random, faults=False)
        world.lose(1)
        world.finish(random)
        assert world.done is not None and world.done.error is None
        assert world.commits >= 12
