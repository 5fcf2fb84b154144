"""Arrays of one process that others of its host read where they are, without a copy for all of them. Linux only.

`process_vm_readv` copies from the memory of another process into one's own. The kernel allows it to processes of the
same user that may trace the other one; `readable` says beforehand whether they may, and a reader that may not after all
says so (`OutOfReach`). Nothing is written to another process, and nothing outside of the described array is read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import NUMBERS
from flegel.errors import DecodeError, OutOfReach

MAX_RANGES_PER_CALL = 1024  # ranges of one call; the kernel takes no more
PROCESS_MARK_BYTES = 16  # bytes
PR_GET_DUMPABLE, PR_SET_PTRACER = 3, 0x59616D61  # linux/prctl.h
CAP_SYS_PTRACE = 19  # linux/capability.h
_refused: list[bool] = []
PTRACE_SCOPE_FILE = Path("/proc/sys/kernel/yama/ptrace_scope")


class LentArray:
    """An array of this process, lent to others until it is closed."""

    def __init__(self, array: Array) -> None:
        self.array: Array = array
        self._mark = np.frombuffer(secrets.token_bytes(PROCESS_MARK_BYTES), np.uint8)
        """Drawn at random, so that no other process can be mistaken for this one."""

    def describe(self) -> dict[str, Any]:
        array, mark = self.array, self._mark
        place = {"process": os.getpid(), "address": array.ctypes.data}
        kind = {"shape": list(array.shape), "dtype": array.dtype.str}
        return {**place, **kind, "mark": [mark.ctypes.data, mark.tobytes().hex()]}

    def close(self) -> None:
        self.array = np.empty(0)


class ProcessArray:
    """Rows in the memory of another process."""

    def __init__(self, description: dict[str, Any]) -> None:
        """An array in the memory of another process of this host, by its description. Raises `OutOfReach` where that
        process is not the one that wrote the description."""
        self.shape = tuple(int(n) for n in description["shape"])
        if description["dtype"] not in NUMBERS or not self.shape or any(n < 0 for n in self.shape):
            raise DecodeError("An array in the memory of another process was described wrongly.")
        self.dtype = np.dtype(description["dtype"])
        self._width = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        self._process, self._address = int(description["process"]), int(description["address"])
        at, expected = description["mark"]
        mark = np.empty(PROCESS_MARK_BYTES, np.uint8)
        self._copy(np.array([[int(at), PROCESS_MARK_BYTES]], np.uint64), mark)
        if mark.tobytes().hex() != expected:
            raise OutOfReach(f"Process {self._process} is not the one that has the rows.")

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, ranges: Array, into: Array) -> None:
        """The rows of these (start, stop) ranges, one after the other. Raises `OutOfReach` where they cannot be read.

        Releases the GIL while it copies.
        """
        lengths = ranges[:, 1] - ranges[:, 0]
        total = int(lengths.sum())
        fits = into.flags.c_contiguous and into.dtype == self.dtype and into.nbytes == total * self._width
        if not fits or (len(ranges) and (ranges.min() < 0 or ranges.max() > len(self) or lengths.min() < 0)):
            raise DecodeError(f"{total} rows of another process do not fit, or lie outside of its array.")
        if self._width == 0:
            return
        far = np.stack([self._address + ranges[:, 0] * self._width, lengths * self._width], axis=1).astype(np.uint64)
        self._copy(far, into)

    def _copy(self, far: Array, into: Array) -> None:
        """Addresses and sizes there, one after the other to here."""
        target = into.ctypes.data
        for first in range(0, len(far), MAX_RANGES_PER_CALL):
            some = far[first : first + MAX_RANGES_PER_CALL]
            size = int(some[:, 1].sum())
            near = np.array([target, size], np.uint64)
            got = _libc().process_vm_readv(self._process, near.ctypes.data, 1, some.ctypes.data, len(some), 0)
            if got != size:
                why = os.strerror(ctypes.get_errno()) if got < 0 else os.strerror(errno.EFAULT)
                raise OutOfReach(f"The rows in the memory of process {self._process} cannot be read: {why}.")
            target += size


def readable(readers: int | None) -> bool:
    """Whether children of this process can read its memory. `readers` is the process whose descendants they are: where
    only debuggers of one's choice are let in (Yama), these are allowed to be such."""
    if _refused or not _reads_itself() or _libc().prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        return False
    scope = _scope()
    if scope == 0 or (scope < 3 and _has_capability()):
        return True
    return scope == 1 and readers is not None and _libc().prctl(PR_SET_PTRACER, readers, 0, 0, 0) == 0


def remember_refusal() -> None:
    """A worker could not read after all, for a reason that cannot be seen from here; do not try again."""
    _refused.append(True)


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    word, address, call = ctypes.c_ulong, ctypes.c_void_p, library.process_vm_readv
    call.restype, call.argtypes = ctypes.c_ssize_t, [ctypes.c_int, address, word, address, word, word]
    library.prctl.argtypes = [ctypes.c_int, word, word, word, word]
    return library


@cache
def _reads_itself() -> bool:
    """The call exists, and no filter of system calls refuses it."""
    if sys.platform != "linux":
        return False
    one, two = np.arange(8), np.zeros(8, np.int64)
    try:
        lent = LentArray(one)
        ProcessArray(lent.describe()).read(np.array([[0, 8]]), two)
    except (AttributeError, OutOfReach):
        return False
    return bool((one == two).all())


def _scope() -> int:
    try:
        return int(PTRACE_SCOPE_FILE.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return 3


def _has_capability() -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        held = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(held.split()[1], 16) >> CAP_SYS_PTRACE & 1)
    except (OSError, StopIteration, ValueError):
        return False
