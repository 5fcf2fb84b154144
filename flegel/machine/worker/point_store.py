"""What a worker holds: its native shard, what came from others, inactive copies of what it gave away. No I/O.

Ties the schedule (what is next) to the arrays (where the points lie). The trainer owns it; only `prepare`, `usable` and
`lay_aside` may be called from another thread, because they touch nothing but locked points and fresh memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flegel.core.key_borders import borders
from flegel.core.pytree import Array
from flegel.core.shard import Empty, Shard
from flegel.machine.worker.visit_schedule import BlockId, Segment, Transfer, VisitSchedule
from flegel.machine.worker.window_codec import (
    IncomingWindow,
    MoveBuffer,
    buffer_in,
    check_states,
    pack,
    pack_changes,
    pack_shared,
    pack_states,
    put_states,
    take_states,
    unpack,
)
from flegel.messages import SharedPointsRef, Window


@dataclass(frozen=True)
class OutgoingWindow:
    """A locked window, ready to be sent."""

    transfer: Transfer
    block: BlockId
    part: Shard
    passes: int
    copied: bool
    """The peer has a copy."""
    base: Array | None
    """Its states at the last exchange with this peer; None where they were not kept."""
    whole: Shard
    """The shard that the points lie in."""
    start: int
    """Where they begin in it."""

    def frames(self, full: bool, lent: SharedPointsRef | None = None) -> tuple[Window, list[Array]]:
        """Header and arrays. Unless `full`, omits what the target has a copy of or can read in shared memory."""
        header = (*self.transfer, self.block, self.part.points, self.passes)
        if full or (lent is None and not self.copied):
            return Window(*header), pack(self.part)
        if lent is not None and (lent.state is not None or not self.copied):
            return Window(*header, self.copied, lent=lent), pack_shared(self.part, states=lent.state is None)
        if self.base is None:
            return Window(*header, True), pack_states(self.part)
        arrays, changed = pack_changes(self.part, self.base)
        return Window(*header, True, changed), arrays


class PointStore:
    """Shard 0 is native; others came in moves."""

    def __init__(self, shard: Shard, owned: bool = True, keys: Array | None = None) -> None:
        """Not `owned`: the shard only shows what points look like; others will be handed over. `keys`: of all rows, by
        their number, where rows of one key stay together."""
        self.shards = [shard]
        self.schedule = VisitSchedule(shard.points if owned else 0)
        self._keys = keys
        if keys is not None:
            self.schedule.between_keys = self._between_keys
        self._windows_aside: dict[Transfer, IncomingWindow] = {}
        """Windows that came and are not owned yet: ownership changes at a barrier."""
        self._origins: dict[BlockId, tuple[int, Array | None]] = {}
        """By block that came: the worker that has a copy of it, and the states of that copy where they are known."""
        self._move_buffers: dict[int, MoveBuffer] = {}
        """By number of a move: room for its points."""
        self._copies: set[BlockId] = set()
        """Blocks that were given away, of which inactive copies are here."""
        self.version = 0
        """How often points came or went."""
        self.known_version = -1
        """The version whose points the coordinator knows by number."""
        self._written_segments: list[tuple[Shard, int, int]] = []
        self._counted_votes = (-1, 0)
        """For which version, and how many."""
        self.fetch: Callable[[Shard, int, int], None] | None = None
        """Brings the states of such points up to date, where a device may hold newer ones."""

    # -- what is here --------------------------------------------------------------------------------------

    @property
    def halted(self) -> int:
        held = self.schedule.held()
        return sum(int(np.count_nonzero(self.shards[s.shard].halted[s.start : s.end].view(np.bool_))) for s in held)

    def votes(self, counted_anew: bool) -> int:
        """Points that voted to halt. Where training lets no point vote, they are counted when points came or went: to
        count eleven million takes as long as half a pass on a GPU."""
        if counted_anew or self._counted_votes[0] != self.version:
            self._counted_votes = (self.version, self.halted)
        return self._counted_votes[1]

    def forget_votes(self) -> None:
        """Votes were changed: count them again."""
        self._counted_votes = (-1, 0)

    def collect(self) -> tuple[Array, Array]:
        """Hidden states as rows, and the numbers of their points; each point that is this worker's, once."""
        held = self.schedule.held()
        if len(held) == 1 and held[0].shard == 0 and held[0].points == self.shards[0].points:
            return self.shards[0].state_rows(), self.shards[0].ids
        if not held:
            return self.shards[0].state_rows()[:0], self.shards[0].ids[:0]
        kept = [take_states(self.shards[s.shard], np.arange(s.start, s.end)) for s in held]
        return np.concatenate(kept), np.concatenate([self.shards[s.shard].ids[s.start : s.end] for s in held])

    def keep(self) -> tuple[Array, Array, Array]:
        """Copies of states, votes and numbers of the points that are this worker's, in the order of `schedule.runs`."""
        held = self.schedule.held()
        rows, ids = self.collect()
        votes = [self.shards[s.shard].halted[s.start : s.end] for s in held]
        return np.array(rows, copy=np.may_share_memory(rows, self.shards[0].state)), np.concatenate(votes), ids

    def resume(self, runs: tuple[tuple[int, int], ...], halted: Array, version: int) -> None:
        """A shard that was kept, with the states it was made with: votes and passes of its points."""
        self.shards[0].halted[:] = halted
        self.schedule.resume(runs)
        self.version = version

    def _between_keys(self, number: int, start: int, end: int) -> list[int]:
        """Places start … end of a shard at which another key begins than the one before, or the shard ends."""
        shard = self.shards[number]
        assert self._keys is not None
        first, last = max(start - 1, 0), min(end + 1, shard.points)
        inside = borders(self._keys[shard.ids[first:last]]) + first
        edges = (0, shard.points)
        return [int(place) for place in inside if start <= place <= end and (first < place < last or place in edges)]

    # -- giving --------------------------------------------------------------------------------------------

    def cut(self, transfer: Transfer, points: int, peer: int) -> OutgoingWindow | None:
        """Lock a window for a peer: rather points that it has a copy of."""
        cheap = {p for p, (origin, _) in self._origins.items() if origin == peer}
        s = self.schedule.cut(transfer, points, cheap)
        if s is None:
            return None
        whole = self.shards[s.shard]
        if self.fetch is not None:
            self.fetch(whole, s.start, s.end)
        part = whole.part(s.start, s.end)
        known = self._origins.get(s.block) if s.block else None
        copied, base = (True, known[1]) if known and known[0] == peer else (False, None)
        return OutgoingWindow(transfer, s.block or transfer, part, s.passes, copied, base, whole, s.start)

    def free(self, move: int) -> None:
        self.schedule.unlock(move)

    # -- taking --------------------------------------------------------------------------------------------

    def prepare(self, move: int, points: int, room: Empty = np.zeros) -> None:
        """Room for a move, made by `room`; it is filled as windows come."""
        self._move_buffers[move] = MoveBuffer(self.shards[0], points, room)

    def usable(self, window: Window) -> bool:
        """False where the window relies on a copy that is not here."""
        return not window.copied or window.block in self._copies

    def lay_aside(
        self, window: Window, arrays: tuple[Array, ...], peer: int, lent: Shard | None = None
    ) -> IncomingWindow:
        """Keep a window, inactive; `lent` is the shard that it was lent from, and its states lie before the other
        arrays. They are the lender's only now: they are copied to where nobody relies on what was there. Raises
        `DecodeError` where it does not fit."""
        incoming = unpack(window, arrays, peer)
        check_states(incoming, self.shards[0])
        if window.lent is not None:
            if not window.copied:
                part = buffer_in(window, incoming, lent)
                assert lent is not None
                incoming.place = (lent, window.lent.start)
            if window.copied or window.block in self._copies:
                incoming.state = incoming.state.copy()
            else:
                part.state[...] = incoming.state
                incoming.state = part.state
        elif not window.copied:
            incoming.place = self._move_buffers[window.move].place(window, arrays)
        self._windows_aside[(window.move, window.number)] = incoming
        return incoming

    def drop(self, move: int) -> None:
        """The move is over; what was not taken is forgotten."""
        self._move_buffers.pop(move, None)
        for transfer in [t for t in self._windows_aside if t[0] == move]:
            del self._windows_aside[transfer]

    # -- at the barrier ------------------------------------------------------------------------------------

    def settle(self, given_windows: tuple[Transfer, ...], taken_windows: tuple[Transfer, ...]) -> None:
        """Ownership changes. Points that were given stay here as inactive copies."""
        self.version += bool(given_windows or taken_windows)
        for transfer in given_windows:
            block = self.schedule.retire(transfer).block
            assert block is not None
            self._copies.add(block)
        for transfer in taken_windows:
            self._take(self._windows_aside.pop(transfer))

    def take_written(self) -> list[tuple[Shard, int, int]]:
        """Points whose states changes of ownership have written since the last call: shard, first point, end."""
        written, self._written_segments = self._written_segments, []
        return written

    def _take(self, incoming: IncomingWindow) -> None:
        """Make the points of a received window ours: a copy kept from an earlier migration is used again, else the data
        that came with it."""
        window = incoming.window
        segment = self.schedule.copy_of(window.block)
        if segment is not None:
            self.schedule.revive(window.block, window.passes)
            self._copies.discard(window.block)
        else:
            assert incoming.place is not None, "a window without data for points that are not here"
            shard, start = incoming.place
            number = next((i for i, s in enumerate(self.shards) if s is shard), len(self.shards))
            if number == len(self.shards):
                self.shards.append(shard)
            self._copies.difference_update(self.schedule.bury(number, start, start + window.points))
            segment = self.schedule.admit(window.block, number, window.points, window.passes, start)
        self._refresh(segment, incoming)

    def _refresh(self, segment: Segment, incoming: IncomingWindow) -> None:
        """The states that the points have now; those of the copy are as old as the copy."""
        shard = self.shards[segment.shard]
        base: Array | None = None
        if incoming.which is not None:
            put_states(shard, incoming.which + segment.start, incoming.state)
            base = shard.part(segment.start, segment.end).state.copy()
        else:
            mine = shard.part(segment.start, segment.end).state
            if not np.may_share_memory(mine, incoming.state):
                mine[...] = incoming.state
            if incoming.window.lent is None:
                base = incoming.state
        shard.halted[segment.start : segment.end] = incoming.halted
        self._written_segments.append((shard, segment.start, segment.end))
        self._origins[incoming.window.block] = (incoming.peer, base)
