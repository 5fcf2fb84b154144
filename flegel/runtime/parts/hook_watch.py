"""Ends hooks of the coordinator that do not return, and what else a hook can do to its process. Decides no policy.

A thread looks four times a second which hook runs. Beyond the limit it interrupts the thread that runs it: the main
thread by a signal, which also ends a sleep; another thread by an exception at its next line of Python. It repeats that
until the hook has been left. Time in which this process was stopped, or in which numba compiles for the hook, does not
count: an interrupted compilation would leave a half-made function for every later call. A hook that holds the
interpreter itself, in compiled code without an end, cannot be interrupted from inside: on a cluster the slave ends its
process.

A child process that a hook has forked and that returns from the hook is ended: it would be a second coordinator.
`os._exit` in a hook becomes `SystemExit`, so that no job ends without a word.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core.own_pauses import OwnPauses
from flegel.errors import HookTimeout
from flegel.params.hooks import hook_observers
from flegel.runtime import clock
from flegel.runtime.job.compiler_thread import compiling_for
from flegel.runtime.job.part import Part

COMPILER = ("numba.core.", "llvmlite.", "flegel.runtime.backends.numba.compile_turns")
"""Modules in which a function is compiled, or waited for while another process compiles it."""
INTERRUPTION = signal.SIGURG
"""Ignored by default, so a late one does no harm."""


class RunningHook(NamedTuple):
    number: int
    hook: str
    limit: float


def compiles(frame: FrameType | None) -> bool:
    """Whether the compiler is at work in this frame or in one that called it."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(COMPILER):
            return True
        frame = frame.f_back
    return False


class HookWatch:
    """`with HookWatch(algorithm, seconds):` around a job, in the thread that runs its hooks."""

    def __init__(self, algorithm: Algorithm, seconds: float) -> None:
        self._algorithm, self._limit_seconds = algorithm, seconds
        self._running_hook: RunningHook | None = None
        self._hooks_entered = 0
        self._interrupted_hook: tuple[int, float] | None = None
        """Number of the hook to be interrupted, and for how long it has run."""
        self._job_over = threading.Event()
        self._liveness_settings = active().liveness

    # -- around the job --------------------------------------------------------------------------------------------

    def __enter__(self) -> HookWatch:
        """Begin to watch: handle the interruption signal, catch `os._exit`, and start the thread that looks at the
        time."""
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._former_handler: Any = signal.signal(INTERRUPTION, self._interrupted) if self._in_main_thread else None
        self._real_exit, os._exit = os._exit, self._exit  # type: ignore[assignment]
        hook_observers.append(self)
        threading.Thread(target=self._watch, name="hook watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._job_over.set()
        hook_observers.remove(self)
        os._exit = self._real_exit
        if self._in_main_thread:
            signal.signal(INTERRUPTION, self._former_handler if self._former_handler is not None else signal.SIG_DFL)

    # -- in the thread that runs hooks -----------------------------------------------------------------------------

    def entered(self, algorithm: Algorithm, hook: str, extra: float) -> None:
        if algorithm is self._algorithm:
            self._hooks_entered += 1
            self._running_hook = RunningHook(self._hooks_entered, hook, self._limit_seconds + extra)

    def ended(self, algorithm: Algorithm) -> None:
        """The hook has raised: what is done with its error must not be interrupted."""
        if algorithm is self._algorithm and os.getpid() == self._pid:
            self._running_hook = None

    def left(self, algorithm: Algorithm) -> None:
        """A hook of the watched class has returned. A child process that it forked, and that came back too, is
        ended."""
        if algorithm is not self._algorithm:
            return
        if os.getpid() != self._pid:
            hook = self._running_hook.hook if self._running_hook else "a hook"
            text = f"flegel: {hook} forked, and the child process came back from it; the child is ended.\n"
            os.write(2, text.encode())
            self._real_exit(1)
        self._running_hook = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Raise inside the hook, unless it has just returned. Runs in the main thread."""
        running, late = self._running_hook, self._interrupted_hook
        if running is not None and late is not None and running.number == late[0] and not compiles(frame):
            raise HookTimeout(late[1])

    def _exit(self, code: int) -> None:
        if os.getpid() == self._pid and threading.get_ident() == self._thread and self._running_hook is not None:
            sys.exit(code)
        self._real_exit(code)

    # -- in the thread that watches --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Interrupt a hook that runs longer than its limit. Time in which this process was paused or compiled does not
        count: `began`, when the hook that is watched was first seen, is moved on by it."""
        pauses = OwnPauses(self._liveness_settings.hook_watch_pause_seconds)
        number, began, next_interruption, looked_at = 0, 0.0, 0.0, 0.0
        while not self._job_over.wait(self._liveness_settings.hook_look_seconds):
            now = clock.now()
            paused, running, passed, looked_at = pauses.look(now), self._running_hook, now - looked_at, now
            if running is None or running.number != number:  # another hook than at the last look
                number, began, next_interruption = running.number if running else 0, now, 0.0
                continue
            began += paused
            if compiles(sys._current_frames().get(compiling_for(self._thread))):
                began += passed - paused
                continue
            if now - began > running.limit and now >= next_interruption:
                self._interrupted_hook, next_interruption = (
                    (number, now - began),
                    now + self._liveness_settings.hook_interrupted_again_seconds,
                )
                self._interrupt()

    def _interrupt(self) -> None:
        if self._in_main_thread:
            signal.pthread_kill(self._thread, INTERRUPTION)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(HookTimeout))


class HookWatchPart(Part):
    """Hooks of the job that do not return are interrupted, from its beginning to its end."""

    def around(self) -> HookWatch:
        return HookWatch(self.request.algorithm, self.request.job.hook_timeout)
