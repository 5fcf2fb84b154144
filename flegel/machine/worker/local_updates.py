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
        self._came = self._theta = parameter
        self._total, self._reported, self._sum = (pytree.copy(empty) for _ in range(3))
        self._took: deque[float] = deque(maxlen=active().training.remembered_updates)
        self.kept: Tree = parameter
        """θ before the last `alternative`."""
        self._put = False
        """θ is one that was not made from the statistics."""
        self.number = -1
        """Updates made; -1 before the first round."""
        self.useful = True
        """False: others contribute to θ, which is never computed here again."""

    def begin(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """A barrier is over: the last report has been merged, and this is θ. Returns the one to train under: this one,
        unless another was `put` and no update has been made since."""
        came = pytree.unflatten(self._came, arrays)
        pytree.add(self._total, self._reported)
        pytree.clear(self._reported)
        if self.number < 0:
            self.number = 0
        elif self.useful:
            self.useful = _same(self._updated(self._total, self._came), came)
        self._came = came
        if self._put and self.useful:
            return pytree.flatten(self._theta)
        self._theta, self._put = came, False
        return arrays

    def reported(self, statistics: Sequence[Array]) -> None:
        """These changes go into the coming report."""
        self._reported = pytree.copy(pytree.unflatten(self._total, statistics))

    def limit(self, most: int, speed: float, first: int, least: int) -> int:
        """Points until the next update, at so many a second, in multiples of `least`; `first` where nothing is known.
        Never more than `most`."""
        if not self.useful:
            return most
        seconds = active().training.training_per_update_time * min(self._took, default=0.0)
        return min(most, max(int(seconds * speed), first, least) // least * least)

    def update(self, statistics: Sequence[Array]) -> list[Array] | None:
        """θ with the changes since the last report; None where the hook's answer is no θ: the coordinator says so."""
        for held, change, into in zip(pytree.flatten(self._total), statistics, pytree.flatten(self._sum), strict=True):
            np.add(held, change, into)
        theta = self._updated(self._sum, self._theta)
        arrays = pytree.flatten(theta)
        self.useful = pytree.same_shape(theta, self._theta) and all(np.isfinite(a.sum()) for a in arrays)
        if not self.useful:
            return None
        self._theta, self._put = theta, False
        self.number += 1
        return arrays

    def alternative(self) -> Tree | None:
        """Another θ that the algorithm names; the present one is `kept`."""
        self.kept = self._theta
        return self._call("alternative", self._sum, self._theta)

    def put(self, theta: Tree) -> list[Array]:
        """Go on with this θ."""
        self._theta, self._put = pytree.as_typed(theta, self._came), True
        return pytree.flatten(self._theta)

    def objective(self) -> float | None:
        """Of the θ that was made last, over the points visited so far."""
        value = self._call("objective", self._sum, self._theta)
        return None if value is None else float(value)

    def took(self, seconds: float) -> None:
        """The last update took so long. The shortest of the last few counts: in others a worker may have waited for
        its processor."""
        self._took.append(seconds)

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
