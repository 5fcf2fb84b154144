"""θ from the reports of those workers alone whose own model is good enough (paper 000, Section 3.2.3).

The model of a worker is what `updateParameter` makes of its own contributions: its account and what it has reported
since. One that does not pass its gate is not added to the statistics. It is kept, and the next report is added to it,
so that all of it counts once the worker passes. Contributions that counted before stand meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.params.gate import Gate
from flegel.params.hooks import call_hook
from flegel.params.ledger import Adder, add_in_order
from flegel.params.local import LocalStore
from flegel.params.parameter_update import new_parameter
from flegel.params.protocol import Fold, Folded


class GatedStore(LocalStore):
    """A `LocalStore` with one gate for each worker."""

    def __init__(
        self,
        algorithm: Algorithm,
        parameter: Tree,
        zero: Tree,
        gate: Callable[[], Gate],
        score: Callable[[Tree], float],
        adder: Adder = add_in_order,
    ) -> None:
        """`gate`: makes the gate of a worker; `score`: how good a model is, the more the better."""
        super().__init__(algorithm, parameter, zero, adder)
        self._new_gate, self._score = gate, score
        self._gates: dict[int, Gate] = {}
        self._withheld: dict[int, Tree] = {}
        """By worker: what it has reported since it passed last."""
        self._failed: dict[int, str] = {}
        """By worker that did not pass in the last fold: why."""
        self.objective: float | None = None
        """Of the last θ that was made."""
        self.refused: dict[int, int] = {}
        """By worker: how many of its reports were not counted when they came."""
        self.join = self._join  # type: ignore[method-assign]
        self.detach = self._detach  # type: ignore[method-assign]
        self.retire = self._retire  # type: ignore[method-assign]

    def fold(self, request: Fold) -> Folded:
        """As of a `LocalStore`, with the reports of workers that pass. Where nobody does, θ stays as it is."""
        self._failed = {}
        workers, changes = [], []
        for worker, change in zip(request.workers, request.changes, strict=True):
            held = self._withheld.pop(worker, None)
            whole = self._ledger.whole(change) if held is None else self.merged(held, change)
            # Workers come or go: nothing is judged, and nothing is lost.
            if request.update and self._passes(worker, whole, request.place):
                workers.append(worker)
                changes.append(whole)
            else:
                self._withheld[worker] = whole
        if not workers:  # that θ is as before says nothing about convergence
            return Folded(request.number)
        folded = super().fold(msgspec.structs.replace(request, workers=workers, changes=changes))
        self.objective = folded.objective
        return folded

    def failed(self) -> Mapping[int, str]:
        """Workers whose model did not pass in the last fold, and why."""
        return self._failed

    def _passes(self, worker: int, change: Tree, place: str) -> bool:
        gate = self._gates.setdefault(worker, self._new_gate())
        score = self._score_of(worker, change, place)
        if gate.passes(score):
            return True
        self.refused[worker] = self.refused.get(worker, 0) + 1
        self._failed[worker] = gate.why(score)
        return False

    def _score_of(self, worker: int, change: Tree, place: str) -> float:
        """Of the θ that this worker's contributions alone make; not a number where that is none."""
        own = pytree.copy(change)
        accounts, account_of = self._ledger.accounts()
        if worker in account_of:
            account = accounts.get(account_of[worker])
            own = own if account is None else pytree.add(own, account)

        def call(hook: str, *args: Any) -> Any:
            return call_hook(self._algorithm, place, hook, *args)

        made = new_parameter(self._algorithm, call, own, pytree.copy(self.parameter), place)
        return math.nan if made.diverged else self._score(made.parameter)

    # -- workers that come and go --------------------------------------------------------------------------

    def _count(self, workers: Sequence[int]) -> None:
        """Their points change owner: what was withheld counts, because the points say so wherever they are."""
        for worker in workers:
            if (held := self._withheld.pop(worker, None)) is not None:
                self._ledger.commit(worker, held)

    def _join(self, one: int, other: int) -> None:
        self._count((one, other))
        self._ledger.join(one, other)

    def _detach(self, owner: int) -> int:
        self._withheld.pop(owner, None)
        self._gates.pop(owner, None)
        return self._ledger.detach(owner)

    def _retire(self, owner: int) -> None:
        self._count((owner,))
        self._gates.pop(owner, None)
        self._ledger.retire(owner)

    def clear_statistics(self) -> None:
        self._withheld.clear()
        super().clear_statistics()
