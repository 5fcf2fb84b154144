"""Worker processes and how they are started: by a fork server, from scratch, or by other programs. No messages here.

A `Launcher` is the part of a cluster that knows where processes come from; `SlaveLauncher` in `flegel.cluster.slave`
is one that asks slaves of a master for them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Protocol

import msgspec

from flegel.runtime.processes import fork_server
from flegel.runtime.system.exit_codes import describe_exit
from flegel.runtime.system.parent_death import process_starter
from flegel.runtime.transport.poller import Poller
from flegel.runtime.worker.process import WorkerConfig


class Process(Protocol):
    """A worker process as its cluster sees it, on this host or another."""

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Where worker processes come from."""

    def open(self, poller: Poller) -> None:
        """Before the first launch; a launcher adds the descriptors that a waiting cluster should wake up for."""
        ...

    def launch(self, config: WorkerConfig) -> Process:
        """Start a process and return at once."""
        ...

    def prepare_spare(self) -> None:
        """Make the next launch quick, where that is possible."""
        ...

    def update(self) -> None:
        """Learn which processes have ended, so that `Process.poll` is current."""
        ...

    def job_ended(self) -> None:
        """End what hooks of the job have started and left behind."""
        ...

    def exit_cause(self, worker: int, code: int) -> tuple[str, bool]:
        """How a process ended, in words, and whether by its own fault."""
        ...

    def worker_ready(self, worker: int) -> None:
        """It has said hello."""
        ...

    def worker_removed(self, worker: int) -> None:
        """It was evicted: its process is not needed any more."""
        ...

    def ancestor(self) -> int | None:
        """The process whose descendants all workers are, other than this one; None where there is none."""
        ...

    def close(self) -> None:
        """After all processes have ended."""
        ...


class ForkServerLauncher:
    """Workers are forks of a fork server; from scratch where the system cannot do that."""

    def __init__(self) -> None:
        self.server: fork_server.ForkServer | None = None
        self._poller: Poller | None = None

    def open(self, poller: Poller) -> None:
        self._poller = poller

    def launch(self, config: WorkerConfig) -> Process:
        if not fork_server.AVAILABLE:
            return launch(config)
        self.prepare_spare()
        assert self.server is not None
        return self.server.spawn(msgspec.json.encode(config) + b"\n")

    def prepare_spare(self) -> None:
        """Have a living fork server."""
        if self.server is not None and not self.server.alive:
            self.close()
        if self.server is None and fork_server.AVAILABLE and self._poller is not None:
            self.server = fork_server.take()
            self._poller.add(self.server.fileno())

    def update(self) -> None:
        if self.server is not None:
            self.server.receive()

    def job_ended(self) -> None:
        if self.server is not None and self.server.alive:
            self.server.kill_strays()

    def exit_cause(self, worker: int, code: int) -> tuple[str, bool]:
        return describe_exit(code)

    def worker_ready(self, worker: int) -> None:
        """Not needed here."""

    def worker_removed(self, worker: int) -> None:
        """Not needed here."""

    def ancestor(self) -> int | None:
        return None if self.server is None else self.server.pid

    def close(self) -> None:
        if self.server is not None:
            assert self._poller is not None
            self._poller.drop(self.server.fileno())
            self.server.close()
            self.server = None


def launch(config: WorkerConfig, through: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A worker process of this host from scratch; it ends when its standard input closes.

    `through` is a command that runs another one in its place, such as `ip netns exec NAME`.
    """
    process = process_starter.start(
        lambda: subprocess.Popen(
            [*through, sys.executable, "-P", "-m", "flegel.runtime.worker.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=fork_server.environment(),
            start_new_session=True,
        )
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died already; `deaths` will report that
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()
    return process


def close_stdin(process: Process) -> None:
    """The request to end that every worker understands."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def end_process(process: Process) -> None:
    """Wait 2 s for it to end by itself, then terminate, then kill it."""
    for seconds, escalate in ((2.0, process.terminate), (1.0, process.kill), (5.0, lambda: None)):
        try:
            process.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            escalate()
