"""Processes that die with the one that started them, even while they are stopped and can notice nothing.

The kernel kills them when the *thread* that started them ends (`PR_SET_PDEATHSIG`), so all are started by one thread,
which lives as long as this process. The setting survives `exec` and is not inherited: what a worker itself starts is
not bound to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

PR_SET_PDEATHSIG = 1

Start = Callable[[], "subprocess.Popen[bytes]"]


def die_with_parent() -> None:
    """In the new process. One whose parent died before this sees the end of its standard input instead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class ProcessStarter:
    """The thread that starts processes; made when it is needed, and anew in a process that was forked."""

    def __init__(self) -> None:
        self._pid = 0
        self._wanted: SimpleQueue[tuple[Start, Future[subprocess.Popen[bytes]]]] = SimpleQueue()
        self._lock = threading.Lock()

    def start(self, start: Start) -> subprocess.Popen[bytes]:
        """What `start` returns or raises, called in that thread."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._wanted = os.getpid(), SimpleQueue()
                threading.Thread(target=self._serve, args=(self._wanted,), name="nursery", daemon=True).start()
        promise: Future[subprocess.Popen[bytes]] = Future()
        self._wanted.put((start, promise))
        return promise.result()

    def _serve(self, wanted: SimpleQueue[tuple[Start, Future[subprocess.Popen[bytes]]]]) -> None:
        while True:
            start, promise = wanted.get()
            try:
                promise.set_result(start())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever wanted the process
                promise.set_exception(error)


nursery = ProcessStarter()
