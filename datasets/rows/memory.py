"""Memory for shards: in RAM up to a limit, above it in a mapped scratch file that the system can page out.

The limit is `FLEGEL_MEMORY` (bytes, or with K, M, G, T) for one array, or half of the memory available at the time of
the allocation, divided by the number of processes that load their shards at that time. Never reads data.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import DataError, UsageError

_SHARERS: ContextVar[int] = ContextVar("sharers", default=1)
ALWAYS_IN_MEMORY_BYTES = 32 << 20
"""Arrays of so many bytes stay in RAM whatever else is there: a process of Flegel takes several times as many, and what
is free is read from a dozen files in 1 ms, which is a fifteenth of a small job."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def exceeds_memory(size: int) -> bool:
    """Whether an array of so many bytes is too large for RAM. Nobody asks the system about small ones."""
    configured = configured_limit()
    if configured is not None:
        return size > configured
    return size > ALWAYS_IN_MEMORY_BYTES and size > available() // (2 * _SHARERS.get())


@contextlib.contextmanager
def shared_by(processes: int) -> Iterator[None]:
    """So many processes of this host allocate at the same time, each without seeing what the others take."""
    token = _SHARERS.set(max(processes, 1))
    try:
        yield
    finally:
        _SHARERS.reset(token)


def configured_limit() -> int | None:
    """The value of `FLEGEL_MEMORY` in bytes, or None where it is not set."""
    text = os.environ.get("FLEGEL_MEMORY", "").strip().upper().removesuffix("B")
    if not text:
        return None
    unit = _UNITS.get(text[-1], 1)
    try:
        size = int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise UsageError(f"FLEGEL_MEMORY={text!r} is no size; use a number of bytes from 1 on, or for example 4G.")
    return size


def available() -> int:
    """Bytes that can be allocated without swapping, and within the limits of control groups (containers) and of this
    process (`ulimit -d`, `ulimit -v`)."""
    limits = [*control_groups(), *_process_limit()]
    return min([_available_on_host(), *(max(limit - used, 0) for limit, used in limits)])


def _process_limit() -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of the private memory and of the addresses of this process, where these are limited."""
    for kind, name in ((resource.RLIMIT_DATA, "VmData:"), (resource.RLIMIT_AS, "VmSize:")):
        limit, _ = resource.getrlimit(kind)
        if limit == resource.RLIM_INFINITY:
            continue
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/self/status").read_text().splitlines()
            yield limit, int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def _available_on_host() -> int:
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123 - not a file of ours
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return total()


def total() -> int:
    """Bytes of memory of this host, or of the control group (container) that this process runs in."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([host, *(limit for limit, _ in control_groups())])


def control_groups(root: str = "/") -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of each control group that limits this process; files in memory that can be dropped are
    not counted as used. Versions 1 and 2; `root` is another place of /proc and /sys, for tests."""
    for base, path, names in _memory_groups(Path(root)):
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(base):
                break
            with contextlib.suppress(OSError, ValueError):
                limit = int((group / names[0]).read_text())  # `max` is no number: not limited
                used = int((group / names[1]).read_text())
                statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                yield limit, max(used - _files_in_memory(statistics), 0)


def _files_in_memory(statistics: dict[str, str]) -> int:
    """Bytes of files in memory, those of the group's children too, as `memory.stat` of either version says it. Also
    such as were read twice (active): pages of a scratch file that is visited again are dropped like others."""
    names = ("active_file", "inactive_file")
    return sum(int(statistics.get(f"total_{name}", statistics.get(name, 0))) for name in names)


def _memory_groups(root: Path) -> Iterator[tuple[Path, str, tuple[str, str]]]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / "sys/fs/cgroup", path, ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory", path, ("memory.limit_in_bytes", "memory.usage_in_bytes")


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized C-ordered array; above the limit it is a map of an unnamed scratch file."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return scratch(shape, dtype) if exceeds_memory(size) else np.empty(shape, dtype)


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The same in an unnamed scratch file in any case; it is gone with the array."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix="flegel-shard-", dir=os.environ.get("FLEGEL_SCRATCH")) as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise DataError(
            f"A shard of {size:,} bytes is above the memory limit and cannot be put into a scratch file "
            f"({error.strerror or error}); point FLEGEL_SCRATCH to a folder with space that you may write to."
        ) from None


def in_scratch_file(array: Any) -> bool:
    """The array is a part of a map of a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False
