"""Recursive search for the length of the next interval (paper Section 3.3). Pure; `multi_stage.py` has the fit."""

from __future__ import annotations

import math

from flegel.configuration.active import active
from flegel.plan.interval.environment import Environment, Recent, environment_change
from flegel.plan.interval.interval import Round, Step, milliseconds


class Search:
    """Recursive search (paper Section 3.3): try a λ times smaller size, keep it while the objective improves faster.

    Both sides of a comparison get the same training: one round of the larger size, λ of the smaller. Sizes are in
    any unit; progress is per second, barriers and waiting included. With `grow` the search goes the other way, up
    to `most`: progress decreases with time, so what is tried first looks better than it is, and a search that begins
    small errs towards frequent updates.
    """

    def __init__(self, size: float, factor: float = 2.0, grow: bool = False, most: float = math.inf) -> None:
        """`size`: to begin with; each try is `factor` times smaller, or larger where `grow` (up to `most`)."""
        self.size = size
        self.factor = factor
        self.settled = False
        """The search is over: `size` stays."""
        self._grow, self._most = grow, most
        self._best: float | None = None  # progress a second at `size`
        self._gain = self._seconds = 0.0
        self._done = 0

    @property
    def _other(self) -> float:
        return min(self.size * self.factor, self._most) if self._grow else self.size / self.factor

    @property
    def trial(self) -> float:
        """The size of the next round."""
        return self.size if self.settled or self._best is None else self._other

    def feed(self, gain: float | None, seconds: float) -> str:
        """The outcome of a round of size `trial`; returns what was decided, or an empty text."""
        if self.settled or gain is None:
            return ""
        self._gain += gain
        self._seconds += seconds
        self._done += 1
        smaller = (self._best is None) == self._grow
        if self._done < (max(2, round(self.factor)) if smaller else 1):
            return ""
        progress = self._gain / max(self._seconds, 1e-9)
        self._gain = self._seconds = 0.0
        self._done = 0
        return self._judge(progress)

    def _judge(self, progress: float) -> str:
        """Compare the progress of the size just tried with the best so far; the reason, for people. `settled` once a
        try was no better."""
        sense = f"{self.factor:g} times" if self._grow else f"1/{self.factor:g}"
        if self._best is None:
            self._best = progress
            return f"progress {progress:.3g}/s; trying {sense} that"
        before, self._best = self._best, progress
        if progress > before and self._other != self.size:
            self.size = self._other
            return f"{sense} is better: progress {progress:.3g}/s against {before:.3g}/s"
        self.settled = True
        return f"{sense} is no better: progress {progress:.3g}/s against {before:.3g}/s; settled"


class BinarySearch:
    """η by halving, from the time of a full pass of the fastest worker (FSPB)."""

    def __init__(self, first: float | None = None, factor: float = 2.0, again: bool = False) -> None:
        """`again`: search anew when speed or barrier cost have changed since η was settled, as the paper says."""
        self._given = first
        self._factor = factor
        self._again = again
        self._search: Search | None = Search(first, factor) if first else None
        rules = active().interval
        self._phi, self._rate = Recent(rules.barrier_cost_rounds), Recent(rules.speed_rounds)
        self._settled_at: Environment | None = None
        """φ and speed when η was settled."""

    def first(self, least: float) -> Step:
        if self._given:
            return Step(self._given, f"search begins at {milliseconds(self._given)}, as given")
        return Step(None, "search begins at a full pass of the fastest worker")

    def next(self, last: Round) -> Step:
        if self._search is None:
            self._search = Search(max(last.seconds - last.barrier_cost, 1e-4), self._factor)
        if last.visits > 0:
            self._phi.add(last.barrier_cost)
            self._rate.add(last.rate)
        if self._again and self._search.settled and (changed := self._changed()):
            self._search = Search(max(last.full_pass / max(last.rate, 1e-9), 1e-4), self._factor)
            self._settled_at = None
            eta = self._search.trial
            return Step(eta, f"{changed}: the search begins again at a full pass → η {milliseconds(eta)}")
        text = self._search.feed(last.gain, last.seconds)
        eta = self._search.trial
        return Step(eta, f"{text} → η {milliseconds(eta)}" if text else "")

    def _changed(self) -> str:
        """What has changed since η was settled; empty where nothing has."""
        now = (self._phi.mean, self._rate.median)
        if self._settled_at is None:
            self._settled_at = now
        return environment_change(self._settled_at, now)
