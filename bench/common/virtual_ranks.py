"""Ranks of FlexibleDDP on virtual time: the rules of its intervals, without processes, messages or gradients."""

from __future__ import annotations

from flegel.plan.interval.gradient_noise import gain
from flegel.torch.flexible.pace import BarrierPace, RankReport, RankTimings


def gains_over_ddp(
    ranks: int, micro_batch: float, slow: int, pause: float, noise: float = 1e6, seconds: float = 60.0
) -> tuple[float, float]:
    """Micro-batches a second on virtual time, and progress a second in steps of DDP, both over those of DDP. The last
    rank sleeps `slow` - 1 times as long as it has computed, as soon as that is more than `pause` seconds. Gradients
    have the noise scale `noise`, in samples."""
    cost, reference = 0.002, 8.0 * ranks
    pace, timings = BarrierPace(), [RankTimings() for _ in range(ranks)]
    now, computed, made, progress = 0.0, 0.0, 0, 0.0
    squares, pooled = [0.0] * ranks, 0.0
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
            RankReport(8.0 * count, end - now, one.typical or end - now, cost, square, batch=8.0)
            for one, end, count, square in zip(timings, ends, counts, squares, strict=True)
        ]
        for one, end in zip(timings, ends, strict=True):
            one.ready(end)
        measured = pace.measures(0)
        pace.barrier(told, pooled)
        samples = 8.0 * sum(counts)
        squares = [(8.0 * count) ** 2 + 8.0 * count * noise if measured else 0.0 for count in counts]
        pooled = samples**2 + samples * noise if measured else 0.0
        now, made, progress = max(ends) + cost, made + sum(counts), progress + gain(samples, reference, noise)
    step = slow * micro_batch + cost
    return made / now / (ranks / step), progress / now * step
