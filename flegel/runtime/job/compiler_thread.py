"""Threads that compile for a job, and the end of a program meanwhile. Decides nothing about training.

LLVM cannot be interrupted, what a signal's handler raises inside a callback of it is lost, and it must not run while
the interpreter ends, which would crash. So the main thread never compiles: it waits for a thread that does
(`compiled`), or has one beside the job (`CompilerThread`). A job that ends as usual waits for its compiler. One that is
interrupted does not: its caller goes on at once, and the thread finishes what others may need. A program that ends
because of Ctrl-C or SIGTERM ends at once too, without the interpreter's own end (`os._exit`): nothing of the job is
left to be done by then. Any other program waits for the thread before it ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import TypeVar

from flegel.core.hook_limits import COMPILING_SECONDS
from flegel.errors import ExitCode, Terminated

Some = TypeVar("Some")
_at_work: list[CompilerThread] = []
_compiling_for: dict[int, int] = {}
"""By thread that waits in `compiled`: the one that compiles for it."""


class CompilerThread:
    """`ending.enter_context(CompilerThread(work))`: the work begins, and is awaited at the end of the job."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._done = (
            work,
            threading.Event(),
        )  # `Thread.join` takes a thread for ended where it is interrupted
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="compiler", daemon=True)

    def __enter__(self) -> CompilerThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or not issubclass(kind, KeyboardInterrupt | Terminated):
                self.wait()
        finally:
            if not self.ended:
                _at_work[:] = [*(other for other in _at_work if not other.ended), self]

    @property
    def number(self) -> int:
        """Of the thread."""
        return self._thread.ident or 0

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Until the work is done. A signal's handler may raise meanwhile."""
        self._done.wait(seconds)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._done.set()


def compiled(work: Callable[[], Some]) -> Some:
    """What `work`, which compiles, returns or raises. Whoever waits for it is interrupted at once by Ctrl-C."""
    found: list[Some] = []
    failed: list[BaseException] = []
    here = threading.get_ident()

    def call() -> None:
        _compiling_for[here] = threading.get_ident()
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failed.append(error)
        finally:
            _compiling_for.pop(here, None)

    thread = CompilerThread(call)
    try:
        with thread:
            thread.wait()
    except RuntimeError:
        if thread.number:
            raise
        return work()  # no room for a thread
    if failed:
        raise failed[0]
    return found[0]


def compiling_for(thread: int) -> int:
    """The thread that compiles for this one; itself where there is none."""
    return _compiling_for.get(thread, thread)


def end_at_once(code: int) -> None:
    """For a program that was interrupted and is about to end: does not return where a thread still compiles."""
    if all(thread.ended for thread in _at_work):
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _before_the_end() -> None:
    if issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):  # nobody caught it
        end_at_once(ExitCode.INTERRUPTED)
    for thread in _at_work:
        thread.wait(COMPILING_SECONDS)


atexit.register(_before_the_end)
