"""Arrays that live in one process of a job and are read piece by piece by others, on any host. Read only.

Used where the data live with whoever submitted them. Readers ask, so that what is under way is bounded by them: a few
pieces of some megabytes each. Both sides prove with the job's own key that they belong to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from flegel.core.own_pauses import LONGEST_WAIT_SECONDS, Deadline
from flegel.core.pytree import Array
from flegel.errors import DecodeError, FlegelError, ProtocolError
from flegel.messages import ReadRows, RowsRead
from flegel.runtime import clock
from flegel.runtime.transport.codec import EMPTY, PackedArrays, Sequencer, decode
from flegel.runtime.transport.job_sockets import JobSockets
from flegel.runtime.transport.poller import Poller, wait_any

_log = logging.getLogger(__name__)

ANSWER_BYTES = 4 << 20  # bytes of one answer
ANSWERS_REQUESTED_AHEAD = 4  # pieces that are asked for before the first has come
ANSWER_TIMEOUT_SECONDS = 60.0  # seconds without a piece until the reader gives up
IDLE_SECONDS = 3600.0  # between two turns of a thread that is woken by a request or by its end

Dial = Callable[[str], "zmq.Socket[bytes]"]
"""How a reader connects to the process that has an array."""


class ArrayServer:
    """Answers readers in a thread of its own, which sleeps while no reader asks."""

    def __init__(self, sockets: JobSockets, near: str) -> None:
        """Listen at an address near `near` and start the thread that answers."""
        self._sockets = sockets
        self._arrays: dict[int, Array] = {}
        self._count = 0
        self._socket, self.address = sockets.listen(near)
        self._wakeup, self._wakeup_writer = os.pipe()
        self._sequencer = Sequencer("far", 0, 0, 0)
        self._thread = threading.Thread(target=self._loop, name="arrays", daemon=True)
        self._thread.start()

    def keep(self, array: Array) -> int:
        """The number under which readers find the array from now on."""
        self._count += 1
        self._arrays[self._count] = array
        return self._count

    def drop(self, number: int) -> None:
        self._arrays.pop(number, None)

    def close(self) -> None:
        os.write(self._wakeup_writer, b"!")
        self._thread.join(timeout=5.0)
        os.close(self._wakeup_writer)
        os.close(self._wakeup)

    def _loop(self) -> None:
        """The thread: answer requests for rows until it is woken to end."""
        try:
            while not wait_any([self._socket], self._wakeup, IDLE_SECONDS):
                with contextlib.suppress(zmq.Again):
                    while True:
                        self._answer(self._socket.recv_multipart(zmq.NOBLOCK))
        finally:
            self._socket.close(linger=0)

    def _answer(self, parts: list[bytes]) -> None:
        """Send the rows that a reader asks for, or why there are none."""
        try:
            envelope, arrays = decode(parts[1:])
            if not isinstance(envelope.body, ReadRows):
                raise DecodeError("Only ReadRows is answered here.")
        except DecodeError as error:
            _log.warning("dropped a request for data: %s", error)
            return
        want, rows = envelope.body, arrays[0] if arrays else None
        piece, packed = RowsRead(want.number, "there is no such array"), EMPTY
        array = self._arrays.get(want.array)
        if array is not None:
            try:
                found = array[want.start : want.stop] if rows is None else array[rows]
                piece, packed = RowsRead(want.number), PackedArrays((found,))
            except IndexError as error:
                piece = RowsRead(want.number, str(error)[:200])
        with contextlib.suppress(zmq.ZMQError):  # the reader has gone
            self._socket.send_multipart([parts[0], *self._sequencer.wrap(piece, packed)], zmq.NOBLOCK, copy=False)


class ServedArray:
    """An array that readers on any host can fetch; the counterpart of `SharedArray` (`shared_memory.py`)."""

    def __init__(self, server: ArrayServer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._server = server
        self.array: Array = np.empty(shape, dtype)
        self._number = server.keep(self.array)

    def describe(self) -> dict[str, Any]:
        shape, dtype = list(self.array.shape), self.array.dtype.str
        return {"far": self._server.address, "number": self._number, "shape": shape, "dtype": dtype}

    def close(self) -> None:
        self._server.drop(self._number)
        self.array = np.empty(0)


class RemoteArray:
    """What a reader has in hand: indexing fetches, by slices or by the numbers of rows."""

    def __init__(self, description: dict[str, Any], dial: Dial) -> None:
        self._dial = dial
        self._address, self._number = str(description["far"]), int(description["number"])
        self.shape = tuple(int(n) for n in description["shape"])
        self.dtype = np.dtype(description["dtype"])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Any:
        """Fetch rows by a slice, a number, a mask or an array of numbers, as numpy would give them."""
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            got = self._fetch(max(stop - start, 0), start, None)
            return got if step == 1 else got[::step]
        if isinstance(which, int | np.integer):
            place = int(which) % len(self) if -len(self) <= which < len(self) else -1
            if place < 0:
                raise IndexError(f"row {which} of {len(self)}")
            return self._fetch(1, place, None)[0]
        rows = np.asarray(which)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return self._fetch(len(rows), 0, rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)

    def _fetch(self, count: int, start: int, rows: Array | None) -> Array:
        """Read rows over the network, with some requests on their way at once; fails where nothing comes for too
        long."""
        out = np.empty((count, *self.shape[1:]), self.dtype)
        each = max(out.nbytes // count if count else 1, 1)
        size = max(ANSWER_BYTES // each, 1)
        pieces = [(lo, min(lo + size, count)) for lo in range(0, count, size)]
        link = self._dial(self._address)
        sequencer = Sequencer("far", 0, 0, 0)
        try:
            poller, asked, taken = Poller(link), 0, 0
            deadline = Deadline(ANSWER_TIMEOUT_SECONDS, clock.now())
            while taken < len(pieces):
                while asked < min(taken + ANSWERS_REQUESTED_AHEAD, len(pieces)):
                    lo, hi = pieces[asked]
                    packed = EMPTY if rows is None else PackedArrays((rows[lo:hi],))
                    link.send_multipart(sequencer.wrap(ReadRows(self._number, asked, start + lo, start + hi), packed))
                    asked += 1
                try:
                    parts: list[Any] = link.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    if deadline.passed(clock.now()):
                        raise FlegelError(
                            f"The data at {self._address} did not come within {ANSWER_TIMEOUT_SECONDS:.0f} s; is its "
                            "owner alive?"
                        ) from None
                    poller.wait(LONGEST_WAIT_SECONDS)
                    continue
                self._put(out, pieces, parts)
                taken += 1
                deadline = Deadline(ANSWER_TIMEOUT_SECONDS, clock.now())
        finally:
            link.close(linger=0)
        out.flags.writeable = False  # as arrays in shared memory are: to compiled code these are different types
        return out

    def _put(self, out: Array, pieces: list[tuple[int, int]], parts: list[Any]) -> None:
        """Write one answer into its rows of `out`. `pieces`: start and end of the rows that each request asked for;
        `parts`: the frames of the answer."""
        envelope, arrays = decode([f.buffer for f in parts])
        piece = envelope.body
        if not isinstance(piece, RowsRead) or not 0 <= piece.number < len(pieces):
            raise ProtocolError(f"{self._address} answered with something else than data.")
        if piece.error or not arrays:
            raise ProtocolError(f"{self._address} has no such data: {piece.error}.")
        lo, hi = pieces[piece.number]
        if arrays[0].dtype != self.dtype or arrays[0].shape != out[lo:hi].shape:
            raise ProtocolError(f"{self._address} answered with data of another shape.")
        out[lo:hi] = arrays[0]
