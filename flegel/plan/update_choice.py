"""Whether networks make an update of θ at barriers, or of each report as it comes: by measured costs. Pure.

An update from b samples is worth b/(b + B) with the gradient noise scale B (interval/gradient_noise.py). At barriers
all workers add up to one update in each round, which takes their calls of the library and the barrier besides their
samples. Of single reports, each worker's own call and the way to the coordinator and back are all that an update waits
for, so there are as many times more updates as there are workers; but a gradient is then as old as the updates that
others made meanwhile, and is worth less for each of them. Where gradients agree (small B) the number of updates
decides; where they are mostly chance, that of the samples, and barriers lose nothing.

Never sees gradients, workers or a clock: seconds and counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.plan.interval.gradient_noise import best_interval, worth
from flegel.plan.interval.interval import milliseconds
from flegel.wording import counted


@dataclass(frozen=True)
class WorkerCost:
    """A worker: samples a second, and seconds that each of its calls takes besides them."""

    rate: float
    call: float


@dataclass(frozen=True)
class UpdateCosts:
    """What was measured."""

    workers: Sequence[WorkerCost]
    barrier: float
    """φ: seconds of a round in which the average worker does not compute."""
    answer: float
    """Seconds from the end of a worker's computing to its next, where its report alone is folded in."""
    noise: float
    """B, in samples."""


@dataclass(frozen=True)
class UpdateChoice:
    """What is better, and how much."""

    single: bool
    """θ is made of each report as it comes; otherwise at barriers."""
    gain: float
    """Progress a second of single reports, as a multiple of that at barriers."""
    seconds: tuple[float, ...]
    """Of a report of each worker, where reports are folded in one by one."""
    reason: str


def choose_updates(costs: UpdateCosts, single: bool) -> UpdateChoice:
    """The better way; `single`: the present one, which is left only for a clear gain."""
    rules = active().barriers
    at_barriers = barrier_progress(costs)
    reports = [single_report(worker, costs) for worker in costs.workers]
    alone = single_progress(reports, costs)
    gain = alone / at_barriers if at_barriers > 0.0 else math.inf
    chosen = gain > (1.0 / rules.clear_gain if single else rules.clear_gain)
    seconds = tuple(time for _, time in reports)
    spread = max(seconds) / min(seconds)
    what = "an update of each report" if chosen else "an update at each barrier"
    return UpdateChoice(
        chosen,
        gain,
        seconds,
        f"{what}: single reports are worth {gain:.2g} times barriers (φ={milliseconds(costs.barrier)}, "
        f"answer {milliseconds(costs.answer)}, call {milliseconds(max(w.call for w in costs.workers))}, "
        f"{counted(len(costs.workers), 'worker')}, {spread:.2g} times as long at most, noise scale {costs.noise:.3g})",
    )


def barrier_progress(costs: UpdateCosts) -> float:
    """Worth a second of updates at barriers, with the best interval. Every worker's call is in each round."""
    rate = sum(worker.rate for worker in costs.workers)
    # A worker whose call alone outlasts the round is waited for; φ, which is measured, has that waiting.
    call = sorted(worker.call for worker in costs.workers)[len(costs.workers) // 2]
    eta = best_interval(costs.barrier, costs.noise, rate, call)
    samples = max((eta - call) * rate, active().training.batched_call_multiple * len(costs.workers))
    return samples * worth(samples, costs.noise) / (samples / rate + call + costs.barrier)


def single_report(worker: WorkerCost, costs: UpdateCosts) -> tuple[float, float]:
    """Samples and seconds of the best report of a worker, where nobody waits for others. Two of the smallest calls at
    least: from their difference the noise is told."""
    eta = best_interval(costs.answer, costs.noise, worker.rate, worker.call)
    samples = max((eta - worker.call) * worker.rate, 2.0 * active().training.batched_call_multiple)
    return samples, worker.call + samples / worker.rate


def single_progress(reports: Sequence[tuple[float, float]], costs: UpdateCosts) -> float:
    """Worth a second of updates of single reports. Each is worth less for every update that others make while it is
    computed."""
    loss = active().barriers.stale_update_loss
    turns = [seconds + costs.answer for _, seconds in reports]
    updates = sum(1.0 / turn for turn in turns)
    total = 0.0
    for (samples, _), turn in zip(reports, turns, strict=True):
        stale = turn * updates - 1.0
        total += samples * worth(samples, costs.noise) / turn / (1.0 + loss * stale)
    return total
