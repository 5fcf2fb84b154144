"""Sums over the numbers of points, from which it is seen that workers hold each point once. Arrays only, no decisions.

A point's number i counts as q(i) = A·i + B·i² + C·i³ modulo 2⁶². The sum of all i below n has a closed form, so the
coordinator looks at no number, and one point twice for another that is missing changes the sum, as do other exchanges
but for one in 2⁶². (Scrambled numbers instead cost the coordinator 0.2 s at each audit of ten million points.) Workers
sum their numbers while they load.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Shard

OWNER_SUM_MODULUS = 1 << 62  # of the sums of point numbers, which then fit into 64 bits
A, B, C = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB  # odd, without a relation to each other
NUMBERS_PER_KEPT_SUM = 1 << 12
"""Point numbers between two sums that are kept."""
NUMBERS_PER_CALL = 16 * NUMBERS_PER_KEPT_SUM
"""They fit into the cache, and calls are few: workers in threads share the interpreter's lock."""


def sum_of(ids: Array) -> int:
    """Σ q(i) of these numbers."""
    return int(_sums(ids).sum(dtype=np.uint64)) % OWNER_SUM_MODULUS


def sum_below(points: int) -> int:
    """Σ q(i) of all i below `points`."""
    n = points - 1
    first = n * (n + 1) // 2
    # Sums of i and of i².
    return (A * first + B * (n * (n + 1) * (2 * n + 1) // 6) + C * first * first) % OWNER_SUM_MODULUS


def _sums(ids: Array) -> Array:
    """Σ q(i) of each chunk, modulo 2⁶⁴, of which 2⁶² is a divisor."""
    found = np.zeros(-(-len(ids) // NUMBERS_PER_KEPT_SUM), np.uint64)
    a, b, c = np.uint64(A), np.uint64(B), np.uint64(C)
    room = np.zeros(min(NUMBERS_PER_CALL, len(found) * NUMBERS_PER_KEPT_SUM), np.uint64)
    for at in range(0, len(ids), NUMBERS_PER_CALL):
        i = ids[at : at + NUMBERS_PER_CALL].astype(np.uint64, copy=False)
        q = np.multiply(i, c, out=room[: len(i)])
        q += b
        q *= i
        q += a
        q *= i
        room[len(i) :] = 0
        sums = room.reshape(-1, NUMBERS_PER_KEPT_SUM).sum(axis=1, dtype=np.uint64)
        found[at // NUMBERS_PER_KEPT_SUM : at // NUMBERS_PER_KEPT_SUM + len(sums)] = sums[
            : len(found) - at // NUMBERS_PER_KEPT_SUM
        ]
    return found


class OwnedNumbers:
    """Sums of the numbers of the points here; those of the loaded points in chunks, others by run."""

    def __init__(self) -> None:
        self._loaded: tuple[Array, Array] | None = None
        """Numbers, and Σ q of those before each chunk."""
        self._known: dict[tuple[int, int, int], tuple[Array, int]] = {}
        """By array of numbers (which is kept, so that no other has its id), start and end."""

    def learn(self, ids: Array) -> None:
        """The points that this worker begins with."""
        self._loaded = (ids, np.concatenate([np.zeros(1, np.uint64), np.cumsum(_sums(ids), dtype=np.uint64)]))

    def count(self, runs: Sequence[tuple[Shard, int, int]]) -> tuple[int, int]:
        """How many points these are, and the sum of their numbers: all workers together have each number once."""
        points = total = 0
        found = {}
        for shard, start, end in runs:
            points += end - start
            if self._loaded is not None and shard.ids is self._loaded[0]:
                total += self._between(start, end)
                continue
            key = (id(shard.ids), start, end)
            found[key] = self._known.get(key) or (shard.ids, sum_of(shard.ids[start:end]))
            total += found[key][1]
        self._known = found
        return points, total % OWNER_SUM_MODULUS

    def _between(self, start: int, end: int) -> int:
        """Checksum of the ids of loaded points `start` to `end`: from kept sums where whole chunks lie between, the
        rest anew."""
        assert self._loaded is not None
        ids, before = self._loaded
        first, last = -(-start // NUMBERS_PER_KEPT_SUM), end // NUMBERS_PER_KEPT_SUM
        if first >= last:
            return sum_of(ids[start:end])
        whole = int(before[last]) - int(before[first])
        return (
            whole + sum_of(ids[start : first * NUMBERS_PER_KEPT_SUM]) + sum_of(ids[last * NUMBERS_PER_KEPT_SUM : end])
        )
