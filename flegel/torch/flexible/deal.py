"""Who trains which part of an epoch: claims of all ranks on one shuffled list of positions. Pure.

Every rank computes the same claims from numbers that all ranks have (counts, rates), so nobody has to be asked. Each
rank holds enough claims for two intervals and for what its loader reads ahead; the rest is a pool from which faster
ranks take more. When the pool is nearly empty it is divided so that all ranks finish at about the same time, and the
epoch ends with one common barrier. Never reads a clock and never sees data.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

INTERVALS_AHEAD = 2.0  # of training that a rank's claims cover: one that runs and one of reserve
FIRST_PART = 4  # at the first start, with unknown rates, ranks together claim one part in four of the epoch

Span = tuple[int, int]


@dataclass(frozen=True)
class RankProgress:
    """One rank's numbers of one barrier."""

    samples: int
    rate: float
    """Samples a second while it trained."""
    ahead: int
    """Samples that its loader has taken and the model has not seen."""


class Deal:
    """The claims of one epoch. `skipped`: spans that an earlier, interrupted run of this epoch has trained."""

    def __init__(self, positions: int, ranks: int, batch: int = 1, skipped: Sequence[Span] = ()) -> None:
        self.ranks, self.batch = ranks, batch
        """The largest micro-batch so far: claims end at a multiple of it, so only one batch of an epoch is smaller."""
        self.skipped = tuple(skipped)
        self.trained = [0] * ranks
        self.final = False
        """Nothing is left to claim: every rank trains its claims and synchronizes with its last micro-batch."""
        self.version = 0
        """Counts changes of claims."""
        self._free = _without(positions, skipped)
        self._claims: list[list[Span]] = [[] for _ in range(ranks)]
        self._ends: list[list[int]] = [[] for _ in range(ranks)]  # claims before the end of each span

    @property
    def pool(self) -> int:
        return sum(end - start for start, end in self._free)

    def claimed(self, rank: int) -> int:
        return self._ends[rank][-1] if self._ends[rank] else 0

    def outstanding(self, rank: int) -> int:
        return self.claimed(rank) - self.trained[rank]

    def position(self, rank: int, number: int) -> int:
        """The rank's claim of this number, from 0 in the order in which it reads them."""
        at = bisect_right(self._ends[rank], number)
        return self._claims[rank][at][1] - (self._ends[rank][at] - number)

    def run(self, rank: int, number: int) -> tuple[int, int]:
        """Positions are numbers plus an offset as long as numbers stay below a limit: that limit, and the offset."""
        at = bisect_right(self._ends[rank], number)
        return self._ends[rank][at], self._claims[rank][at][1] - self._ends[rank][at]

    def begin(self, rates: Sequence[float], interval: float, ahead: int) -> None:
        """First claims of the epoch; without known rates every rank gets an equal part."""
        if any(rates):
            self.advance([RankProgress(0, rate, 0) for rate in rates], interval, self.batch, ahead)
            return
        each = self.pool // (FIRST_PART * self.ranks)
        if each < 1 or self.pool < 2 * FIRST_PART * self.ranks:
            self._divide([1.0] * self.ranks)
        else:
            for rank in range(self.ranks):
                self._claim(rank, each)

    def advance(self, progress: Sequence[RankProgress], interval: float, batch: int, ahead: int) -> None:
        """After a barrier: count what was trained, take back what no loader has read, claim for the next intervals.

        `ahead`: the most that any loader reads ahead."""
        self.batch = max(self.batch, batch)
        self.version += 1
        for rank, one in enumerate(progress):
            self.trained[rank] += one.samples
        if self.final:
            return
        for rank, one in enumerate(progress):
            self._give_back(rank, self.trained[rank] + one.ahead)
        wanted = []
        for rank, one in enumerate(progress):
            need = INTERVALS_AHEAD * interval * one.rate + ahead + 2 * self.batch
            missing = max(0, math.ceil(need) - self.outstanding(rank))
            wanted.append(-(-missing // self.batch) * self.batch)
        if self.pool - sum(wanted) < self.ranks * self.batch:
            self._divide([one.rate for one in progress])
            return
        for rank, count in enumerate(wanted):
            self._claim(rank, count)

    def _divide(self, rates: Sequence[float]) -> None:
        """All that is left, so that (outstanding + share) / rate is level and every rank has something to train."""
        held, claimed = ([count(r) for r in range(self.ranks)] for count in (self.outstanding, self.claimed))
        for rank, count in enumerate(level(held, rates, self.pool, self.batch, claimed)):
            self._claim(rank, count)
        self.final = True

    def _claim(self, rank: int, count: int) -> None:
        """The next `count` free positions."""
        while count > 0:
            start, end = self._free.pop(0)
            last = min(end, start + count)
            if last < end:
                self._free.insert(0, (last, end))
            self._claims[rank].append((start, last))
            self._ends[rank].append(self.claimed(rank) + last - start)
            count -= last - start

    def _give_back(self, rank: int, read: int) -> None:
        """Claims beyond the first `read` are free again."""
        claims, ends = self._claims[rank], self._ends[rank]
        while ends and ends[-1] > read:
            start, end = claims.pop()
            before = ends.pop() - (end - start)
            keep = start + max(0, read - before)
            if keep > start:
                claims.append((start, keep))
                ends.append(before + keep - start)
            self._free.append((keep, end))
        self._free = merged(self._free)

    def trained_spans(self) -> list[Span]:
        """Positions that were trained by now: the beginnings of all ranks' claims, and what was skipped."""
        found = list(self.skipped)
        for rank in range(self.ranks):
            left = self.trained[rank]
            for start, end in self._claims[rank]:
                if left <= 0:
                    break
                found.append((start, min(end, start + left)))
                left -= end - start
        return merged(found)


def level(held: Sequence[int], rates: Sequence[float], pool: int, batch: int, claimed: Sequence[int]) -> list[int]:
    """Shares of the pool that let all ranks finish together as nearly as whole batches allow; they add up to `pool`.

    Each rank ends with at least one sample to train. Batches go, one after the other, to the rank that would finish
    first with it; what is left over below a batch goes to the rank that finishes first.
    """
    ranks = len(held)
    speeds = [max(rate, 1e-9) for rate in rates]
    shares = [0] * ranks
    for rank in range(ranks):  # to the next whole batch: all of a rank's claims together are read in batches
        odd = -claimed[rank] % batch
        if odd and sum(shares) + odd <= pool:
            shares[rank] = odd
    need = [rank for rank in range(ranks) if held[rank] + shares[rank] == 0]
    for rank in need:
        shares[rank] += min(batch, max(0, (pool - sum(shares)) // len(need)))
    left = pool - sum(shares)
    blocks, odd = divmod(left, batch)
    if blocks:
        for rank, count in enumerate(
            _blocks([h + s for h, s in zip(held, shares, strict=True)], speeds, blocks, batch)
        ):
            shares[rank] += count * batch
    first = min(range(ranks), key=lambda rank: (held[rank] + shares[rank]) / speeds[rank])
    shares[first] += odd
    return shares


def _blocks(load: Sequence[int], speeds: Sequence[float], blocks: int, batch: int) -> list[int]:
    """Whole batches for each rank: the level by bisection, the last few one by one."""
    low, high = 0.0, (max(load) + blocks * batch) / min(speeds) + 1.0
    for _ in range(100):
        middle = (low + high) / 2
        given = sum(max(0, math.floor((middle * s - x) / batch)) for s, x in zip(speeds, load, strict=True))
        low, high = (middle, high) if given <= blocks else (low, middle)
    counts = [max(0, math.floor((low * s - x) / batch)) for s, x in zip(speeds, load, strict=True)]
    for _ in range(blocks - sum(counts)):
        rank = min(range(len(load)), key=lambda r: (load[r] + (counts[r] + 1) * batch) / speeds[r])
        counts[rank] += 1
    return counts


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same positions as sorted spans that neither overlap nor touch."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _without(positions: int, spans: Sequence[Span]) -> list[Span]:
    """The spans between the given ones."""
    free, at = [], 0
    for start, end in merged(spans):
        if start > at:
            free.append((at, start))
        at = end
    if at < positions:
        free.append((at, positions))
    return free
