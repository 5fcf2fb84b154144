"""Sends a coordinator's reports to its slave, from any thread. Reads nothing."""

from __future__ import annotations

import contextlib
import os
import threading

from flegel.cluster.slave import coordinator_protocol


class CoordinatorPipe:
    """Writes whole lines into a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def send(self, report: coordinator_protocol.Report) -> None:
        content = memoryview(coordinator_protocol.encode(report) + b"\n")
        with self._lock, contextlib.suppress(BrokenPipeError):
            while content:
                content = content[os.write(self._fd, content) :]
