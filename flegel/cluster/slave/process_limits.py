"""Limits that a job's process takes on in its first moments, and the lines it reads before anything else.

It dies with its slave; it may use so much memory and no more; it leaves no core file; when the host runs out of
memory, the kernel kills it first; and where the slave isolates jobs, it sees no keys and no other jobs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
from pathlib import Path

import msgspec

from flegel.runtime.system.confinement import Confinement, confine
from flegel.runtime.system.parent_death import die_with_parent
from flegel.runtime.system.processors import limit_team


class ProcessLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line on standard input."""

    role: str
    scratch: str
    memory: int | None = None
    confinement: Confinement | None = None
    threads: int = 0
    """A team has at most so many; 0: as many as its job asks for."""


def bind_to_parent(parent: int) -> None:
    """End with the slave, leave no core file, and be killed first when memory runs out."""
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)  # the slave died before that
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("800")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def apply_limits(limits: ProcessLimits) -> None:
    """The job's folder for temporary files, its limit of memory, and what it may see."""
    if limits.confinement is not None:
        confine(limits.confinement)
    os.chdir(limits.scratch)
    os.environ["TMPDIR"] = tempfile.tempdir = limits.scratch
    os.environ["FLEGEL_ROLE"] = limits.role
    if limits.role == "worker":
        os.close(int(os.environ.pop("FLEGEL_REPORTS")))  # for coordinators only
    if limits.threads:
        limit_team(limits.threads)
    if limits.memory is not None:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))


def read_line() -> bytes:
    """One line of standard input, byte by byte, so that no buffer takes what follows it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        line += byte
    return line
