"""A process that has imported and warmed what every worker needs, and forks workers from itself.

A worker from scratch costs more than a second of processor time, nearly all of it for imports and for the compiler's
own tables; a fork of the nest costs some milliseconds, also when a lost worker is replaced. The nest has one thread,
opens no socket and runs no user code. It ends with the process that started it, and its workers with it.

Requests, each with the read end of the worker's standard input, and answers (`BORN` with a pidfd, `ENDED`) are packets
on a pair of local sockets. See docs/adr/workers-from-a-fork-server.md.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from flegel.runtime import clock
from flegel.runtime.processes.parent_death import die_with_parent, nursery

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
UNDER_WAY = 64
"""Requests without an answer: each holds a descriptor that is neither here nor there, and these are limited."""
PATIENCE = 120.0
BORN, ENDED = 1, 2
_REQUEST, _ANSWER = struct.Struct("!q"), struct.Struct("!bqq")


def environment() -> dict[str, str]:
    """Of a worker: one core, and this process's modules."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path)}


class ForkedProcess:
    """A worker process; as a `Popen` to whoever ends it."""

    def __init__(self, nest: ForkServer, stdin: IO[bytes]) -> None:
        self._nest = nest
        self.stdin: IO[bytes] | None = stdin
        self.born: int | None = None
        self.pidfd: int | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Waits until it is known."""
        if self.born is None:
            self._nest.hear_until(lambda: self.born is not None or self.returncode is not None, PATIENCE)
        if self.born is None:
            raise ProcessLookupError("The process ended before it began.")
        return self.born

    def poll(self) -> int | None:
        """As far as the nest has been listened to."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._nest.hear_until(lambda: self.returncode is not None, PATIENCE if timeout is None else timeout):
            raise subprocess.TimeoutExpired("a worker", timeout or PATIENCE)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.returncode is None and self.pid and self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)

    def ended(self, code: int) -> None:
        self.returncode = code
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class ForkServer:
    """The nest as its owner sees it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = nursery.start(
                lambda: subprocess.Popen(
                    [sys.executable, "-P", "-m", "flegel.runtime.processes.fork_server"],
                    stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment(), start_new_session=True,
                )
            )  # fmt: skip
        self._line.setblocking(False)
        self._numbers = itertools.count()
        self._brood: dict[int, ForkedProcess] = {}
        self.alive = True

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._line.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hatch(self, line: bytes) -> ForkedProcess:
        """A worker whose standard input begins with this line, and ends when ours does."""
        self.hear_until(lambda: sum(h.born is None for h in self._brood.values()) < UNDER_WAY, PATIENCE)
        read, write = os.pipe()
        stdin = os.fdopen(write, "wb")
        number = next(self._numbers)
        hatched = self._brood[number] = ForkedProcess(self, stdin)
        try:
            socket.send_fds(self._line, [_REQUEST.pack(number)], [read])
            stdin.write(line)
            stdin.flush()
        except OSError:
            self._die()
        finally:
            os.close(read)
        return hatched

    def hear(self) -> None:
        """What has become of the brood."""
        while self.alive:
            try:
                content, descriptors, _, _ = socket.recv_fds(self._line, _ANSWER.size, 1)
            except BlockingIOError:
                return
            except OSError:
                content, descriptors = b"", []
            if not content:
                self._die()
                return
            kind, number, value = _ANSWER.unpack(content)
            hatched = self._brood[number]
            if kind == BORN:
                hatched.born, hatched.pidfd = value, descriptors[0]
            else:
                hatched.ended(value)
                del self._brood[number]

    def hear_until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Listen until it is true, at most so long."""
        deadline = clock.now() + seconds
        while True:
            self.hear()
            if true():
                return True
            left = deadline - clock.now()
            if left <= 0 or not self.alive:
                return False
            select.select([self._line], [], [], left)

    def _die(self) -> None:
        """The nest is gone, and the kernel has ended its workers."""
        self.alive = False
        for hatched in self._brood.values():
            hatched.ended(-signal.SIGKILL)
        self._brood.clear()

    def close(self) -> None:
        """Whatever is left of the brood ends as well."""
        self._process.kill()
        self._process.wait()
        self._die()
        self._line.close()


_early: list[ForkServer] = []


@contextlib.contextmanager
def prepared(wanted: bool = True) -> Iterator[None]:
    """Have a nest come up while this process still imports; the first cluster inside takes it."""
    if AVAILABLE and wanted:
        _early.append(ForkServer())
    try:
        yield
    finally:
        while _early:
            _early.pop().close()


def take() -> ForkServer:
    """The one that was prepared, or a new one."""
    nest = _early.pop() if _early else ForkServer()
    return nest if nest.alive else ForkServer()


# -- in the nest -------------------------------------------------------------------------------------------


def serve(line: socket.socket) -> None:
    """Fork on request and tell who ended, until the owner is gone."""
    from flegel.runtime.backends.numba.compiler import wake_compiler
    from flegel.runtime.worker import process

    wake_compiler()
    gc.collect()
    gc.freeze()  # so that workers leave these pages alone and share them
    bell, ring = os.pipe()
    os.set_blocking(bell, False)
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    brood: dict[int, int] = {}
    me = os.getpid()
    while True:
        readable, _, _ = select.select([line.fileno(), bell], [], [])
        if bell in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(bell, 4096)
            _reap(line, brood)
        if line.fileno() in readable:
            content, descriptors, _, _ = socket.recv_fds(line, _REQUEST.size, 1)
            if not content:
                return
            (number,) = _REQUEST.unpack(content)
            pid = os.fork()
            if pid == 0:
                _become_worker(process.main, me, line, number, descriptors[0], [bell, ring])
            os.close(descriptors[0])
            brood[pid] = number


def _reap(line: socket.socket, brood: dict[int, int]) -> None:
    while brood:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        line.send(_ANSWER.pack(ENDED, brood.pop(pid), os.waitstatus_to_exitcode(status)))


def _become_worker(
    main: Callable[[], None], nest: int, line: socket.socket, number: int, stdin: int, others: list[int]
) -> NoReturn:
    """The new process, which must never come back into the nest's loop. It says itself that it is born: from then on
    the kernel ends it with the nest, even if somebody stops it.
    """
    code = 1
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(stdin, 0)
        watch = os.pidfd_open(os.getpid())
        socket.send_fds(line, [_ANSWER.pack(BORN, number, os.getpid())], [watch])
        line.close()
        for descriptor in (stdin, watch, *others):
            os.close(descriptor)
        import numpy as np

        np.random.seed()  # else every worker would throw the nest's dice
        if os.getppid() == nest:
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - it is told, and ends this process only
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Entry point of the process; the line to its owner is its standard input."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    serve(line)


if __name__ == "__main__":
    main()
