"""One process of a host compiles a function, the others wait for its code. Compiles nothing itself.

The lock is the operating system's: it is released with the process that holds it. A waiting process looks by processor
time whether the holder makes progress: on a busy host compiling takes minutes, and compiling in every process would
make the host busier. A holder that is stopped, or a file system without locks, delays the others by at most
`IDLE_COMPILER_SECONDS`; then they compile themselves, which is correct and only costs time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from flegel.core.hook_limits import COMPILING_SECONDS
from flegel.datasets.rows import memory
from flegel.errors import UsageError
from flegel.runtime import clock

IDLE_COMPILER_SECONDS = 60.0
"""Seconds to wait for a process that does nothing, or of which nothing is known: on another host, for example."""
TURN_CHECK_SECONDS = 0.02  # between two looks whether the other process has compiled it
COMPILER_BYTES = 160 << 20
"""Memory that one compilation may take: k-means takes 120 MB; logistic regression 280, but not at once."""


def processor_time(pid: int) -> int | None:
    """Ticks that a process has computed; None where there is none of that number, or no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def turn(
    path: Path,
    patience: float = IDLE_COMPILER_SECONDS,
    most: float = COMPILING_SECONDS,
    computed: Callable[[int], int | None] = processor_time,
) -> Iterator[None]:
    """Inside, no other process of this host is in the same turn, unless the one that is has not `computed` anything for
    so long that patience ran out, or `most` seconds are over."""
    with path.open("a+") as file:
        began = seen_at = clock.now()
        seen: int | None = None
        while clock.now() < min(seen_at + patience, began + most):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                ticks = computed(_holder(file.fileno()))
                if ticks != seen:
                    seen, seen_at = ticks, clock.now()
                clock.sleep(TURN_CHECK_SECONDS)
                continue
            except OSError:  # no locks here
                break
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
            break
        yield


def check_memory() -> None:
    """Raises where a compiler would run out of memory: LLVM then ends the whole process, without a Python error."""
    free = memory.available()
    if free < COMPILER_BYTES:
        raise UsageError(
            f"Compiling takes up to {COMPILER_BYTES >> 20} MB of memory; {free >> 20} MB are free within the limits of "
            "this process and its container. Raise the limit, or run `flegel warm` where there is more memory: code "
            "that is in the cache needs no compiler."
        )


def _holder(descriptor: int) -> int:
    """The process whose turn it is, as it has noted; 0 where it has not."""
    noted = os.pread(descriptor, 20, 0)
    return int(noted) if noted.isdigit() else 0
