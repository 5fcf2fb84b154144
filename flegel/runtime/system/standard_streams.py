"""Standard streams that cannot break a job: output whose reader is gone is dropped, and the process goes on.

A pipe to `head` that has ended, a terminal that was closed, a log on a full disk: writing to them fails, and what was
to be written is worth less than what is being computed. Closed descriptors 0, 1 and 2 are opened to /dev/null, so that
no other file gets their numbers.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class LenientFile(io.FileIO):
    """A descriptor whose write errors are swallowed; `broken` tells."""

    broken = False

    def write(self, content: Any) -> int:
        try:
            written = super().write(content)
        except OSError:
            self.broken = True
            return memoryview(content).nbytes
        return memoryview(content).nbytes if written is None else written


def fill_closed_descriptors() -> None:
    """Open /dev/null for standard streams that are closed, so that no file or socket gets their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)


def protect(*names: str) -> None:
    """Make these streams of this process (`stdout`, `stderr`) lenient; for the entry points of processes."""
    fill_closed_descriptors()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if name not in names or isinstance(getattr(getattr(stream, "buffer", None), "raw", None), LenientFile):
            continue
        if stream is not None:
            try:
                if stream.fileno() != descriptor:
                    continue  # somebody has replaced it, such as a test that captures output
                stream.flush()
            except (OSError, ValueError):
                pass
        setattr(sys, name, _lenient(descriptor, name == "stderr"))


def _lenient(descriptor: int, unbuffered: bool) -> io.TextIOWrapper:
    raw = LenientFile(descriptor, "wb", closefd=False)
    errors = "backslashreplace" if unbuffered else "strict"
    lines = unbuffered or os.isatty(descriptor)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors, line_buffering=lines, write_through=unbuffered)


def output_taken() -> bool:
    """Flush standard output; False where its reader is gone."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, LenientFile) and raw.broken)
