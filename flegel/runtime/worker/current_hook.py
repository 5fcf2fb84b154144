"""Which hook of the user's class a thread is in, if any: beats carry it, and verdicts name it.

The trainer thread of a worker enters hooks, its I/O thread reads; several workers may live in one process, so the
record belongs to the thread. Nothing here waits or decides. A child process that a hook has forked and that comes back
from the hook is ended: it would go on as a second worker.
"""

from __future__ import annotations

import os
import threading


class _OfThread(threading.local):
    """The hooks that this thread has entered and not left."""

    def __init__(self) -> None:
        self.entered: list[str] = []


_here = _OfThread()


class EnteredHook:
    """Around a call of user code. What the engine does itself, reading and compiling, stays outside."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        self._pid = os.getpid()
        _here.entered.append(self._hook)

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._pid:
            os.write(2, f"flegel: {self._hook} forked, and the child process came back; the child is ended.\n".encode())
            os._exit(1)
        _here.entered.pop()


class HookRecord:
    """What another thread may read of the thread that made it."""

    def __init__(self) -> None:
        self._entered = _here.entered

    def current(self) -> str:
        """The innermost hook that has been entered and not left; empty where the engine is at work."""
        entered = self._entered[-1:]  # one step, so that the other thread may leave meanwhile
        return entered[0] if entered else ""
