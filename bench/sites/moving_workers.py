"""Workers that choose their group, on virtual time: who is where over ten minutes, from a seed. Pure.

The decisions are those of `flegel.plan.group_choice`. Loads travel with the beats of groups, and are noisy, late and
the same for everybody who looks within one beat, as in reality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flegel.plan.group_choice import GroupLoad, choose_group

LENGTH = 600.0  # seconds of virtual time
LOOKS = 30.0  # seconds between two looks of a worker
BEAT = 1.0
NOISE = 0.05  # of a load
ROUND_TRIP = 0.01


@dataclass
class WorkerCourse:
    """`moves`: when, which worker, from where, to where."""

    counts: list[int]
    moves: list[tuple[float, int, int, int]] = field(default_factory=list)


def simulate(start: Sequence[int], seed: int, every: float = LOOKS) -> WorkerCourse:
    """Workers by group at the end, and their moves; round trips differ by a tenth from group to group. `every`: seconds
    between two looks of a worker."""
    rng = np.random.default_rng(seed)
    names = [f"g{i}" for i in range(len(start))]
    belongs = [group for group, count in enumerate(start) for _ in range(count)]
    moved_at = [-LENGTH] * len(belongs)
    times = every * rng.random(len(belongs))
    looks = sorted((float(at + every * n), w) for w, at in enumerate(times) for n in range(int(LENGTH / every)))
    told, told_at = list(start), -LENGTH
    course = WorkerCourse([])
    for now, worker in looks:
        if now - told_at >= BEAT:
            told, told_at = [belongs.count(group) for group in range(len(start))], now
        noise = 1.0 + NOISE * rng.normal(size=len(start))
        groups = {
            name: GroupLoad(told[i] * float(noise[i]), told[i], ROUND_TRIP * (1.0 + 0.1 * i))
            for i, name in enumerate(names)
        }
        chosen, _ = choose_group(names[belongs[worker]], groups, now - moved_at[worker])
        target = names.index(chosen)
        if target != belongs[worker]:
            course.moves.append((now, worker, belongs[worker], target))
            belongs[worker], moved_at[worker] = target, now
    course.counts = [belongs.count(group) for group in range(len(start))]
    return course
