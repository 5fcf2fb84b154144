"""Buffers that a coordinator shares with the workers of its host: large arrays are written once and read in place.

Through a socket θ is copied twice for each worker, and so is each report; with some megabytes that is most of what a
barrier costs. In shared buffers θ is written once for all workers, and a report once. Messages still go through the
socket and name the slot in which their arrays are. All memory belongs to the coordinator. A worker that cannot open it
does not say that it can (`ShardLoaded.shared_buffers`), and its arrays travel with the messages.

Slots are written again and again, so each has a time for which it may be read:

* θ of a round belongs to a worker until it reports on a later round, because it may train on while it waits. Where all
  slots are in use, θ travels with the message.
* Two slots of each worker take turns with its reports. It writes report k + 2 where k was, and has been sent a θ with
  report k + 1 in it before; the ledger drops the report before the one that it commits (params/ledger.py).
* Each incarnation of a worker has slots of its own: one that was evicted cannot write into those of its successor.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence

import numpy as np

from flegel.configuration.active import active
from flegel.core.parallel_sums import copy_bytes
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.messages import LoadShard, Report, ShardLoaded, SharedBufferRef, Train
from flegel.runtime.transport import shared_memory
from flegel.runtime.transport.codec import PackedArrays, padded_size

SLOTS_IN_TURN = 2  # of a sender: one is read while the other is written
MAX_SLOT_BYTES = 1 << 30  # bytes of all slots for θ; they take memory only when they are used
SHARED_BUFFERS_VARIABLE = "FLEGEL_SHARED_BUFFERS"
"""`off` in the environment: arrays always travel, even inside a host."""
FORMER_VARIABLE = "FLEGEL_BOARD"
_log = logging.getLogger(__name__)


class SharedBuffers:
    """The coordinator's side for one job: owns all slots, and knows which worker may read or write which."""

    def __init__(self, order: int, report: int, workers: int) -> None:
        """`order`, `report`: bytes of θ and of a report, at most. Raises `OSError` where there is no memory for it."""
        slots = max(min(SLOTS_IN_TURN * workers + 1, MAX_SLOT_BYTES // max(order, 1)), SLOTS_IN_TURN + 1)
        self._orders: Array = shared_memory.shareable((slots, max(order, 1)), np.uint8)
        self._report = max(report, 1)
        self._unused: list[Array] = list(shared_memory.shareable((workers, SLOTS_IN_TURN, self._report), np.uint8))
        """Slots for the reports of workers that were not replaced yet; they share one block of memory, because each
        block costs two open files."""
        self._reports: dict[bytes, tuple[int, list[memoryview]]] = {}
        """By incarnation: the worker, and its slots."""
        self._in_use: dict[int, deque[tuple[int, int]]] = {}
        """By worker that has the shared buffers open: rounds whose θ it may look at, and the slots."""
        self._written: tuple[PackedArrays | None, int] = (None, -1)
        """The θ that was written last, and its slot; -1: no slot was free."""

    def assign_slots(self, worker: int, incarnation: bytes) -> SharedBufferRef | None:
        """Give a new incarnation of this worker (by the name of its socket) slots for its reports, and return how it
        finds all slots; None where there is no memory that can be shared."""
        self.forget(worker)
        try:
            slots = (
                self._unused.pop() if self._unused else shared_memory.shareable((SLOTS_IN_TURN, self._report), np.uint8)
            )
        except OSError:
            return None
        orders, reports = shared_memory.place_of(self._orders), shared_memory.place_of(slots)
        if orders is None or reports is None:
            return None
        self._reports[incarnation] = (worker, readable(slots))
        return SharedBufferRef(orders, reports)

    def forget(self, worker: int) -> None:
        """The process of this worker has ended, or has dropped its shard: its slots are not read any more."""
        self._in_use.pop(worker, None)
        for incarnation in [incarnation for incarnation, (whose, _) in self._reports.items() if whose == worker]:
            del self._reports[incarnation]

    def slots(self, incarnation: bytes) -> Sequence[memoryview]:
        """The slots in which the reports of this incarnation are; none where it has no shared buffers."""
        found = self._reports.get(incarnation)
        return () if found is None else found[1]

    def hear(self, incarnation: bytes, body: object) -> None:
        """Note from a message which slots its sender does not need any more: a report on a later round frees the slots
        of θ of earlier rounds, and `ShardLoaded` says whether it can open the shared buffers."""
        if type(body) is Report:
            found = self._reports.get(incarnation)
            in_use = self._in_use.get(found[0]) if found else None
            while in_use and in_use[0][0] < body.round:
                in_use.popleft()
        elif (
            type(body) is ShardLoaded and body.shared_buffers and (found := self._reports.get(incarnation)) is not None
        ):
            self._in_use[found[0]] = deque()

    def order(self, worker: int, body: Train, packed: PackedArrays) -> PackedArrays:
        """Write θ into a free slot and return a reference to it; `packed` itself, which travels with the message, where
        this worker cannot open shared buffers, no slot is free, or θ does not fit."""
        if worker not in self._in_use or packed.packed or not 0 < packed.nbytes <= self._orders.shape[1]:
            return packed
        if self._written[0] is not packed:
            self._written = (packed, self._write(packed))
        slot = self._written[1]
        if slot < 0:
            return packed
        self._in_use[worker].append((body.round, slot))
        return packed.in_slot(slot)

    def _write(self, packed: PackedArrays) -> int:
        """Write θ into a slot that no worker reads; returns its number, or -1 where all are in use."""
        in_use = {slot for rounds in self._in_use.values() for _, slot in rounds}
        free = next((slot for slot in range(len(self._orders)) if slot not in in_use), -1)
        if free >= 0:
            packed.write(self._orders[free], copy_bytes)
        return free


def _turned_off() -> bool:
    """Whether shared buffers are turned off by `SHARED_BUFFERS_VARIABLE`, or by its former name, which is
    deprecated."""
    if FORMER_VARIABLE in os.environ and SHARED_BUFFERS_VARIABLE not in os.environ:
        _log.warning("%s is deprecated; set %s instead.", FORMER_VARIABLE, SHARED_BUFFERS_VARIABLE)
    return os.environ.get(SHARED_BUFFERS_VARIABLE, os.environ.get(FORMER_VARIABLE, "")) == "off"


def for_job(load: LoadShard, packed: PackedArrays, workers: int) -> SharedBuffers | None:
    """Shared buffers for a job whose workers load their shards by `load`; None where θ and reports are small, or memory
    is. `packed`: the arrays of `load`, first θ, then empty statistics, which tell the sizes."""
    if load.forms or not shared_memory.ANONYMOUS or _turned_off():
        return None
    first = max(len(load.parameter.fields), 1)
    last = first + max(len(load.statistics.fields), 1)
    order, report = padded_size(packed.arrays[:first]), padded_size(packed.arrays[first:last])
    if max(order, report) < active().transport.shared_from_bytes:
        return None
    try:
        return SharedBuffers(order, report, workers)
    except OSError:  # then arrays travel
        return None


class BufferWriter:
    """A worker's side: opens the slots of θ for reading, and writes reports into its own two in turn."""

    def __init__(self, where: SharedBufferRef) -> None:
        """Raises `OSError` where the shared buffers cannot be opened, `DecodeError` where they have another shape."""
        orders, reports = where.orders, where.reports
        if len(orders.shape) != 2 or len(reports.shape) != 2 or orders.dtype != "|u1" or reports.dtype != "|u1":
            raise DecodeError("Shared buffers must be matrices of bytes.")
        self.slots = readable(shared_memory.open_place(orders, writable=False))
        self._reports = shared_memory.open_place(reports, writable=True)
        self._turn = 0

    def put(self, packed: PackedArrays) -> PackedArrays:
        """Write a report into the slot whose turn it is and return a reference to it; `packed` itself, which travels
        with the message, where it is empty or does not fit."""
        if packed.packed or not len(self._reports) or not 0 < packed.nbytes <= self._reports.shape[1]:
            return packed
        slot = self._turn = (self._turn + 1) % len(self._reports)
        packed.write(self._reports[slot])
        return packed.in_slot(slot)


def readable(slots: Array) -> list[memoryview]:
    return [memoryview(slot).toreadonly() for slot in slots]
