"""The multi-stage fit of the interval as the FSP paper prints it (Section 3.3). Pure; no clock, no workers.

At the start of each stage two rounds of η₁ run from a data point X_j; then every worker goes back to X_j and trains the
same points again in one round of 2η₁. The two progresses per second of valid time give the line g(η) = aη + b, and η*
maximizes Eq. 7:

    gain(η) = (T − φ·T / (η + φ))·g(η),   so  η* = −φ + √(φ² − bφ/a)  where a < 0 < b

A line that does not fall makes η as long as a pass; one that is not positive is noise, and η stays. A stage ends when
the objective is behind its prediction by one round. `multi_stage.py` has what is the default, and why it differs.
"""

from __future__ import annotations

import math

from flegel.configuration.active import active
from flegel.plan.interval.interval import MARK, REWIND, Round, Step, milliseconds


class RollbackStages:
    """Each round in gives the next step. States: waiting (no objective yet) → first, second, doubled → holding."""

    def __init__(self, first: float | None = None) -> None:
        """`first`: η₁ in seconds; by default the paper's."""
        self._given = first or active().interval.rollback_first_seconds
        self._state = "waiting"
        self.stage = 0
        self._gain = self._seconds = 0.0
        """Of the two rounds of η₁: progress, and valid time (without barriers)."""
        self._phi = 0.0
        """φ: mean seconds of the barriers of this probe."""
        self._short = 0.0
        """g(η₁)."""
        self._eta, self._rate = self._given, 0.0
        """η of the stage, and the progress per second that the line promises for it."""
        self._behind = 0.0
        """Predicted progress less measured progress since the stage was fitted."""

    def first(self, least: float) -> Step:
        return Step(self._given, f"interval of {milliseconds(self._given)} until the objective is known")

    def next(self, last: Round) -> Step:
        """The next step of the probe, or the same interval until the objective is a round behind its prediction."""
        valid = max(last.seconds - last.barrier_cost, 1e-9)
        if last.gain is None or last.visits <= 0:
            return Step(self._eta)
        match self._state:
            case "first":
                self._state, self._gain, self._seconds, self._phi = "second", last.gain, valid, last.barrier_cost
                return Step(self._given)
            case "second":
                self._short = (self._gain + last.gain) / (self._seconds + valid)
                self._state, self._phi = "doubled", self._phi + last.barrier_cost
                return Step(2.0 * self._given, "back to where the stage began", cursor=REWIND)
            case "doubled":
                return self._fit(last.gain / valid, (self._phi + last.barrier_cost) / 3.0, last)
            case "holding":
                self._behind += self._rate * valid - last.gain
                if self._behind <= self._rate * self._eta:
                    return Step(self._eta)
                if self._rate <= 0.0:  # the line promises no progress for this η, and the objective got worse
                    return self._probe("the objective is behind its prediction, which was no progress")
                return self._probe(f"the objective is {self._behind / self._rate:.3g} s behind its prediction")
        return self._probe("the objective is known")

    def _probe(self, why: str) -> Step:
        self.stage += 1
        self._state = "first"
        reason = f"stage {self.stage}: {why}; two rounds of {milliseconds(self._given)}, then one of twice that again"
        return Step(self._given, reason, cursor=MARK)

    def _fit(self, doubled: float, phi: float, last: Round) -> Step:
        """Two points of g, and the maximum of Eq. 7."""
        self._state, self._behind = "holding", 0.0
        slope = (doubled - self._short) / self._given
        height = self._short - slope * self._given
        longest = last.full_pass / max(last.rate, 1e-9)
        line = f"stage {self.stage}: g(η) = {slope:.3g}·η + {height:.3g}, φ={milliseconds(phi)}"
        if height <= 0.0:
            self._rate = max(self._short, 0.0)
            return Step(self._eta, f"{line}: noise, η stays {milliseconds(self._eta)}")
        wanted = longest if slope >= 0.0 else -phi + math.sqrt(phi * phi - height * phi / slope)
        self._eta = min(max(wanted, active().interval.shortest_seconds), max(longest, self._given))
        self._rate = max(slope * self._eta + height, 0.0)
        return Step(self._eta, f"{line} → η {milliseconds(self._eta)}")
