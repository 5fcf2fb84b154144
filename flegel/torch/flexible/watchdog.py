"""Says which rank is missing when a barrier does not end, and ends this process: a collective cannot be interrupted.

Each rank writes a sign of life to the process group's store every second, from a thread of its own, and a last one when
it ends. A message that fails ends in `broken`, wherever it was made: in a backward pass of PyTorch, at the barrier,
while a model is wrapped, or in a collective of the script that nobody caught. Never looks at gradients and costs a
barrier nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from flegel.configuration.sources import settings_outside
from flegel.errors import FlegelError
from flegel.runtime import clock
from flegel.torch.flexible.missing_ranks import ENDED, STOPPED, Sign, Wait, place_in_script, reason_of_wait

EXIT_CODE = 75  # a temporary failure: a launcher that restarts may try again
FAILED_MESSAGES = ("gloo", "nccl", "connection", "socket", "peer", "timed out", "broken pipe")
"""Words by which errors of PyTorch's messages are known; most have no class of their own."""

_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _first_sentence(error: BaseException) -> str:
    """Of an error of PyTorch, without the place in its source and its advice."""
    return re.sub(r"^\[[^\]]*\] ?", "", str(error).strip().splitlines()[0]).split(". ")[0][:120]


def is_failed_message(error: BaseException) -> bool:
    """Whether a message between ranks failed, as far as the error tells."""
    if isinstance(error, FlegelError) or not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in FAILED_MESSAGES)


def _explain(error: BaseException) -> None:
    """An error that reached the script: at a barrier it ends this process with a sentence; elsewhere, as in a
    collective of the script, only if a rank is gone."""
    waiting = next((one for one in _watchdogs if one.is_waiting), None)
    if waiting is not None and isinstance(error, RuntimeError) and not isinstance(error, FlegelError):
        waiting.broken(error)
    elif is_failed_message(error) and _watchdogs:
        next(iter(_watchdogs)).broken(error, certain=False)


def _explain_uncaught(previous: Callable[..., Any]) -> Callable[..., Any]:
    """The hook for errors that nobody caught. What ends this rank is told to the others by its last sign of life."""

    def explain(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _explain(error)
        Watchdog.failure = f"{kind.__name__}: {error}".splitlines()[0][:300]
        previous(kind, error, trace)

    explain.explains = True  # type: ignore[attr-defined]
    return explain


def _explain_in_backward(plain: Callable[..., None]) -> Callable[..., None]:
    """PyTorch sums gradients by itself, so a link that breaks in a backward pass raises there. Scripts and trainers
    that catch all errors would show gloo's."""

    def backward(*given: Any, **named: Any) -> None:
        try:
            plain(*given, **named)
        except RuntimeError as error:
            if any(one.is_waiting for one in _watchdogs):
                _explain(error)
            raise

    backward.explains = True  # type: ignore[attr-defined]
    return backward


def _say_that_it_ends() -> None:
    """The process ends: the others need not wait for its signs of life."""
    closing = list(_watchdogs)
    for one in closing:
        one.close(ended=True)
    for one in closing:
        one.await_threads()


def _install() -> None:
    """Once in a process; a program that replaces the hook later is told of errors by itself."""
    if not getattr(sys.excepthook, "explains", False):
        sys.excepthook = _explain_uncaught(sys.excepthook)
    if not getattr(torch.autograd.backward, "explains", False):
        torch.autograd.backward = _explain_in_backward(torch.autograd.backward)
        atexit.register(_say_that_it_ends)


class Watchdog:
    """Two threads for each wrapped module, which has a number."""

    waits_for: ClassVar[int] = -1
    """The module at whose barrier this process waits."""
    failure: ClassVar[str] = ""
    """The error that ends this process."""

    def __init__(self, group: Any, timeout: float, number: int = 0) -> None:
        """`timeout`: seconds that a barrier may take; 0: without limit, as long as no message fails. `number`: of the
        wrapped module."""
        self._number = number
        self._thread = threading.get_ident()
        """That of the training."""
        self._times = settings_outside().liveness
        self._rank, self._ranks, self._timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        self._store = dist.PrefixStore(f"flegel/flexible/{number}", distributed_c10d._get_default_store())
        self._waiting: tuple[int, float] | None = None
        self._step = 0
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        self._signing, self._ending = threading.Lock(), threading.Lock()
        self._beats = 0
        self._unanswered = 0
        """Signs of life that were due since the store has answered, while this rank waits."""
        self._threads: list[threading.Thread] = []
        _watchdogs.add(self)
        _install()
        if self._ranks > 1:
            for name, work in (("watchdog", self._watch), ("watchdog-store", self._watch_store)):
                self._threads.append(threading.Thread(target=work, name=f"flegel-{name}", daemon=True))
                self._threads[-1].start()

    def arrive(self, step: int, now: float) -> None:
        """This rank waits at a barrier from now on."""
        self._step, self._waiting = step, (step, now)
        Watchdog.waits_for = self._number

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None and not self._ended.is_set()

    def leave(self) -> None:
        self._waiting = None
        Watchdog.waits_for = -1

    def close(self, ended: bool = False) -> None:
        """No more signs of life. `ended`: the process ends, which the last one says."""
        with self._signing:
            if ended and not self._ended.is_set():
                self._sign_last(ENDED, Watchdog.failure)
            self._ended.set()

    def await_threads(self) -> None:
        """After `close`, before the interpreter ends. A thread that comes back from PyTorch's store while Python is
        finalized aborts the process (up to Python 3.13), after all training was done. Those of a store that is frozen
        are not waited for longer than a rank may be silent."""
        limit = clock.now() + self._times.rank_silence_seconds
        for one in self._threads:
            one.join(max(0.0, limit - clock.now()))

    def _sign_last(self, state: str, why: str) -> None:
        """The last sign of life: others read why there are no more."""
        with contextlib.suppress(RuntimeError):
            if self._ranks > 1:
                self._store.set(f"{self._rank}", Sign(self._beats + 1, state, -1, why).to_text())

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Messages of the block end this process with a sentence where they fail."""
        try:
            yield
        except RuntimeError as error:
            if is_failed_message(error):
                self.broken(error)
            raise

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """The same for messages beside those of a barrier, which need all ranks as well: this rank waits for them, and
        one that does not come is named."""
        waits = self._waiting is None
        if waits:
            self.arrive(self._step, clock.now())
        try:
            with self.explaining():
                yield
        finally:
            if waits:
                self.leave()

    def broken(self, error: BaseException, certain: bool = True) -> None:
        """A message failed: ends this process with a sentence, once it is known who is gone. Not `certain`: only if
        somebody is, since it was a message of the script."""
        if self._ended.is_set():
            return
        before, self._waiting = self._waiting, self._waiting or (self._step, clock.now())
        limit = clock.now() + (4.0 if certain else 1.5) * self._times.rank_silence_seconds
        try:
            while clock.now() < limit:
                self._look((self._step, limit))
                clock.sleep(self._times.rank_beat_seconds / 2)
        except RuntimeError:
            self._end("the store of the process group is gone: the rank or agent that holds it has ended", True)
        if certain:
            self._end(f"a message between ranks failed ({_first_sentence(error)}), and all ranks are alive")
        self._waiting = before

    def _watch(self) -> None:
        """In a thread: write this rank's sign of life at once and then each second, and look at those of all others
        while this rank waits."""
        while not self._ended.is_set():
            try:
                waits = self._waiting
                with self._signing:
                    if self._ended.is_set():
                        return
                    self._beats += 1
                    self._store.set(f"{self._rank}", self._sign(waits).to_text())
                late = waits is not None and clock.now() - waits[1] > self._times.rank_silence_seconds
                if waits is not None and late and self._timeout > 0:
                    self._look(waits)
                else:
                    self._store.check([f"{self._rank}"])
                self._unanswered = 0
            except RuntimeError as error:
                self._end(
                    f"the store of the process group is gone ({_first_sentence(error)}): the rank or agent that holds "
                    "it has ended",
                    store_gone=True,
                )
                return
            self._ended.wait(self._times.rank_beat_seconds)

    def _sign(self, waits: tuple[int, float] | None) -> Sign:
        """What this rank says of itself: at which barrier it waits, or where its script stands."""
        if waits is not None:
            return Sign(self._beats, f"{waits[0]}", Watchdog.waits_for)
        place = place_in_script(sys._current_frames().get(self._thread))
        return Sign(self._beats, "-1", Watchdog.waits_for, place)

    def _watch_store(self) -> None:
        """In a thread: a store whose host is frozen answers nothing and refuses nothing, so `_watch` would wait for
        ever. Counts turns and not time: while this process is frozen itself, there are none."""
        limit = self._times.arrived_rank_factor * self._times.rank_silence_seconds
        while not self._ended.wait(self._times.rank_beat_seconds):
            self._unanswered = self._unanswered + 1 if self._waiting is not None else 0
            if self._timeout > 0 and self._unanswered * self._times.rank_beat_seconds > limit:
                self._end(
                    f"the store of the process group has not answered for {limit:.0f} s: the rank or agent that holds "
                    "it is frozen, or its host is gone"
                )

    def _look(self, waits: tuple[int, float]) -> None:
        """At the signs of life of all others; ends this process if they tell that the barrier cannot end."""
        now, signs, silence = clock.now(), {}, {}
        for rank in range(self._ranks):
            if rank == self._rank:
                continue
            value = self._store.get(f"{rank}") if self._store.check([f"{rank}"]) else b"0 -1 -1"
            known = self._seen.get(rank)
            if known is None or known[0] != value:
                self._seen[rank] = known = (value, now)
            signs[rank], silence[rank] = Sign.from_text(value), now - known[1]
        wait = Wait(waits[0], now - waits[1], self._number, self._timeout)
        why = reason_of_wait(wait, signs, silence, self._times)
        if why is not None:
            self._end(why)

    def _end(self, why: str, store_gone: bool = False) -> None:
        """End this process, if it waits. The others are told why, and have time to read it: this rank may hold the
        store. Another thread that comes here meanwhile waits for the end, so that it raises nothing else."""
        with self._ending:
            if self._waiting is None or self._ended.is_set():
                return
            said = f"flegel: barrier {self._step} cannot end, {why}; rank {self._rank} stops."
            print(said, file=sys.stderr, flush=True)
            if not store_gone:  # it may be frozen, so another thread waits for it
                threading.Thread(target=self._sign_last, args=(STOPPED, why), daemon=True).start()
                clock.sleep(self._times.rank_beat_seconds)
            os._exit(EXIT_CODE)
