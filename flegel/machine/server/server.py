"""A parameter server as a state machine: orders, pushed slices and copies in; θ, copies and answers out. Pure.

What the coordinator orders has a number, `op`, and each slice does its ops in that order. A fold waits until the parts
of all its reports are here, and adds them in the order that the fold names: arrival decides nothing. Then θ goes to the
workers, copies go to the backups without anybody waiting for them, and the coordinator hears that it is done.

    slice at its primary         slice_state.py
    reports not yet folded       report_inbox.py
    copies of other servers      replica_store.py

A server accepts slices of its job's map only, each round of a worker once. It never decides who holds what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree, sharding
from flegel.core.pytree import Array, Tree
from flegel.machine.server import unit_parts
from flegel.machine.server.early_folds import EarlyFolds
from flegel.machine.server.holders import Holders
from flegel.machine.server.paced_answers import PacedAnswers
from flegel.machine.server.replica_store import ReplicaStore, SliceCopy, frames_of_copies, with_omitted_zero_frames
from flegel.machine.server.report_inbox import OpenPulls, ReportInbox
from flegel.machine.server.slice_state import Op, PrimarySlice, SliceState
from flegel.server_messages import (
    AbandonFold,
    AnswerSeen,
    ChangeAccounts,
    CombinedSummary,
    ExpectReports,
    FoldSlices,
    HoldSlices,
    ParameterSlices,
    PullSlices,
    PushSlices,
    PushStored,
    ReplaceParameter,
    ReplicaStored,
    ReplicateSlices,
    ServerAnswer,
    ServerBetween,
    ServerMap,
    ServerOrder,
    SlicesFolded,
    SlicesStable,
    SlicesTaken,
    SliceSummaries,
)

SLICES_PER_MESSAGE = 8  # slices of one message: a message has at most 256 frames


def batches(sizes: Mapping[int, int]) -> list[list[int]]:
    """Slices of each message, from the bytes of each: a slice whose transfer is timed travels alone, because its time
    is that of one slice (003, Section 3.1); several smaller ones share a message."""
    found: list[list[int]] = []
    small: list[int] = []
    for number, size in sizes.items():
        if size >= active().transport.announced_from_bytes:
            found.append([number])
        else:
            small.append(number)
    return found + [small[at : at + SLICES_PER_MESSAGE] for at in range(0, len(small), SLICES_PER_MESSAGE)]


class ToCoordinator(msgspec.Struct, frozen=True):
    body: ServerAnswer
    arrays: tuple[Array, ...] = ()


class ToWorker(msgspec.Struct, frozen=True):
    worker: int
    body: ServerBetween
    arrays: tuple[Array, ...] = ()


class ToServer(msgspec.Struct, frozen=True):
    server: int
    body: ServerBetween
    arrays: tuple[Array, ...] = ()


Command = ToCoordinator | ToWorker | ToServer


class ParameterServer:
    """Feed it `order`, `hear_worker` and `hear_server`; carry out what they return."""

    def __init__(
        self,
        algorithm: Algorithm,
        number: int,
        parameter: Tree,
        statistics: Tree,
        debug: bool = False,
        answers: PacedAnswers | None = None,
    ) -> None:
        """`parameter`, `statistics`: any bundles of the right types, for their fields."""
        self._algorithm, self.number, self._debug = algorithm, number, debug
        self._like_parameter, self._like_statistics = parameter, statistics
        names = pytree.names(parameter)
        self._field_is_sent = tuple(name not in algorithm.placement.unsent for name in names)
        """By field of θ: workers need it."""
        self._field_is_kept = tuple(name not in algorithm.statistics.spent for name in pytree.names(statistics))
        """By field of the statistics: a fold does not use it up."""
        self.map: ServerMap | None = None
        self._holders = Holders()
        self._axes: list[int] = []
        self.slices: dict[int, PrimarySlice] = {}
        self._replicas = ReplicaStore(parameter, statistics)
        self._inbox = ReportInbox()
        self._early_pushes: list[tuple[int, PushSlices, tuple[Array, ...]]] = []
        """Pushed by workers that have a newer map than this server."""
        self._early_copies: list[tuple[int, ReplicateSlices, tuple[Array, ...]]] = []
        self._early_folds = EarlyFolds()
        self._answers = answers or PacedAnswers()
        self._combined_summaries: dict[int, Array] = {}
        self._abandoned_ops: set[int] = set()
        self._pulls = OpenPulls()
        self._commands: list[Command] = []

    # -- entry points --------------------------------------------------------------------------------------

    def order(self, body: ServerOrder, arrays: tuple[Array, ...]) -> list[Command]:
        """Carry out an order of the coordinator; returns what to send."""
        self._commands = []
        match body:
            case ServerMap():
                self._new_map(body)
            case HoldSlices():
                self._hold(body, arrays)
            case FoldSlices() | ChangeAccounts():
                for number in body.only or tuple(self.slices):
                    self._enqueue(number, body, arrays)
            case ReplaceParameter():
                for number in body.slices:
                    self._enqueue(number, body, arrays)
            case ExpectReports():
                self._early_folds.expect(body)
                self._fold_early()
            case AbandonFold():
                self._abandoned_ops.add(body.op)
            case AnswerSeen():
                self._answers.seen()
                self._send_answers()
            case CombinedSummary():
                self._combined_summaries[body.op] = arrays[0]
                self._combined_summaries.pop(body.op - 8, None)  # the last 8 are kept
        self._advance()
        return self._commands

    def hear_worker(self, worker: int, body: ServerBetween, arrays: tuple[Array, ...]) -> list[Command]:
        """A worker pushes slices of its report, or pulls slices of θ; returns what to send. Pushes that refer to a
        newer map of slices wait until that arrives."""
        self._commands = []
        match body:
            case PushSlices() if self.map is None or body.map > self.map.version:
                self._early_pushes.append((worker, body, arrays))
            case PushSlices():
                self._take_push(worker, body, arrays)
                self._advance()
                self._fold_early()
            case PullSlices(version, slices) if slices:
                self._pull(worker, version, slices)
        return self._commands

    def hear_server(self, server: int, body: ServerBetween, arrays: tuple[Array, ...]) -> list[Command]:
        """Another server sends copies of slices, or confirms copies of this one's; returns what to send. Copies that
        refer to a newer map of slices wait until that arrives."""
        self._commands = []
        match body:
            case ReplicateSlices() if self.map is None or body.map > self.map.version:
                self._early_copies.append((server, body, arrays))
            case ReplicateSlices():
                self._store_replicas(server, body, arrays)
            case ReplicaStored():
                self._replica_confirmed(server, body)
        return self._commands

    # -- the map -------------------------------------------------------------------------------------------

    def _new_map(self, new_map: ServerMap) -> None:
        """Slices that are mine now and were not: the copy that I have becomes the slice."""
        if self.map is not None and new_map.version <= self.map.version:
            return
        before, self.map = self.map, new_map
        if before is not None and before.cut != new_map.cut:
            self._forget_slices()
        self._holders.use(new_map)
        self._axes = [axis for axis in new_map.statistics if axis != sharding.UNCUT]
        for served in self.slices.values():  # a server that came back under another address has no copies
            same = [b for b in served.copied if before and before.addresses.get(b) == new_map.addresses.get(b)]
            served.copied, served.told = {b: served.copied[b] for b in same}, -1
        own_slices = {number for number, server in enumerate(new_map.primary) if server == self.number}
        for number in set(self.slices) - own_slices:  # from now on I am a backup of it, or nothing
            gone = self.slices.pop(number).state
            if gone.summed:  # in the middle of a fold: no state that others know
                continue
            last = SliceCopy(gone.op, gone.version, gone.parameter, gone.ledger.total, gone.rounds)
            self._replicas.keep(number, last)
        taken = sorted(own_slices - set(self.slices))
        for number in taken:
            self._early_folds.forget(number)
            if (copy := self._replicas.take(number)) is not None:
                state = SliceState(
                    self._algorithm,
                    number,
                    new_map.slices[number],
                    copy.parameter,
                    copy.total,
                    copy.op,
                    copy.version,
                    copy.rounds,
                    None,
                )
                self.slices[number] = PrimarySlice(state, queued=copy.op)
        self._replicas.retain(n for n, backups in enumerate(new_map.backups) if self.number in backups)
        if taken:
            states = tuple((n, self.slices[n].state.op if n in self.slices else -1) for n in taken)
            self._commands.append(ToCoordinator(SlicesTaken(new_map.version, states)))
            for number in taken:  # the answer of the former server may be lost
                if number in self.slices:
                    self._tell_folded(self.slices[number].state.op, [number], "")
        self._serve_waiting(taken)
        self._replicate(list(self.slices))
        copies, pushes = self._early_copies, self._early_pushes
        self._early_copies = [(server, copied, a) for server, copied, a in copies if copied.map > new_map.version]
        self._early_pushes = [(worker, pushed, a) for worker, pushed, a in pushes if pushed.map > new_map.version]
        for server, copied, arrays in copies:
            if copied.map <= new_map.version:
                self._store_replicas(server, copied, arrays)
        for worker, pushed, arrays in pushes:
            if pushed.map <= new_map.version:
                self._take_push(worker, pushed, arrays)

    def _forget_slices(self) -> None:
        """θ is cut anew: the coordinator sends the new slices, and workers push what is not folded again."""
        self.slices.clear()
        self._replicas.retain(())
        self._inbox.clear()
        self._early_folds, self._pulls = EarlyFolds(), OpenPulls()

    def _hold(self, body: HoldSlices, arrays: tuple[Array, ...]) -> None:
        """Become the primary of these slices, with the content that the coordinator sends; older repetitions are
        ignored."""
        assert self.map is not None
        parameter_fields = len(self.map.parameter)
        fields = parameter_fields + len(self.map.statistics)
        frames = with_omitted_zero_frames(arrays, body)
        for at, number in enumerate(body.slices):
            if number in self.slices and self.slices[number].state.op >= body.op:
                continue  # it came twice
            slice_frames = frames[at * fields : (at + 1) * fields]
            theta = [np.array(a) for a in slice_frames[:parameter_fields]]  # copied; a slice copies its statistics
            state = SliceState(
                self._algorithm,
                number,
                span=self.map.slices[number],
                parameter=pytree.unflatten(self._like_parameter, theta),
                total=pytree.unflatten(self._like_statistics, slice_frames[parameter_fields:]),
                op=body.op,
                version=body.version,
                rounds=body.rounds,
                owners=body.owners if body.owners_known else None,  # None: whose statistics these are is not known
            )
            self.slices[number] = PrimarySlice(state, queued=body.op)
        self._serve_waiting(body.slices)
        self._replicate(body.slices)

    # -- reports and θ -------------------------------------------------------------------------------------

    def _take_push(self, worker: int, body: PushSlices, arrays: tuple[Array, ...]) -> None:
        """A part of a report: kept for the slices that are mine, once. One that was cut otherwise comes again."""
        assert self.map is not None
        if body.map < self.map.cut:
            return
        rests = self.map.statistics.count(sharding.UNCUT)
        width = len(self.map.statistics) - rests
        rest, parts = list(arrays[:rests]), {}
        at = rests
        for number in body.slices:
            end = at + width + (number in body.picked)
            parts[number], at = list(arrays[at:end]), end
        for number in body.zero:
            parts[number] = []
        mine = {
            number: part
            for number, part in parts.items()
            if self.map.primary[number] == self.number and self._fits(number, part)
        }
        fresh = {n: part for n, part in mine.items() if body.round > self._folded_round(n, worker)}
        if fresh:
            self._inbox.put(worker, body.round, rest, fresh)
            self._early_folds.pushed(list(fresh))
        if mine:
            self._commands.append(ToWorker(worker, PushStored(body.round, tuple(mine), self.map.version)))

    def _folded_round(self, number: int, worker: int) -> int:
        """The last round of this worker in the slice; -1 also where the slice is mine and its state on its way."""
        return self.slices[number].state.rounds.get(worker, -1) if number in self.slices else -1

    def _fits(self, number: int, part: list[Array]) -> bool:
        assert self.map is not None
        if number not in self.slices:
            return True
        wanted = self._cut_of(self.slices[number].state.ledger.total, self.map.statistics)
        return unit_parts.fits(part, wanted, self._axes)

    def _pull(self, worker: int, version: int, slices: Iterable[int]) -> None:
        """Slices whose θ, state, or even the map is still on its way are sent as soon as they are here."""
        ready = [n for n in slices if n in self.slices and self.slices[n].state.version >= version]
        self._pulls.add(worker, version, set(slices) - set(ready))
        if ready:
            self._send_parameter(worker, ready)

    def _send_parameter(self, worker: int, slices: Sequence[int]) -> None:
        """Send a worker these slices of θ: slices of the same version together, some in each message."""
        assert self.map is not None
        for version in sorted({self.slices[n].state.version for n in slices}):
            same = [n for n in slices if self.slices[n].state.version == version]
            shown = {n: self._shown(self.slices[n].state.parameter, uncut=False) for n in same}
            for some in batches({n: sum(a.nbytes for a in arrays) for n, arrays in shown.items()}):
                arrays = self._shown(self.slices[some[0]].state.parameter, uncut=True)
                for number in some:
                    arrays += shown[number]
                stable = min(self.slices[n].stable_rounds.get(worker, -1) for n in some)
                body = ParameterSlices(version, tuple(some), stable, self.map.version, self.map.cut)
                self._commands.append(ToWorker(worker, body, tuple(arrays)))

    def _fold_early(self) -> None:
        """θ of slices that all expected workers have pushed, before the fold is ordered."""
        for number in self._early_folds.candidates():
            body, served = self._early_folds.expected, self.slices.get(number)
            if served is None or served.queue or not self._all_here(number, body.reports):
                continue
            changes = partial(self._changes, number, body.reports)
            theta = self._early_folds.make(number, served.state, changes)
            if theta is None or self.map is None:
                continue
            arrays = (*self._shown(theta, uncut=True), *self._shown(theta, uncut=False))
            for worker in body.receivers:
                stable = served.stable_rounds.get(worker, -1)
                shown = ParameterSlices(body.version, (number,), stable, self.map.version, self.map.cut, early=True)
                self._commands.append(ToWorker(worker, shown, arrays))

    def _all_here(self, number: int, reports: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
        return all(self._inbox.has(worker, rounds, number) for worker, rounds in reports)

    def _shown(self, parameter: Tree, uncut: bool) -> list[Array]:
        """The fields that workers need: the rest, or those that are cut."""
        assert self.map is not None
        fields = zip(pytree.flatten(parameter), self.map.parameter, self._field_is_sent, strict=True)
        return [a for a, axis, sent in fields if sent and (axis == sharding.UNCUT) == uncut]

    # -- ops -----------------------------------------------------------------------------------------------

    def _enqueue(self, number: int, body: Op, arrays: tuple[Array, ...]) -> None:
        served = self.slices.get(number)
        if served is not None and body.op == served.queued + 1:
            served.queue.append((body, arrays))
            served.queued = body.op

    def _advance(self) -> None:
        """Let each slice do the next operations of its queue, as far as what they need is here, until none can."""
        while True:
            done: dict[int, list[int]] = {}
            lost: dict[int, str] = {}
            summaries: dict[int, list[tuple[int, Array]]] = {}
            folded: dict[int, tuple[FoldSlices | ReplaceParameter, list[int]]] = {}
            for number, served in sorted(self.slices.items()):
                if not served.queue:
                    continue
                body, arrays = served.queue[0]
                why: str | None = None
                match body:
                    case FoldSlices():
                        why = self._fold(number, served, body, summaries)
                        if why is not None and body.update:
                            folded.setdefault(body.op, (body, []))[1].append(number)
                    case ChangeAccounts():
                        why = served.state.change(body.kind, body.owners)
                    case ReplaceParameter():
                        self._replace(number, served.state, body, arrays)
                        why = ""
                        folded.setdefault(body.op, (body, []))[1].append(number)
                if why is None:
                    continue
                served.queue.popleft()
                served.state.op = body.op
                done.setdefault(body.op, []).append(number)
                if why:
                    lost[body.op] = why
            self._send_summaries(summaries)
            if not done:
                return
            for order, numbers in folded.values():
                for worker in order.receivers:
                    self._send_parameter(worker, self._early_folds.missing(order, worker, numbers))
                self._serve_waiting(numbers)
            for op, numbers in sorted(done.items()):
                self._tell_folded(op, numbers, lost.get(op, ""))
                self._replicate(numbers)
            for served in self.slices.values():
                served.state.ledger.update_accounts()

    def _fold(
        self, number: int, served: PrimarySlice, body: FoldSlices, summaries: dict[int, list[tuple[int, Array]]]
    ) -> str | None:
        """Do one fold for a slice: None while reports or summaries of other slices are missing, else why it was not
        possible, empty where it was done."""
        state = served.state
        if body.op in self._abandoned_ops:
            state.summed, state.version = False, body.version
            return "reports were lost together with servers"
        if not state.summed:
            if not self._all_here(number, body.reports):
                return None
            state.former_rounds = dict(state.rounds)
            state.commit([worker for worker, _ in body.reports], self._changes(number, body.reports))
            for worker, rounds in body.reports:
                self._inbox.used(worker, rounds[-1], number)
                state.rounds[worker] = rounds[-1]
            if not body.update:
                return ""
            summary = state.summary(body.place)
            if summary is None:
                state.update(body.place, None, body.version)
                return ""
            state.summed = True
            summaries.setdefault(body.op, []).append((number, summary))
        if body.op not in self._combined_summaries:
            return None
        state.update(body.place, self._combined_summaries[body.op], body.version)
        state.summed = False
        return ""

    def _changes(self, number: int, reports: Sequence[tuple[int, tuple[int, ...]]]) -> list[Tree]:
        return [self._change(number, *report) for report in reports]

    def _change(self, number: int, worker: int, rounds: Sequence[int]) -> Tree:
        """What a worker reported, in one or more rounds, for this slice."""
        assert self.map is not None
        total = self.slices[number].state.ledger.total
        change: Tree | None = None
        for round_ in rounds:
            rest, part = self._inbox.get(worker, round_, number)
            cut = unit_parts.unpacked(part, self._cut_of(total, self.map.statistics), self._axes)
            bundle = sharding.together(total, self.map.statistics, rest, cut)
            change = bundle if change is None else pytree.add(pytree.copy(change), bundle)
        return change

    def _replace(self, number: int, state: SliceState, body: ReplaceParameter, arrays: tuple[Array, ...]) -> None:
        assert self.map is not None
        rests = self.map.parameter.count(sharding.UNCUT)
        width, at = len(self.map.parameter) - rests, body.slices.index(number)
        cut = arrays[rests + at * width : rests + (at + 1) * width]
        fresh = sharding.together(state.parameter, self.map.parameter, arrays[:rests], cut)
        state.parameter, state.version = pytree.as_typed(fresh, state.parameter), body.version

    def _send_summaries(self, summaries: dict[int, list[tuple[int, Array]]]) -> None:
        for op, found in summaries.items():
            numbers = tuple(number for number, _ in found)
            self._commands.append(ToCoordinator(SliceSummaries(op, numbers), tuple(array for _, array in found)))

    def _serve_waiting(self, numbers: Sequence[int]) -> None:
        versions = {n: self.slices[n].state.version for n in numbers if n in self.slices}
        for worker, ready in self._pulls.take(numbers, versions):
            self._send_parameter(worker, ready)

    def _tell_folded(self, op: int, numbers: Sequence[int], why_lost: str) -> None:
        """Send the coordinator the new slices of θ with the statistics that are kept, as many in one message as its
        size allows."""
        assert self.map is not None
        one = self._cut_of(self.slices[numbers[0]].state.parameter, self.map.parameter)
        together = max(1, min(SLICES_PER_MESSAGE, self._answers.at_once // max(sum(a.nbytes for a in one), 1)))
        for at in range(0, len(numbers), together):
            some = numbers[at : at + together]
            states = [self.slices[n].state for n in some]
            arrays = sharding.rest_fields(states[0].parameter, self.map.parameter)
            # statistics go on changing here, and a message may leave later; θ is made anew each time
            arrays += [a.copy() for a in self._kept_of(states[0].ledger.total, uncut=True)]
            for state in states:
                arrays += self._cut_of(state.parameter, self.map.parameter)
                arrays += [a.copy() for a in self._kept_of(state.ledger.total, uncut=False)]
            diverged = next((s.diverged for s in states if s.diverged), "")
            gap = max(s.ledger.discrepancy() for s in states) if self._debug and states[0].accounts_known else 0.0
            self._answers.add(SlicesFolded(op, tuple(some), diverged, gap, why_lost), tuple(arrays))
        self._send_answers()

    def _send_answers(self) -> None:
        self._commands += [ToCoordinator(body, arrays) for body, arrays in self._answers.due()]

    def _kept_of(self, total: Tree, uncut: bool) -> list[Array]:
        assert self.map is not None
        fields = zip(pytree.flatten(total), self.map.statistics, self._field_is_kept, strict=True)
        return [a for a, axis, kept in fields if kept and (axis == sharding.UNCUT) == uncut]

    @staticmethod
    def _cut_of(bundle: Tree, along: Sequence[int]) -> list[Array]:
        return [a for a, axis in zip(pytree.flatten(bundle), along, strict=True) if axis != sharding.UNCUT]

    # -- copies --------------------------------------------------------------------------------------------

    def _replicate(self, numbers: Sequence[int]) -> None:
        """Copies to the backups, as the slices are now; no fold waits for them."""
        assert self.map is not None
        targets: dict[tuple[int, int], list[int]] = {}
        for number in numbers:
            if number not in self.slices:
                continue
            served = self.slices[number]
            for backup in self.map.backups[number]:
                if served.copied.get(backup, -2) != served.state.op:
                    targets.setdefault((backup, served.state.op), []).append(number)
            self._check_stable(number)
        for (backup, op), some in targets.items():
            for at in range(0, len(some), SLICES_PER_MESSAGE):
                self._send_copies(backup, op, some[at : at + SLICES_PER_MESSAGE])

    def _send_copies(self, backup: int, op: int, numbers: Sequence[int]) -> None:
        assert self.map is not None
        states = [self.slices[n].state for n in numbers]
        frames, zero = frames_of_copies([(state.parameter, state.ledger.total) for state in states])
        versions, rounds = tuple(s.version for s in states), dict(states[0].rounds)
        body = ReplicateSlices(op, self.map.version, tuple(numbers), versions, rounds, zero)
        self._commands.append(ToServer(backup, body, frames))

    def _store_replicas(self, server: int, body: ReplicateSlices, arrays: tuple[Array, ...]) -> None:
        current = {n for n in body.slices if n not in self.slices and self._holders.is_current(n, body.map)}
        self._replicas.store(body, arrays, current)
        self._commands.append(ToServer(server, ReplicaStored(body.op, body.map, body.slices)))

    def _replica_confirmed(self, server: int, body: ReplicaStored) -> None:
        if self.map is None or body.map < self.map.cut:
            return
        for number in body.slices:
            if number in self.slices:
                served = self.slices[number]
                served.copied[server] = max(served.copied.get(server, -1), body.op)
                self._check_stable(number)

    def _check_stable(self, number: int) -> None:
        """Every backup holds the slice as it is now: workers need not keep the reports in it."""
        assert self.map is not None
        served = self.slices[number]
        backups = self.map.backups[number]
        if all(served.copied.get(backup, -1) == served.state.op for backup in backups):
            served.stable_rounds = dict(served.state.former_rounds)
            if served.told != served.state.op:
                served.told = served.state.op
                self._commands.append(ToCoordinator(SlicesStable(served.state.op, (number,), self.map.version)))
