"""The statistics of a job by owner: the conservation laws live here. Arrays only, no decisions, no thread.

Law 1: the sum over owners is what a recomputation from scratch would give. Law 3: losing an owner is a
subtraction, and a commit is applied exactly once. Fields that an algorithm calls `spent` (gradients) belong to
no owner: they are used once and cleared.

A point that moves takes its hidden state along, so its next change is right wherever it is made, and the total needs no
correction. Only the accounts of the two workers mix: from then on they have one account together. Why nobody
computes what the moved points are worth: docs/adr/moving-a-points-contribution.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from flegel.algorithm import Algorithm, merges_reports
from flegel.core import pytree
from flegel.core.changed_rows import ChangedRows, read_changed_rows
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array, Tree
from flegel.params.hooks import guarded

NOTHING: tuple[Sequence[int], Sequence[Sequence[Array]]] = ((), ())

Adder = Callable[[Sequence[Array], Sequence[Sequence[Array]]], None]
"""Adds to each array its column of arrays, in that order. However it is done, by threads too, no bit may differ."""


def add_in_order(intos: Sequence[Array], columns: Sequence[Sequence[Array]]) -> None:
    """The plain `Adder`."""
    for into, column in zip(intos, columns, strict=True):
        for extra in column:
            np.add(into, extra, into)


class Ledger:
    """Cumulative statistics per owner, and their total."""

    def __init__(self, algorithm: Algorithm, zero: Tree, adder: Adder = add_in_order) -> None:
        """`zero`: statistics of no points; `adder`: adds changes to the total."""
        self._add = adder
        self._algorithm = algorithm
        self._zero = zero
        self._names = pytree.names(zero)
        self._field_is_kept = tuple(name not in algorithm.statistics.spent for name in self._names)
        self._is_one_array = not pytree.is_bundle(zero)
        self._only_adds = sums_alone(algorithm)
        self._bundle: Callable[[Sequence[Array]], Tree] = itemgetter(0) if self._is_one_array else type(zero)._make
        self._accounts: dict[int, Tree] = {}
        self._account_of: dict[int, int] = {}
        self._next = 0
        """The number of the next account."""
        self._not_in_accounts: tuple[Sequence[int], Sequence[Sequence[Array]]] = NOTHING
        """Changes that the accounts do not hold yet, field by field, and whose they are."""
        self._mixed_not_in_accounts: list[tuple[int, Tree]] = []
        """The same of a barrier of which some changes came as rows, in their order."""
        self._remote: dict[str, Tree] = {}
        """Statistics of other groups that train the same model; each of them is one owner."""
        self.total = pytree.copy(zero)
        self._rows_changed: list[Array] | None = None
        """Rows of the total that changed since `take_changed_rows`; None: any may have."""

    def take_changed_rows(self) -> Array | None:
        """Rows of the total that have changed since this was last asked, ascending; None: any may have."""
        found, self._rows_changed = self._rows_changed, []
        if found is None:
            return None
        return found[0] if len(found) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def total_changed(self) -> None:
        """Any row of the total may have been written to."""
        self._rows_changed = None

    def bundle(self, arrays: Sequence[Array]) -> Tree:
        """The arrays of a report as statistics."""
        return self._bundle(arrays)

    def rows_of(self, owner: int, arrays: Sequence[Array]) -> ChangedRows:
        """The arrays of a sparse report. `ValueError` where they do not fit."""
        return read_changed_rows(arrays, pytree.flatten(self._zero), f"worker {owner}")

    def whole(self, change: Tree) -> Tree:
        """A change as statistics, also where it came as rows."""
        if not isinstance(change, ChangedRows):
            return change
        found = pytree.zeros_like(self._zero, typed=True)
        change.add_to(pytree.flatten(found))
        return found

    def commit(self, owner: int, change: Tree) -> None:
        """Add a worker's change to its own account and to the total."""
        self.commit_all((owner,), (change,))

    def commit_all(self, owners: Sequence[int], changes: Sequence[Tree]) -> None:
        """A barrier's changes, in this order. Done for every report of a job, so no tree is walked.

        The next θ needs the total alone, and everybody waits for it. So the accounts follow later: when somebody asks
        for them, or when the coordinator has nothing else to do (`update_accounts`). The caller may not write to a
        change until then."""
        if not owners:
            return
        self.update_accounts()
        if any(isinstance(change, ChangedRows) for change in changes):
            if self._only_adds:
                self._commit_rows(owners, changes)
                return
            changes = [self.whole(change) for change in changes]
        self.total_changed()
        columns = [changes] if self._is_one_array else list(zip(*changes, strict=True))
        self._check(owners, columns)
        self._not_in_accounts = (owners, columns)
        if self._only_adds:
            self._add(pytree.flatten(self.total), columns)
        else:
            self.update_accounts()
            for change in changes:
                self.total = merge(self._algorithm, self.total, change)

    def _commit_rows(self, owners: Sequence[int], changes: Sequence[Tree]) -> None:
        """Changes of which some came as rows, in this order: a number gets the same terms as if all had come whole."""
        total = pytree.flatten(self.total)
        for owner, change in zip(owners, changes, strict=True):
            if isinstance(change, ChangedRows):
                change.add_to(total)
                if self._rows_changed is not None:
                    self._rows_changed.append(change.numbers)
            else:
                self.total_changed()
                columns = [[a] for a in pytree.flatten(change)]
                self._check((owner,), columns)
                self._add(total, columns)
            self._mixed_not_in_accounts.append((owner, change))

    def _check(self, owners: Sequence[int], columns: Sequence[Sequence[Array]]) -> None:
        for name, into, column in zip(self._names, pytree.flatten(self._zero), columns, strict=True):
            shape = into.shape
            for at, extra in enumerate(column):
                if extra.shape != shape:
                    raise ValueError(f"worker {owners[at]} committed {name} in the shape {extra.shape}, not {shape}")

    def update_accounts(self) -> None:
        """Add changes that only the total holds so far to the accounts of their owners."""
        mixed, self._mixed_not_in_accounts = self._mixed_not_in_accounts, []
        for owner, change in mixed:
            is_rows = isinstance(change, ChangedRows)
            fields = change.fields if is_rows else pytree.flatten(change)
            for keep, into, extra in zip(self._field_is_kept, self._open(owner), fields, strict=True):
                if keep:
                    into[change.numbers if is_rows else slice(None)] += extra
        owners, columns = self._not_in_accounts
        if not owners:
            return
        self._not_in_accounts = NOTHING
        accounts = [self._open(owner) for owner in owners]
        for keep, intos, column in zip(self._field_is_kept, zip(*accounts, strict=True), columns, strict=True):
            if keep:
                for into, extra in zip(intos, column, strict=True):
                    np.add(into, extra, into)

    def _open(self, owner: int) -> Sequence[Array]:
        """The arrays of an owner's account, a new one where it has none."""
        number = self._account(owner)
        account = self._accounts.get(number)
        if account is None:
            account = self._accounts[number] = pytree.zeros_like(self._zero, typed=True)  # spent fields stay untouched
        return (account,) if self._is_one_array else account  # type: ignore[no-any-return]

    def join(self, one: int, other: int) -> None:
        """Points moved between these two at this barrier: their accounts become one."""
        self.update_accounts()
        kept, gone = self._account(one), self._account(other)
        if kept == gone:
            return
        for owner, account in self._account_of.items():
            if account == gone:
                self._account_of[owner] = kept
        if gone in self._accounts:
            pytree.add(self._accounts.setdefault(kept, pytree.copy(self._zero)), self._accounts.pop(gone))

    def together(self, owner: int) -> tuple[int, ...]:
        """All owners that share an account with this one, itself included."""
        self.update_accounts()
        mine = self._account_of.get(owner)
        return tuple(sorted({owner, *(o for o, a in self._account_of.items() if a == mine)}))

    def _account(self, owner: int) -> int:
        """The number of its account; numbers are never those of an account that others still have."""
        if owner not in self._account_of:
            while self._next in self._accounts:
                self._next += 1
            self._account_of[owner] = self._next
            self._next += 1
        return self._account_of[owner]

    def forget(self, owner: int) -> tuple[int, ...]:
        """The owner is lost: what it contributed goes with it.

        Returns the survivors that shared its account. Their contributions were subtracted as well, so all their points
        begin again as unvisited, each with an account of its own.
        """
        group = self.together(owner)
        if self._accounts.pop(self._account_of.get(owner, -1), None) is not None:
            self._rebuild()
        for member in group:
            self._account_of.pop(member, None)
        return tuple(member for member in group if member != owner)

    def accounts(self) -> tuple[dict[int, Tree], dict[int, int]]:
        """Accounts by their first owner, and which account each owner has."""
        self.update_accounts()
        return self._accounts, self._account_of

    def restore_accounts(self, accounts: dict[int, Tree], account_of: dict[int, int]) -> None:
        """Continue with accounts that were stored; the caller sets the total."""
        self._not_in_accounts, self._mixed_not_in_accounts = NOTHING, []
        self._accounts, self._account_of = accounts, account_of

    def detach(self, owner: int) -> int:
        """The owner is lost, but its account cannot be closed yet: the number under which to `forget` it.

        Meanwhile a new worker may get the owner's number; it has nothing to do with that account.
        """
        self.update_accounts()
        number = min([0, *self._account_of]) - 1
        self._account_of[number] = self._account(owner)
        del self._account_of[owner]
        return number

    def retire(self, owner: int) -> None:
        """The owner has handed its points over and leaves; what it contributed stays in the account of its heirs."""
        self.update_accounts()
        self._account_of.pop(owner, None)

    def _rebuild(self) -> None:
        """The total anew from the accounts: a difference of large sums would leave its rounding behind."""
        self.total_changed()
        fresh = pytree.copy(self._zero)
        for account in (*self._accounts.values(), *self._remote.values()):
            pytree.add(fresh, account)
        for name, into, value in zip(self._names, pytree.flatten(self.total), pytree.flatten(fresh), strict=True):
            if name not in self._algorithm.statistics.spent:
                into[...] = value

    @property
    def remote(self) -> dict[str, Tree]:
        return self._remote

    def set_remote(self, statistics: dict[str, Tree]) -> bool:
        """Replace the statistics of all other groups; those that are not named are lost, and theirs are subtracted.
        True where something changed."""
        self.update_accounts()
        before, self._remote = self._remote, dict(sorted(statistics.items()))
        if before.keys() == self._remote.keys() and all(_equal(before[g], new) for g, new in self._remote.items()):
            return False
        self._rebuild()
        return True

    def own(self) -> Tree:
        """The statistics of this group alone: the total itself where there is no other one."""
        if not self._remote:
            return self.total
        self.update_accounts()
        own = pytree.copy(self._zero)
        for account in self._accounts.values():
            pytree.add(own, account)
        for keeps, into, value in zip(
            self._field_is_kept, pytree.flatten(own), pytree.flatten(self.total), strict=True
        ):
            if not keeps:
                into[...] = value
        return own

    def spend(self) -> None:
        """After θ was updated: gradients are used up."""
        if self._algorithm.statistics.spent:
            self.total_changed()
        pytree.clear(self.total, self._algorithm.statistics.spent)

    def discrepancy(self) -> float:
        """Largest relative difference between the total and the sum over owners, kept fields only."""
        self.update_accounts()
        accounts = [pytree.flatten(account) for account in (*self._accounts.values(), *self._remote.values())]
        worst = 0.0
        fields = zip(self._field_is_kept, pytree.flatten(self.total), pytree.flatten(self._zero), strict=True)
        for at, (keep, total, zero) in enumerate(fields):
            if keep and total.size:
                wanted = sum([account[at] for account in accounts], zero)
                scale = max(float(np.abs(wanted).max()), SMALLEST_DIVISOR)
                worst = max(worst, float(np.abs(total - wanted).max()) / scale)
        return worst


def _equal(one: Tree, other: Tree) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(pytree.flatten(one), pytree.flatten(other), strict=True))


def sums_alone(algorithm: Algorithm) -> bool:
    """Reports are merged by addition; no code of the user has a say in it."""
    return type(algorithm).aggregate is Algorithm.aggregate or not merges_reports(algorithm)


def merge(algorithm: Algorithm, target: Tree, change: Tree) -> Tree:
    """`aggregate` at the barrier: the user's, where a point's change has the shape of the statistics."""
    if sums_alone(algorithm):
        return pytree.add(target, change)
    own = pytree.copy(change)  # the user's code may keep it, and write to it
    result = guarded(algorithm, "aggregate", "coordinator, merging reports", lambda: algorithm.aggregate(target, own))
    return target if result is None else result
