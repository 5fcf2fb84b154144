"""A thread that compiles beside a job, and the end of a program meanwhile. Decides nothing about training.

LLVM cannot be interrupted, and must not run while the interpreter ends, which would crash. A job that ends as usual
waits for its compiler. One that is interrupted does not: its caller goes on at once, and the thread finishes what
others may need. A program that ends because of Ctrl-C ends at once too, without the interpreter's own end (`os._exit`):
nothing of the job is left to be done by then. Any other program waits for the thread before it ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from flegel.errors import ExitCode, Terminated

_at_work: list[threading.Thread] = []


class CompilerThread:
    """`ending.enter_context(CompilerThread(work))`: the work begins, and is awaited at the end of the job."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="compiler", daemon=True)

    def __enter__(self) -> CompilerThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt | Terminated):
            self._thread.join()
        elif self._thread.is_alive():
            _at_work[:] = [*filter(threading.Thread.is_alive, _at_work), self._thread]


def end_at_once(code: int) -> None:
    """For a program that was interrupted and is about to end: does not return where a thread still compiles."""
    if not any(thread.is_alive() for thread in _at_work):
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _before_the_end() -> None:
    if issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):  # nobody caught it
        end_at_once(ExitCode.INTERRUPTED)
    for thread in _at_work:
        thread.join()


atexit.register(_before_the_end)
