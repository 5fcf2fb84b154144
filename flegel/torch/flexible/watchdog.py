"""Says which rank is missing when a barrier does not end, and ends this process: a collective cannot be interrupted.

Each rank writes a sign of life to the process group's store every second, from a thread of its own. Never looks at
gradients and costs a barrier nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from flegel.configuration.sources import settings_outside
from flegel.errors import FlegelError
from flegel.runtime import clock

EXIT_CODE = 75  # a temporary failure: a launcher that restarts may try again


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _explain_uncaught(previous: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch sums gradients by itself, so a link that breaks in a backward pass raises there, in the script: where
    nobody catches it, it is told who is gone."""

    def explain(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        waiting = next((one for one in _watchdogs if one.is_waiting), None)
        if waiting is not None and isinstance(error, RuntimeError) and not isinstance(error, FlegelError):
            waiting.broken(error)
        previous(kind, error, trace)

    explain.explains = True  # type: ignore[attr-defined]
    return explain


class Watchdog:
    """One thread for each wrapped module, which has a number."""

    waits_for = -1
    """The module at whose barrier this process waits."""

    def __init__(self, group: Any, timeout: float, number: int = 0) -> None:
        """`timeout`: seconds that a barrier may take, 0: without limit. `number`: of the wrapped module."""
        self._number = number
        self._times = settings_outside().liveness
        self._rank, self._ranks, self._timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        self._store = dist.PrefixStore(f"flegel/flexible/{number}", distributed_c10d._get_default_store())
        self._waiting: tuple[int, float] | None = None
        self._step = 0
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        _watchdogs.add(self)
        if not getattr(sys.excepthook, "explains", False):
            sys.excepthook = _explain_uncaught(sys.excepthook)
        if self._ranks > 1 and timeout > 0:
            threading.Thread(target=self._watch, name="flegel-watchdog", daemon=True).start()

    def arrive(self, step: int) -> None:
        """This rank waits at a barrier from now on."""
        self._step, self._waiting = step, (step, clock.now())
        Watchdog.waits_for = self._number

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None and not self._ended.is_set()

    def leave(self) -> None:
        self._waiting = None
        Watchdog.waits_for = -1

    def close(self) -> None:
        self._ended.set()

    def broken(self, error: BaseException) -> None:
        """A collective failed: ends this process with a sentence, once it is known who is gone."""
        self._waiting = self._waiting or (self._step, clock.now())
        limit = clock.now() + 4 * self._times.rank_silence_seconds
        while clock.now() < limit:
            clock.sleep(self._times.rank_beat_seconds / 2)
            try:
                self._look((self._step, limit))
            except (RuntimeError, dist.DistError):
                break  # the store is gone too
        self._end(f"a message between ranks failed ({str(error).splitlines()[0][:200]})")

    def _watch(self) -> None:
        """In a thread: write this rank's sign of life each second, and look at those of all others while this rank
        waits."""
        beat = 0
        while not self._ended.wait(self._times.rank_beat_seconds):
            beat += 1
            try:
                waits = self._waiting
                self._store.set(f"{self._rank}", f"{beat} {waits[0] if waits else -1} {Watchdog.waits_for}")
                if waits is not None and clock.now() - waits[1] > self._times.rank_silence_seconds:
                    self._look(waits)
            except (RuntimeError, dist.DistError) as error:
                if self._waiting is not None and not self._ended.is_set():
                    self._end(
                        f"the store of the process group is gone ({error}): the rank or agent that holds it ended"
                    )
                return

    def _look(self, waits: tuple[int, float]) -> None:
        """Ranks without signs of life are named at once, ranks that are alive but late after the timeout. One that
        had arrived may stop as well, in the middle of the exchange."""
        now, late, stopped, elsewhere = clock.now(), [], [], []
        for rank in range(self._ranks):
            if rank == self._rank:
                continue
            value = self._store.get(f"{rank}") if self._store.check([f"{rank}"]) else b"0 -1 -1"
            known = self._seen.get(rank)
            if known is None or known[0] != value:
                self._seen[rank] = known = (value, now)
            _, at, where = map(int, value.split())
            arrived = at >= waits[0]
            if not arrived:
                late.append(rank)
            if where not in (-1, self._number):
                elsewhere.append(rank)
            if (
                now - known[1]
                > (self._times.arrived_rank_factor if arrived else 1.0) * self._times.rank_silence_seconds
            ):
                stopped.append(rank)
        if stopped:
            names, silence = ", ".join(map(str, stopped)), min(now - self._seen[rank][1] for rank in stopped)
            self._end(f"rank {names} gave no sign of life for {silence:.0f} s")
        elif elsewhere and now - waits[1] > 2 * self._times.rank_silence_seconds:
            names = ", ".join(map(str, elsewhere))
            self._end(
                f"rank {names} waits at a barrier of another model: models that are trained in one loop must be "
                "trained in the same iterations on all ranks, so choose them by model.barriers, not by a count of "
                "batches"
            )
        elif now - waits[1] > self._timeout:
            names = ", ".join(map(str, late))
            whom = f"rank {names} is alive, but did not arrive" if late else "all ranks arrived, but it did not end"
            self._end(f"{whom} within {self._timeout:.0f} s")

    def _end(self, why: str) -> None:
        if self._waiting is None or self._ended.is_set():
            return
        print(f"flegel: barrier {self._step} cannot end, {why}; rank {self._rank} stops.", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)
