"""Which points of a worker come next: pure scheduling over runs of points. Touches no array, knows no kernel.

One rule decides everything: *the points with the fewest passes come first, each at most once under one θ, equal ones in
their order*. For data that never moves this is the plain round robin with a cursor. Points that arrive with fewer
passes than the natives are trained first until they have caught up (the paper's priority queue); those with more
wait until the natives have. Points to give away are taken from the other end: those that would come last, backwards
from the cursor.

A segment is a run of points of one shard that have the same number of passes. Its life:

    active  ⇄  locked (in flight)  →  away (another worker's; the copy here is inactive)  →  active

Only whole tiles move, so that they can travel in either layout as they are.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.errors import ProtocolError

Transfer = tuple[int, int]
"""A window on its way: (number of the move, number of the window in it)."""
BlockId = tuple[int, int]
"""Points that once moved together and stay together: named after their first transfer."""


@dataclass
class Segment:
    """Points start … end-1 of a shard."""

    shard: int
    start: int
    end: int
    passes: int
    status: str = "active"
    block: BlockId | None = None
    transfer: Transfer | None = None
    """While locked: the transfer that it waits for."""
    seen: bool = False
    """Visited under the present θ."""
    anew: bool = False
    """Loaded anew after a loss: not visited since, although `passes` counts visits by the lost worker."""

    @property
    def points(self) -> int:
        return self.end - self.start

    def joins(self, other: Segment) -> bool:
        """Nothing but the border tells the two apart."""
        return (
            self.end == other.start
            and self.passes == other.passes
            and self.block == other.block
            and (self.shard, self.status, self.transfer, self.seen, self.anew)
            == (other.shard, other.status, other.transfer, other.seen, other.anew)
        )


@dataclass(frozen=True)
class VisitRun:
    """What to hand to the kernel next."""

    shard: int
    start: int
    end: int


class VisitSchedule:
    """The segments of one worker, in the order of their shards and positions."""

    def __init__(self, points: int) -> None:
        self.segments = [Segment(0, 0, points, 0)] if points else []
        self._waiting: list[Segment] | None = None
        """What can be trained under this θ, the next one last; None: not looked up since something came, went or was
        locked. A worker may hold thousands of blocks, so that a look at all of them for each would take too long."""

    # -- what it holds -------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Points that can be trained now."""
        return sum(s.points for s in self.segments if s.status == "active")

    @property
    def owned(self) -> int:
        """Points that are this worker's: active, or locked while they travel."""
        return sum(s.points for s in self.segments if s.status != "away")

    @property
    def pass_sum(self) -> int:
        """Passes summed over the points that are this worker's, wherever they were made."""
        return sum(s.points * s.passes for s in self.segments if s.status != "away")

    @property
    def unseen(self) -> int:
        """Points of this worker that were never visited, or not since they were loaded anew."""
        return sum(s.points for s in self.segments if s.status != "away" and (s.anew or s.passes == 0))

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Points and passes of what is held, in order."""
        return tuple((s.points, 0 if s.anew else s.passes) for s in self.held())

    def resume(self, runs: Iterable[tuple[int, int]]) -> None:
        """The points of shard 0 have been traversed so often already."""
        self.segments, self._waiting, at = [], None, 0
        for points, passes in runs:
            self.segments.append(Segment(0, at, at + points, passes))
            at += points

    def held(self) -> list[Segment]:
        """The segments that are this worker's, in order."""
        return [s for s in self.segments if s.status != "away"]

    # -- training ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new θ: every point may be visited again."""
        for segment in self.segments:
            segment.seen = False
        self._tidy()

    def next(self, most: int, grid: int = 1) -> VisitRun | None:
        """The next run of at most so many points, up to a multiple of `grid` where there is one; None when all were
        visited under this θ."""
        if self._waiting is None:
            able = [s for s in reversed(self.segments) if s.status == "active" and not s.seen]
            self._waiting = sorted(able, key=lambda s: -s.passes)
        while self._waiting and self._waiting[-1].seen:
            self._waiting.pop()
        if not self._waiting:
            return None
        first = last = self._waiting[-1]
        for at in range(self._index(first.shard, first.start) + 1, len(self.segments)):
            s = self.segments[at]  # blocks that lie side by side make one run
            if (s.shard, s.start) != (last.shard, last.end) or s.status != "active" or s.seen:
                break
            if (s.passes, s.anew) != (first.passes, first.anew) or last.end - first.start >= most:
                break
            last = s
        end = min(last.end, first.start + most)
        whole = end // grid * grid
        return VisitRun(first.shard, first.start, whole if whole > first.start else end)

    def advance(self, run: VisitRun, reached: int, first_pass: bool = False) -> None:
        """The kernel was given `run` and came to `reached`. `first_pass`: visits of a part of the points before the
        others have been visited once (`growing_part`); they count as one pass, however many they are."""
        if reached <= run.start:
            return
        at = self._index(run.shard, run.start)
        first = at
        while at < len(self.segments) and self.segments[at].shard == run.shard and self.segments[at].start < reached:
            self._split(at, reached)
            self.segments[at].passes = 1 if first_pass else self.segments[at].passes + 1
            self.segments[at].seen, self.segments[at].anew = True, False
            at += 1
        for i in range(at - 1, first - 1, -1):
            self._join(i)

    # -- giving --------------------------------------------------------------------------------------------

    def cut(self, transfer: Transfer, most: int, cheap: Collection[BlockId] = ()) -> Segment | None:
        """Lock a window of about `most` points for a transfer, those that would be trained last.

        Blocks that the target still has a copy of (`cheap`) go first, because they need not be sent. A block moves
        whole; one that is too large for that is divided where there is nothing else, and nobody has a copy of its
        parts. What was trained just now would come last, but shortly after the beginning of a pass that are a few tiles
        at a time, and each window has its price; so what fills the window goes first, if it has a pass less at most.
        At least a tile stays active, because a worker without points would end every round at once.
        """
        here = self.active
        room = min(most, here - TILE)
        if room < TILE:
            return None
        sizes = self._sizes()
        best: Segment | None = None
        best_rank, levels = (-2, 0, 0), active().moves.filling_levels
        last = max(s.passes for s in self.segments if s.status == "active")
        for s in reversed(self.segments):
            if s.status != "active" or s.anew:
                continue
            if s.block is None or not _fits(sizes[s.block], room, here):
                able, kind = _tiles(s) > 0, 0 if s.block is None else -1
            else:  # one that was stopped at half has two segments until its pass is done
                able, kind = s.points == sizes[s.block], int(s.block in cheap)
            filled = min(levels * _tiles(s) * TILE // room, levels) if s.passes >= last - 1 else -1
            if able and (kind, filled, s.passes) > best_rank:
                best, best_rank = s, (kind, filled, s.passes)
        halfway = [n for p, n in sizes.items() if p in cheap and _fits(n, room, here)]
        if best is None or (best_rank[0] < 1 and 2 * sum(halfway) >= room):
            return None  # the target has a copy of just such points, whose pass is not over: rather fewer than others
        if best_rank[0] < 0:
            self._dissolve(best.block)
        if best.block is None:
            end = best.end // TILE * TILE
            start = max(-(-best.start // TILE) * TILE, end - room // TILE * TILE)
            at = self._split(self._index(best.shard, best.start), start)
            self._split(at, end)
            best = self.segments[at]
        best.status, best.transfer = "locked", transfer
        self._waiting = None
        return best

    def _sizes(self) -> Counter[BlockId]:
        """Points of each block that can be trained here."""
        sizes: Counter[BlockId] = Counter()
        for s in self.segments:
            if s.block is not None and s.status == "active":
                sizes[s.block] += s.points
        return sizes

    def _dissolve(self, block: BlockId | None) -> None:
        """Its points no longer stay together: nobody has a copy of just what is left."""
        for s in self.segments:
            if s.block == block:
                s.block = None

    def unlock(self, move: int) -> None:
        """The move was called off: what has not changed owner is trained here again."""
        for s in self.segments:
            if s.status == "locked" and s.transfer is not None and s.transfer[0] == move:
                s.status, s.transfer = "active", None
        self._tidy()

    def retire(self, transfer: Transfer) -> Segment:
        """The points now belong to the target; the copy here stays, inactive."""
        segment = next((s for s in self.segments if s.status == "locked" and s.transfer == transfer), None)
        if segment is None:
            raise ProtocolError(f"Window {transfer} was settled, but is not locked here; {self._story()}.")
        segment.status, segment.transfer = "away", None
        segment.block = segment.block or transfer  # a block has the name of the first transfer of its points
        return segment

    # -- taking --------------------------------------------------------------------------------------------

    def copy_of(self, block: BlockId) -> Segment | None:
        """The inactive copy of a block, where there is one."""
        return next((s for s in self.segments if s.block == block and s.status == "away"), None)

    def revive(self, block: BlockId, passes: int) -> Segment:
        """The points are this worker's again."""
        segment = self.copy_of(block)
        assert segment is not None, f"there is no copy of block {block} here"
        segment.status, segment.passes, segment.seen = "active", passes, False
        self._waiting = None
        return segment

    def admit(self, block: BlockId | None, shard: int, points: int, passes: int, start: int = 0) -> Segment:
        """Points that came from another worker, or (without a block) were loaded anew, at this place of a shard."""
        segment = Segment(shard, start, start + points, passes, block=block)
        self._waiting = None
        insort(self.segments, segment, key=lambda s: (s.shard, s.start))
        return segment

    def bury(self, shard: int, start: int, end: int) -> list[BlockId]:
        """Drop inactive copies of points that arrive again in another block; the rest of their blocks is no copy
        of anything any more. Returns them."""
        buried = []
        for s in [s for s in self.segments if s.shard == shard and s.start < end and start < s.end]:
            if s.status != "away":
                raise ProtocolError(f"Points {start} to {end} of shard {shard} are here already; {self._story()}.")
            if s.block is not None:
                buried.append(s.block)
                self._dissolve(s.block)
            at = self._split(self._index(shard, max(s.start, start)), max(s.start, start))
            self._split(at, end)
            del self.segments[at]
        return buried

    # -- handing over at a barrier -------------------------------------------------------------------------

    def part(self, most: int) -> list[Segment]:
        """Give up about so many points for good, those that would be trained last, whole tiles where there are some."""
        gone: list[Segment] = []
        left = most
        for s in sorted(self.held(), key=lambda s: (-s.passes, -s.shard, -s.start)):
            if left <= 0:
                break
            if s.block is not None:
                self._dissolve(s.block)
            start = max(s.start, (s.end - left) // TILE * TILE)
            at = self._split(self._index(s.shard, s.start), start)
            s = self.segments[at]
            s.status, s.transfer = "away", None
            self._waiting = None
            gone.append(s)
            left -= s.points
        return gone

    def forget_visits(self) -> None:
        """Every point of this worker counts as not visited."""
        for s in self.held():
            s.anew, s.seen = True, False
        self._waiting = None

    # -- borders -------------------------------------------------------------------------------------------

    def _index(self, shard: int, position: int) -> int:
        at = bisect_right(self.segments, (shard, position), key=lambda s: (s.shard, s.start)) - 1
        if at >= 0 and self.segments[at].shard == shard and position < self.segments[at].end:
            return at
        raise ProtocolError(f"Point {position} of shard {shard} has no segment; {self._story()}.")

    def _story(self) -> str:
        locked = [s.transfer for s in self.segments if s.status == "locked"]
        return f"{len(self.segments)} segments, locked for {locked}"

    def _split(self, at: int, position: int) -> int:
        """Make `position` a border inside segment `at`; returns the index of the part that begins there."""
        s = self.segments[at]
        if position <= s.start:
            return at
        if position >= s.end:
            return at + 1
        rest = Segment(s.shard, position, s.end, s.passes, s.status, s.block, s.transfer, s.seen, s.anew)
        s.end = position
        self.segments.insert(at + 1, rest)
        self._waiting = None
        return at + 1

    def _join(self, at: int) -> None:
        """Drop the borders of segment `at` that no longer mean anything."""
        for left in (at, at - 1):
            if 0 <= left < len(self.segments) - 1 and self.segments[left].joins(self.segments[left + 1]):
                self.segments[left].end = self.segments.pop(left + 1).end

    def _tidy(self) -> None:
        """Drop all such borders."""
        self._waiting = None
        tidied: list[Segment] = []
        for s in self.segments:
            if tidied and tidied[-1].joins(s):
                tidied[-1].end = s.end
            else:
                tidied.append(s)
        self.segments = tidied


def _fits(points: int, room: int, active: int) -> bool:
    """A block of so many points can go whole in a window of about `room` of all `active` points."""
    return points < 2 * room and points < active


def _tiles(s: Segment) -> int:
    """Whole tiles of a segment."""
    return max(s.end // TILE - -(-s.start // TILE), 0)
