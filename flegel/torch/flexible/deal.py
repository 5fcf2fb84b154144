"""Who trains which part of an epoch: claims of all ranks on one shuffled list of positions. Pure.

Every rank computes the same claims from numbers that all ranks have (counts, rates), so no messages are needed. Each
rank holds enough claims for two intervals and for what its loader reads ahead; the rest is a pool from which faster
ranks take more. When the pool is nearly empty it is divided so that all ranks finish at about the same time; how many
barriers follow is agreed then, and the epoch ends with the last of them. Never reads a clock and never sees data.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flegel.torch.flexible.rank_settings import rank_settings

Span = tuple[int, int]


@dataclass(frozen=True)
class RankProgress:
    """One rank's numbers of one barrier."""

    samples: int
    rate: float
    """Samples a second while it trained."""
    ahead: int
    """Samples that its loader has taken and the model has not seen."""
    closed: bool = False
    """Its loader has read all its claims and ended: it takes no others."""


class Deal:
    """The claims of one epoch. `skipped`: spans that an earlier, interrupted run of this epoch has trained."""

    STATE = (
        "ranks",
        "batch",
        "skipped",
        "trained",
        "final",
        "barriers_left",
        "least",
        "part",
        "version",
        "_free",
        "_claims",
        "_ends",
    )

    def __init__(self, positions: int, ranks: int, batch: int = 1, skipped: Sequence[Span] = ()) -> None:
        """All positions that were not `skipped` are free; `begin` makes the first claims."""
        self.ranks, self.batch = ranks, batch
        """The largest micro-batch so far: claims end at a multiple of it, so only one batch of an epoch is smaller."""
        self.skipped = tuple(skipped)
        self.trained = [0] * ranks
        self.final = False
        """Nothing is left to claim: every rank trains its claims, with `barriers_left` barriers."""
        self.barriers_left = 1
        """Of the epoch, once nothing is left to claim; every rank has at least as many micro-batches."""
        self.least = 1
        """Samples below which a rank cannot make a micro-batch; what is left below it ends with the epoch."""
        self.part = 0
        """The smallest part of a rank, until the first barrier has told the batch and the rates."""
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
        """First claims of the epoch. Without known rates all is divided equally: neither the batch nor what loaders
        read ahead is known, and what none has read at the first barrier goes back."""
        if any(rates):
            self.advance([RankProgress(0, rate, 0) for rate in rates], interval, self.batch, ahead, self.least)
            return
        self.part, odd = divmod(self.pool, self.ranks)
        for rank in range(self.ranks):
            self._claim(rank, self.part + (rank < odd))
        self.final = self.part < self.least  # what an interrupted run has left is too little for a step of all ranks

    def advance(
        self,
        progress: Sequence[RankProgress],
        interval: float,
        batch: int,
        ahead: int,
        least: int = 1,
        intervals: float | None = None,
    ) -> None:
        """After a barrier: count what was trained, take back what no loader has read, claim for the next `intervals`
        (None: `claimed_intervals` of the settings).

        `ahead`: the most that any loader reads ahead."""
        self.batch = max(self.batch, batch)
        self.least = min(max(least, 1), self.batch)
        self.version += 1
        self.part = 0
        for rank, one in enumerate(progress):
            self.trained[rank] += one.samples
        if not self.final:
            self._deal(progress, interval, ahead, intervals)
        if self.final:
            self._plan_barriers([one.rate for one in progress], interval)

    def regroup(
        self,
        kept: Sequence[int | None],
        drawn: Sequence[int],
        windows: Sequence[int],
        rates: Sequence[float],
        interval: float,
        ahead: int,
    ) -> None:
        """Other ranks from now on: each was the rank `kept` before, or is new (None). What a lost rank has claimed and
        not committed is free again, and so is what no loader has read; claims are made anew.

        `drawn`: claims that each loader has read; `windows`: samples since the last barrier, trained or being trained.
        """
        self.version += 1
        self.part = 0
        read = {old: count for old, count in zip(kept, drawn, strict=True) if old is not None}
        for rank in range(self.ranks):
            self._give_back(rank, read.get(rank, self.trained[rank]))
        lost = [span for rank in range(self.ranks) if rank not in read for span in self._claims[rank]]
        self.skipped = tuple(merged([*self.skipped, *lost]))
        self._claims = [[] if old is None else self._claims[old] for old in kept]
        self._ends = [[] if old is None else self._ends[old] for old in kept]
        self.trained = [0 if old is None else self.trained[old] for old in kept]
        self.ranks = len(kept)
        known = [rate for rate in rates if rate > 0.0]
        usual = sum(known) / len(known) if known else 1.0
        speeds = [rate if rate > 0.0 else usual for rate in rates]
        self.final = False
        self._deal([RankProgress(0, speed, self.outstanding(r)) for r, speed in enumerate(speeds)], interval, ahead)
        if self.final:
            self._plan_barriers(speeds, interval, windows)

    def is_last(self, rank: int, window: int, unread: int, batch: int, in_time: bool) -> bool:
        """Whether the micro-batch that begins synchronizes: by time, or because its claims end.

        `window`: samples since the last barrier, this micro-batch included. `unread`: claims that its loader has not
        read. `batch`: samples of its micro-batches."""
        left = self.outstanding(rank) - window
        if self.final:
            return self._fits(left, self.batch) < self.barriers_left or (in_time and self.barriers_left > 1)
        if self.part and self._fits(self.part, batch) < 2:  # one barrier in all, so that every rank has work until it
            return self._fits(left, batch) < 1
        return in_time or unread < batch

    def ends_with_next_barrier(self, batch: int) -> bool:
        """Whether all that is left is trained before the next barrier; `batch`: samples of the micro-batches."""
        if self.final:
            return self.barriers_left == 1
        return self.part > 0 and self._fits(self.part, batch) < 2

    @property
    def done(self) -> bool:
        """The last barrier of the epoch was passed: a rank has too little left for a micro-batch. What others may have
        left they train without a barrier, and its gradients count at the next one."""
        return self.final and any(self.outstanding(rank) < self.least for rank in range(self.ranks))

    def _fits(self, samples: int, batch: int) -> int:
        """Micro-batches that so many samples make."""
        return max(samples, 0) // batch + (max(samples, 0) % batch >= min(self.least, batch))

    def _plan_barriers(self, rates: Sequence[float], interval: float, windows: Sequence[int] = ()) -> None:
        """As many as intervals fit, and no more than the rank with the fewest micro-batches has; `windows`: samples of
        the running interval, which end at a barrier in any case."""
        left = [self.outstanding(rank) for rank in range(self.ranks)]
        begun = windows or [0] * self.ranks
        fits = [
            (window > 0) + self._fits(count - window, self.batch) for count, window in zip(left, begun, strict=True)
        ]
        longest = max(count / max(rate, 1e-9) for count, rate in zip(left, rates, strict=True))
        wanted = round(longest / interval) if interval > 0.0 else 1
        self.barriers_left = max(1, min([*fits, wanted]))

    def _deal(
        self, progress: Sequence[RankProgress], interval: float, ahead: int, intervals: float | None = None
    ) -> None:
        """Take back what no loader has read, and claim for each rank as many samples as it will need; the last ones are
        divided by speed."""
        for rank, one in enumerate(progress):
            self._give_back(rank, self.trained[rank] + one.ahead)
        wanted = []
        claimed = rank_settings().claimed_intervals if intervals is None else intervals
        for rank, one in enumerate(progress):
            need = claimed * interval * one.rate + ahead + 2 * self.batch
            missing = max(0, math.ceil(need) - self.outstanding(rank))
            wanted.append(-(-missing // self.batch) * self.batch)
        if any(one.closed for one in progress) or self.pool - sum(wanted) < self.ranks * self.batch:
            self._divide([one.rate for one in progress], [r for r, one in enumerate(progress) if not one.closed])
            return
        for rank, count in enumerate(wanted):
            self._claim(rank, count)

    def _divide(self, rates: Sequence[float], takers: Sequence[int]) -> None:
        """All that is left, so that (outstanding + share) / rate is level and every rank has something to train."""
        if takers:
            held, claimed = ([count(r) for r in takers] for count in (self.outstanding, self.claimed))
            shares = level(held, [rates[r] for r in takers], self.pool, self.batch, claimed)
            for rank, count in zip(takers, shares, strict=True):
                self._claim(rank, count)
        self.final = True

    def _claim(self, rank: int, count: int) -> None:
        """Claim the next `count` free positions for a rank."""
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

    def to_state(self) -> dict[str, Any]:
        """All of it, of plain values: for a rank that joins in the middle of an epoch."""
        return {name: getattr(self, name) for name in self.STATE}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Deal:
        deal = cls(0, 0)
        for name in cls.STATE:
            setattr(deal, name, state[name])
        return deal

    def trained_spans(self, since: Sequence[int] = ()) -> list[Span]:
        """Positions that were trained by now: the beginnings of all ranks' claims, and what was skipped. `since`:
        samples of each rank since the last `advance`."""
        found = list(self.skipped)
        for rank in range(self.ranks):
            left = self.trained[rank] + (since[rank] if since else 0)
            for start, end in self._claims[rank]:
                if left <= 0:
                    break
                found.append((start, min(end, start + left)))
                left -= end - start
        return merged(found)


@dataclass
class NextEpoch:
    """What the deal of the next epoch begins with: the ranks and rates at the end of the last one, and the changes of
    membership since then. Where ranks heal, one may be in the next epoch while another has just passed the last barrier
    of this one: both make the same deal from the same steps, and change it in the same order."""

    ranks: int = 0
    rates: tuple[float, ...] = ()
    changes: list[tuple[Any, ...]] = field(default_factory=list)
    """Arguments of `Deal.regroup`."""

    def end(self, ranks: int, rates: Sequence[float]) -> None:
        """An epoch has ended, or the first ranks have met."""
        self.ranks, self.rates, self.changes = ranks, tuple(rates), []

    def begin(
        self, positions: int, batch: int, least: int, interval: float, ahead: int, skipped: Sequence[Span] = ()
    ) -> Deal:
        deal = Deal(positions, self.ranks, batch, skipped)
        deal.least = least
        deal.begin(self.rates, interval, ahead)
        for change in self.changes:
            deal.regroup(*change)
        self.changes = []
        return deal

    def to_state(self) -> tuple[int, tuple[float, ...], list[tuple[Any, ...]]]:
        return self.ranks, self.rates, list(self.changes)


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
    for done, rank in enumerate(need):
        shares[rank] += min(batch, max(0, (pool - sum(shares)) // (len(need) - done)))
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
    """How many of `blocks` whole batches each rank gets, so that all ranks finish at about the same time. `load`:
    samples that each has already.

    Bisection finds the latest end at which the batches that fit into every rank's time until then are no more than
    there are. What is left of them goes, one by one, to the rank that would finish it first.
    """
    early, late = 0.0, (max(load) + blocks * batch) / min(speeds) + 1.0
    for _ in range(100):
        end = (early + late) / 2
        fitting = sum(max(0, math.floor((end * s - x) / batch)) for s, x in zip(speeds, load, strict=True))
        early, late = (end, late) if fitting <= blocks else (early, end)
    counts = [max(0, math.floor((early * s - x) / batch)) for s, x in zip(speeds, load, strict=True)]
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
    """The spans that remain between the given ones."""
    free, at = [], 0
    for start, end in merged(spans):
        if start > at:
            free.append((at, start))
        at = end
    if at < positions:
        free.append((at, positions))
    return free
