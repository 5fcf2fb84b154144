"""A bucket on virtual time that is stale, slow and lies about failures. Conditional puts are honest: stores promise it.

A call may fail without effect, fail after its effect, or fail and have its effect later. Reads and listings may show an
older state. For whole stretches of time nothing answers. Somebody may damage objects: what was altered, cut off,
exchanged with another or replaced by something that is no object is refused by its readers, as the real objects are,
whose name and content are covered by a checksum or a signature. Draws come from the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flegel.machine.group.events import Answered, DeleteObject, GetObject, ListObjects, PutObject, StoreCommand
from flegel.machine.group.records import digest_of

Write = Callable[[str, bytes | None, float], None]
"""Told of every change: name, content (None: deleted), time."""


@dataclass(frozen=True)
class BucketFaults:
    """How bad a store is: parts of all calls, and seconds."""

    latency: float = 0.02
    fails: float = 0.0
    lost_answers: float = 0.0
    late_effects: float = 0.0
    late_by: float = 5.0
    stale: float = 0.0
    """Reads and listings may be so much behind."""
    away: tuple[tuple[float, float], ...] = ()
    """From, to."""


DAMAGED = b"damaged "
DAMAGE = ("flip", "truncate", "delete", "swap", "irregular", "foreign")
FOREIGN = ("members/stranger", "rounds/2/stranger.1", "rounds/3/note", "ends/g0", "starts/stranger")


class SimulatedBucket:
    """Objects with their history. `at` is called to have something done later."""

    def __init__(
        self,
        faults: BucketFaults,
        rng: np.random.Generator,
        at: Callable[[float, Callable[[float], None]], None],
        written: Write,
        lost: Callable[[str], None] = lambda key: None,
    ) -> None:
        """`lost`: told of every object that is damaged."""
        self._faults, self._rng, self._at, self._written, self._lost = faults, rng, at, written, lost
        self._history: dict[str, list[tuple[float, bytes | None]]] = {}
        self.calls = 0

    def behave(self) -> None:
        """From now on no call fails and nothing is stale."""
        self._faults = BucketFaults(self._faults.latency)

    def damage(self, kind: str, rng: np.random.Generator, now: float) -> None:
        """Damage an object, or two; `rng` chooses which."""
        held = [key for key in sorted(self._history) if self.content(key) is not None]
        if kind == "foreign":
            chosen = [str(rng.choice(FOREIGN))]
        else:
            chosen = [str(key) for key in rng.permutation(held)[: 2 if kind == "swap" else 1]]
        for key in chosen:
            self.spoil(key, None if kind == "delete" else rng.bytes(8), now)

    def spoil(self, key: str, noise: bytes | None, now: float) -> None:
        """What is under this name cannot be read any more; None: it is gone."""
        self._history.setdefault(key, []).append((now, None if noise is None else DAMAGED + noise))
        self._lost(key)

    def call(self, command: StoreCommand, now: float, answer: Callable[[Answered, float], None]) -> None:
        """Have a call done; its answer comes later, whatever happens."""
        f, draw = self._faults, self._rng.random
        self.calls += 1
        takes, back = f.latency * (0.2 + draw()), f.latency * (0.2 + draw())
        if any(begin <= now < end for begin, end in f.away):
            self._at(now + takes, lambda t: answer(Answered(command.op, "failed"), t))
            return
        fate = draw()
        if fate < f.fails:
            self._at(now + takes, lambda t: answer(Answered(command.op, "failed"), t))
        elif fate < f.fails + f.late_effects:
            late = f.late_by * draw()
            self._at(now + takes, lambda t: answer(Answered(command.op, "failed"), t))
            self._at(now + takes + late, lambda t: self._do_unheard(command, t))
        else:
            lost = fate < f.fails + f.late_effects + f.lost_answers

            def happen(t: float) -> None:
                done = self._do(command, t)
                told = Answered(command.op, "failed") if lost else done
                self._at(t + back, lambda later: answer(told, later))

            self._at(now + takes, happen)

    def _do_unheard(self, command: StoreCommand, now: float) -> None:
        """Nobody waits for the answer any more."""
        self._do(command, now)

    def _do(self, command: StoreCommand, now: float) -> Answered:
        match command:
            case GetObject(op, key):
                content = self._seen(key, now)
                if content is None:
                    return Answered(op, "absent")
                if content.startswith(DAMAGED):
                    return Answered(op, "refused", tag=digest_of(content), why="it is damaged")
                return Answered(op, "done", content, digest_of(content))
            case ListObjects(op, prefix):
                names = (key for key in self._history if key.startswith(prefix))
                return Answered(op, "done", names=tuple(n for n in names if self._seen(n, now) is not None))
            case DeleteObject(op, key):
                self.write(key, None, now)
                return Answered(op, "done")
            case PutObject(op, key, content, mode, expected):
                held = self.content(key)
                if mode == "create" and held is not None:
                    return Answered(op, "conflict")
                if mode == "swap" and (held is None or digest_of(held) != expected):
                    return Answered(op, "conflict")
                self.write(key, content, now)
                return Answered(op, "done", tag=digest_of(content))

    def write(self, key: str, content: bytes | None, now: float) -> None:
        self._history.setdefault(key, []).append((now, content))
        self._written(key, content, now)

    def content(self, key: str) -> bytes | None:
        """As it is."""
        return self._history[key][-1][1] if key in self._history else None

    def _seen(self, key: str, now: float) -> bytes | None:
        """As it was a while ago."""
        behind = now - self._faults.stale * self._rng.random()
        return next((content for at, content in reversed(self._history.get(key, [])) if at <= behind), None)
