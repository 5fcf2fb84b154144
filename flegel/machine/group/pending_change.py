"""What a group has learned since the last result of all groups, and what of it was sent and not counted yet. Pure.

θ here means its additive fields. A change that was sent is counted by one result, perhaps a later one; the next change
is what was learned beyond that, so nothing is counted twice and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.machine.group.events import Synchronized
from flegel.machine.group.fragments import ALL_FRAGMENTS, Fragments
from flegel.machine.group.outer_step import less, moved


class PendingChange:
    """Of one group; `base` is θ of the last result that it applied."""

    def __init__(self, base: Sequence[Array], fragments: int = 1) -> None:
        """`base`: of θ(0), empty where statistics are exchanged. `fragments`: parts of θ, one of which is exchanged in
        a round."""
        self.base = list(base)
        self.fragments = Fragments([field.shape for field in self.base], fragments)
        self.is_pending = False
        """A change was sent, and no result has counted it."""
        self._sent: list[Array] = []
        """θ as others have it once they have counted what was sent."""
        self._sent_fragment = ALL_FRAGMENTS

    @property
    def is_partial(self) -> bool:
        """What was sent last was one of several fragments."""
        return self._sent_fragment != ALL_FRAGMENTS

    def of(self, fragment: int, now: Sequence[Array]) -> tuple[list[Array], tuple[float, ...]]:
        """The change of a fragment, and by how much each of several fragments has changed."""
        whole = less(now, self.base)
        changed = self.fragments.sizes_of_changes(whole) if self.fragments.count > 1 else ()
        return self.fragments.take(fragment, whole), changed

    def send(self, fragment: int, readable: Sequence[Array]) -> tuple[Array, ...]:
        """A change is sent as others will read it: what rounding has left out is part of the next one."""
        base = [field.astype(np.float64) for field in self.base]
        sent = [b + change for b, change in zip(self.fragments.take(fragment, base), readable, strict=True)]
        self._sent, self._sent_fragment = self.fragments.put(fragment, base, sent), fragment
        self.is_pending = True
        return tuple(readable)

    def apply(self, result: Synchronized, now: Sequence[Array], over: bool) -> list[Array]:
        """θ after a result: its values, and what was learned since this group's contribution to it. `over`: training
        has ended with this result, so a contribution that it counts holds all that was learned."""
        if result.included:
            self.is_pending = False
        fields, new = list(result.parameter), list(now)
        for fragment in result.fragments:
            target = self.fragments.take(fragment, fields)
            counted = result.included and self._sent_fragment in (ALL_FRAGMENTS, fragment)
            if not (over and counted):
                since = self._sent if counted else self.base
                target = moved(target, self.fragments.take(fragment, now), self.fragments.take(fragment, since))
            new = self.fragments.put(fragment, new, target)
        late = less(self._sent, self.base) if self.is_pending else []
        self._sent = [f.astype(np.float64) + change for f, change in zip(fields, late, strict=False)]
        self.base = [np.array(a) for a in fields]
        return new


class VisitCounts:
    """Visits of points since a result counted this group's change of each fragment, and of all time."""

    def __init__(self, fragments: int = 1) -> None:
        self._made = self._counted = 0.0
        self._since = [0.0] * fragments
        self._sent = [0.0] * fragments
        """Of these, what the pending contribution holds."""

    def made(self, visits: float) -> None:
        self._since = [before + visits for before in self._since]
        self._made += visits

    def of(self, covered: Sequence[int]) -> float:
        """That a change of these fragments holds; the mean over them."""
        return sum(self._since[at] for at in covered) / len(covered)

    def send(self, covered: Sequence[int]) -> None:
        """A change of these fragments is sent."""
        self._sent = [n if at in covered else 0.0 for at, n in enumerate(self._since)]

    def counted(self) -> None:
        """A result has counted what was sent."""
        self._since = [made - sent for made, sent in zip(self._since, self._sent, strict=True)]
        self._counted += sum(self._sent) / len(self._sent)
        self._sent = [0.0] * len(self._sent)

    @property
    def goodput(self) -> float | None:
        """Of all visits, those that a result of all groups has counted; None before the first visit."""
        return self._counted / self._made if self._made else None
