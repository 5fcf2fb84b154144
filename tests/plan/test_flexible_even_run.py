"""Barriers of equally fast ranks without reports, and how soon a rank that becomes slow is seen, on virtual time."""

from __future__ import annotations

import random

import pytest

from flegel.torch.flexible.even_run import EvenRun
from flegel.torch.flexible.pace import BarrierPace, RankReport, RankTimings

UNIT, COST = 0.01, 0.001


class Ranks:
    """Ranks that train one micro-batch for each barrier, as FlexibleDDP does while they count as equally fast."""

    def __init__(self, ranks: int) -> None:
        self.pace, self.now, self.reported, self.silent = BarrierPace(), 0.0, 0, 0
        self.timings, self.runs = [RankTimings() for _ in range(ranks)], [EvenRun() for _ in range(ranks)]

    def step(self, seconds: list[float]) -> None:
        """One barrier; what each rank spends until it arrives."""
        speaking = [run.left <= 0 for run in self.runs]
        arrived = [self.now + one for one in seconds]
        self.now = max(arrived) + COST
        self.reported, self.silent = self.reported + all(speaking), self.silent + (not any(speaking))
        if not any(speaking):
            for run, timings, at in zip(self.runs, self.timings, arrived, strict=True):
                run.arrived = at
                run.passed(self.now, timings.opened)
            return
        told, barriers = [], 1
        for run, timings, at, own in zip(self.runs, self.timings, arrived, seconds, strict=True):
            barriers = run.close(timings)
            timings.begin(at - own)
            told.append(RankReport(8.0, (at - timings.opened) / barriers, timings.typical or own, COST, batch=8.0))
            timings.ready(at)
            timings.open(self.now)
        if all(speaking):
            self.pace.barrier(told, 0.0, barriers)
        for run in self.runs:
            if all(speaking):
                run.reported(self.pace.even, True, None)
            else:
                run.disturbed()


def test_one_of_sixteen_barriers_of_equal_ranks_carries_reports() -> None:
    ranks, draw = Ranks(4), random.Random(0)
    for _ in range(1000):
        ranks.step([UNIT * draw.uniform(0.9, 1.1) for _ in range(4)])
    assert ranks.pace.even and ranks.reported < 80 and ranks.silent > 900


@pytest.mark.parametrize("begun", range(100, 118))
@pytest.mark.parametrize(("slow", "bound"), [(8.0, 12), (3.0, 14), (2.0, 30), (1.7, 100)])
def test_a_rank_that_becomes_slow_is_seen_within_a_bounded_number_of_steps(begun: int, slow: float, bound: int) -> None:
    """Wherever in a run of silent barriers it begins."""
    ranks = Ranks(4)
    for _ in range(begun):
        ranks.step([UNIT] * 4)
    assert ranks.pace.even
    for made in range(1, 200):
        ranks.step([UNIT] * 3 + [slow * UNIT])
        if not ranks.pace.even:
            assert made <= bound
            return
    pytest.fail("not seen")


def test_pauses_that_come_at_random_are_seen_although_they_fall_into_silent_barriers() -> None:
    ranks, draw = Ranks(4), random.Random(1)
    for _ in range(100):
        ranks.step([UNIT] * 4)
    steps = 0
    while ranks.pace.even and steps < 2000:
        steps += 1
        ranks.step([UNIT] * 3 + [1.0 if draw.random() < 0.05 else UNIT])
    assert steps < 400, "about as many as when every barrier carries reports"
