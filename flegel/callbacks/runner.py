"""Runs callbacks, each in a thread of its own. No callback delays or ends a job, whatever it does.

One that raises is named once and called again at the next barrier. One that does not return is named once; barriers
that it misses are counted. At the end of a job callbacks get `FINISH_SECONDS` to take in the barriers that wait.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from flegel.callbacks.callback import Callback
from flegel.errors import UsageError
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot, at_barrier
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.job.observers import JobBegan, JobControl, JobEnded, JobEvent, JobSeen, Observer

MAX_PENDING_BARRIERS = 10_000
"""That wait for one callback; further ones are dropped and counted, so that a slow callback costs bounded memory."""
SLOW_CALL_SECONDS = 10.0
"""After which a call that has not returned is reported, once."""
FINISH_SECONDS = 60.0
"""That all callbacks together have after training; then the job returns without them."""

_log = logging.getLogger(__name__)


class CallbackRunner(Observer):
    """The observer that hands barriers to callbacks."""

    threaded = True

    def __init__(
        self,
        callbacks: Sequence[Callback],
        slow: float = SLOW_CALL_SECONDS,
        grace: float = FINISH_SECONDS,
    ) -> None:
        """`slow`: seconds of a call after which it is remarked; `grace`: seconds that callbacks have to finish at the
        end."""
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise UsageError(f"{callback!r} is no callback; give instances of subclasses of flegel.Callback.")
        self._threads = [CallbackThread(callback, slow) for callback in callbacks]
        self._control = JobControl()
        self._grace, self._visits = grace, 0

    def see(self, event: JobEvent) -> None:
        """Start the threads with the job, hand barriers over to them, and finish them at its end."""
        match event:
            case JobBegan(job, control):
                self._control = control
                for thread in self._threads:
                    thread.start(control)
                    thread.post("before_training", job)
            case JobSeen(seen, rows):
                self._hand_over(seen, rows)
            case JobEnded(result):
                self._finish(result)

    def _hand_over(self, seen: JobSnapshot, rows: Sequence[TraceRow]) -> None:
        for row in rows:
            self._visits += row.visits
            snapshot = at_barrier(seen, row, self._visits)
            for thread in self._threads:
                thread.post("after_barrier", snapshot)
        self._report()

    def _finish(self, result: Result | None) -> None:
        """Close all callbacks with the result, wait for them within the grace time, and remark those that are late."""
        until = clock.now() + self._grace
        started = [thread for thread in self._threads if thread.started]
        for thread in started:
            thread.close(result)
        for thread in started:
            thread.join(max(until - clock.now(), 0.0))
            thread.look(clock.now(), over=True)
        self._report(over=True)

    def _report(self, over: bool = False) -> None:
        for thread in self._threads:
            thread.look(clock.now(), over)
            while thread.remarks:
                text = thread.remarks.popleft()
                _log.warning(text)
                self._control.say(text)


class CallbackThread:
    """One callback: its calls wait in a bounded queue, in order."""

    def __init__(self, callback: Callback, slow: float) -> None:
        self._callback, self._slow_seconds = callback, slow
        self.name = type(callback).__name__
        self._calls: deque[tuple[str, object]] = deque()
        self._wake = threading.Condition()
        self._running_call: tuple[str, float] | None = None
        self._is_closed = False
        self._dropped_calls = 0
        self._was_named = False
        self.remarks: deque[str] = deque()
        self.started = False
        """Training has begun."""
        self._control = JobControl()
        self._thread = threading.Thread(target=self._run, name=f"callback {self.name}", daemon=True)

    def start(self, control: JobControl) -> None:
        self._control, self.started = control, True
        self._thread.start()

    def post(self, hook: str, argument: object) -> None:
        with self._wake:
            if len(self._calls) >= MAX_PENDING_BARRIERS:
                self._dropped_calls += 1
                return
            self._calls.append((hook, argument))
            self._wake.notify()

    def close(self, result: Result | None) -> None:
        with self._wake:
            self._calls.append(("after_training", result))
            self._is_closed = True
            self._wake.notify()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def look(self, now: float, over: bool) -> None:
        """Name the callback if it hangs; at the end also if it missed something."""
        running = self._running_call
        stuck = over and self._thread.is_alive()
        if running is not None:
            hook, began = running
            if now - began > self._slow_seconds or stuck:
                self._name(f"has not returned from {hook} for {now - began:.3g} s")
        if over and self._dropped_calls:
            self.remarks.append(
                f"Callback {self.name} missed {self._dropped_calls} barriers: it is slower than training."
            )
            self._dropped_calls = 0

    def _name(self, what: str) -> None:
        if not self._was_named:
            self._was_named = True
            self.remarks.append(f"Callback {self.name} {what}; training goes on without it.")

    def _run(self) -> None:
        """The thread: make queued calls in their order until it is closed."""
        while True:
            with self._wake:
                while not self._calls:
                    if self._is_closed:
                        return
                    self._wake.wait()
                hook, argument = self._calls.popleft()
            self._call(hook, argument)

    def _call(self, hook: str, argument: object) -> None:
        self._running_call = (hook, clock.now())
        try:
            said = getattr(self._callback, hook)(argument)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a callback never ends a job by an error
            _log.debug("callback %s", self.name, exc_info=error)
            self._name(f"raised {type(error).__name__} in {hook}: {error}")
            return
        finally:
            self._running_call = None
        if said and hook == "after_barrier":
            self._control.end(said if isinstance(said, str) else f"callback {self.name} ended the job")
