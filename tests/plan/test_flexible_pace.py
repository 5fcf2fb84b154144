"""When ranks count as equally fast, and how long intervals are where they are not. Pure."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flegel.torch.flexible.pace import REPORT_FIELDS, BarrierPace, RankReport, RankTimings


def reports(units: list[float], seconds: list[float] | None = None) -> list[RankReport]:
    return [RankReport(8.0, own, unit, 0.001, batch=8.0) for unit, own in zip(units, seconds or units, strict=True)]


def after(pace: BarrierPace, barriers: int, units: list[float]) -> bool:
    for _ in range(barriers):
        pace.barrier(reports(units), 0.0)
    return pace.even


def test_equal_ranks_train_one_micro_batch_for_each_barrier_and_measure_nothing() -> None:
    pace = BarrierPace()
    assert after(pace, 50, [0.010, 0.011, 0.013, 0.012])
    assert pace.interval == 0.013 and not any(pace.measures(at) for at in range(50))


def test_a_rank_that_is_half_as_fast_again_ends_that_and_one_that_recovers_restores_it() -> None:
    pace = BarrierPace()
    after(pace, 10, [0.010] * 4)
    assert not after(pace, 1, [0.010, 0.010, 0.010, 0.016])
    assert pace.interval >= 0.016 and pace.measures(1)
    assert not after(pace, 50, [0.010, 0.010, 0.010, 0.014]), "within the limit, but it was above"
    assert after(pace, 50, [0.010, 0.010, 0.010, 0.012])


def test_a_single_delay_changes_nothing_and_repeated_ones_make_intervals_longer() -> None:
    pace = BarrierPace()
    units = [0.01] * 4
    after(pace, 10, units)
    pace.barrier(reports(units, [0.01, 0.01, 0.01, 1.0]), 0.0)
    assert pace.even and pace.interval == 0.01
    draw = random.Random(0)
    for _ in range(60):
        late = 1.0 if draw.random() < 0.5 else 0.01
        pace.barrier(reports(units, [0.01, 0.01, 0.01, late]), 0.0)
    assert not pace.even and 0.4 < pace.interval < 1.2, "twice the mean wait"


def test_an_interval_that_was_given_is_kept() -> None:
    pace = BarrierPace(fixed=0.2)
    assert not after(pace, 20, [0.01] * 4) and pace.interval == 0.2


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_counts_survive_the_mean_over_ranks_in_32_bits(ranks: int) -> None:
    sent = RankReport(*(float(1_000_003 + at) for at in range(REPORT_FIELDS)))
    table = np.zeros((ranks, REPORT_FIELDS), dtype=np.float32)
    table[1] = np.array(sent, dtype=np.float32) / np.float32(ranks)
    found = RankReport.of_means(table)[1]
    assert found.samples == sent.samples and found.taken == sent.taken and found.barrier == sent.barrier


def gain_over_ddp(ranks: int, micro_batch: float, slow: int, pause: float, seconds: float = 60.0) -> float:
    """Micro-batches a second on virtual time, over those of DDP. The last rank sleeps `slow` - 1 times as long as it
    has computed, as soon as that is more than `pause` seconds."""
    cost = 0.002
    pace, timings = BarrierPace(), [RankTimings() for _ in range(ranks)]
    now, computed, made = 0.0, 0.0, 0
    while now < seconds:
        for one in timings:
            one.open(now)
        ends, counts = [], []
        for rank, one in enumerate(timings):
            at, count, last = now, 0, False
            while not last:
                one.begin(at)
                last = pace.even or one.is_last(at, pace.interval)
                at, count = at + micro_batch, count + 1
                if rank == ranks - 1:
                    computed += micro_batch
                    if (slow - 1) * computed > pause:
                        at, computed = at + (slow - 1) * computed, 0.0
            ends.append(at)
            counts.append(count)
        told = [
            RankReport(8.0 * count, end - now, one.typical or end - now, cost, batch=8.0)
            for one, end, count in zip(timings, ends, counts, strict=True)
        ]
        for one, end in zip(timings, ends, strict=True):
            one.ready(end)
        pace.barrier(told, 0.0)
        now, made = max(ends) + cost, made + sum(counts)
    return made / now / (ranks / (slow * micro_batch + cost))


@pytest.mark.parametrize("micro_batch", [0.003, 0.01, 0.04])
def test_eight_ranks_of_which_one_is_eight_times_slower(micro_batch: float) -> None:
    assert gain_over_ddp(8, micro_batch, slow=8, pause=0.0) > 5.0, "in every micro-batch"
    assert gain_over_ddp(8, micro_batch, slow=8, pause=1.0) > 4.0, "by pauses of a second and more"
    assert gain_over_ddp(8, micro_batch, slow=1, pause=0.0) == pytest.approx(1.0, rel=1e-6), "equal ranks"
