"""θ and the statistics on every worker: a fold is an all-reduce among them, and the coordinator only decides when.

The first worker of a fold sends one copy of both back, for termination, displays and checkpoints. All workers answer
with a digest of their copies; jobs whose copies differ end with a sentence. There is one account for all owners: the
loss of a worker clears the kept statistics and every point is visited again under the last θ, which costs one pass and
never a wrong sum. No clock, no socket, no thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import ProtocolError
from flegel.messages import DropFold, HoldReplica, Order, Reduced, ReduceReports
from flegel.params.protocol import Fold, Folded
from flegel.params.tree_layout import form_of
from flegel.wording import option


class MemberLinks(Protocol):
    """What the store needs of its job: who takes part, and a way to tell them something."""

    @property
    def members(self) -> Collection[int]: ...

    @property
    def round(self) -> int: ...

    def send(self, worker: int, body: Order, arrays: tuple[Array, ...] = ()) -> None: ...


class ReplicatedStore:
    """A `ParameterStore` whose folds are made by the workers."""

    train_version = -1
    single_reports = False
    made = None

    def __init__(self, algorithm: Algorithm, parameter: Tree, zero: Tree) -> None:
        """`parameter`: θ at the start; `zero`: statistics of no points."""
        self.parameter, self.statistics = parameter, pytree.copy(zero)
        self._algorithm, self._zero = algorithm, zero
        self._statistics_outlive_folds = any(name not in algorithm.statistics.spent for name in pytree.names(zero))
        """Some statistics outlive a fold: losing their owner means to count again."""
        self._links: MemberLinks | None = None
        self._addresses: dict[int, str] = {}
        self._workers_with_copies: set[int] = set()
        """Workers whose copies are `parameter` and `statistics`."""
        self._fold: Fold | None = None
        self._answers: dict[int, Reduced] = {}
        self._first_members_arrays: Sequence[Array] = ()
        """θ and statistics after the fold, from the first of the workers that made it."""
        self._fold_members: tuple[int, ...] = ()
        """Workers that make the present fold, in rising order."""
        self._last_detached_owner = 0
        """Accounts of lost workers are numbered −1, −2, …"""

    def connect(self, links: MemberLinks) -> None:
        """Before anything is asked."""
        self._links = links

    # -- workers ---------------------------------------------------------------------------------------------

    def admit(self, worker: int, address: str) -> None:
        self._addresses[worker] = address
        self._workers_with_copies.discard(worker)

    def publish(self, workers: Sequence[int]) -> bool:
        """Send θ and statistics to workers whose copies are not the present ones, such as newcomers. Always True: θ is
        published at once."""
        assert self._links is not None
        behind = [worker for worker in workers if worker not in self._workers_with_copies]
        if behind:
            order = HoldReplica(form_of(self.parameter), form_of(self.statistics))
            arrays = (*pytree.flatten(self.parameter), *pytree.flatten(self.statistics))
            for worker in behind:
                self._links.send(worker, order, arrays)
            self._workers_with_copies.update(behind)
        return True

    def _changed(self) -> None:
        """θ or the statistics are others now, not by a fold."""
        self._workers_with_copies.clear()

    # -- other groups: none, the coordinator of a group keeps the statistics itself ----------------------------

    @property
    def remote(self) -> Mapping[str, Tree]:
        return {}

    def own_statistics(self) -> Tree:
        return self.statistics

    def set_remote(self, statistics: Mapping[str, Sequence[Array]]) -> bool:
        raise ProtocolError(f"Statistics of other groups need {option('topology', 'coordinator')}.")

    # -- folds -----------------------------------------------------------------------------------------------

    def reported(self, worker: int, round_: int, arrays: Sequence[Array], sparse: bool = False) -> Tree:
        """Reports stay with the workers."""
        return ()

    def merged(self, first: Tree, second: Tree) -> Tree:
        return ()

    def fold(self, request: Fold) -> Folded | None:
        """Order all workers to exchange and fold these reports. None: the answers come through `heard`."""
        assert self._links is not None
        if not request.workers and not request.update:
            return Folded(request.number)
        members = tuple(sorted(self._links.members))
        self.publish(members)
        self._fold, self._fold_members, self._answers, self._first_members_arrays = request, members, {}, ()
        order = ReduceReports(
            request.number,
            self._links.round,
            request.place,
            tuple((worker, self._addresses[worker]) for worker in members),
            tuple(request.workers),
            request.update,
        )
        for worker in members:
            self._links.send(worker, order)
        return None

    def heard(self, worker: int, body: Reduced, arrays: Sequence[Array]) -> Folded | None:
        """An answer of a worker; the result once all have answered. Their digests of θ must be equal, else it is an
        error."""
        request = self._fold
        if request is None or body.fold != request.number or worker not in self._fold_members:
            return None
        self._answers[worker] = body
        if worker == self._fold_members[0]:
            self._first_members_arrays = arrays
        if len(self._answers) < len(self._fold_members):
            return None
        self._fold = None
        first = self._answers[self._fold_members[0]]
        other = next((w for w, answer in self._answers.items() if answer.digest != first.digest), None)
        if other is not None:
            return Folded(request.number, error=_differ(request.place, self._fold_members[0], other))
        split = len(pytree.flatten(self.parameter))
        self.parameter = pytree.unflatten(self.parameter, self._first_members_arrays[:split])
        self.statistics = pytree.unflatten(self.statistics, self._first_members_arrays[split:])
        self._first_members_arrays = ()
        return Folded(request.number, first.objective, {}, first.diverged)

    def interrupted(self, worker: int) -> bool:
        """Copies of workers that are through with it are ahead of the others: all get θ and the statistics anew."""
        if self._fold is None or worker not in self._fold_members:
            return False
        assert self._links is not None
        for member in self._fold_members:
            self._links.send(member, DropFold(self._fold.number))
        self._fold = None
        self._changed()
        return True

    def use_spare_time(self) -> None:
        """Nothing is put off."""

    def discrepancy(self) -> float:
        """There is one account, the sum itself; copies are compared at every fold."""
        return 0.0

    # -- owners ----------------------------------------------------------------------------------------------

    def join(self, one: int, other: int) -> None:
        """All owners share one account already."""

    def detach(self, owner: int) -> int:
        self.retire(owner)
        self._last_detached_owner -= 1
        return self._last_detached_owner

    def forget(self, owner: int) -> tuple[int, ...]:
        assert self._links is not None
        if not self._statistics_outlive_folds:
            return ()
        self.clear_statistics()
        return tuple(sorted(self._links.members))

    def retire(self, owner: int) -> None:
        self._workers_with_copies.discard(owner)
        self._addresses.pop(owner, None)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The same record as `LocalStore` makes where all owners share one account, so that either store can continue
        from it."""
        assert self._links is not None
        owners = sorted(self._links.members)
        arrays = pytree.flatten(self.statistics)
        return {
            "parameter": pytree.flatten(self.parameter),
            "statistics": arrays,
            "accounts": {owners[0]: arrays} if owners else {},
            "account_of": dict.fromkeys(owners, owners[0]) if owners else {},
        }

    def restore(self, state: Mapping[str, Any], owners: Collection[int] | None = None) -> None:
        self.set_parameter(pytree.unflatten(self.parameter, state["parameter"]))
        self.statistics = pytree.unflatten(self.statistics, state["statistics"])

    def set_parameter(self, parameter: Tree) -> None:
        self.parameter = pytree.unflatten(self.parameter, pytree.flatten(parameter))
        self._changed()

    def clear_statistics(self) -> None:
        self.statistics = pytree.unflatten(self._zero, [np.zeros_like(a) for a in pytree.flatten(self._zero)])
        self._changed()


def _differ(place: str, one_worker: int, other_worker: int) -> ProtocolError:
    return ProtocolError(
        f"Worker {other_worker} made another θ than worker {one_worker} in {place}: their processors or libraries "
        "round differently, or updateParameter is not a function of its arguments; use "
        f"{option('topology', 'coordinator')}."
    )
