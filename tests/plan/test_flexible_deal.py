"""Claims on an epoch: every position once, whatever the speeds; all ranks finish together."""

from __future__ import annotations

import math
import random

import pytest

from flegel.configuration.active import active
from flegel.torch.flexible.deal import Deal, RankProgress, level
from flegel.torch.flexible.pace import (
    BarrierPace,
    RankReport,
    RankTimings,
    learning_rate_factor,
    rule_of,
)


def positions_of(deal: Deal) -> list[int]:
    return sorted(p for start, end in deal.trained_spans() for p in range(start, end))


def play(
    positions: int, speeds: list[float], batch: int, seed: int = 0, ahead: int = 0, least: int = 1
) -> tuple[Deal, list[float]]:
    """An epoch with speeds that scatter, read in batches by loaders that read ahead; returns the deal and each rank's
    seconds in the last interval."""
    draw, ranks = random.Random(seed), len(speeds)
    deal, interval = Deal(positions, ranks), 20 * batch / max(speeds)
    deal.least = least
    deal.begin([], interval, ahead)
    for barrier in range(10_000):
        progress, seconds = [], [0.0] * ranks
        for rank, speed in enumerate(speeds):
            window, drawn, last = 0, 0, False
            while not last:
                left = deal.outstanding(rank) - window
                assert left >= least, "every rank takes part in every barrier"
                window += min(batch, left)
                drawn = max(drawn, min(deal.claimed(rank), deal.trained[rank] + window + ahead))
                unread = deal.claimed(rank) - drawn
                in_time = barrier == 0 or seconds[rank] + 1.5 * batch / speed > interval
                last = deal.is_last(rank, window, unread, batch, in_time)
                seconds[rank] += min(batch, left) / speed * draw.uniform(0.7, 1.3)
            closed = not deal.final and unread == 0 and (ahead > 0 or left < batch)
            rate = speed * draw.uniform(0.9, 1.1)
            progress.append(RankProgress(window, rate, drawn - deal.trained[rank] - window, closed))
        deal.advance(progress, interval, batch, ahead, least)
        if deal.done:
            return deal, seconds
    raise AssertionError("the epoch does not end")


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_trained_once(seed: int) -> None:
    draw = random.Random(seed)
    ranks = draw.randint(1, 9)
    speeds = [10 ** draw.uniform(1, 3) for _ in range(ranks)]
    positions = draw.randint(ranks, 20_000)
    deal, _ = play(positions, speeds, draw.choice([1, 7, 32]), seed, draw.choice([0, 64]))
    assert positions_of(deal) == list(range(positions))
    assert sum(deal.trained) == positions


@pytest.mark.parametrize("ahead", [0, 128])
@pytest.mark.parametrize("positions", [2, 37, 64, 127, 128, 129, 191, 192, 255, 256, 257, 300, 383, 385, 511, 513])
def test_an_epoch_of_a_few_batches_is_trained_to_its_end(positions: int, ahead: int) -> None:
    """Less than four batches for each of two ranks: the first claims are made before anybody knows the batch."""
    deal, _ = play(positions, [100.0, 100.0], 64, ahead=ahead)
    assert positions_of(deal) == list(range(positions))


@pytest.mark.parametrize("positions", [257, 300, 700, 5000])
def test_what_is_less_than_an_iteration_is_left_at_the_end_of_an_epoch(positions: int) -> None:
    """Gradients of four batches are accumulated, or the loader drops a smaller batch: no barrier waits for the rest."""
    deal, _ = play(positions, [100.0, 800.0], 64, least=64)
    assert positions - 2 * 64 < sum(deal.trained) <= positions


def test_a_rank_without_samples_ends_the_barriers_of_the_epoch() -> None:
    """Loaders with batches of 150 and of 64: no barrier waits for a rank that has nothing left."""
    deal = Deal(300, 2)
    deal.begin([], 1.0, 0)
    deal.advance([RankProgress(150, 100.0, 0, closed=True), RankProgress(64, 100.0, 0)], 1.0, 150, 0)
    assert deal.done and deal.outstanding(1) == 86, "which it trains without a barrier"


def test_the_end_of_an_epoch_has_barriers_by_time() -> None:
    deal = Deal(1200, 2, 10)
    deal.begin([100.0, 100.0], 1.0, 0)
    deal.advance([RankProgress(300, 100.0, 0), RankProgress(300, 100.0, 0)], 1.0, 10, 0)
    deal.advance([RankProgress(100, 100.0, 0), RankProgress(100, 100.0, 0)], 1.0, 10, 0)
    assert deal.final and deal.barriers_left == 2, "200 samples each, two intervals"
    assert deal.is_last(0, 100, 100, 10, in_time=True)
    assert not deal.is_last(0, 180, 20, 10, in_time=False)
    assert deal.is_last(0, 190, 10, 10, in_time=False), "one micro-batch is left for the last barrier"


def test_ranks_of_unequal_speed_finish_together() -> None:
    _, seconds = play(100_000, [100.0, 800.0, 800.0, 800.0], 10)
    assert max(seconds) - min(seconds) < 0.3 * max(seconds) + 10 / 100.0, "rates scatter by a tenth; a batch is 0.1 s"


def test_an_interrupted_epoch_goes_on_with_another_number_of_ranks() -> None:
    deal = Deal(1000, 3, 10)
    deal.begin([10.0, 20.0, 30.0], 1.0, 0)
    deal.advance([RankProgress(10, 10.0, 0), RankProgress(20, 20.0, 0), RankProgress(30, 30.0, 0)], 1.0, 10, 0)
    before = {p for start, end in deal.trained_spans() for p in range(start, end)}
    assert len(before) == 60
    resumed = Deal(1000, 2, 10, skipped=tuple(deal.trained_spans()))
    resumed.begin([], 1.0, 0)
    while any(resumed.outstanding(rank) for rank in range(2)):
        counts = [min(50, resumed.outstanding(rank)) for rank in range(2)]
        resumed.advance([RankProgress(c, 50.0, 0) for c in counts], 1.0, 10, 0)
    assert positions_of(resumed) == list(range(1000))
    assert sum(resumed.trained) == 940


def test_shares_add_up_and_leave_nobody_without_work() -> None:
    assert sum(level([5, 0, 0], [1.0, 1.0, 50.0], 97, 8, [5, 0, 0])) == 97
    assert all(h + s > 0 for h, s in zip([0, 0, 0], level([0] * 3, [1.0, 1e-6, 100.0], 30, 8, [0] * 3), strict=True))


def test_a_rank_stops_with_the_micro_batch_that_ends_nearest_to_the_deadline() -> None:
    own = RankTimings()
    own.open(0.0)
    assert own.is_last(0.0, 1.0), "nothing is known yet"
    own.begin(0.0)
    own.ready(0.25)
    own.open(1.0)
    decisions = []
    for k in range(4):
        decisions.append(own.is_last(1.0 + 0.26 * k, 1.0))
        own.begin(1.0 + 0.26 * k)
    assert decisions == [False, False, False, True], "a little late, and still four"


def test_the_interval_is_never_shorter_than_the_slowest_micro_batch_and_grows_with_noise() -> None:
    pace = BarrierPace()
    quiet = [RankReport(32, 0.1, 0.1, 0.2, 32.0**2, 32), RankReport(32, 0.8, 0.8, 0.9, 32.0**2, 32)]
    pace.barrier(quiet, 0.0)
    pace.barrier(quiet, 64.0**2)
    assert pace.interval == 0.8
    noisy = [RankReport(r.samples, r.seconds, r.unit, r.cost, 40 * r.square, r.batch) for r in quiet]
    pace.barrier(noisy, 64.0**2 * 1.01)
    assert pace.interval == 0.8, "a single estimate is mostly chance"
    for _ in range(40):
        pace.barrier(noisy, 64.0**2 * 1.01)
    assert pace.interval == pytest.approx(active().interval.max_interval_costs * 0.2), (
        "barriers take 5 % then: nothing is won by longer intervals"
    )
    slower = [RankReport(r.samples, r.seconds, 1.1 * r.unit, r.cost, r.square, r.batch) for r in noisy]
    pace.barrier(slower, 64.0**2 * 1.01)
    assert pace.interval == pytest.approx(5 * 0.88), "whole micro-batches of the slowest rank"
    assert BarrierPace(fixed=0.3).interval == 0.0


def test_one_delay_lengthens_no_interval() -> None:
    own = RankTimings()
    for k in range(8):
        own.open(float(k))
        own.begin(float(k))
        own.ready(k + (0.9 if k == 6 else 0.1))
    assert own.typical == pytest.approx(0.1)


def test_what_a_rank_does_between_barriers_is_its_time_but_for_evaluation_and_the_first_start() -> None:
    own = RankTimings()
    own.open(0.0)
    own.begin(30.0)
    assert own.ready(30.1) == pytest.approx(0.1), "loaders and kernels start once"
    own.open(31.0)
    own.begin(31.7)  # the batch came late
    own.begin(32.4)
    assert own.ready(32.6) == pytest.approx(1.6)
    assert own.mean_batch_seconds[-1] == pytest.approx(0.8)
    own.open(33.0)
    own.exclude(5.0)
    own.begin(38.2)
    assert own.ready(38.3) == pytest.approx(0.3), "5 s of evaluation, 0.2 s of reading, 0.1 s of computing"


@pytest.mark.parametrize("computing", [0.2, 1.0])
def test_slow_reading_that_depends_on_content_does_not_bias_the_gradient(computing: float) -> None:
    """A sample's gradient equals the seconds that it takes to be read (mean 1, exponential)."""
    draw, own, now, total, count = random.Random(1), RankTimings(), 0.0, 0.0, 0
    for _ in range(20_000):
        own.open(now)
        last = False
        while not last:
            cost = draw.expovariate(1.0)
            now += cost
            last = own.is_last(now, 6.0)
            own.begin(now)
            total, count = total + cost, count + 1
            now += computing
        own.ready(now)
    assert count > 2.5 * 20_000, "several in an interval"
    assert total / count == pytest.approx(1.0, abs=0.015), "four deviations of the mean"


@pytest.mark.parametrize(
    ("rule", "scale", "factor"),
    [
        ("none", 1e9, 1.0),
        ("linear", None, 9.0),
        ("sqrt", None, 3.0),
        ("adascale", None, 1.0),  # nothing is known yet
        ("adascale", 1e9, 9.0),  # all noise: in proportion
        ("adascale", 1e-9, 1.0),  # no noise: a larger batch is worth nothing
    ],
)
def test_the_learning_rate_follows_the_samples_of_a_step(rule: str, scale: float | None, factor: float) -> None:
    assert learning_rate_factor(rule, 288.0, 32.0, scale) == pytest.approx(factor, rel=1e-5)
    assert learning_rate_factor(rule, 32.0, 32.0, scale) == pytest.approx(1.0)


def test_the_rule_follows_the_optimizer() -> None:
    kinds = {name: type(name, (), {}) for name in ("SGD", "AdamW", "Lion")}
    assert [rule_of(kind) for kind in kinds.values()] == ["adascale", "sqrt", "none"]
    assert rule_of(type("Own", (kinds["AdamW"],), {})) == "sqrt"


def test_gradients_that_are_not_finite_tell_nothing_about_noise() -> None:
    pace = BarrierPace()
    for square, pooled in ((1.0, math.inf), (math.nan, 4.0), (1.0, math.nan)):
        pace.barrier([RankReport(8, 1.0, 1.0, 0.1, square, 8)] * 2, pooled)
    assert pace.noise.scale is None and pace.interval == 1.0


@pytest.mark.parametrize(("pool", "batch"), [(3, 8), (12, 4), (7, 4)])
def test_the_last_samples_are_divided_so_that_every_rank_has_some(pool: int, batch: int) -> None:
    """Shares were those of what earlier ranks had left over, so the last ranks of a short epoch got nothing."""
    shares = level([0, 0, 0], [1.0, 2.0, 3.0], pool, batch, [0, 0, 0])
    assert sum(shares) == pool and min(shares) >= pool // 3


def test_a_rest_that_is_too_small_for_a_step_of_all_ranks_ends_the_epoch() -> None:
    deal = Deal(30, 3, 4, [(0, 28)])
    deal.begin([], 0.0, 0)
    assert deal.done and [deal.claimed(rank) for rank in range(3)] == [1, 1, 0]
    deal = Deal(30, 3, 4, [(0, 26)])
    deal.begin([], 0.0, 0)
    assert not deal.done
