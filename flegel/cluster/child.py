"""The first moments of a job's process: it takes on its limits, then becomes a worker or a coordinator.

It dies with its slave, whatever happens to that one; it may use so much memory and no more; it leaves no core file; and
when the host runs out of memory, the kernel takes it before it takes anybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

_PR_SET_PDEATHSIG = 1


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line on standard input."""

    role: str
    parent: int
    memory: int | None = None


def take_on(bounds: Bounds) -> None:
    """Limits of this process and of all that it starts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != bounds.parent:
            os._exit(1)  # the slave died before that
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("800")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if bounds.memory is not None:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory, bounds.memory))


def read_line() -> bytes:
    """One line, byte by byte, so that nothing after it is swallowed by a buffer."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        line += byte
    return line


def main() -> None:
    """Entry point of the process."""
    bounds = msgspec.json.decode(read_line(), type=Bounds)
    take_on(bounds)
    if bounds.role == "worker":
        from flegel.runtime.worker import main as work

        work()
    else:
        from flegel.cluster.coordinate import main as coordinate

        coordinate()


if __name__ == "__main__":
    main()
