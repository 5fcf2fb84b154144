"""Processes that die with the process that started them, even while they are stopped. Decides nothing about jobs.

The kernel kills them when the *thread* that started them ends (`PR_SET_PDEATHSIG`), so one thread that lives as long
as this process starts them all. The setting survives `exec` and is not inherited: what a worker itself starts does not
die with the worker.
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

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Start = Callable[[], "subprocess.Popen[bytes]"]


def die_with_parent() -> None:
    """Call in the new process. If the parent died before this call, the end of standard input tells it instead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class ProcessStarter:
    """The thread that starts processes; created on first use, and again in a forked process."""

    def __init__(self) -> None:
        self._pid = 0
        self._requests: SimpleQueue[tuple[Start, Future[subprocess.Popen[bytes]]]] = SimpleQueue()
        self._lock = threading.Lock()

    def start(self, start: Start) -> subprocess.Popen[bytes]:
        """Call `start` in that thread; returns or raises what it does."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._requests = os.getpid(), SimpleQueue()
                threading.Thread(target=self._serve, args=(self._requests,), name="starter", daemon=True).start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((start, future))
        return future.result()

    def _serve(self, requests: SimpleQueue[tuple[Start, Future[subprocess.Popen[bytes]]]]) -> None:
        while True:
            start, future = requests.get()
            try:
                future.set_result(start())
            except BaseException as error:  # noqa: BLE001 - raised where the process was requested
                future.set_exception(error)


process_starter = ProcessStarter()
