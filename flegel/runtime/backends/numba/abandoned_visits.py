"""Visits that are abandoned where a point is expensive (FSP paper, Section 3.1), so that nobody waits for one point.

A thread visits points one by one, each on copies of its state and of the statistics, which replace the originals when
the visit is over. So a visit that takes too long is left as it is: another thread goes on with the next point, and what
the first one computes is never used. An interpreted visit is interrupted at its next line of Python; compiled code
computes to its end beside the others.

A visit is left when a signal has been up for longer than `signal_grace_seconds`, or when it has taken as long as a hook
may. After a signal, `abandon` goes on with the next point, and this one is visited again in the next pass; `retry`
begins with this point again, and the second time no signal ends it, so that all points are visited equally often. A
point that took as long as a hook may is not visited again by this worker.
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard
from flegel.core.stop_flag import new_flag
from flegel.runtime import clock
from flegel.runtime.backends.numba.backend import BACKEND, NumbaBackend, NumbaKernel
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.numba.kernels import Built, build_kernel


class VisitLeft(BaseException):
    """Raised inside a visit that nobody waits for any more."""


class CallOfPoints:
    """One call of the kernel, as the trainer and the visiting thread see it."""

    def __init__(self, shard: Shard, start: int, end: int, flag: Array) -> None:
        self.shard, self.end, self.flag = shard, end, flag
        self.lock = threading.Lock()
        """Held while a visit becomes part of the statistics, and while the call is left."""
        self.point = start
        """That is visited now; in the end the first one that was not."""
        self.left = False
        self.over = threading.Event()
        self.error: BaseException | None = None


class VisitingThread:
    """Makes calls until it is told to end, or one of them is left."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], bool] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="visits", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def order(self, call: Callable[[], bool] | None) -> None:
        """`call` returns whether it was made to its end; None: end the thread."""
        self._calls.put(call)

    def interrupt(self) -> None:
        """End the visit at its next line of Python."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(VisitLeft))

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None and call():
                pass
        except VisitLeft:
            return  # between two lines of this loop


class AbandoningKernel(NumbaKernel):
    """A compiled or interpreted loop whose visits may be abandoned."""

    def __init__(
        self, built: Built, algorithm: Algorithm, parameter: Tree, empty: Tree, retries: bool, point_seconds: float
    ) -> None:
        """`retries`: a visit that a signal ended is made again. `point_seconds`: the longest visit."""
        super().__init__(built, parameter, empty)
        self._algorithm, self._retries, self._point_seconds = algorithm, retries, point_seconds
        self.abandoned = 0
        self._thread = VisitingThread()
        self._left_threads: list[VisitingThread] = []
        self._endless_points: set[int] = set()  # by number in the whole data; likewise below
        self._uninterrupted_points: set[int] = set()

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Visit points as the loop does, until the flag is up or a visit is left; returns the first point that has to
        be visited next."""
        call = CallOfPoints(shard, start, end, flag)
        loop, parameter, statistics = self._loop, self._parameter, self._statistics
        self._thread.order(lambda: self._visit(call, loop, parameter, statistics, max(iteration, 0)))
        rules = active().training
        look, watched, seconds, signalled = rules.visit_look_seconds, start, 0.0, 0.0
        looked_at = clock.now()
        while not call.over.wait(look):
            now = clock.now()
            passed, looked_at = min(now - looked_at, 4 * look), now  # a process that was stopped has computed nothing
            at = min(call.point, end - 1)
            seconds, watched = (seconds + passed if at == watched else 0.0), at
            signalled = signalled + passed if flag[0] else 0.0
            endless = seconds > self._point_seconds
            interrupted = signalled > rules.signal_grace_seconds and not self._is_uninterrupted(shard, at)
            if (endless or interrupted) and self._leave(call, at):
                return self._abandoned(int(shard.ids[at]), at, endless)
        if call.error is not None:
            raise call.error
        return call.point

    def _is_uninterrupted(self, shard: Shard, at: int) -> bool:
        """Its visit was abandoned before, and is now made to its end."""
        return int(shard.ids[at]) in self._uninterrupted_points

    def _leave(self, call: CallOfPoints, at: int) -> bool:
        """Give up the call; False where the visit has just been counted."""
        with call.lock:
            if call.point != at or call.over.is_set():
                return False
            call.left = True
            return True

    def _abandoned(self, number: int, at: int, endless: bool) -> int:
        """Go on with another thread; returns the point to go on with."""
        self.abandoned += 1
        self._thread.interrupt()
        self._left_threads = [thread for thread in [*self._left_threads, self._thread] if thread.alive]
        most = active().training.most_abandoned_visits
        if len(self._left_threads) > most:
            raise TimeoutError(f"{most} abandoned visits have not ended, and each keeps a thread busy")
        self._thread = VisitingThread()
        if self.kind == "interpreted":  # the visit that was left may still write to its instance
            self._algorithm = copy.copy(self._algorithm)
            self._loop = interpreted(self._algorithm)
        if endless:
            self._endless_points.add(number)
            return at + 1
        if self._retries:
            self._uninterrupted_points.add(number)
            return at
        return at + 1

    def _visit(self, call: CallOfPoints, loop: Callable[..., int], theta: Tree, statistics: Tree, round_: int) -> bool:
        """In the visiting thread: point after point, until the flag is up or the call is left. False: it was left."""
        shard, never, running = call.shard, new_flag(), True
        try:
            while call.point < call.end and not call.flag[0]:
                at = call.point
                if int(shard.ids[at]) in self._endless_points:
                    call.point = at + 1
                    continue
                own = shard.part(at, at + 1)
                own.state, own.halted, sums = own.state.copy(), own.halted.copy(), pytree.copy(statistics)
                loop(own, theta, sums, 0, 1, round_, never)
                with call.lock:
                    running = not call.left
                    if not running:
                        break
                    shard.state[at], shard.halted[at] = own.state[0], own.halted[0]
                    for into, value in zip(pytree.flatten(statistics), pytree.flatten(sums), strict=True):
                        into[...] = value
                    call.point = at + 1
        except VisitLeft:
            return False
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            call.error = error
        if running:
            call.over.set()
        return running

    def close(self) -> None:
        self._thread.order(None)
        super().close()


class AbandoningBackend(NumbaBackend):
    """Builds loops over hooks whose visits may be abandoned."""

    def __init__(self, retries: bool, point_seconds: float) -> None:
        self._retries, self._point_seconds = retries, point_seconds

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return BACKEND.layout(algorithm, columns, interpret)

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> NumbaKernel:
        built = build_kernel(algorithm, shard, parameter, empty, interpret)
        return AbandoningKernel(built, algorithm, parameter, empty, self._retries, self._point_seconds)
