"""One slice of θ and of the statistics: a bundle with shorter fields, a ledger by owner, the last op applied. Pure.

A slice does with its bundle what `LocalStore` does with the whole one, in the same order, so its numbers are the same
to the last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree, sharding
from flegel.core.pytree import Array, Tree
from flegel.errors import AlgorithmError
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.params.ledger import Ledger
from flegel.params.parameter_update import why_not_finite
from flegel.server_messages import ChangeAccounts, FoldSlices, ReplaceParameter

RETURNED_MEMORY_FROM_BYTES = 1 << 20
"""Bytes from which on memory that is not used is given back."""

Op = FoldSlices | ChangeAccounts | ReplaceParameter


class SliceState:
    """A slice at its primary server."""

    def __init__(
        self,
        algorithm: Algorithm,
        number: int,
        span: tuple[int, int],
        parameter: Tree,
        total: Tree,
        op: int,
        version: int,
        rounds: dict[int, int],
        owners: Sequence[int] | None,
    ) -> None:
        """`owners`: who shares one account of `total`; None: whose it is is not known."""
        self._algorithm, self.number, self.span = algorithm, number, span
        self.parameter, self.op, self.version = parameter, op, version
        self.rounds = dict(rounds)
        """By worker: the last round that is in the statistics."""
        self.former_rounds = dict(rounds)
        """The same before the last fold: the coordinator has heard of everything in it."""
        self.accounts_known = owners is not None
        self.ledger = Ledger(algorithm, pytree.zeros_like(total, typed=True))
        self.ledger.total = self._own(total)
        if owners:
            self.share(owners)
        self.summed = False
        """The reports of the fold at hand are added; the summary of all slices is missing."""
        self.diverged = ""

    def share(self, owners: Sequence[int]) -> None:
        """All owners have one account from now on."""
        first = min(owners)
        self.ledger.restore_accounts({first: self._own(self.ledger.total)}, dict.fromkeys(owners, first))
        self.accounts_known = True

    def _own(self, total: Tree) -> Tree:
        """A copy; zeros take no memory until they are written to."""
        return pytree.unflatten(
            total,
            [
                np.zeros(a.shape, a.dtype)
                if a.nbytes >= RETURNED_MEMORY_FROM_BYTES and sharding.is_zero([a])
                else np.array(a)
                for a in pytree.flatten(total)
            ],
        )

    def _spend(self) -> None:
        """Gradients are used up; large ones give their memory back until the next fold."""
        spent, total = self._algorithm.statistics.spent, self.ledger.total
        if sum(a.nbytes for a in pytree.flatten(total)) < RETURNED_MEMORY_FROM_BYTES:
            self.ledger.spend()
            return
        fields = zip(pytree.names(total), pytree.flatten(total), strict=True)
        fresh = [np.zeros(a.shape, a.dtype) if name in spent else a for name, a in fields]
        self.ledger.total = pytree.unflatten(total, fresh)

    def change(self, kind: str, owners: Sequence[int]) -> str:
        """Accounts change; returns why the statistics are lost, where they are."""
        ledger = self.ledger
        if kind == "share":
            if owners:
                self.share(owners)
        elif kind == "clear":
            for account in (ledger.total, *ledger.accounts()[0].values()):
                pytree.clear(account)
            self.accounts_known = True
        elif not self.accounts_known:
            keeps = [name for name in pytree.names(ledger.total) if name not in self._algorithm.statistics.spent]
            if kind == "forget" and keeps:
                return "a worker and a server were lost together"
        elif kind == "join":
            ledger.join(owners[0], owners[1])
        elif kind == "detach":
            ledger.detach(owners[0])
        elif kind == "forget":
            ledger.forget(owners[0])
        elif kind == "retire":
            ledger.retire(owners[0])
        return ""

    def commit(self, workers: Sequence[int], changes: Sequence[Tree]) -> None:
        if self.accounts_known:
            self.ledger.commit_all(workers, changes)
        else:  # whose the rest is will be said by the next `share`
            for change in changes:
                pytree.add(self.ledger.total, change)

    def early(self, place: str, changes: Sequence[Tree]) -> Tree | None:
        """θ after these changes, while everything stays as it is; None where other slices have to be asked first, or
        where numbers are not finite."""
        total = pytree.copy(self.ledger.total)
        for change in changes:
            pytree.add(total, change)
        if call_hook(self._algorithm, place, "sliceSummary", total, self.parameter, *self.span) is not None:
            return None
        made = call_hook(self._algorithm, place, "updateSlice", total, self.parameter, *self.span, None)
        fresh = hook_values.tree(made, "updateParameter", lambda v: pytree.as_typed(v, self.parameter), place)
        return fresh if pytree.same_shape(fresh, self.parameter) and pytree.is_finite(fresh) else None

    def summary(self, place: str) -> Array | None:
        """What the updates of other slices need to know of this one; None: nothing."""
        made = call_hook(self._algorithm, place, "sliceSummary", self.ledger.total, self.parameter, *self.span)
        return None if made is None else np.ascontiguousarray(made)

    def update(self, place: str, summary: Array | None, version: int) -> None:
        """θ anew; it stays as it was where numbers are not finite."""
        total = self.ledger.total
        made = call_hook(self._algorithm, place, "updateSlice", total, self.parameter, *self.span, summary)
        fresh = hook_values.tree(made, "updateParameter", lambda v: pytree.as_typed(v, self.parameter), place)
        if not pytree.same_shape(fresh, self.parameter):
            raise AlgorithmError(f"updateParameter returned θ in another shape in {place}.")
        self.diverged = "" if pytree.is_finite(fresh) else why_not_finite(self._algorithm, total)
        if not self.diverged:
            self.parameter = fresh
        self.version = version
        self._spend()


@dataclass
class PrimarySlice:
    """A slice at its primary: its state, what it has still to do, and who holds a copy of which op."""

    state: SliceState
    queue: deque[tuple[Op, tuple[Array, ...]]] = field(default_factory=deque)
    queued: int = 0
    """The last op that was put into the queue."""
    copied: dict[int, int] = field(default_factory=dict)
    """By backup: the last op whose state it confirmed."""
    stable_rounds: dict[int, int] = field(default_factory=dict)
    """By worker: the last round that every backup holds."""
    told: int = -1
    """The last op that the coordinator was told to be stable."""
