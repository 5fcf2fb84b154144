"""When ranks count as equally fast, and how long intervals are where they are not. Pure."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.common.virtual_ranks import gains_over_ddp
from flegel.torch.flexible.pace import REPORT_FIELDS, BarrierPace, RankReport


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


@pytest.mark.parametrize(("noise", "shortest", "longest"), [(1e6, 0.4, 1.2), (10.0, 0.01, 0.01)])
def test_a_single_delay_changes_nothing_and_repeated_ones_make_intervals_longer_where_that_is_worth_it(
    noise: float, shortest: float, longest: float
) -> None:
    pace = BarrierPace()
    units = [0.01] * 4
    after(pace, 10, units)
    pace.barrier(reports(units, [0.01, 0.01, 0.01, 1.0]), 0.0)
    assert pace.even and pace.interval == 0.01
    draw = random.Random(0)
    for _ in range(60):
        late = 1.0 if draw.random() < 0.5 else 0.01
        told = [one._replace(square=64.0 + 8.0 * noise) for one in reports(units, [0.01, 0.01, 0.01, late])]
        pace.barrier(told, 1024.0 + 32.0 * noise)
    assert not pace.even and shortest <= pace.interval <= longest, "twice the mean wait, or one micro-batch"


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


@pytest.mark.parametrize("micro_batch", [0.003, 0.01, 0.04])
def test_eight_ranks_of_which_one_is_eight_times_slower(micro_batch: float) -> None:
    assert gains_over_ddp(8, micro_batch, slow=8, pause=0.0)[0] > 5.0, "in every micro-batch"
    assert gains_over_ddp(8, micro_batch, slow=8, pause=1.0)[0] > 4.0, "by pauses of a second and more"
    assert gains_over_ddp(8, micro_batch, slow=1, pause=0.0)[0] == pytest.approx(1.0, rel=1e-6), "equal ranks"


@pytest.mark.parametrize("noise", [20.0, 200.0, 2_000.0, 20_000.0])
@pytest.mark.parametrize("micro_batch", [0.003, 0.01, 0.04])
@pytest.mark.parametrize("pause", [0.0, 0.2, 1.0])
def test_larger_steps_never_progress_slower_than_steps_of_ddp(micro_batch: float, pause: float, noise: float) -> None:
    """Where gradients have little noise, many small steps are better than few large ones, and samples do not count."""
    assert gains_over_ddp(8, micro_batch, slow=8, pause=pause, noise=noise)[1] > 0.95


def test_a_first_micro_batch_that_is_compiled_does_not_lengthen_what_equal_ranks_claim() -> None:
    """An interval of seconds at a rate of milliseconds is a whole epoch, which then ended with its second barrier."""
    pace = BarrierPace()
    pace.barrier([RankReport(samples=8, seconds=16.0, unit=16.0, batch=8)] * 2, 0.0)
    pace.barrier([RankReport(samples=8, seconds=0.03, unit=8.0, batch=8)] * 2, 0.0)
    assert pace.even and pace.interval == 0.03
