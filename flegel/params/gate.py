"""Whether what a worker or a group has learned counts (paper 000, 3.2.3): only where its model is good enough by rows
that nobody trains on. Pure.

Of kept statistics those that counted before stand meanwhile.
"""

from __future__ import annotations

import math

from flegel.errors import UsageError
from flegel.wording import option


def what_to_do() -> str:
    """Where nobody passes; the end of a sentence."""
    return f"use a smaller {option('gate')}, or other rows for {option('gate_data')}"


def parse_gate(text: str) -> float | None:
    """The threshold V_τ; None: the best score so far."""
    if text == "best":
        return None
    try:
        least = float(text)
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise UsageError(f"{option('gate', text)}: give best, or the least score that is sent, such as 0.8.")
    return least


class Gate:
    """Scores in, send or not."""

    def __init__(self, threshold: float | None, failures: int) -> None:
        """`failures`: models in a row that do not pass, after which their maker is excluded (N_τ of the paper)."""
        self._threshold, self._max_failures = threshold, failures
        self.best_score: float | None = None
        self.failures = 0
        """In a row."""

    def passes(self, score: float) -> bool:
        """The larger the better; not a number never passes."""
        least = self._threshold if self._threshold is not None else self.best_score
        good = score == score and (least is None or score >= least)
        if score == score:
            self.best_score = score if self.best_score is None else max(self.best_score, score)
        self.failures = 0 if good else self.failures + 1
        return good

    @property
    def excluded(self) -> bool:
        return self.failures >= self._max_failures

    def why(self, score: float) -> str:
        least = self._threshold if self._threshold is not None else self.best_score
        return f"its score {score:.4g} is below {least:.4g}"
