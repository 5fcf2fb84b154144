"""Runs one slave from inside a process of another system, such as a Ray actor or a task of Dask or Spark.

The slave is a process of its own: what it starts must not die with a thread, and the other system's process keeps its
own signal handlers. It ends with this process, because its standard input ends then.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from typing import IO

from flegel.cluster.launch.processes.placer import SLAVE_COMMAND, SLAVE_END_SECONDS


class HostedSlave:
    """One slave. Its ticket is written to its standard input, never to its arguments or environment."""

    def __init__(self, ticket: bytes) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the slave runs
        self._process = self._popen()
        assert self._process.stdin is not None
        self._process.stdin.write(ticket)
        self._process.stdin.flush()

    def _popen(self) -> subprocess.Popen[bytes]:
        """Start the process of a slave in a session of its own; its log is a file, its ticket comes over standard
        input."""
        return subprocess.Popen(
            [sys.executable, *SLAVE_COMMAND[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )

    def poll(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        return None if code is None else f"ended with {code}: {self.last_words()}"

    def wait(self, seconds: float) -> str | None:
        """`poll`, after waiting at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()

    def last_words(self) -> str:
        """The end of its log."""
        self._log.seek(max(self._log.seek(0, 2) - 4096, 0))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def drain(self) -> None:
        """Let it hand its work over and end."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it without draining; returns when it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(SLAVE_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def host_slave(ticket: bytes) -> str:
    """Run one slave until it ends; how it ended."""
    slave = HostedSlave(ticket)
    try:
        while (ended := slave.wait(1.0)) is None:
            pass
        return ended
    finally:
        slave.end()
