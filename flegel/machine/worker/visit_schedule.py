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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.errors import ProtocolError

Transfer = tuple[int, int]
"""A window on its way: (number of the move, number of the window in it)."""
BetweenKeys = Callable[[int, int, int], Sequence[int]]
"""Of a shard, from one place to another, both included: the places at which another key begins, or the shard ends."""
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
        self._since_mark: list[VisitRun] | None = None
        """What was visited since the place was marked, in order; None: no place is marked."""
        self.between_keys: BetweenKeys | None = None
        """Where points of one key stay together: places between two keys. Such points move together, and a round does
        not end among them (`rest_of_key`)."""
        self._again: list[VisitRun] = []
        """What comes first because the order went back to the marked place, the next one last."""
        self._most_passes = 0
        """Of the points that can be trained, when they were last looked at."""
        self.caught_up = 0
        """Visits so far of points that were more than one pass behind others here: however many these are, they do not
        tell that every point was visited."""
        self._caught_up_here = 0
        """Of these, those under the present θ."""

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
    def whole(self) -> bool:
        """No point has come, and none is going or gone."""
        return all(s.shard == 0 and s.status == "active" for s in self.segments)

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

    def begin(self, cursor: str = "") -> None:
        """A new θ: every point may be visited again. `cursor`: "mark" notes this place in the order of visits, "rewind"
        goes back to it: what was visited since comes first, and its visits count as any others."""
        for segment in self.segments:
            segment.seen = False
        self._caught_up_here = 0
        self._tidy()
        self._again = list(reversed(self._since_mark or ())) if cursor == "rewind" else []
        if cursor:
            self._since_mark = [] if cursor == "mark" else None

    def next(self, most: int, grid: int = 1) -> VisitRun | None:
        """The next run of at most so many points, up to a multiple of `grid` where there is one; None when all were
        visited under this θ."""
        if self._again and (again := self._next_again(most)) is not None:
            return again
        if self._waiting is None:
            active = [s for s in reversed(self.segments) if s.status == "active"]
            self._most_passes = max((s.passes for s in active), default=0)
            able = [s for s in active if not s.seen]
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

    def _next_again(self, most: int) -> VisitRun | None:
        """The next run of those that are to be visited again; what has gone to another worker meanwhile is left out."""
        while self._again:
            run = self._again[-1]
            at = self._find(run.shard, run.start)
            if at is None:
                self._again.pop()
                continue
            segment = self.segments[at]
            end = min(run.end, segment.end)
            if segment.status == "active" and not segment.seen:
                self._split(at, run.start)
                return VisitRun(run.shard, run.start, min(end, run.start + most))
            self._visited_again(end)
        return None

    def _visited_again(self, reached: int) -> None:
        run = self._again.pop()
        if reached < run.end:
            self._again.append(VisitRun(run.shard, reached, run.end))

    def advance(self, run: VisitRun, reached: int, first_pass: bool = False) -> None:
        """The kernel was given `run` and came to `reached`. `first_pass`: visits of a part of the points before the
        others have been visited once (`growing_part`); they count as one pass, however many they are."""
        if reached <= run.start:
            return
        if self._again and (self._again[-1].shard, self._again[-1].start) == (run.shard, run.start):
            self._visited_again(reached)
        if self._since_mark is not None:
            self._since_mark.append(VisitRun(run.shard, run.start, reached))
        at = self._index(run.shard, run.start)
        first = at
        while at < len(self.segments) and self.segments[at].shard == run.shard and self.segments[at].start < reached:
            self._split(at, reached)
            if self.segments[at].passes < self._most_passes - 1:
                self.caught_up += self.segments[at].points
                self._caught_up_here += self.segments[at].points
            self.segments[at].passes = 1 if first_pass else self.segments[at].passes + 1
            self.segments[at].seen, self.segments[at].anew = True, False
            at += 1
        for i in range(at - 1, first - 1, -1):
            self._join(i)

    def end_order(self) -> int:
        """`caught_up` when an order is done. Where every point that can be trained was visited under this θ, that was a
        whole pass: visits of points that are behind were their part of it, and such points never catch up where all
        are visited once under each θ."""
        if self._caught_up_here and all(s.seen for s in self.segments if s.status == "active"):
            self.caught_up -= self._caught_up_here
            self._caught_up_here = 0
        return self.caught_up

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
                able, kind = self._window(s, room, here) is not None, 0 if s.block is None else -1
                able = able and (s.block is None or self.between_keys is None)
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
            window = self._window(best, room, here)
            assert window is not None, "a segment that was chosen has whole tiles"
            start, end = window
            at = self._split(self._index(best.shard, best.start), start)
            self._split(at, end)
            best = self.segments[at]
        best.status, best.transfer = "locked", transfer
        self._waiting = None
        return best

    def _window(self, s: Segment, room: int, here: int) -> tuple[int, int] | None:
        """The last whole tiles of a segment, about `room` points of the `here` active ones, and whole keys where these
        stay together: then no tiles but those at whose edges keys begin. None where there are none."""
        if self.between_keys is None:
            end = s.end // TILE * TILE
            start = max(-(-s.start // TILE) * TILE, end - room // TILE * TILE)
            return (start, end) if start < end else None
        places = [place for place in self.between_keys(s.shard, s.start, s.end) if place % TILE == 0]
        if len(places) < 2:
            return None
        end = places[-1]
        start = next((place for place in places if end - place <= room), end)
        start = start if start < end else places[-2]  # one bundle of keys, even where it is larger than the window
        return (start, end) if _fits(end - start, room, here) else None

    def rest_of_key(self, run: VisitRun, reached: int) -> VisitRun | None:
        """What is left of the key among whose points the kernel stopped; None where it stopped between two keys."""
        if self.between_keys is None or reached <= run.start:
            return None
        at = self._find(run.shard, reached)
        if at is None or self.segments[at].start != reached or self.segments[at].seen:
            return None
        segment, scanned = self.segments[at], reached
        if segment.status != "active":
            return None
        while scanned < segment.end:
            scanned = min(segment.end, reached + max(TILE, 2 * (scanned - reached)))  # keys are mostly small
            if found := self.between_keys(run.shard, reached, scanned):
                return None if found[0] == reached else VisitRun(run.shard, reached, found[0])
        return VisitRun(run.shard, reached, segment.end)

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
        left, everything = most, most >= self.owned
        for s in sorted(self.held(), key=lambda s: (-s.passes, -s.shard, -s.start)):
            if left <= 0:
                break
            start = max(s.start, (s.end - left) // TILE * TILE)
            if self.between_keys is not None:
                start = self._start_of_keys(s, s.end - left, everything)
                if start == s.end:
                    continue
            if s.block is not None:
                self._dissolve(s.block)
            at = self._split(self._index(s.shard, s.start), start)
            s = self.segments[at]
            s.status, s.transfer = "away", None
            self._waiting = None
            gone.append(s)
            left -= s.points
        return gone

    def _start_of_keys(self, s: Segment, wanted: int, everything: bool) -> int:
        """Where the last keys of a segment begin that have the points from `wanted` on; unless `everything` is given
        up, this worker keeps a key."""
        assert self.between_keys is not None
        places = [s.start, *(place for place in self.between_keys(s.shard, s.start, s.end) if s.start < place < s.end)]
        start = max((place for place in places if place <= wanted), default=s.start)
        if not everything and s.end - start >= self.owned:
            start = min((place for place in places if place > start), default=s.end)
        return start

    def forget_visits(self) -> None:
        """Every point of this worker counts as not visited."""
        for s in self.held():
            s.anew, s.seen = True, False
        self._waiting = None

    # -- borders -------------------------------------------------------------------------------------------

    def _index(self, shard: int, position: int) -> int:
        at = self._find(shard, position)
        if at is None:
            raise ProtocolError(f"Point {position} of shard {shard} has no segment; {self._story()}.")
        return at

    def _find(self, shard: int, position: int) -> int | None:
        """The segment that has this point; None where no segment has it any more."""
        at = bisect_right(self.segments, (shard, position), key=lambda s: (s.shard, s.start)) - 1
        known = at >= 0 and self.segments[at].shard == shard and position < self.segments[at].end
        return at if known else None

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
        """Join neighbouring segments that have the same passes and state."""
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
