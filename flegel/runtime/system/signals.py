"""Ctrl-C and SIGTERM. A job that keeps checkpoints is asked to stop cleanly by the first, the second ends it.

Handlers wait for their turn (`DeferredSignals`): what a handler raises in the middle of a call of pyzmq may be
lost. Compiled code that cannot raise prints the exception and goes on; a SystemExit ends the process at once, and no
`finally` runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from flegel.errors import ExitCode, Interrupted, Terminated

SIGNALS_BEFORE_IMMEDIATE_EXIT = 2
"""Signals that wait for their turn; a person who sends one more cannot wait."""
REASONS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}


_terminated: list[int] = []
"""Signals that ended a command, or should have."""


IMPORTING = "<frozen importlib."
"""Begins the file of each frame of Python's own code of imports."""


def terminate(number: int, frame: FrameType | None = None) -> None:
    """Handler of SIGTERM for a command. Raises `Terminated`; where Python's own code of imports is interrupted, at the
    next line of whoever imports, because there Python shows what a handler raises as "Exception ignored" and goes on.
    The signal is noted, too, should it be lost elsewhere."""
    _terminated.append(number)
    importer = frame
    while importer is not None and importer.f_code.co_filename.startswith(IMPORTING):
        importer = importer.f_back
    if importer is frame or importer is None:
        raise Terminated(ExitCode.TERMINATED)
    _raise_in(importer)


def _raise_in(frame: FrameType) -> None:
    """Raise `Terminated` where this frame of the stack goes on."""
    former = sys.gettrace()

    def raise_here(*_: object) -> NoReturn:
        frame.f_trace = None
        sys.settrace(former)
        raise Terminated(ExitCode.TERMINATED)

    frame.f_trace = raise_here
    if former is None:
        sys.settrace(lambda *_: None)  # frames are traced only while there is one; this one leaves all others alone


def raise_lost_signal() -> None:
    """Raise what a handler raised in vain. Asked wherever a command begins to wait for something without a limit."""
    if _terminated:
        raise Terminated(ExitCode.TERMINATED)


_before_imports: list[Any] = []
"""The handler of Ctrl-C that is put back when the imports of a program are over."""


def imports_begin() -> None:
    """While a program imports libraries Ctrl-C ends it at once. Extension modules lose an exception that comes while
    they are initialized, and crash when they are used; and nothing has begun that would have to be ended first."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and not _before_imports and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _before_imports.append(signal.signal(signal.SIGINT, _end_at_once))


def imports_are_over() -> None:
    """Ctrl-C raises an exception again."""
    while _before_imports:
        signal.signal(signal.SIGINT, _before_imports.pop())


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"flegel: interrupted.\n")
    os._exit(ExitCode.INTERRUPTED)


class Signals:
    """`with Signals() as signals:`; `signals()` says why to stop. Does nothing outside the main thread."""

    def __init__(self) -> None:
        self.why, self.exit_code = "", 0
        self._former_handlers: dict[int, Any] = {}

    def __call__(self) -> str:
        return self.why

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._former_handlers = {number: signal.signal(number, self._came) for number in REASONS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.why:
            reason, code = REASONS[signal.Signals(number)]
            raise Interrupted(f"{reason} twice; stopped at once, without a last checkpoint.", code)
        self.why, self.exit_code = REASONS[signal.Signals(number)]


class DeferredSignals:
    """`with DeferredSignals() as signals:` handlers of Ctrl-C and SIGTERM run when `deliver` is called, or at the end.

    While `open`, they run at once: where code of the user's may never return. So does a third one, whatever is going
    on. Handlers that are not written in Python, such as the system's own, are left alone. Does nothing outside the main
    thread.
    """

    def __init__(self) -> None:
        self.open = False
        """Handlers run at once."""
        self.pending_signals: deque[int] = deque()
        self._former_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> DeferredSignals:
        """From now on SIGINT and SIGTERM are noted and delivered later; only in the main thread, where Python handles
        signals."""
        if threading.current_thread() is threading.main_thread():
            try:
                self._postpone()
            except BaseException:  # what the other signal's handler raises
                self.__exit__()
                raise
        return self

    def _postpone(self) -> None:
        for number in REASONS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._former_handlers[number] = handler
                signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        self.open = True  # should a handler raise before all are as they were, the others work all the same
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)
        self.deliver()

    def deliver(self) -> None:
        """Run the handlers of what has come."""
        while self.pending_signals:
            number = self.pending_signals.popleft()
            self._former_handlers[number](number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.open or len(self.pending_signals) >= SIGNALS_BEFORE_IMMEDIATE_EXIT:
            self._former_handlers[number](number, frame)
        else:
            self.pending_signals.append(number)
