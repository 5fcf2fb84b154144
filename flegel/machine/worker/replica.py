"""A worker's own copy of θ and of all statistics, where reports are merged by an all-reduce among workers. Pure.

A fold in two steps, each of which sends as much as a ring would, without its 2(W − 1) hops: every worker sends slice j
of its report to worker j; worker j adds what it got to its slice of the statistics, in the order of the workers'
numbers, and sends the sum to all. That order is the coordinator's own, so the bits are the same. Then each worker
makes θ from the complete statistics. Who sends what to whom over which link is the runtime's business.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.messages import DropFold, HoldReplica, Order, Reduced, ReduceReports, Train
from flegel.params.parameter_update import HookCall, new_parameter
from flegel.params.tree_layout import build

Arrays = tuple[Array, ...]


class Replica:
    """θ and the statistics after the last fold."""

    def __init__(self, order: HoldReplica, arrays: Arrays) -> None:
        split = max(len(order.parameter.fields), 1)
        self._forms = order.parameter, order.statistics
        self.parameter: Arrays = tuple(np.array(a) for a in arrays[:split])
        self.total: Arrays = tuple(np.array(a) for a in arrays[split:])

    def theta(self, fields: Sequence[str]) -> Arrays:
        """θ as the kernel gets it: these fields of it."""
        names = self._forms[0].fields
        return tuple(self.parameter[names.index(name)] for name in fields) if names else self.parameter

    def finish(
        self, algorithm: Algorithm, order: ReduceReports, total: Arrays, worker: int, call: HookCall
    ) -> tuple[Reduced, Arrays]:
        """The statistics are complete: the new θ, and what the coordinator hears; from the first member with both."""
        form, sums = self._forms
        statistics, parameter = build(sums, total, algorithm), build(form, self.parameter, algorithm)
        value, diverged = None, ""
        if order.update:
            parameter, value, diverged = new_parameter(algorithm, call, statistics, parameter, order.place)
            pytree.clear(statistics, algorithm.statistics.spent)
        self.parameter, self.total = tuple(pytree.flatten(parameter)), tuple(pytree.flatten(statistics))
        both = (*self.parameter, *self.total)
        answer = Reduced(order.fold, digest(both), value, diverged)
        return answer, both if worker == order.members[0][0] else ()


class HeldReports:
    """What a worker has reported and no fold contains yet. A fold that is undone gives it back."""

    def __init__(self) -> None:
        self._unfolded_report: list[Array] | None = None
        """The sum of what was reported since the last fold."""
        self._last_fold = -1
        self._folded_report: list[Array] | None = None
        """What the last fold took, until it is certain."""

    def add(self, arrays: Arrays) -> None:
        if self._unfolded_report is None:
            self._unfolded_report = [np.array(a) for a in arrays]
        else:
            for into, extra in zip(self._unfolded_report, arrays, strict=True):
                np.add(into, extra, into)

    def take(self, fold: int) -> Sequence[Array] | None:
        """For this fold; they do not change from now on."""
        self._last_fold, self._folded_report, self._unfolded_report = fold, self._unfolded_report, None
        return self._folded_report

    def give_back(self, fold: int) -> None:
        if self._last_fold == fold:
            self._unfolded_report, self._folded_report, self._last_fold = self._folded_report, None, -1

    def clear(self) -> None:
        self._unfolded_report, self._folded_report, self._last_fold = None, None, -1


class SliceSum:
    """One member's part of a fold: the pieces that it sends, and the statistics from the pieces that it gets."""

    def __init__(self, order: ReduceReports, worker: int, total: Arrays, report: Sequence[Array] | None) -> None:
        """`order` names the members and who of them reports; `total`: the statistics before this fold; `report`: of
        this worker."""
        self.members = [number for number, _ in order.members]
        self._order, self._report = order, report
        self._own_slice = self.members.index(worker)
        self._worker = worker
        self._total = total
        self._new_total = tuple(np.empty_like(a) for a in total)
        self._reports: dict[int, Arrays] = {}
        self._summed_slices: set[int] = set()
        if report is not None and worker in order.reporting:
            self._reports[worker] = self._slice(report, self._own_slice)

    def _slice(self, arrays: Sequence[Array], at: int) -> Arrays:
        count = len(self.members)
        return tuple(a.reshape(-1)[a.size * at // count : a.size * (at + 1) // count] for a in arrays)

    def outgoing(self) -> Mapping[int, Arrays]:
        """The slice of this worker's report that each member adds up, by member."""
        if self._worker not in self._order.reporting or self._report is None:
            return {}
        return {
            member: self._slice(self._report, at) for at, member in enumerate(self.members) if member != self._worker
        }

    def put(self, sender: int, summed: bool, arrays: Arrays) -> None:
        """Keep a piece that arrived: the slice of `sender`'s report that this worker adds up, or, where `summed`, the
        finished sum of `sender`'s slice."""
        at = self.members.index(sender) if summed else self._own_slice
        wanted = self._slice(self._new_total, at)
        same = [(a.shape, a.dtype) for a in arrays] == [(a.shape, a.dtype) for a in wanted]
        if not same:
            raise DecodeError(f"worker {sender} sent a slice of statistics of another size or type")
        if not summed:
            self._reports[sender] = arrays
        else:
            for into, piece in zip(wanted, arrays, strict=True):
                into[...] = piece
            self._summed_slices.add(sender)

    def take_own_sum(self) -> Arrays | None:
        """The new sum of this worker's slice, as soon as all reports are here, and once."""
        if self._worker in self._summed_slices or not set(self._order.reporting) <= self._reports.keys():
            return None
        own = self._slice(self._new_total, self._own_slice)
        for into, before in zip(own, self._slice(self._total, self._own_slice), strict=True):
            into[...] = before
        for worker in self._order.reporting:
            for into, extra in zip(own, self._reports[worker], strict=True):
                np.add(into, extra, into)
        self._summed_slices.add(self._worker)
        return own

    @property
    def missing(self) -> list[int]:
        """Members whose pieces have not come."""
        return [member for member in self.members if member not in self._summed_slices]

    @property
    def statistics(self) -> Arrays:
        """Complete once nothing is missing."""
        return self._new_total


def digest(arrays: Sequence[Array]) -> int:
    """A hash of all bits of these arrays, for comparing copies."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
    return found


class FoldPort(Protocol):
    """What takes part in a fold: threads and links that this file does not know."""

    def reduce(self, order: ReduceReports, copy: Replica, report: Sequence[Array] | None) -> None:
        """Fold this report with those of the others (`SliceSum`), then `copy.finish`; send what that returns."""

    def drop_fold(self, fold: int) -> None:
        """Leave this fold, wherever it is; nothing is sent any more."""


class ReplicaControl:
    """What the executor keeps for a job with replicas: the copy, and the reports that wait for a fold."""

    def __init__(self, fields: Sequence[str], port: FoldPort) -> None:
        """`fields`: those of θ that the kernel needs."""
        self._fields, self._port = fields, port
        self.reports = HeldReports()
        self._copy: Replica | None = None

    def order(self, body: Order, arrays: Arrays) -> Arrays | None:
        """The arrays of an order to the worker's machine, where θ is added; None where the order is for this part."""
        match body:
            case Train():
                assert self._copy is not None, "θ comes before the first order to train"
                return self._copy.theta(self._fields)
            case HoldReplica():  # a new object: a fold that was undone may still be at work on the last one
                self._copy = Replica(body, arrays)
            case ReduceReports():
                assert self._copy is not None, "θ comes before the first fold"
                self._port.reduce(body, self._copy, self.reports.take(body.fold))
            case DropFold():
                self.reports.give_back(body.fold)
                self._port.drop_fold(body.fold)
            case _:
                return arrays
        return None
