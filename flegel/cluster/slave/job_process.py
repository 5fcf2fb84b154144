"""The first moments of a job's process: it takes on its limits, then becomes a worker or a coordinator.

It dies with its slave, whatever happens to that one; it may use so much memory and no more; it leaves no core file; and
when the host runs out of memory, the kernel takes it before it takes anybody else.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import sys
import tempfile
from pathlib import Path

import msgspec

from flegel.runtime.processes.parent_death import die_with_parent


class ProcessLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line on standard input."""

    role: str
    scratch: str
    memory: int | None = None


def bind_to_parent(parent: int) -> None:
    """From its first moment: it ends with its slave, leaves no core, and goes first when memory runs out."""
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)  # the slave died before that
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("800")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def apply_limits(bounds: ProcessLimits) -> None:
    """What holds for this job: its folder for temporary files, its limit of memory."""
    os.chdir(bounds.scratch)
    os.environ["TMPDIR"] = tempfile.tempdir = bounds.scratch
    os.environ["FLEGEL_ROLE"] = bounds.role
    if bounds.role == "worker":
        os.close(int(os.environ.pop("FLEGEL_REPORTS")))  # for coordinators only
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
    """Entry point of the process: `child PARENT ROLE`, where ROLE says what to get ready for (`any`: for both)."""
    bind_to_parent(int(sys.argv[1]))
    if sys.argv[2] != "worker":
        from flegel.cluster.slave import slave_workers  # noqa: F401 - read now, so that a spare process is quick
        from flegel.cluster.slave.coordinator_process import main as coordinate
        from flegel.runtime.job import run  # noqa: F401
    from flegel.runtime.worker.process import main as work

    if sys.argv[2] == "any" and not select.select([0], [], [], 0)[0]:
        from flegel.runtime.backends.numba.compiler import wake_compiler

        wake_compiler()  # half a second that a job would have to wait for
    bounds = msgspec.json.decode(read_line(), type=ProcessLimits)
    apply_limits(bounds)
    if bounds.role == "worker":
        work()
    else:
        coordinate()


if __name__ == "__main__":
    main()
