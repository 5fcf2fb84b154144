"""The points of a checkpoint: what each worker held, and the same points for another number of workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from flegel.core.key_borders import nearest_borders
from flegel.core.pytree import Array
from flegel.messages import CheckpointPart


@dataclass(frozen=True)
class WorkerState:
    """What one worker held: numbers of its points in their order, state and votes of each; what it had not reported."""

    kept: CheckpointPart
    ids: Array
    state: Array
    halted: Array
    pending: tuple[Array, ...] = ()

    @property
    def points(self) -> int:
        return len(self.ids)

    def frames(self) -> tuple[Array, ...]:
        """As they travel behind `LoadShard`."""
        return (self.state, self.halted, self.ids, *self.pending)


def unvisited(part: WorkerState, state: Array) -> WorkerState:
    """The same points before their first visit."""
    kept = msgspec.structs.replace(part.kept, runs=((part.points, 0),), visits=0, compute=0.0)
    return WorkerState(kept, part.ids, state, np.zeros_like(part.halted))


def nothing_of(part: WorkerState) -> WorkerState:
    """No points, of the same kind: for a worker that rests."""
    return WorkerState(CheckpointPart(part.kept.number, ()), part.ids[:0], part.state[:0], part.halted[:0])


def redeal(parts: Sequence[WorkerState], count: int, keys: Array | None = None) -> list[WorkerState]:
    """The same points in the same order for another number of workers, nearly equally many each; whole keys where
    `keys`, by number of a row, stay together.

    Nothing is lost: states, votes and passes go with their points. Visits that were not yet reported (`psp`) go to the
    first worker in sum.
    """
    ids = np.concatenate([p.ids for p in parts])
    state = np.concatenate([p.state for p in parts])
    halted = np.concatenate([p.halted for p in parts])
    runs = [run for p in parts for run in p.kept.runs]
    places = np.linspace(0, len(ids), count + 1).round().astype(int)
    edges = (places if keys is None else nearest_borders(keys[ids], places)).tolist()
    pending = [p for p in parts if p.pending]
    dealt: list[WorkerState] = []
    for worker in range(count):
        lo, hi = edges[worker], edges[worker + 1]
        visits, compute, extra = 0, 0.0, ()
        if pending and worker == 0:
            visits, compute = sum(p.kept.visits for p in pending), sum(p.kept.compute for p in pending)
            extra = tuple(np.sum(fields, axis=0) for fields in zip(*(p.pending for p in pending), strict=True))
        kept = CheckpointPart(parts[0].kept.number, _cut(runs, lo, hi), visits, compute, version=1)
        dealt.append(WorkerState(kept, ids[lo:hi], state[lo:hi], halted[lo:hi], extra))
    return dealt


def _cut(runs: list[tuple[int, int]], lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    """The runs of points lo … hi-1, neighbours with the same passes joined."""
    found: list[tuple[int, int]] = []
    at = 0
    for points, passes in runs:
        inside = min(at + points, hi) - max(at, lo)
        at += points
        if inside <= 0:
            continue
        if found and found[-1][1] == passes:
            found[-1] = (found[-1][0] + inside, passes)
        else:
            found.append((inside, passes))
    return tuple(found)
