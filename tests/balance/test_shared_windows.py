"""Points that are lent, sent, returned in part and called off, by real point store and real shared memory, no sockets.

Memory that was lent is mapped at the same place whenever it comes again, so that points may come back by another name
beside an older, inactive copy of them. Every point is somebody's exactly once, is visited at most once under one θ, and
its state counts its visits, wherever they were made.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from flegel.core.shard import TILE, Shard, make_shard
from flegel.machine.worker.point_store import PointStore
from flegel.messages import Window
from flegel.runtime.worker.shared_points import PointSharing, make_shareable

WORKERS, POINTS = 2, 8 * TILE


class World:
    """Workers that train and give each other points, without a coordinator: a die decides."""

    def __init__(self, seed: int, lend: bool) -> None:
        self.die, self.lend = random.Random(seed), lend
        self.store, self.lenders = [], [PointSharing() for _ in range(WORKERS)]
        for worker in range(WORKERS):
            ids = np.arange(worker * POINTS, (worker + 1) * POINTS)
            shard = make_shard(ids[:, None].astype(float), None, np.zeros((POINTS, 1)), ids=ids)
            if lend:
                make_shareable(shard)
            self.store.append(PointStore(shard))
        self.visits = np.zeros(WORKERS * POINTS)
        self.moves: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        self.begun = 0

    def train(self, worker: int) -> None:
        store, seen = self.store[worker], set[int]()
        store.schedule.begin()
        budget = self.die.choice((3, 20, 100)) * TILE
        while budget > 0 and (run := store.schedule.next(self.die.choice((2, 5, 50)) * TILE)):
            reached = self.die.choice((run.end, min(run.start + TILE, run.end)))
            shard = store.shards[run.shard]
            ids = shard.ids[run.start : reached]
            assert np.array_equal(shard.features[run.start : reached, 0], ids)
            assert not seen.intersection(ids.tolist()), "visited twice under one θ"
            seen.update(ids.tolist())
            shard.state[run.start : reached] += 1
            self.visits[ids] += 1
            store.schedule.advance(run, reached)
            budget -= reached - run.start

    def give(self) -> None:
        source, target = self.die.sample(range(WORKERS), 2)
        move, self.begun, kept = self.begun, self.begun + 1, []
        self.store[target].prepare(move, POINTS)
        most = self.die.choice((1, 1, 2, 3, 6, 10)) * TILE
        for number in range(self.die.choice((1, 2, 4, 8))):
            window = self.store[source].cut((move, number), most, target)
            if window is None:
                break
            lent = self.lenders[source].offer(window.whole, window.start) if self.lend else None
            for full in (False, True):
                if self._came(target, source, *window.frames(full, None if full else lent)):
                    kept.append((move, number))
                    break
        self.moves[move] = source, target, kept

    def _came(self, target: int, source: int, body: Window, arrays: list[np.ndarray]) -> bool:
        store = self.store[target]
        borrowed: Shard | None = None
        states: tuple[np.ndarray, ...] = ()
        if body.lent is not None:
            native = store.shards[0]
            states = self.lenders[target].states(body.lent, body.points, native)
            if not body.copied:
                borrowed = self.lenders[target].borrow(body.lent, native)
        if not store.usable(body):
            return False
        store.lay_aside(body, (*states, *arrays), source, borrowed)
        return True

    def settle(self) -> None:
        """Some moves change hands, some in part; some are over, some called off."""
        for move, (source, target, kept) in list(self.moves.items()):
            fate = self.die.random()
            if fate < 0.5:
                some = tuple(kept if self.die.random() < 0.7 else kept[: len(kept) // 2])
                self.store[source].settle(some, ())
                self.store[target].settle((), some)
            if fate < 0.7:
                self.store[source].free(move)
                self.store[target].drop(move)
                del self.moves[move]

    def check(self) -> None:
        held = []
        for store in self.store:
            rows, ids = store.collect()
            assert np.array_equal(rows[:, 0], self.visits[ids])
            held.append(ids)
            for one, next_ in pairwise(store.schedule.segments):
                assert (one.shard, one.end) <= (next_.shard, next_.start) or one.shard < next_.shard, "segments overlap"
        assert np.array_equal(np.sort(np.concatenate(held)), np.arange(WORKERS * POINTS))


@pytest.mark.parametrize("lend", [True, False], ids=["lent", "sent"])
@pytest.mark.parametrize("seed", range(6))
def test_points_that_come_and_go_are_held_once_and_visited_once(seed: int, lend: bool) -> None:
    world = World(seed, lend)
    for _ in range(120):
        for worker in world.die.sample(range(WORKERS), WORKERS):
            world.train(worker)
        if world.die.random() < 0.7:
            world.give()
        world.settle()
        world.check()
