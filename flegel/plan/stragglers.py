"""Injected stragglers, parsed from a text: which workers, how slow, when. Pure; never sleeps.

    0-3:32ms/1000      workers 0 to 3 sleep 32 ms after every 1,000 points (the paper's "injected" stragglers)
    0-3+7:8x           workers 0 to 3 and 7 are eight times slower
    2:8x@10s-20s       … only from second 10 to second 20 of the training; `@10s-` has no end
    moving4:8x~5s      four neighbours, and every 5 s the next ones
    random4:8x~5s      four drawn anew every 5 s, decided by the seed
    25%:8x             a quarter of the workers, drawn by the seed; with ~5s drawn anew
    0:natural2         two busy threads pinned to the core of worker 0: real contention

Several patterns are joined by commas; where two hit the same worker, their delays add up. The trainer and
the simulator carry out what `Stragglers.slowdown` says.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import lru_cache

from flegel.errors import UsageError
from flegel.options import parse_seconds
from flegel.wording import counted

HELP = "write for instance 0-3:32ms/1000, 0-3:8x, 2:8x@10s-20s, moving4:8x~5s, random2:8x~5s, 5%:8x or 0:natural"


@dataclass(frozen=True)
class Slowdown:
    """How one worker is slowed at one moment."""

    pause: float = 0.0
    """Seconds of sleep after each `every` points."""
    every: int = 1000
    factor: float = 1.0
    """Computing takes so many times as long."""
    load: int = 0
    """Busy threads that share the worker's core."""

    @property
    def injected(self) -> bool:
        return self.pause > 0 or self.factor > 1

    def delay(self, points: float, compute: float) -> float:
        """Seconds to sleep for so many points that took so long."""
        return points / self.every * self.pause + (self.factor - 1.0) * compute


NONE = Slowdown()


@dataclass(frozen=True)
class Pattern:
    """One who:effect@when."""

    ids: frozenset[int] | None
    """None: chosen by `choice`."""
    choice: str
    count: int
    effect: Slowdown
    begin: float = 0.0
    end: float = math.inf
    period: float = math.inf

    def hits(self, worker: int, workers: int, seconds: float, seed: int) -> bool:
        """Whether this worker is slowed at this time of training, by the span, the named workers or the turn of the
        pattern."""
        if not self.begin <= seconds < self.end:
            return False
        if self.ids is not None:
            return worker in self.ids
        turn = int(seconds // self.period) if math.isfinite(self.period) else 0
        if self.choice == "moving":
            return (worker - turn * self.count) % workers < self.count
        return worker in _drawn(seed, turn, workers, self.count)

    @property
    def steady(self) -> bool:
        """The same at all times."""
        return self.begin <= 0 and math.isinf(self.end) and math.isinf(self.period)


@lru_cache(maxsize=64)
def _drawn(seed: int, turn: int, workers: int, count: int) -> frozenset[int]:
    """The workers that are slow in this turn; cached, because every worker asks."""
    ranked = sorted(range(workers), key=lambda w: hashlib.sha256(f"{seed}/{turn}/{w}".encode()).digest())
    return frozenset(ranked[:count])


@dataclass(frozen=True)
class Stragglers:
    """All patterns of a job."""

    patterns: tuple[Pattern, ...] = ()
    seed: int = 0

    def slowdown(self, worker: int, workers: int, seconds: float) -> Slowdown:
        """The slowdown of this worker `seconds` after training began."""
        hits = [p.effect for p in self.patterns if p.hits(worker, workers, seconds, self.seed)]
        if not hits:
            return NONE
        if len(hits) == 1:
            return hits[0]
        paused = [h for h in hits if h.pause]
        every = min((h.every for h in paused), default=1000)
        pause = sum(h.pause * every / h.every for h in paused)
        return Slowdown(pause, every, math.prod(h.factor for h in hits), sum(h.load for h in hits))

    @property
    def steady(self) -> bool:
        """Who is slow, and how, never changes."""
        return all(p.steady for p in self.patterns)

    def __bool__(self) -> bool:
        return bool(self.patterns)


def parse_stragglers(text: str, workers: int, seed: int = 0) -> Stragglers:
    """The patterns in `text`, checked against the number of workers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return Stragglers(tuple(_pattern(part, workers) for part in parts), seed)


def _pattern(text: str, workers: int) -> Pattern:
    """One pattern such as `0-3:8x@10s-20s~5s`; `UsageError` says which part of it is wrong."""
    who, colon, rest = text.partition(":")
    if not colon or not who or not rest:
        raise UsageError(f"The straggler {text!r} must name workers and a slowdown; {HELP}.")
    rest, _, when = rest.partition("@")
    effect_text, _, turn = rest.partition("~")
    begin, end = _window(when, text)
    period = parse_seconds(turn) if turn else math.inf
    effect = _effect(effect_text, text)
    if share := re.fullmatch(r"(\d+(?:\.\d+)?)%", who.strip()):
        if not 0 < float(share[1]) <= 100:
            raise UsageError(f"{share[0]} in the straggler {text!r} must be more than 0 % and at most 100 %.")
        who = f"random{max(1, round(float(share[1]) / 100 * workers))}"
    if chosen := re.fullmatch(r"(moving|random)(\d*)", who.strip()):
        count = int(chosen[2] or 1)
        if not 1 <= count <= workers:
            raise UsageError(f"{text!r} slows {count} of {counted(workers, 'worker')}; it can be 1 to {workers}.")
        if chosen[1] == "moving" and not turn:
            raise UsageError(f"{text!r} must say how often the stragglers move, such as ~5s.")
        return Pattern(None, chosen[1], count, effect, begin, end, period)
    if turn:
        raise UsageError(f"In {text!r} only moving or random stragglers can change every {turn}.")
    return Pattern(_ids(who, workers, text), "", 0, effect, begin, end)


def _ids(who: str, workers: int, text: str) -> frozenset[int]:
    """Workers that `who` names, such as `0+3-5` or `all`; `text`: the whole straggler, for the error."""
    if who.strip() == "all":
        return frozenset(range(workers))
    found: set[int] = set()
    for part in who.split("+"):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(f"{who!r} in the straggler {text!r} names no workers; {HELP}.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= workers:
            raise UsageError(f"{part!r} in the straggler {text!r} is not within workers 0 to {workers - 1}.")
        found.update(range(first, last + 1))
    return frozenset(found)


def _effect(effect: str, text: str) -> Slowdown:
    """What slows a worker down: `natural2` (busy threads), `3x` (a factor) or `10ms/5` (a pause every so many
    visits)."""
    effect = effect.strip()
    if match := re.fullmatch(r"natural(\d*)", effect):
        return Slowdown(load=int(match[1] or 1))
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)x", effect):
        if float(match[1]) < 1:
            raise UsageError(f"{effect!r} in {text!r} would make a worker faster; give 1x or more.")
        return Slowdown(factor=float(match[1]))
    pause, slash, every = effect.partition("/")
    if slash and every.isdigit() and int(every) > 0:
        return Slowdown(pause=parse_seconds(pause), every=int(every))
    raise UsageError(f"{effect!r} in the straggler {text!r} is not known; {HELP}.")


def _window(when: str, text: str) -> tuple[float, float]:
    """Begin and end of a span such as `10s-20s` or `10s-`, in seconds; all the time where it is empty."""
    if not when:
        return 0.0, math.inf
    first, dash, last = when.partition("-")
    if not dash:
        raise UsageError(f"@{when} in the straggler {text!r} must be a span such as 10s-20s or 10s-.")
    begin = 0.0 if first.strip() in ("", "0", "0s") else parse_seconds(first)
    end = parse_seconds(last) if last.strip() else math.inf
    if end <= begin:
        raise UsageError(f"@{when} in the straggler {text!r} ends before it begins.")
    return begin, end
