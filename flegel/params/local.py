"""θ and the statistics in the coordinator's own process: a fold is done at once, in the event that asks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.changed_rows import RowsOfStep
from flegel.core.pytree import Array, Tree
from flegel.messages import Reduced
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.params.ledger import Adder, Ledger, add_in_order, merge
from flegel.params.protocol import Fold, Folded
from flegel.params.row_updates import RowUpdates


class LocalStore:
    """A `ParameterStore` over one ledger. It copies nothing: a report is added where it lies."""

    train_version = -1
    single_reports = True

    def __init__(
        self, algorithm: Algorithm, parameter: Tree, zero: Tree, adder: Adder = add_in_order, attribute: bool = False
    ) -> None:
        """`parameter`: θ to begin with; `zero`: statistics of no points; `adder`: adds reports to them. `attribute`:
        find out what each report alone does for the objective, which costs an evaluation for each."""
        self.parameter = parameter
        self._algorithm = algorithm
        self._attribute = attribute
        self._ledger = Ledger(algorithm, zero, adder)
        self._updates = RowUpdates(algorithm, parameter, zero)
        # What a store does with the accounts of workers is all done by the ledger.
        self.join = self._ledger.join
        self.detach = self._ledger.detach
        self.forget = self._ledger.forget
        self.retire = self._ledger.retire
        self.use_spare_time = self._ledger.update_accounts
        self.discrepancy = self._ledger.discrepancy
        self.own_statistics = self._ledger.own

    @property
    def statistics(self) -> Tree:
        return self._ledger.total

    @property
    def remote(self) -> Mapping[str, Tree]:
        return self._ledger.remote

    def set_remote(self, statistics: Mapping[str, Sequence[Array]]) -> bool:
        return self._ledger.set_remote({group: self._ledger.bundle(arrays) for group, arrays in statistics.items()})

    def reported(self, worker: int, round_: int, arrays: Sequence[Array], sparse: bool = False) -> Tree:
        return self._ledger.rows_of(worker, arrays) if sparse else self._ledger.bundle(arrays)

    def merged(self, first: Tree, second: Tree) -> Tree:
        return merge(self._algorithm, pytree.copy(self._ledger.whole(first)), self._ledger.whole(second))

    def fold(self, request: Fold) -> Folded:
        gains = self._commit(request)
        if not request.update:
            return Folded(request.number, gains=gains)
        value, diverged = self._update(request.place)
        self._ledger.spend()
        return Folded(request.number, value, gains, diverged)

    def _commit(self, request: Fold) -> dict[int, float]:
        """Add the reports of a fold to the statistics; returns by worker what its report gained, where the job asks for
        that."""
        if not self._attribute:
            self._ledger.commit_all(request.workers, request.changes)
            return {}
        better = 1.0 if self._algorithm.learning.maximize else -1.0
        gains: dict[int, float] = {}
        for worker, change in zip(request.workers, request.changes, strict=True):
            before = self._value(request.place)
            self._ledger.commit(worker, change)
            if before is not None and (after := self._value(request.place)) is not None:
                gains[worker] = better * (after - before)
        return gains

    def _value(self, place: str) -> float | None:
        value = call_hook(self._algorithm, place, "objective", self._ledger.total, self.parameter)
        return hook_values.number(value, "objective", place)

    def _update(self, place: str) -> tuple[float | None, str]:
        """The objective, and why the new θ is refused where it is."""

        def call(hook: str, *args: Any) -> Any:
            return call_hook(self._algorithm, place, hook, *args)

        rows = self._ledger.take_changed_rows()
        self.parameter, value, diverged = self._updates.update(call, self._ledger.total, self.parameter, rows, place)
        return value, diverged

    @property
    def made(self) -> RowsOfStep | None:
        return self._updates.made(self.parameter)

    # -- workers ---------------------------------------------------------------------------------------------

    def admit(self, worker: int, address: str) -> None:
        """Nothing to remember: workers are sent θ."""

    def publish(self, workers: Sequence[int]) -> bool:
        return False

    def heard(self, worker: int, body: Reduced, arrays: Sequence[Array]) -> Folded | None:
        return None

    def interrupted(self, worker: int) -> bool:
        return False

    # -- checkpoints ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: θ, the statistics, and their accounts by owner."""
        accounts, account_of = self._ledger.accounts()
        return {
            "parameter": pytree.flatten(self.parameter),
            "statistics": pytree.flatten(self._ledger.total),
            "accounts": {owner: pytree.flatten(account) for owner, account in accounts.items()},
            "account_of": account_of,
            "remote": {group: pytree.flatten(held) for group, held in self._ledger.remote.items()},
        }

    def restore(self, state: Mapping[str, Any], owners: Collection[int] | None = None) -> None:
        """State of a checkpoint. `owners`: other workers than stored; all changes then form one account of theirs."""
        ledger = self._ledger
        self.set_parameter(pytree.unflatten(self.parameter, state["parameter"]))
        ledger.total = pytree.unflatten(ledger.total, state["statistics"])
        ledger.total_changed()
        remote: Mapping[str, Sequence[Array]] = state.get("remote", {})
        ledger.remote.update({group: self._ledger.bundle(arrays) for group, arrays in remote.items()})
        accounts: dict[int, Sequence[Array]] = state["accounts"]
        if owners is None:
            kept = {owner: pytree.unflatten(ledger.total, arrays) for owner, arrays in accounts.items()}
            ledger.restore_accounts(kept, state["account_of"])
            return
        whole = pytree.copy(ledger.total)
        for at, into in enumerate(pytree.flatten(whole)):
            into[...] = sum(arrays[at] for arrays in accounts.values())
        first = min(owners)
        ledger.restore_accounts({first: whole}, dict.fromkeys(owners, first))

    def set_parameter(self, parameter: Tree) -> None:
        self.parameter = pytree.unflatten(self.parameter, pytree.flatten(parameter))

    def clear_statistics(self) -> None:
        for account in (self._ledger.total, *self._ledger.accounts()[0].values()):
            pytree.clear(account)
        self._ledger.total_changed()
