"""A fork server: one process that has imported and warmed what every worker needs, and forks workers from itself.

A worker started from scratch costs up to a second of processor time, nearly all of it imports; a fork costs some
milliseconds, also when a lost worker is replaced. Large libraries are imported when a job needs them. The server has
one thread, opens no socket and runs no user code. It ends with the process that started it, and its workers end with
it.

Requests (each with the read end of the worker's standard input) and answers (`STARTED` with a pidfd, `ENDED` with an
exit code) are packets on a pair of local sockets. The decision record is docs/adr/workers-from-a-fork-server.md.
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
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from flegel.runtime import clock
from flegel.runtime.system.descendants import adopt_orphans, kill_descendants
from flegel.runtime.system.parent_death import die_with_parent, process_starter
from flegel.runtime.system.standard_streams import protect
from flegel.wording import SPEAKS_TO, listener

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
MAX_PENDING_REQUESTS = 64
"""Requests without an answer. Each holds a descriptor in flight, and the kernel limits those."""
START_TIMEOUT_SECONDS = 120.0
"""Seconds to wait for an answer of the server."""
STARTED, ENDED = 1, 2  # kinds of messages of the fork server
IMPORTED_ON_REQUEST = ("torch", "numba")
"""What the server imports when it is told to; the request is the number -1, -2, … instead of one of a worker."""
_REQUEST, _ANSWER = struct.Struct("!q"), struct.Struct("!bqq")


def environment() -> dict[str, str]:
    """Environment of a worker: numeric libraries use one thread, modules are found as in this process, and messages are
    for the same readers."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    return {
        **os.environ,
        **threads,
        SPEAKS_TO: listener(),
        "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
    }


class ForkedProcess:
    """A worker process, with the methods of `Popen` that its owner needs."""

    def __init__(self, server: ForkServer, stdin: IO[bytes]) -> None:
        self._server = server
        self.stdin: IO[bytes] | None = stdin
        self.known_pid: int | None = None
        """None until the server has answered."""
        self.pidfd: int | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """The process number; waits until the fork server has told it."""
        if self.known_pid is None:
            self._server.wait_until(
                lambda: self.known_pid is not None or self.returncode is not None, START_TIMEOUT_SECONDS
            )
        if self.known_pid is None:
            raise ProcessLookupError("The process ended before it started.")
        return self.known_pid

    def poll(self) -> int | None:
        """The exit code, as far as answers of the server have been read (`ForkServer.receive`)."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        seconds = START_TIMEOUT_SECONDS if timeout is None else timeout
        if not self._server.wait_until(lambda: self.returncode is not None, seconds):
            raise subprocess.TimeoutExpired("a worker", timeout or START_TIMEOUT_SECONDS)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Where the server has not forked it yet, it counts as ended, and is killed as soon as it is there: the server
        may import a library for seconds before."""
        if self.known_pid is None and self.returncode is None:
            self._server.receive()
        if self.known_pid is None:
            self.returncode = -number if self.returncode is None else self.returncode
        elif self.returncode is None and self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def set_ended(self, code: int) -> None:
        self.returncode = code
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class ForkServer:
    """The server process as its owner sees it."""

    def __init__(self) -> None:
        """Start the server in a session of its own, so that Ctrl-C in the terminal does not end it before its
        workers."""
        self._socket, remote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote_end:
            self._process = process_starter.start(
                lambda: subprocess.Popen(
                    [sys.executable, "-P", "-m", "flegel.runtime.processes.fork_server"],
                    stdin=remote_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment(),
                    start_new_session=True,
                )
            )
        self._socket.setblocking(False)
        self._numbers = itertools.count()
        self._children: dict[int, ForkedProcess] = {}
        self._imported: set[str] = set()
        self.alive = True
        """The server process answers."""

    def fileno(self) -> int:
        """Readable when the server has answered something."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, first_line: bytes) -> ForkedProcess:
        """Fork a worker. Its standard input begins with this line, and closes when this process ends."""
        self.preload()
        self.wait_until(
            lambda: sum(child.known_pid is None for child in self._children.values()) < MAX_PENDING_REQUESTS,
            START_TIMEOUT_SECONDS,
        )
        read, write = os.pipe()
        stdin = os.fdopen(write, "wb")
        number = next(self._numbers)
        child = self._children[number] = ForkedProcess(self, stdin)
        try:
            socket.send_fds(self._socket, [_REQUEST.pack(number)], [read])
            stdin.write(first_line)
            stdin.flush()
        except OSError:
            self._set_dead()
        finally:
            os.close(read)
        return child

    def preload(self) -> None:
        """Ask for the libraries that jobs of this process need and that the server has not been asked for."""
        for library in _wanted - self._imported:
            self._imported.add(library)
            with contextlib.suppress(OSError):  # a server that is gone is noticed by whoever spawns
                self._socket.send(_REQUEST.pack(-1 - IMPORTED_ON_REQUEST.index(library)))

    def receive(self) -> None:
        """Read the server's answers: which children have started, and which have ended."""
        while self.alive:
            try:
                content, descriptors, _, _ = socket.recv_fds(self._socket, _ANSWER.size, 1)
            except BlockingIOError:
                return
            except OSError:
                content, descriptors = b"", []
            if not content:
                self._set_dead()
                return
            kind, number, value = _ANSWER.unpack(content)
            child = self._children[number]
            if kind == STARTED:
                child.known_pid, child.pidfd = value, descriptors[0]
                if child.returncode is not None:  # nobody wants it any more
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            else:
                child.set_ended(value)
                del self._children[number]

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Read answers until the condition holds; False after so many seconds, or when the server is dead."""
        deadline = clock.now() + seconds
        while True:
            self.receive()
            if condition():
                return True
            left = deadline - clock.now()
            if left <= 0 or not self.alive:
                return False
            select.select([self._socket], [], [], left)

    def _set_dead(self) -> None:
        """The server has ended, and the kernel has killed its children."""
        self.alive = False
        for child in self._children.values():
            child.set_ended(-signal.SIGKILL)
        self._children.clear()

    def kill_strays(self) -> None:
        """End what workers have started and left behind; the workers themselves stay."""
        workers = {child.known_pid for child in self._children.values()}
        if None not in workers:
            kill_descendants(self._process.pid, {pid for pid in workers if pid is not None})

    def close(self) -> None:
        """End the server and all its children, with whatever those have started."""
        kill_descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._set_dead()
        self._socket.close()


_prepared: list[ForkServer] = []
_wanted: set[str] = set()


def preload(library: str) -> None:
    """Servers of this process import this library once, before their next worker, instead of every worker by itself.

    Worth seconds of processor time for each worker; does nothing for libraries that no server knows. A server that
    waits for its first cluster begins at once."""
    if library in IMPORTED_ON_REQUEST:
        _wanted.add(library)
        for server in _prepared:
            server.preload()


@contextlib.contextmanager
def prepared(wanted: bool = True) -> Iterator[None]:
    """Start a fork server while this process still imports; the first cluster inside the block takes it."""
    if AVAILABLE and wanted:
        _prepared.append(ForkServer())
    try:
        yield
    finally:
        while _prepared:
            _prepared.pop().close()


def take() -> ForkServer:
    """The prepared server where there is one, else a new one."""
    server = _prepared.pop() if _prepared else ForkServer()
    return server if server.alive else ForkServer()


# -- in the server process ---------------------------------------------------------------------------------


def serve(owner: socket.socket) -> None:
    """Fork on request and report exit codes, until the owner closes its end."""
    from flegel.runtime.worker import process

    gc.collect()
    gc.freeze()  # so that collections in workers do not write to these pages, which stay shared
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_read, False)
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    own_pid = os.getpid()
    while True:
        readable, _, _ = select.select([owner.fileno(), wakeup_read], [], [])
        if wakeup_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup_read, 4096)
            _reap(owner, children)
        if owner.fileno() in readable:
            content, descriptors, _, _ = socket.recv_fds(owner, _REQUEST.size, 1)
            if not content:
                return
            (number,) = _REQUEST.unpack(content)
            if number < 0:
                _import(IMPORTED_ON_REQUEST[-1 - number])
                continue
            pid = os.fork()
            if pid == 0:
                _become_worker(process.main, own_pid, owner, number, descriptors[0], [wakeup_read, wakeup_write])
            os.close(descriptors[0])
            children[pid] = number


def _import(library: str) -> None:
    """A library that is missing or broken is the worker's business: it says so when it needs it."""
    try:
        import_module(library)
        if library == "numba":
            import_module("flegel.runtime.backends.numba.compiler").wake_compiler()
    except Exception:  # noqa: BLE001 - whatever its import raises
        return
    gc.collect()
    gc.freeze()


def _reap(owner: socket.socket, children: dict[int, int]) -> None:
    """Collect children that have ended and tell the owner their exit codes. `children`: process id → number of the
    request by which the owner knows it."""
    with contextlib.suppress(ChildProcessError):  # there are none
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in children:  # else an orphan of a worker
                owner.send(_ANSWER.pack(ENDED, children.pop(pid), os.waitstatus_to_exitcode(status)))


def _become_worker(
    main: Callable[[], None], server_pid: int, owner: socket.socket, number: int, stdin: int, others: list[int]
) -> NoReturn:
    """The new process, which must never return into the server's loop.

    It reports its own start, after `die_with_parent`: from then on the kernel ends it with the server, even while it
    is stopped.
    """
    code = 1
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(stdin, 0)
        pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(owner, [_ANSWER.pack(STARTED, number, os.getpid())], [pidfd])
        owner.close()
        for descriptor in (stdin, pidfd, *others):
            os.close(descriptor)
        import numpy as np

        np.random.seed()  # otherwise all workers would share the state of the server's global random generator
        if os.getppid() == server_pid:
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed, and ends this process only
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Entry point of the process; standard input is the socket to its owner."""
    die_with_parent()
    adopt_orphans()
    protect("stdout", "stderr")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    owner = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    serve(owner)


if __name__ == "__main__":
    main()
