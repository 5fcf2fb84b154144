"""Searches for the interval, fed with invented rounds: no clock, no workers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flegel.machine.group.round_meter import RoundMeter
from flegel.plan.interval.gradient_noise import NoiseInterval
from flegel.plan.interval.interval import PARTS, FixedInterval, Round, Step
from flegel.plan.interval.multi_stage import MultiStage, fit_elasticity, optimal_interval
from flegel.plan.interval.search import BinarySearch, Search
from flegel.torch.flexible.pace import BarrierPace, RankReport

PASS = 100_000  # points


class World:
    """Progress that fades, blunted by long intervals: g(n) = left · (1 − κ·n/N) per point."""

    def __init__(
        self, phi: float = 0.002, rate: float = 1e6, blunting: float = 0.6, noise: float = 0.0, pace: float = 0.3
    ) -> None:
        self.phi, self.rate, self.blunting, self.noise, self.pace = phi, rate, blunting, noise, pace
        self.left, self.work, self.seconds, self.rounds = 1.0, 0.0, 0.0, 0
        self.dice = np.random.default_rng(1)

    def run(self, step: Step) -> Round:
        points = min(PASS * step.fraction, PASS if step.seconds is None else step.seconds * self.rate)
        share = points / PASS
        gain = self.left * (1 - math.exp(-self.pace * share * (1 - self.blunting * share)))
        self.left -= gain
        if self.noise:
            gain *= 1 + self.noise * self.dice.normal()
        self.work += share
        took = points / self.rate + self.phi
        self.seconds += took
        self.rounds += 1
        return Round(int(points), took, self.phi, gain if self.rounds > 1 else None, PASS, PASS, self.work)

    def train(self, interval, passes: float) -> list[Step]:
        steps = [interval.first(0.0)]
        while self.work < passes:
            steps.append(interval.next(self.run(steps[-1])))
        return steps

    def best(self) -> float:
        """The interval with the most progress a second, by looking at all."""

        def speed(eta: float) -> float:
            share = min(eta * self.rate / PASS, 1)
            return share * (1 - self.blunting * share) / (share * PASS / self.rate + self.phi)

        return max(np.geomspace(1e-4, PASS / self.rate, 400), key=speed)


def speed_to(left: float, interval, **world) -> float:
    """Seconds until only so much is left to gain."""
    place = World(**world)
    step = interval.first(0.0)
    while place.left > left and place.rounds < 20_000:
        step = interval.next(place.run(step))
    return place.seconds


# -- the closed form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("a, b", [(-2.0, 1.0), (-0.1, 1.0), (-8.0, 2.0)])
def test_the_closed_form_maximizes_progress_a_second(phi: float, a: float, b: float) -> None:
    eta = -phi + math.sqrt(phi**2 - b * phi / a)
    beta = -a * eta / (a * eta + b)  # the tangent at η* itself is the line
    assert optimal_interval(phi, eta, beta) == pytest.approx(eta)
    grid = np.geomspace(1e-5, -b / a, 20_000)
    assert grid[np.argmax(grid * (a * grid + b) / (grid + phi))] == pytest.approx(eta, rel=1e-2)


def test_free_barriers_want_no_interval_and_a_rising_g_wants_a_longer_one() -> None:
    assert optimal_interval(0.0, 0.1, 0.5) == 0.0
    assert optimal_interval(0.01, 0.1, -0.2) == 0.2


def test_the_fit_separates_the_slope_from_the_fading_of_progress() -> None:
    lengths = np.log([1, 1, 2, 1, 1, 2, 1, 1])
    work = np.cumsum(np.exp(lengths))
    found = fit_elasticity(list(zip(lengths, 3 - 0.25 * lengths - 0.1 * work, work, strict=True)))
    assert found is not None and found.elasticity == pytest.approx(0.25) and found.error < 0.03
    assert fit_elasticity([(0.0, 1.0, float(i)) for i in range(8)]) is None, "all of one length"
    assert fit_elasticity([(0.0, 1.0, 1.0), (0.7, 1.0, 2.0)]) is None, "too few"


# -- the multi-stage fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0002, 0.002, 0.02])
def test_it_finds_an_interval_near_the_best_and_says_how(phi: float) -> None:
    world = World(phi)
    steps = world.train(MultiStage(), passes=15)
    settled = np.median([s.seconds for s in steps[-20:]])
    assert world.best() / 3 < settled < 3 * world.best()
    told = [s.reason for s in steps if s.reason]
    assert any("φ=" in t and "stage 1" in t for t in told)
    assert len(told) < len(steps) / 2, "it holds steady inside a stage"


@pytest.mark.parametrize(("alike", "phi", "whole"), [(True, 0.15, True), (True, 0.002, False), (False, 0.15, False)])
def test_where_a_barrier_costs_more_than_a_pass_equal_workers_make_whole_passes(
    alike: bool, phi: float, whole: bool
) -> None:
    world, interval = World(phi), MultiStage()
    steps = [interval.first(0.0)]
    for _ in range(20):
        steps.append(interval.next(replace(world.run(steps[-1]), alike=alike)))
    assert (steps[4].seconds == pytest.approx(PASS / world.rate)) == whole
    assert any("comparing" in step.reason for step in steps) != whole, "a probe would last longer than most jobs"


@pytest.mark.parametrize("phi", [0.0002, 0.002, 0.02, 0.1])
@pytest.mark.parametrize("first", [None, 0.0001, 0.01, 0.2, 5.0])
def test_total_time_is_close_to_the_best_fixed_interval_whatever_the_first(phi: float, first: float | None) -> None:
    fixed = min(speed_to(0.02, FixedInterval(eta), phi=phi) for eta in np.geomspace(5e-4, 0.1, 14))
    assert speed_to(0.02, MultiStage(first), phi=phi) <= (1.10 if phi < 0.1 else 1.15) * fixed


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_noise_in_the_objective_does_not_derail_it(noise: float) -> None:
    quiet = min(speed_to(0.02, FixedInterval(eta), phi=0.002) for eta in np.geomspace(5e-4, 0.1, 14))
    assert speed_to(0.02, MultiStage(), phi=0.002, noise=noise) <= 1.35 * quiet


def test_zero_progress_changes_nothing_for_ever() -> None:
    adjuster, world = MultiStage(), World(pace=0.0)
    steps = world.train(adjuster, passes=60)
    assert len({s.seconds for s in steps[-100:]}) == 1


def test_free_barriers_give_short_intervals_but_not_none() -> None:
    steps = World(phi=0.0).train(MultiStage(), passes=3)
    assert all(s.seconds is None or s.seconds >= 1e-5 for s in steps)


def test_dear_barriers_give_full_passes() -> None:
    world = World(phi=2.0)
    steps = world.train(MultiStage(), passes=25)
    assert steps[-1].seconds == pytest.approx(PASS / world.rate, rel=0.35)


def test_steps_of_equal_size_drive_the_interval_down() -> None:
    """Plain mini-batch gradients: every barrier gains the same, so g falls like 1/η and no line fits."""
    adjuster, step, eta = MultiStage(), None, []
    step, work, gain = adjuster.first(0.0), 0.0, 1.0
    for _ in range(300):
        points = min(PASS * step.fraction, PASS if step.seconds is None else step.seconds * 1e6)
        work, gain = work + points / PASS, gain * 0.999
        eta.append(points / 1e6)
        step = adjuster.next(Round(int(points), points / 1e6 + 0.002, 0.002, gain, PASS, PASS, work))
    assert eta[-1] < 0.004, "towards φ, from 14 ms"


def test_a_change_of_speed_begins_a_new_stage() -> None:
    adjuster, world = MultiStage(), World()
    world.train(adjuster, passes=8)
    before = adjuster.stage
    world.rate /= 4  # stragglers appear
    steps = world.train(adjuster, passes=12)
    assert adjuster.stage > before
    assert any("speed changed" in s.reason for s in steps)


def test_a_change_of_the_barriers_cost_begins_a_new_stage() -> None:
    adjuster, world = MultiStage(), World(phi=0.001)
    world.train(adjuster, passes=8)
    short = adjuster._eta
    world.phi = 0.02
    steps = world.train(adjuster, passes=16)
    assert any("φ changed" in s.reason for s in steps)
    assert adjuster._eta > 1.5 * short


def test_falling_behind_the_prediction_begins_a_new_stage_and_is_told() -> None:
    steps = World(pace=1.0).train(MultiStage(), passes=20)
    assert any("below prediction over" in s.reason for s in steps)


def test_without_an_objective_speed_and_barrier_cost_decide() -> None:
    adjuster, step, work = MultiStage(), None, 0.0
    step = adjuster.first(0.0)
    for _ in range(60):
        points = min(PASS * step.fraction, PASS if step.seconds is None else step.seconds * 1e6)
        work += points / PASS
        step = adjuster.next(Round(int(points), points / 1e6 + 0.002, 0.002, None, PASS, PASS, work))
    assert 0.005 < step.seconds < 0.05


def test_a_round_without_visits_is_survived() -> None:
    adjuster = MultiStage()
    adjuster.first(0.0)
    assert adjuster.next(Round(0, 0.1, 0.1, None, PASS, PASS, 0.0)).fraction < 1


# -- algorithms that say what intervals do to them ------------------------------------------------------------


def told(worth, phi: float, rounds: int = 40, adjuster=None, rate: float = 1e6, laps: float = 2.0) -> list[Step]:
    """Rounds whose gain says nothing about the interval."""
    adjuster = adjuster or MultiStage()
    steps = [adjuster.first(0.0)]
    for _ in range(rounds):
        step = steps[-1]
        points = min(PASS * step.fraction, PASS if step.seconds is None else step.seconds * rate)
        steps.append(adjuster.next(Round(int(points), points / rate + phi, phi, 1.0, PASS, PASS, laps, worth)))
    return steps


@pytest.mark.parametrize("phi", [0.0005, 0.005, 0.05])
@pytest.mark.parametrize("loss", [0.3, 3.0])
def test_the_algorithm_s_own_word_gives_the_best_interval_at_once(phi: float, loss: float) -> None:
    """g = 1 / (1 + u·x), so η* = √(φ·T / u), a pass at most."""
    steps = told(1 / (1 + loss * PARTS), phi)
    wanted = min(math.sqrt(phi * (PASS / 1e6) / loss), PASS / 1e6)
    assert steps[1].seconds == pytest.approx(wanted, rel=0.06)
    assert "as the algorithm says" in steps[1].reason
    assert all(s.seconds == pytest.approx(steps[1].seconds) for s in steps[1:]), "nothing is probed"


def test_what_theta_takes_to_arrive_is_not_counted_as_training() -> None:
    """Of each interval 4 ms are lost before anybody trains; so much longer it has to be."""
    late, phi, adjuster = 0.004, 0.005, MultiStage()
    steps = [adjuster.first(0.0)]
    for _ in range(40):
        step = steps[-1]
        asked = PASS * step.fraction / 1e6 if step.seconds is None else max(step.seconds - late, 1e-4)
        points = min(PASS, asked * 1e6)
        worth = 1 / (1 + 3.0 * PARTS)
        steps.append(adjuster.next(Round(int(points), points / 1e6 + phi, phi, 1.0, PASS, PASS, 2.0, worth)))
    wanted = math.sqrt(phi * (PASS / 1e6) / 3.0)
    assert steps[-1].seconds == pytest.approx(wanted + late, rel=0.06)


def test_visits_that_are_wasted_beyond_a_point_end_the_interval_there() -> None:
    steps = told(np.minimum(1.0, 0.4 / PARTS), phi=0.001)
    assert steps[-1].seconds == pytest.approx(0.4 * PASS / 1e6, rel=0.1)


@pytest.mark.parametrize(("alone", "phi", "whole"), [(True, 0.06, True), (True, 0.02, False), (False, 0.06, False)])
def test_a_lone_worker_makes_whole_passes_where_barriers_are_costly_whatever_a_part_is_worth(
    alone: bool, phi: float, whole: bool
) -> None:
    adjuster = MultiStage()
    adjuster.first(0.0)
    last = Round(PASS // 2, 0.05 + phi, phi, 1.0, PASS, PASS, 0.5, np.minimum(1.0, 0.4 / PARTS), alone=alone)
    step = adjuster.next(last)
    assert step.whole == whole
    assert step.seconds == pytest.approx(0.1 if whole else 0.04, rel=0.1)


def test_a_first_round_that_was_a_pass_is_followed_by_whole_passes_at_once() -> None:
    """A start that was trained on all points is measured on all: no round of some points comes between."""
    adjuster = MultiStage()
    assert adjuster.first(1.0).fraction == 1.0
    step = adjuster.next(Round(PASS, 0.25, 0.15, None, PASS, PASS, 1.0, alike=True))
    assert step.whole and step.seconds == pytest.approx(0.1)


def test_while_theta_is_held_workers_that_are_alike_make_one_barrier_a_pass() -> None:
    """Others keep to what the algorithm says of intervals: a straggler would let them wait."""
    adjuster, worth = MultiStage(), np.minimum(1.0, 0.4 / PARTS)
    told(worth, 0.001, adjuster=adjuster)

    def next_step(held: bool, alike: bool) -> Step:
        points = int(0.4 * PASS)
        return adjuster.next(
            Round(points, points / 1e6 + 0.001, 0.001, 0.0, PASS, PASS, 9.0, worth, held=held, alike=alike)
        )

    whole = next_step(held=True, alike=True)
    assert whole.whole and whole.seconds == pytest.approx(PASS / 1e6, rel=0.1) and "held" in whole.reason
    assert next_step(held=True, alike=True).reason == ""
    for step in (next_step(held=True, alike=False), next_step(held=False, alike=True)):
        assert not step.whole and step.seconds == pytest.approx(0.4 * PASS / 1e6, rel=0.1)


def test_a_worker_that_makes_theta_itself_gets_rounds_of_which_barriers_take_little() -> None:
    """Nothing is probed; where barriers are dear, rounds are whole passes; when others contribute, η is searched."""
    adjuster, rate = MultiStage(), 1e6
    adjuster.first(0.0)

    def next_step(phi: float, local: bool = True, laps: float = 0.1) -> Step:
        return adjuster.next(
            Round(1000, 1000 / rate + phi, phi, 1.0, PASS, PASS, laps, alike=True, alone=local, local_updates=local)
        )

    step = next_step(0.0001)
    assert not step.whole and step.seconds == pytest.approx(0.002) and "itself" in step.reason
    assert all(next_step(0.0001) == Step(step.seconds) for _ in range(20))
    dear = [next_step(0.05) for _ in range(12)]
    assert dear[-1].whole and dear[-1].seconds == pytest.approx(PASS / rate)
    assert [each.whole for each in dear] == sorted(each.whole for each in dear)
    assert sum(bool(each.reason) for each in dear if each.whole) == 1
    cheap = [next_step(0.0001) for _ in range(12)]
    assert not cheap[-1].whole and cheap[-1].seconds == pytest.approx(0.002)
    assert "comparing" in next_step(0.0001, local=False, laps=3.0).reason


def test_the_word_is_weighed_against_the_barrier_s_cost_of_the_day() -> None:
    adjuster, worth = MultiStage(), 1 / (1 + 2.0 * PARTS)
    cheap = told(worth, 0.001, adjuster=adjuster)[-1].seconds
    dear = told(worth, 0.016, adjuster=adjuster)[-1].seconds
    assert dear == pytest.approx(4 * cheap, rel=0.2)
    slow = told(worth, 0.016, adjuster=adjuster, rate=2.5e5)[-1].seconds
    assert slow == pytest.approx(2 * dear, rel=0.2)


def test_the_word_is_of_a_pass_over_all_data() -> None:
    """Where one worker is through with its share in half the time of the others, rounds can be half a pass at most."""
    worth, phi, rate = 1 / (1 + 2.0 * PARTS), 0.0005, 1e6
    adjuster = MultiStage()
    adjuster.first(0.0)
    step = adjuster.next(Round(PASS // 20, PASS / 20 / rate + phi, phi, 1.0, PASS / 2, PASS, 2.0, worth))
    assert step.seconds == pytest.approx(math.sqrt(phi * PASS / rate / 2.0), rel=0.06)
    step = adjuster.next(Round(PASS // 20, PASS / 20 / rate + 9, 9.0, 1.0, PASS / 2, PASS, 2.0, worth))
    assert step.seconds == pytest.approx(PASS / 2 / rate, rel=0.01)


def test_in_the_first_pass_updates_rest_on_enough_all_the_same() -> None:
    adjuster = MultiStage()
    adjuster.first(0.5)
    step = adjuster.next(Round(PASS // 2, 0.06, 0.001, None, PASS, PASS, 0.5, 1 / (1 + 9.0 * PARTS)))
    assert step.seconds >= 0.49 * PASS / 1e6
    step = adjuster.next(Round(PASS // 2, 0.06, 0.001, None, PASS, PASS, 1.5, 1 / (1 + 9.0 * PARTS)))
    assert step.seconds < 0.2 * PASS / 1e6


# -- the recursive search ----------------------------------------------------------------------------------


def test_halving_goes_on_while_it_pays_and_then_stops() -> None:
    world = World(phi=0.002, pace=0.02)
    search = BinarySearch()
    steps = world.train(search, passes=20)
    assert world.best() / 3 < steps[-1].seconds < 3 * world.best()
    assert any("settled" in s.reason for s in steps)


def test_fading_progress_stops_the_halving_too_early() -> None:
    """The weakness that the multi-stage fit mends (Section 3.3)."""
    world = World(phi=0.0002, pace=3.0)
    assert world.train(BinarySearch(), passes=10)[-1].seconds > 3 * world.best()


def test_growing_stops_at_the_whole() -> None:
    search = Search(1 / 32, grow=True, most=1.0)
    for _ in range(100):
        search.feed(search.trial, 1.0)  # twice the size, twice the progress
    assert search.size == 1.0 and search.settled


def test_a_given_number_of_tries_settles_on_the_smaller_side_when_larger_is_worse() -> None:
    search = Search(1 / 32, grow=True, most=1.0)
    for _ in range(10):
        search.feed(1.0, 1.0 if search.trial == 1 / 32 else 3.0)
    assert search.size == 1 / 32 and search.settled


def test_a_fixed_interval_is_fixed() -> None:
    steps = World().train(FixedInterval(0.02), passes=2)
    assert {s.seconds for s in steps} == {0.02}


def rounds_of_a_group() -> list[Round]:
    meter, measured, now = RoundMeter(), [], 0.0
    meter.opened(now, comparable=True)
    for k in range(12):
        meter.commit(1_000, 10_000, 100.0 / (k + 1))
        meter.sent(now + 1.0)
        now += 1.2
        measured.append(meter.opened(now, comparable=True))
    return [r for r in measured if r is not None]


def rounds_of_ranks() -> list[Round]:
    class Listening(FixedInterval):
        heard: list[Round]

        def next(self, last: Round) -> Step:
            self.heard.append(last)
            return super().next(last)

    pace = BarrierPace(fixed=0.1)
    pace._adjuster = listener = Listening(0.1)
    listener.heard = []
    for _ in range(12):
        pace.barrier([RankReport(32, 0.1, 0.05, 0.02, 4e4, 32), RankReport(16, 0.1, 0.1, 0.01, 2e4, 16)], 48.0**2)
    return listener.heard


@pytest.mark.parametrize("rounds", [rounds_of_a_group, rounds_of_ranks], ids=["groups", "ranks"])
@pytest.mark.parametrize("make", [lambda: FixedInterval(0.5), MultiStage, BinarySearch, NoiseInterval])
def test_any_interval_can_be_told_of_the_rounds_of_groups_and_of_ranks(make, rounds) -> None:
    interval = make()
    interval.first(0.0)
    told = rounds()
    assert len(told) == 12
    for last in told:
        step = interval.next(last)
        assert step.seconds is None or (0.0 <= step.seconds < 1e3 and math.isfinite(step.seconds))
