"""Which workers should train and which should rest, for the most progress a second. Pure arithmetic.

A worker adds its points a second and makes every barrier longer. With R points a second, barriers of φ seconds and
rounds of a part x of a pass over N points, progress a second is x·g(x) / (x·N/R + φ), where g is what a visit is worth
in such a round (plan/interval). This is compared for the fastest k workers, each k with its best x. The functions here
never see a worker's points, and do not decide when to act: machine/resting/resting_control.py does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from flegel.configuration.active import active
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array
from flegel.plan.interval.interval import PARTS, milliseconds

BarrierCost = Callable[[int], float]
"""From a number of workers to seconds."""


@dataclass(frozen=True)
class ValueOfVisits:
    """What visits are worth, and what is fixed about rounds."""

    points: float
    """Of a pass."""
    by_part: Array | None = None
    """g at `PARTS`, where the algorithm says so; 1 − κx otherwise."""
    noise: float | None = None
    """The gradient noise scale, for gradient methods."""
    interval: float | None = None
    """Seconds between barriers, where the user chose them."""


@dataclass(frozen=True)
class ActiveWorkers:
    """Who should train and who should rest, and by how much progress a second grows by it (`gain`, relative)."""

    working: tuple[int, ...]
    resting: tuple[int, ...]
    gain: float
    reason: str = ""


class BarrierCosts:
    """Measured costs of barriers by the number of workers; a straight line between and beyond what was seen."""

    def __init__(self) -> None:
        self._cost_by_workers: dict[int, float] = {}

    def add(self, workers: int, seconds: float) -> None:
        rules = active().resting
        before = self._cost_by_workers.get(workers)
        self._cost_by_workers[workers] = (
            seconds if before is None else rules.cost_memory * before + (1.0 - rules.cost_memory) * seconds
        )

    def at(self, workers: int) -> float:
        """Seconds of a barrier of so many workers."""
        rules = active().resting
        if workers in self._cost_by_workers:
            return self._cost_by_workers[workers]
        if not self._cost_by_workers:
            return first_cost(workers)
        near = sorted(self._cost_by_workers, key=lambda n: (abs(n - workers), n))[:2]
        cost, ratio = self._cost_by_workers[near[0]], workers / near[0]
        if len(near) == 1:
            return cost * (1.0 - rules.growing_cost + rules.growing_cost * ratio)
        slope = max((self._cost_by_workers[near[1]] - cost) / (near[1] - near[0]), 0.0)
        return max(cost + slope * (workers - near[0]), cost * min(ratio, 1.0))


def first_cost(workers: int) -> float:
    """Seconds of a barrier, before any was seen."""
    rules = active().resting
    return rules.first_barrier_seconds + rules.first_barrier_seconds_each * (workers - 1)


def progress(rate: float, barrier: float, value: ValueOfVisits) -> float:
    """Progress a second, in visits that are worth as much as the first ones of a pass, in the best rounds."""
    if rate <= 0.0:
        return 0.0
    if value.interval is not None:
        return rate * value.interval / (value.interval + barrier)
    if value.noise is not None:  # at b = √(φ·B·R), see plan/interval/gradient_noise
        return (1.0 / math.sqrt(rate) + math.sqrt(barrier / value.noise)) ** -2
    each = 1.0 - active().interval.expected_loss * PARTS if value.by_part is None else value.by_part
    return float(value.points * np.max(PARTS * each / (PARTS * value.points / rate + barrier)))


def best_active_workers(
    rates: Mapping[int, float], present: Collection[int], cost: BarrierCost, value: ValueOfVisits
) -> ActiveWorkers:
    """The fastest k workers, for the k with the most progress. `rates`: of all workers, resting ones among them;
    `present`: those that train now."""
    order = sorted(rates, key=lambda worker: (-rates[worker], worker))
    fast = active().resting.may_rest_below * rates[order[0]]
    least = sum(rates[worker] >= fast for worker in order)
    speeds = np.cumsum([rates[worker] for worker in order])
    found = {k: progress(float(speeds[k - 1]), cost(k), value) for k in _sizes(least, len(order), len(present))}
    best = max(found, key=lambda k: (found[k], k))
    now = progress(sum(rates[worker] for worker in present), cost(len(present)), value)
    working, resting = tuple(sorted(order[:best])), tuple(sorted(order[best:]))
    gain = found[best] / now - 1.0 if now > 0.0 else math.inf
    return ActiveWorkers(working, resting, gain, _reason(rates, present, working, resting, cost))


def _sizes(least: int, most: int, present: int) -> list[int]:
    """Numbers of workers that are compared: all where they are few, else about sixty, and the present one."""
    if most - least <= 64:  # few
        return list(range(least, most + 1))
    chosen = np.linspace(least, most, 60).round().astype(int).tolist()
    return sorted({*chosen, min(max(present, least), most)})


def _reason(
    rates: Mapping[int, float],
    present: Collection[int],
    working: tuple[int, ...],
    resting: tuple[int, ...],
    cost: BarrierCost,
) -> str:
    """The sentence that users read: who rests or is called back, their speed, and what barriers cost with them."""
    back = [worker for worker in working if worker not in present]
    others = back or resting
    if not others:
        return "all workers train"
    rest = sum(rates[worker] for worker in working if worker not in others)
    added = sum(rates[worker] for worker in others) / max(rest, SMALLEST_DIVISOR)
    few, many = (len(present), len(working)) if back else (len(working), len(rates))
    more = milliseconds(max(cost(many) - cost(few), 0.0))
    if back:
        return (
            f"{len(back)} of {len(rates)} workers are called back: together they add {added:.0%} to the speed, and "
            f"each barrier costs {more} more with them"
        )
    return (
        f"{len(resting)} of {len(rates)} workers rest: together they would add {added:.0%} to the speed, and each "
        f"barrier would cost {more} more with them"
    )
