"""The coordinator's side of parameter servers: a `ParameterStore` whose slices live in other processes. Pure.

It starts the servers, says who holds what, passes folds on and assembles their answers; a fold is answered later, by
`FoldFinished`. Everything that servers do has a number and stays in the log until backups hold its outcome, so that
a server that takes a slice over does the same again, in the same order (`care.py`).

The coordinator keeps a mirror of θ and of the kept statistics: hooks that judge progress, checkpoints and the result
read it. Accounts by owner are kept by the servers; here is who shares one with whom.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from flegel.algorithm import Algorithm
from flegel.core import pytree, sharding
from flegel.core.pytree import Array, Tree
from flegel.core.sharding import Cuts, Partition
from flegel.errors import ProtocolError
from flegel.machine.coordinator.events import Command, Event, FoldFinished, Send
from flegel.machine.server.fold_progress import ArrayStorage, InMemory, Mirror, OpProgress
from flegel.machine.server.replica_store import frames_of_copies
from flegel.machine.server.server import SLICES_PER_MESSAGE
from flegel.messages import Reduced
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.params.ledger import Ledger
from flegel.params.protocol import Fold, Folded
from flegel.params.sharded import cuts_for
from flegel.plan.placement.slice_map import SliceMap
from flegel.server_messages import (
    ChangeAccounts,
    CombinedSummary,
    ExpectReports,
    FoldSlices,
    HoldSlices,
    ReplaceParameter,
    ServerMap,
    SlicesFolded,
    SliceSummaries,
)
from flegel.wording import option

if TYPE_CHECKING:
    from flegel.params.protocol import ParameterStore


@dataclass
class LoggedOp:
    """An op that may have to be done again by a server that takes a slice over."""

    body: FoldSlices | ChangeAccounts | ReplaceParameter
    parameter: Tree | None = None
    """Of `ReplaceParameter`: the whole θ."""
    combined: Array | None = None
    version: int = 0
    """Of θ after it."""
    abandoned: bool = False
    """A report of this fold is lost for ever."""


@dataclass
class PushedReport:
    """A report whose arrays the servers have: its rounds."""

    rounds: tuple[int, ...]


@dataclass
class Outbox:
    """What is to be sent."""

    commands: list[Command] = field(default_factory=list)

    def send(self, to: int, body: Any, arrays: Sequence[Array] = ()) -> None:
        self.commands.append(Send(to, body, tuple(arrays)))


class ServerGroup:
    """θ and the statistics on servers. Implements `ParameterStore`; `ServerCare` (care.py) looks after the servers."""

    def __init__(
        self, algorithm: Algorithm, parameter: Tree, zero: Tree, cuts: Cuts, storage: ArrayStorage | None = None
    ) -> None:
        """`storage`: where the mirror lies; in memory by default."""
        self.algorithm, self.cuts = algorithm, cuts
        self.mirror = Mirror(cuts, parameter, zero, algorithm.statistics.spent, storage or InMemory())
        self._zero = zero
        empty = pytree.unflatten(zero, [a[:0] if a.ndim else a for a in pytree.flatten(zero)])
        self._empty = pytree.copy(empty)
        self.book = Ledger(algorithm, pytree.copy(empty))
        """Who shares an account with whom; its arrays are empty."""
        self.out = Outbox()
        self.log: dict[int, LoggedOp] = {}
        self.op = 0
        """The last op that servers were told to do."""
        self.done_op = 0
        """The last op that the mirror holds."""
        self.version = 0
        self._reserved = 0
        """The highest version that was used or announced; no version stands for two θ."""
        self._expected_reports: ExpectReports | None = None
        self._done_version = 0
        """Of θ in the mirror."""
        self.rounds: dict[int, int] = {}
        """By worker: the last round that is in the statistics of the mirror."""
        self.assignment: SliceMap | None = None
        self.map_version = 0
        self.cut_version = 1
        """The first map with the present slices."""
        self._unspent = False
        """The last fold made no θ: servers hold statistics that the mirror does not have."""
        self.addresses: dict[int, str] = {}
        self.receivers: tuple[int, ...] = ()
        """Workers that were sent the last θ."""
        self._progress: dict[int, OpProgress] = {}
        self._fold: tuple[int, Fold] | None = None
        self.last_folded: tuple[int, ...] = ()
        """Workers whose reports were in the last fold that is done."""
        self._gap = 0.0
        self._damage = ""
        """Why the statistics are not what the points say; told with the next fold."""

    # -- the store: what it is asked for at once -----------------------------------------------------------

    @property
    def parameter(self) -> Tree:
        return self.mirror.parameter

    @property
    def statistics(self) -> Tree:
        return self.mirror.statistics

    @property
    def remote(self) -> Mapping[str, Tree]:
        """Groups and servers are not used together."""
        return {}

    def own_statistics(self) -> Tree:
        return self.mirror.statistics

    def set_remote(self, statistics: Mapping[str, Sequence[Array]]) -> bool:
        raise ProtocolError(f"Statistics of other groups need θ on the coordinator; use {option('servers', 0)}.")

    single_reports = False
    made = None
    """Of jobs whose model chooses: servers fold what all workers have reported."""

    @property
    def train_version(self) -> int:
        return self.version

    def admit(self, worker: int, address: str) -> None:
        """Workers are reached through the coordinator alone."""

    def publish(self, workers: Sequence[int]) -> bool:
        """Servers send θ to them."""
        return True

    def heard(self, worker: int, body: Reduced, arrays: Sequence[Array]) -> Folded | None:
        """Workers have no part in a fold."""
        return None

    def interrupted(self, worker: int) -> bool:
        """A fold has all reports that it needs."""
        return False

    def reported(self, worker: int, round_: int, arrays: Sequence[Array], sparse: bool = False) -> Tree:
        """The servers have the arrays."""
        return PushedReport((round_,))

    def merged(self, first: Tree, second: Tree) -> Tree:
        return PushedReport(first.rounds + second.rounds)

    def join(self, one: int, other: int) -> None:
        self.book.join(one, other)
        self._account("join", one, other)

    def detach(self, owner: int) -> int:
        number = self.book.detach(owner)
        self._account("detach", owner)
        return number

    def forget(self, owner: int) -> tuple[int, ...]:
        group = self.book.forget(owner)
        self._account("forget", owner)
        return group

    def retire(self, owner: int) -> None:
        self.book.retire(owner)
        self._account("retire", owner)

    def share(self) -> None:
        """All owners have one account from now on: what each of them contributed is not known."""
        owners = self._share_book()
        if owners:
            self._account("share", *owners)

    def _share_book(self) -> tuple[int, ...]:
        owners = tuple(sorted(self.book.accounts()[1]))
        if owners:
            first = min(owners)
            self.book.restore_accounts({first: pytree.copy(self._empty)}, dict.fromkeys(owners, first))
        return owners

    def clear_statistics(self) -> None:
        cleared = pytree.copy(self.mirror.statistics)
        self.mirror.statistics = pytree.clear(cleared)
        self._account("clear")

    def use_spare_time(self) -> None:
        """Servers do that themselves."""

    def discrepancy(self) -> float:
        return self._gap

    def set_parameter(self, parameter: Tree) -> None:
        """Another θ, as a version of its own."""
        fresh = pytree.as_typed(parameter, self.mirror.parameter)
        self.mirror.parameter = fresh
        self._next_version()
        if self.assignment is None:
            return
        self.op += 1
        body = ReplaceParameter(self.op, self.version, (), self.receivers)
        self.log[self.op] = LoggedOp(body, fresh, version=self.version)
        self._begin_progress(self.op)
        for server in sorted(set(self.assignment.primary)):
            self.send_replacement(server, self.log[self.op], self.assignment.of_server(server))

    def send_replacement(self, server: int, entry: LoggedOp, numbers: Sequence[int]) -> None:
        """θ of these slices, as the op in the log has it."""
        assert isinstance(entry.body, ReplaceParameter)
        along, theta = self.cuts.parameter, entry.parameter
        for at in range(0, len(numbers), SLICES_PER_MESSAGE):
            some = tuple(numbers[at : at + SLICES_PER_MESSAGE])
            arrays = sharding.rest_fields(theta, along)
            for number in some:
                arrays += sharding.cut_fields(theta, along, *self.cuts.slices[number])
            self.out.send(server, msgspec.structs.replace(entry.body, slices=some), arrays)

    def _account(self, kind: str, *owners: int) -> None:
        if self.assignment is None:
            return
        self.op += 1
        self.order(LoggedOp(ChangeAccounts(self.op, kind, owners), version=self.version))

    def order(self, entry: LoggedOp) -> None:
        """All servers do this, as the next op."""
        assert self.assignment is not None
        self.log[self.op] = entry
        self._begin_progress(self.op)
        for server in sorted(set(self.assignment.primary)):
            self.out.send(server, entry.body)

    def _begin_progress(self, op: int) -> None:
        self._progress[op] = OpProgress(op, self.cuts.count, self.mirror)

    # -- folds ---------------------------------------------------------------------------------------------

    def fold(self, request: Fold) -> Folded | None:
        """Order the servers to fold these reports. None: the result comes with their answers."""
        reports = tuple(
            (worker, change.rounds) for worker, change in zip(request.workers, request.changes, strict=True)
        )
        for worker in request.workers:
            self.book.commit(worker, self._empty)
        expected, self._expected_reports = self._expected_reports, None
        if request.update:
            if expected is not None and (expected.after, expected.reports) == (self.op, reports):
                self.version = expected.version
            else:
                self._next_version()
        self.op += 1
        self.receivers = tuple(sorted(request.receivers))
        body = FoldSlices(self.op, self.version, reports, request.update, self.receivers, request.place)
        self.order(LoggedOp(body, version=self.version))
        self._fold = (self.op, request)
        return None

    def _next_version(self) -> None:
        """One that was never announced."""
        self.version = self._reserved = self._reserved + 1

    def expect(self, rounds: Mapping[int, int], place: str) -> None:
        """Tell the servers which workers were just ordered to train, so that they may fold those reports as soon as
        they have them."""
        if self.assignment is None or self._fold is not None:
            return
        self._reserved += 1
        reports = tuple((worker, (round_,)) for worker, round_ in sorted(rounds.items()))
        self._expected_reports = ExpectReports(self.op, self._reserved, reports, tuple(sorted(rounds)), place)
        for server in sorted(set(self.assignment.primary)):
            self.out.send(server, self._expected_reports)

    def folded(self, body: SlicesFolded, arrays: Sequence[Array]) -> list[Event]:
        """Slices have done an op; the coordinator hears of a fold when all have."""
        progress = self._progress.get(body.op)
        return self._finish(progress) if progress is not None and progress.took(body, arrays) else []

    def skip(self, number: int, op: int) -> list[Event]:
        """The slice was taken over in the state after `op`: its answers to earlier ones are lost and not needed."""
        events: list[Event] = []
        for progress in [p for at, p in sorted(self._progress.items()) if at < op]:
            if progress.skip(number):
                events += self._finish(progress)
        return events

    def _finish(self, progress: OpProgress) -> list[Event]:
        """All slices have done the operation: put what came out into the mirror, and return the event that answers the
        fold, if it was one."""
        op, before = progress.op, self.mirror.parameter
        del self._progress[op]
        entry = self.log[op].body
        self._gap, self._damage = progress.gap, self._damage or progress.lost
        fold = isinstance(entry, FoldSlices) and entry.update
        if isinstance(entry, FoldSlices):
            self._unspent = not entry.update and bool(self.algorithm.statistics.spent)
        if not progress.partial:
            progress.finish(fold and not progress.diverged and not self._damage)
            if op > self.done_op:
                self.done_op, self._done_version = op, self.log[op].version
        if self._fold is None or self._fold[0] != op:
            return []
        (_, request), self._fold = self._fold, None
        self.last_folded = tuple(request.workers)
        for worker, change in zip(request.workers, request.changes, strict=True):
            self.rounds[worker] = change.rounds[-1]
        answer = self._answer(request, progress)
        if answer.diverged or (answer.lost and request.update):
            self.set_parameter(before)
        return [FoldFinished(answer)]

    def _answer(self, request: Fold, progress: OpProgress) -> Folded:
        """The answer to a fold that all servers have done: the objective, or why there is none (diverged, or slices
        were lost and all points are counted again)."""
        lost, self._damage = self._damage, ""
        if not request.update or lost:
            return Folded(request.number, lost=lost and f"counted all points again: {lost}")
        if progress.diverged:
            return Folded(request.number, diverged=progress.diverged)
        made = call_hook(self.algorithm, request.place, "objective", self.statistics, self.parameter)
        value = hook_values.number(made, "objective", request.place)
        if value is not None and not math.isfinite(value):
            return Folded(request.number, diverged=f"the objective became {value}")
        return Folded(request.number, value)

    def combine(self, body: SliceSummaries, arrays: Sequence[Array]) -> None:
        """Summaries of slices; when all are here, every server gets them together."""
        progress = self._progress.get(body.op)
        if progress is None:
            return
        combined = progress.summarize(body.slices, arrays)
        if combined is not None and self.log[body.op].combined is None:
            self.log[body.op].combined = combined
            assert self.assignment is not None
            for server in sorted(set(self.assignment.primary)):
                self.out.send(server, CombinedSummary(body.op), (combined,))

    @property
    def pending(self) -> FoldSlices | None:
        """The fold under way."""
        body = self.log[self._fold[0]].body if self._fold is not None else None
        return body if isinstance(body, FoldSlices) else None

    def trim(self, stable: int) -> None:
        """Every backup holds what came of these ops, and so does the mirror: they are never done again."""
        for op in [op for op in self.log if op <= min(stable, self.done_op) and op not in self._progress]:
            del self.log[op]

    # -- the map and the state of slices -------------------------------------------------------------------

    def new_map(self, assignment: SliceMap, addresses: Mapping[int, str]) -> ServerMap:
        """The message that tells servers and workers this assignment, with the next version number."""
        self.assignment, self.addresses = assignment, dict(addresses)
        self.map_version += 1
        used = {*assignment.primary, *(s for some in assignment.replicas for s in some)}
        fields = zip(pytree.names(self.parameter), self.cuts.parameter, strict=True)
        sent = tuple(axis for name, axis in fields if name not in self.algorithm.placement.unsent)
        return ServerMap(
            self.map_version,
            self.cuts.slices,
            self.cuts.parameter,
            sent,
            self.cuts.statistics,
            assignment.primary,
            assignment.replicas,
            {server: address for server, address in self.addresses.items() if server in used},
            self.cut_version,
        )

    @property
    def may_be_cut_anew(self) -> bool:
        """The mirror holds everything that the servers hold."""
        idle = self._fold is None and not self._progress and self.op == self.done_op
        return idle and not self._unspent and not self._damage

    def cut_anew(self, cuts: Cuts) -> None:
        """Between two folds: these slices from the next map on, each with what the mirror has. All owners share one
        account from now on: the mirror has totals only."""
        self.cuts = self.mirror.cuts = cuts
        self.cut_version = self.map_version + 1
        self.log.clear()
        self._expected_reports = None
        self._share_book()

    def cuts_into(self, wanted: int, partition: Partition | None = None) -> Cuts:
        """About so many slices of θ."""
        return cuts_for(self.algorithm, self.parameter, self._zero, wanted, partition)

    def hand_out(self, server: int, numbers: Sequence[int], known: bool) -> None:
        """The state of the mirror to the server of these slices. `known`: the owners share one account, that of
        these statistics; else that has to be said by `share`."""
        owners = tuple(sorted(self.book.accounts()[1]))
        for at in range(0, len(numbers), SLICES_PER_MESSAGE):
            some = tuple(numbers[at : at + SLICES_PER_MESSAGE])
            arrays, zero = frames_of_copies(
                [
                    (
                        sharding.cut(self.parameter, self.cuts.parameter, *self.cuts.slices[number]),
                        sharding.cut(self.statistics, self.cuts.statistics, *self.cuts.slices[number]),
                    )
                    for number in some
                ]
            )
            body = HoldSlices(some, self.done_op, self._done_version, owners, known, dict(self.rounds), zero)
            self.out.send(server, body, arrays)

    # -- checkpoints ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The mirror; all owners share one account there."""
        owners = sorted(o for o in self.book.accounts()[1] if o >= 0)
        first = owners[0] if owners else 0
        return {
            "parameter": pytree.flatten(self.parameter),
            "statistics": pytree.flatten(self.statistics),
            "accounts": {first: pytree.flatten(pytree.copy(self.statistics))},
            "account_of": dict.fromkeys(owners or [first], first),
        }

    def restore(self, state: Mapping[str, Any], owners: Collection[int] | None = None) -> None:
        """Take over the state of a checkpoint, before the servers are up: they begin with it."""
        self.mirror.parameter = pytree.unflatten(self.parameter, state["parameter"])
        self.mirror.statistics = pytree.unflatten(self.statistics, state["statistics"])
        everybody = tuple(sorted(owners if owners is not None else state["account_of"]))
        if everybody:
            first = min(everybody)
            self.book.restore_accounts({first: pytree.copy(self._empty)}, dict.fromkeys(everybody, first))


if TYPE_CHECKING:
    _implements: type[ParameterStore] = ServerGroup
