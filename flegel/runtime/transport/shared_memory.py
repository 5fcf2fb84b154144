"""Arrays that several processes of one host see without a copy, and that cannot be left behind.

On Linux the memory has no path at all: it is an anonymous file that other processes of the same user open through
the owner's entry in /proc and that vanishes with its last user. Elsewhere it is a file in the temporary folder,
removed as soon as every worker has opened it, or at exit.

A process can share any array in such memory: `place_of` describes where it is, `open_place` maps it elsewhere. Inside
one process any array can be shared (`place_here`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import mmap
import os
import secrets
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import NUMBERS
from flegel.datasets.rows import memory
from flegel.errors import DecodeError, FlegelError, ProtocolError
from flegel.messages import SharedMemoryRef
from flegel.runtime.transport.process_memory import ProcessArray
from flegel.runtime.transport.remote_arrays import Dial, RemoteArray

ANONYMOUS = hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()
SEGMENT_NAME_PREFIX = "flegel-"
PREPARED_FROM_BYTES = 1 << 20  # bytes from which on fresh memory is prepared ahead
PREPARED_STEP_BYTES = 8 << 20  # of one call to the system
PREPARING_THREADS = 4  # threads that prepare memory, where there are four times as many processors
OF_THIS_PROCESS = -1  # in place of a descriptor: an array of this process
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


class SharedBlock(mmap.mmap):
    """Mapped memory that stays open as a file, so that this process can lend it."""

    fd: int
    name: str
    """Drawn at random by the maker, so that a place cannot be mistaken for another one; empty: not to be lent."""
    address: int

    @classmethod
    def of(cls, fd: int, size: int, writable: bool) -> SharedBlock:
        """Takes the descriptor over."""
        block = cls(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        block.fd, block.name = fd, _name(fd)
        block.address = np.frombuffer(block, np.uint8, 1).ctypes.data
        return block

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


def _name(fd: int) -> str:
    """`flegel-…` where the descriptor is anonymous memory of ours, else nothing."""
    try:
        found = Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:
        return ""
    name = str(found).removeprefix("/memfd:").removesuffix(" (deleted)")
    return name if name.startswith(SEGMENT_NAME_PREFIX) else ""


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros in memory that can be lent to other processes, where this system has such memory."""
    try:
        return shareable(shape, dtype)
    except OSError:
        return np.zeros(shape, dtype)


def shareable(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that can be lent. Raises `OSError` where this system has no such memory, or none left, or too many files
    are open: such memory takes two."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    if not ANONYMOUS or not size:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd = os.memfd_create(SEGMENT_NAME_PREFIX + secrets.token_hex(8), os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        block = SharedBlock.of(fd, size, writable=True)
    except OSError:
        os.close(fd)
        raise
    return np.ndarray(shape, kind, buffer=block)


def room(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros in huge pages, where the system has them, filled in by a thread of its own.

    First touch of fresh memory takes longer than the copy that goes there; whoever receives should not wait for it.
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    if size < PREPARED_FROM_BYTES or not ANONYMOUS:
        return np.zeros(shape, kind)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    array: Array = np.ndarray(shape, kind, buffer=mapped)
    threads = max(min(len(os.sched_getaffinity(0)) // 4, PREPARING_THREADS), 1)
    for first in range(threads):
        threading.Thread(target=_populate, args=(array, first, threads), name="room", daemon=True).start()
    return array


def _populate(array: Array, first: int, threads: int) -> None:
    """Have the kernel lay memory under the array, which keeps what was written to it meanwhile; one hand of several."""
    madvise = ctypes.CDLL(None).madvise  # that of `mmap` would hold the GIL
    for offset in range(first * PREPARED_STEP_BYTES, array.nbytes, threads * PREPARED_STEP_BYTES):
        size = min(PREPARED_STEP_BYTES, array.nbytes - offset)
        if madvise(ctypes.c_void_p(array.ctypes.data + offset), ctypes.c_size_t(size), POPULATE_WRITE):
            return  # an older kernel; pages come when they are written


def lendable(array: Array) -> Array:
    """The array itself where it can be lent, else a copy that can, as writable as the array was."""
    if place_of(array) is not None or not ANONYMOUS or not array.size:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    copy.flags.writeable = array.flags.writeable
    return copy


def place_of(array: Array) -> SharedMemoryRef | None:
    """Where the array lies, for other processes of this host; None where it cannot be lent."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, SharedBlock) or not owner.name or not array.flags.c_contiguous:
        return None
    offset = array.ctypes.data - owner.address
    return SharedMemoryRef(os.getpid(), owner.fd, owner.name, offset, array.dtype.str, array.shape)


_here: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()


def place_here(array: Array) -> SharedMemoryRef | None:
    """Where the array lies, for other threads of this process; None where it cannot be lent."""
    if not array.flags.c_contiguous or not array.size:
        return None
    name = SEGMENT_NAME_PREFIX + secrets.token_hex(8)
    _here[name] = array
    return SharedMemoryRef(os.getpid(), OF_THIS_PROCESS, name, 0, array.dtype.str, array.shape)


def _opened_here(place: SharedMemoryRef, writable: bool) -> Array:
    """An array of this process by its description, as a view."""
    array = _here.get(place.name) if place.pid == os.getpid() else None
    if array is None:
        raise FileNotFoundError("The array of another thread is not there any more.")
    if (array.dtype.str, array.shape, 0) != (place.dtype, place.shape, place.offset):
        raise DecodeError("A lent array is not what was described.")
    view = array.view()
    view.flags.writeable = writable and array.flags.writeable
    return view


_open: weakref.WeakValueDictionary[tuple[str, bool], SharedBlock] = weakref.WeakValueDictionary()


def open_place(place: SharedMemoryRef, writable: bool) -> Array:
    """The array that another process lends. Raises `OSError` where it is not there (another host, a process that
    ended), and `DecodeError` where the description does not fit."""
    if place.dtype not in NUMBERS:
        raise DecodeError(f"Arrays of type {place.dtype[:20]!r} are not lent.")
    if place.offset < 0 or any(n < 0 for n in place.shape):
        raise DecodeError("A lent array lies outside of its memory.")
    if place.fd == OF_THIS_PROCESS:
        return _opened_here(place, writable)
    block = _open.get((place.name, writable))
    if block is None:
        block = _map(place, writable)
        _open[(place.name, writable)] = block
    kind, count = np.dtype(place.dtype), 1
    for extent in place.shape:
        count *= extent  # in Python's integers, which do not overflow
    if place.offset + count * kind.itemsize > len(block) or place.offset % kind.alignment:
        raise DecodeError("A lent array lies outside of its memory.")
    return np.ndarray(place.shape, kind, buffer=block, offset=place.offset)


def _map(place: SharedMemoryRef, writable: bool) -> SharedBlock:
    """Map the shared memory of another process of this host, found by its file descriptor; raises `FileNotFoundError`
    where that is something else by now."""
    fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    if not place.name.startswith(SEGMENT_NAME_PREFIX) or _name(fd) != place.name:
        os.close(fd)
        raise FileNotFoundError(f"The shared memory of process {place.pid} is not there any more.")
    try:
        return SharedBlock.of(fd, os.fstat(fd).st_size, writable)
    except (OSError, ValueError):
        os.close(fd)
        raise


class JobArray(Protocol):
    """An array that the workers of a job can read: filled through `array`, opened by what `describe` returns."""

    array: Array

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class SharedArray:
    """Owned by the process that made it; `describe` tells others how to open it."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Anonymous memory where the system has it, so that nothing remains if this process is killed; else a file,
        removed at exit."""
        self.shape, self.dtype = tuple(int(x) for x in shape), np.dtype(dtype)
        size = max(int(np.prod(self.shape)) * self.dtype.itemsize, 1)
        self._path = ""
        if ANONYMOUS:
            self._fd = os.memfd_create(SEGMENT_NAME_PREFIX + secrets.token_hex(8), os.MFD_CLOEXEC)
            self._path = f"/proc/{os.getpid()}/fd/{self._fd}"
            self._named = False
        else:
            self._fd, self._path = tempfile.mkstemp(prefix="flegel-")
            self._named = True
            atexit.register(self._unlink)
        try:
            os.ftruncate(self._fd, size)
            self._map: mmap.mmap | None = mmap.mmap(self._fd, size)
        except OSError as error:
            self.close()
            raise FlegelError(f"No memory for {size / 1e9:.1f} GB of shared data: {error.strerror}.") from None
        self.array: Array = np.ndarray(self.shape, self.dtype, buffer=self._map)

    def describe(self) -> dict[str, Any]:
        return {"path": self._path, "shape": list(self.shape), "dtype": self.dtype.str}

    def _unlink(self) -> None:
        if self._named:
            with contextlib.suppress(FileNotFoundError):
                Path(self._path).unlink()
            self._named = False

    def close(self) -> None:
        """Give the memory back; workers that still look at it keep it until they let go."""
        self._unlink()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.array = np.empty(0)
        self._map = None  # it holds a descriptor of its own


def open_shared(description: dict[str, Any], dial: Dial | None = None) -> Any:
    """The array that another process described, read-only; from another host, one that is fetched as it is indexed, and
    where it lies in the process's own memory, one of which ranges can be read."""
    if "address" in description:
        return ProcessArray(description)
    if "far" in description:
        if dial is None:
            raise ProtocolError("Rows of another host were offered to a worker that cannot connect to it.")
        return RemoteArray(description, dial)
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    fd = os.open(description["path"], os.O_RDONLY | os.O_CLOEXEC)
    try:
        block = SharedBlock.of(fd, size, writable=False)
    except (OSError, ValueError):
        os.close(fd)
        raise
    return np.ndarray(shape, dtype, buffer=block)


def free() -> int:
    """Bytes that this host can still give without swapping; `FLEGEL_MEMORY` in the environment says otherwise."""
    configured = memory.configured_limit()
    return int(memory.available() if configured is None else configured)
