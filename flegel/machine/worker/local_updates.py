"""θ made anew between two barriers, by a worker that is alone in its job. No I/O, no clock.

The reports of the only worker are all statistics that there are, so it can compute the θ that the coordinator would
send, without a barrier: for the price of `updateParameter`, tens of microseconds instead of a millisecond. More updates
a pass need fewer passes. Nothing else changes: reports, barriers, the objective and the audit are as ever, and the
coordinator makes θ from the same sums.

Whether they are the same is seen at every barrier: the θ that comes must be the one that the sums here give. If not
(points came or went, statistics were made anew, sites exchange theirs), the worker makes no more updates of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree

Call = Callable[..., Any]
"""Calls a hook by its name."""


class LocalUpdates:
    """Tell it each θ that comes and each report that goes; ask it for a θ in between."""

    def __init__(self, parameter: Tree, empty: Tree, call: Call) -> None:
        """`parameter`: θ at the start; `empty`: statistics of zeros; `call` calls hooks of the user's class."""
        self._call = call
        self._ordered_theta = self._theta = parameter
        """The θ that came with the last order, and the one that was made from it here."""
        # Of all reports, of the last one, and with the changes since.
        self._statistics_before_report, self._last_report, self._summed = (pytree.copy(empty) for _ in range(3))
        self._update_seconds: deque[float] = deque(maxlen=active().training.remembered_updates)
        self.kept: Tree = parameter
        """θ before the last `alternative`."""
        self._theta_was_put = False
        """θ is one that was not made from the statistics."""
        self.number = -1
        """Updates made; -1 before the first round."""
        self.useful = True
        """False: others contribute to θ, which is never computed here again."""

    def begin(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """A barrier is over: the last report has been merged, and this is θ. Returns the one to train under: this one,
        unless another was `put` and no update has been made since."""
        came = pytree.unflatten(self._ordered_theta, arrays)
        pytree.add(self._statistics_before_report, self._last_report)
        pytree.clear(self._last_report)
        if self.number < 0:
            self.number = 0
        elif self.useful:
            self.useful = _same(self._updated(self._statistics_before_report, self._ordered_theta), came)
        self._ordered_theta = came
        if self._theta_was_put and self.useful:
            return pytree.flatten(self._theta)
        self._theta, self._theta_was_put = came, False
        return arrays

    def reported(self, statistics: Sequence[Array]) -> None:
        """These changes go into the coming report."""
        self._last_report = pytree.copy(pytree.unflatten(self._statistics_before_report, statistics))

    def limit(self, most: int, speed: float, first: int, least: int) -> int:
        """Points until the next update, at so many a second, in multiples of `least`; `first` where nothing is known.
        Never more than `most`."""
        if not self.useful:
            return most
        seconds = active().training.training_per_update_time * min(self._update_seconds, default=0.0)
        return min(most, max(int(seconds * speed), first, least) // least * least)

    def update(self, statistics: Sequence[Array]) -> list[Array] | None:
        """θ with the changes since the last report; None where the hook's answer is no θ: the coordinator says so."""
        for held, change, into in zip(
            pytree.flatten(self._statistics_before_report), statistics, pytree.flatten(self._summed), strict=True
        ):
            np.add(held, change, into)
        theta = self._updated(self._summed, self._theta)
        arrays = pytree.flatten(theta)
        self.useful = pytree.same_shape(theta, self._theta) and all(np.isfinite(a.sum()) for a in arrays)
        if not self.useful:
            return None
        self._theta, self._theta_was_put = theta, False
        self.number += 1
        return arrays

    def alternative(self) -> Tree | None:
        """Another θ that the algorithm names; the present one is `kept`."""
        self.kept = self._theta
        return self._call("alternative", self._summed, self._theta)

    def put(self, theta: Tree) -> list[Array]:
        """Go on with this θ."""
        self._theta, self._theta_was_put = pytree.as_typed(theta, self._ordered_theta), True
        return pytree.flatten(self._theta)

    def objective(self) -> float | None:
        """Of the θ that was made last, over the points visited so far."""
        value = self._call("objective", self._summed, self._theta)
        return None if value is None else float(value)

    def took(self, seconds: float) -> None:
        """The last update took so long. The shortest of the last few counts: in others a worker may have waited for
        its processor."""
        self._update_seconds.append(seconds)

    def _updated(self, statistics: Tree, theta: Tree) -> Tree:
        made = self._call("updateParameter", statistics, theta)
        alike = [a.dtype == b.dtype for a, b in zip(pytree.flatten(made), pytree.flatten(theta), strict=False)]
        return made if all(alike) else pytree.as_typed(made, theta)


def _same(one: Tree, other: Tree) -> bool:
    pairs, within = zip(pytree.flatten(one), pytree.flatten(other), strict=True), active().training.equal_fields_within
    return pytree.same_shape(one, other) and all(
        np.array_equal(a, b)  # as a rule: the same sums through the same code
        or np.allclose(a, b, rtol=within, atol=within * float(np.abs(b).max(initial=0.0)))
        for a, b in pairs
    )
