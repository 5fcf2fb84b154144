"""A board between a coordinator and the workers of its host: large arrays are written once, and read where they lie.

Through a socket θ is copied twice for each worker, and so is each report; with some megabytes that is most of what a
barrier costs. On a board θ is written once for all, and a report once. Messages still go through the socket, and say in
which room of the board their arrays are. All memory is the coordinator's. A worker that cannot open it does not say
that it can (`Loaded.board`), and its arrays travel as ever.

Rooms are written again and again, so nobody may look at one for too long:

* θ of a round belongs to a worker until it reports on a later round, for it may train on while it waits. Where all
  rooms are taken, θ travels.
* Two rooms of each worker take turns with its reports. It writes report k + 2 where k was, and has been sent a θ with
  report k + 1 in it before; whoever commits a report lets go of the one before (machine/ledger.py).
* Each life of a worker has rooms of its own: one that was given up cannot write into those of its successor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

import numpy as np

from flegel.core.parallel_sums import copy_bytes
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.messages import LoadShard, Report, ShardLoaded, Train
from flegel.messages import SharedBufferRef as Where
from flegel.runtime.transport import shared_memory
from flegel.runtime.transport.codec import PackedArrays, room_for

WORTH = 64 << 10  # bytes of θ or of a report from which on a board pays
TURNS = 2
MOST = 1 << 30  # bytes of all rooms for θ; they take memory only when they are used
SWITCH = "FLEGEL_BOARD"  # `off` in the environment: arrays always travel, even inside a host


class SharedBuffers:
    """The coordinator's side, for one job."""

    def __init__(self, order: int, report: int, workers: int) -> None:
        """Raises `OSError` where there is no memory for it."""
        rooms = max(min(TURNS * workers + 1, MOST // max(order, 1)), TURNS + 1)
        self._orders: Array = shared_memory.shareable((rooms, max(order, 1)), np.uint8)
        self._report = max(report, 1)
        self._vacant: list[Array] = list(shared_memory.shareable((workers, TURNS, self._report), np.uint8))
        """Rooms for the reports of first lives, which share a block: each block costs two open files."""
        self._reports: dict[bytes, tuple[int, list[memoryview]]] = {}
        """By life: the worker, and its rooms."""
        self._taken: dict[int, deque[tuple[int, int]]] = {}
        """By worker that has the board open: rounds whose θ it may look at, and the rooms."""
        self._posted: tuple[PackedArrays | None, int] = (None, -1)

    def describe(self, worker: int, life: bytes) -> Where | None:
        """How a new life of this worker finds the board; None where there is no memory that can be shared."""
        self.forget(worker)
        try:
            rooms = self._vacant.pop() if self._vacant else shared_memory.shareable((TURNS, self._report), np.uint8)
        except OSError:
            return None
        orders, reports = shared_memory.place_of(self._orders), shared_memory.place_of(rooms)
        if orders is None or reports is None:
            return None
        self._reports[life] = (worker, readable(rooms))
        return Where(orders, reports)

    def forget(self, worker: int) -> None:
        """This life is over, or has lost its share."""
        self._taken.pop(worker, None)
        for life in [life for life, (whose, _) in self._reports.items() if whose == worker]:
            del self._reports[life]

    def rooms(self, life: bytes) -> Sequence[memoryview]:
        """Where the arrays of this one's reports are."""
        found = self._reports.get(life)
        return () if found is None else found[1]

    def hear(self, life: bytes, body: object) -> None:
        """What a worker says shows what it has done with θ."""
        if type(body) is Report:
            found = self._reports.get(life)
            taken = self._taken.get(found[0]) if found else None
            while taken and taken[0][0] < body.round:
                taken.popleft()
        elif type(body) is ShardLoaded and body.board and (found := self._reports.get(life)) is not None:
            self._taken[found[0]] = deque()

    def order(self, worker: int, body: Train, parcel: PackedArrays) -> PackedArrays:
        """The same θ on the board, for a worker that can see it there, as long as there is room."""
        if worker not in self._taken or parcel.packed or not 0 < parcel.room <= self._orders.shape[1]:
            return parcel
        if self._posted[0] is not parcel:
            self._posted = (parcel, self._post(parcel))
        room = self._posted[1]
        if room < 0:
            return parcel
        self._taken[worker].append((body.round, room))
        return parcel.posted(room)

    def _post(self, parcel: PackedArrays) -> int:
        taken = {room for rounds in self._taken.values() for _, room in rounds}
        free = next((room for room in range(len(self._orders)) if room not in taken), -1)
        if free >= 0:
            parcel.write(self._orders[free], copy_bytes)
        return free


def for_job(load: LoadShard, parcel: PackedArrays, workers: int) -> SharedBuffers | None:
    """A board for a job whose shares are loaded like this; None where θ and reports are small, or memory is."""
    if not shared_memory.ANONYMOUS or os.environ.get(SWITCH, "") == "off":
        return None
    first = max(len(load.parameter.fields), 1)
    last = first + max(len(load.statistics.fields), 1)
    order, report = room_for(parcel.arrays[:first]), room_for(parcel.arrays[first:last])
    if max(order, report) < WORTH:
        return None
    try:
        return SharedBuffers(order, report, workers)
    except OSError:  # then arrays travel
        return None


class BufferWriter:
    """A worker's side."""

    def __init__(self, where: Where) -> None:
        """Raises `OSError` where the board is out of reach, `DecodeError` where it is none."""
        orders, reports = where.orders, where.reports
        if len(orders.shape) != 2 or len(reports.shape) != 2 or orders.dtype != "|u1" or reports.dtype != "|u1":
            raise DecodeError("A board has rows of bytes.")
        self.rooms = readable(shared_memory.open_place(orders, writable=False))
        self._reports = shared_memory.open_place(reports, writable=True)
        self._turn = 0

    def put(self, parcel: PackedArrays) -> PackedArrays:
        """A report, written to the room whose turn it is; small ones, and such as do not fit, travel."""
        if parcel.packed or not len(self._reports) or not 0 < parcel.room <= self._reports.shape[1]:
            return parcel
        room = self._turn = (self._turn + 1) % len(self._reports)
        parcel.write(self._reports[room])
        return parcel.posted(room)


def readable(rooms: Array) -> list[memoryview]:
    return [memoryview(room).toreadonly() for room in rooms]
