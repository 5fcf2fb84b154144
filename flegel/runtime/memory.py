"""Arrays that several processes of one host see without a copy, and that cannot be left behind.

On Linux the memory has no name at all: it is an anonymous file that other processes of the same user open through
the owner's entry in /proc and that vanishes with its last user. Elsewhere it is a file in the temporary folder,
removed as soon as every worker has opened it, or at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from flegel.errors import FlegelError
from flegel.runtime.far import FarArray
from flegel.tree import Array


class SharedArray:
    """Owned by the process that made it; `describe` tells others how to open it."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = tuple(int(x) for x in shape), np.dtype(dtype)
        size = max(int(np.prod(self.shape)) * self.dtype.itemsize, 1)
        self._path = ""
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
            self._fd = os.memfd_create("flegel", os.MFD_CLOEXEC)
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


def open_shared(description: dict[str, Any]) -> Any:
    """The array that another process described, read-only; from another host, one that is fetched as it is indexed."""
    if "far" in description:
        return FarArray(description)
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    fd = os.open(description["path"], os.O_RDONLY)
    try:
        mapped = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    return np.ndarray(shape, dtype, buffer=mapped)


def available() -> int:
    """Bytes that this host can still give without swapping; `FLEGEL_MEMORY` in the environment says otherwise."""
    told = os.environ.get("FLEGEL_MEMORY")
    if told:
        return int(float(told))
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
