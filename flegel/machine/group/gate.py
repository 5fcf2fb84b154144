"""Whether a group sends its change of θ (paper 3.2.3): only where its model is good enough by its own data. Pure.

Never for kept statistics: points that are not counted would be missing in the sums.
"""

from __future__ import annotations

from flegel.errors import UsageError
from flegel.wording import option


def parse_gate(text: str) -> float | None:
    """The threshold V_τ; None: the best score so far."""
    if text == "best":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option('gate', text)}: give best, or the least score that is sent, such as 0.8.") from None


class Gate:
    """Scores in, send or not."""

    def __init__(self, threshold: float | None, failures: int) -> None:
        """`failures`: models in a row that do not pass, after which one is sent all the same (N_τ of the paper)."""
        self._threshold, self._most = threshold, failures
        self.best: float | None = None
        self.failures = 0
        """In a row."""

    def passes(self, score: float) -> bool:
        """The larger the better; not a number never passes."""
        least = self._threshold if self._threshold is not None else self.best
        good = score == score and (least is None or score >= least)
        if score == score:
            self.best = score if self.best is None else max(self.best, score)
        self.failures = 0 if good else self.failures + 1
        return good

    @property
    def excluded(self) -> bool:
        return self.failures >= self._most

    def why(self, score: float) -> str:
        least = self._threshold if self._threshold is not None else self.best
        return f"its score {score:.4g} is below {least:.4g}"
