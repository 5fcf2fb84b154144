"""How points find new owners when workers come or go. Pure: orders out, answers in; nothing here trains or commits.

A change is made at rest, in steps; a loss in the middle of any of them begins them anew:

    quieting   all workers commit; the account of a lost worker is subtracted, and workers that shared it begin again
    asking     all workers list their points; points in no list have lost their owner
    sharing    those are loaded anew by newcomers or by all; leavers, and workers that have more than newcomers, give up
               points, and others take them over with their hidden states

No step trusts what a lost worker said: what it held is what no survivor holds. Points that were given up are on their
way to a new owner at once. Both workers' accounts are merged first, so the loss of either loses and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flegel.core.key_borders import nearest_borders
from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.errors import ProtocolError
from flegel.machine.coordinator.events import Command, Send
from flegel.machine.coordinator.roster import Roster
from flegel.messages import AssignPoints, GiveUpPoints, ListPoints, Order, PointsAssigned, PointsGivenUp, PointsListed
from flegel.params.protocol import ParameterStore
from flegel.sync.policy import View


class Redistribution:
    """One change of owners after another."""

    def __init__(self, roster: Roster, rows: int, keys: Array | None = None) -> None:
        """`rows`: of the whole data set. `keys`: of each row, where rows of one key stay together."""
        self.rows, self._keys = rows, keys
        self.phase = ""
        """quieting, asking or sharing; empty while nothing changes."""
        self.orphans = False
        """Some points have no owner."""
        self.unvisited: set[int] = set()
        """Workers that hold points to be visited anew."""
        self._roster = roster
        self._owed: dict[int, int] = {}
        """Answers that each worker has still to give."""
        self._censuses: dict[int, Array] = {}
        self._need: dict[int, int] = {}
        self._withdrawn: Array | None = None
        """For each row whether it left with a worker that was excluded; None where none did."""

    def forget(self, worker: int) -> None:
        """The worker is lost: it owes nothing, and what it said does not count."""
        self._owed.pop(worker, None)
        self.unvisited.discard(worker)
        self._censuses.pop(worker, None)

    # -- the steps -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start: as soon as all workers are idle, points without an owner get one."""
        self.phase = "quieting"
        self._censuses.clear()
        self._need.clear()

    def busy(self, view: View) -> bool:
        """A worker owes an answer, or a replacement is awaited, because no worker may be left otherwise."""
        awaited = self._roster.replacing or not self._roster.staying(view)
        return any(self._owed.values()) or (self.phase == "quieting" and bool(awaited))

    def owes(self, worker: int) -> bool:
        return bool(self._owed.get(worker))

    def advance(self, view: View) -> list[Command]:
        """The next step, if nothing is awaited; the phase is empty when all is done."""
        commands: list[Command] = []
        while self.phase and not self.busy(view):
            match self.phase:
                case "quieting":
                    self.phase = "asking"
                    if self.orphans:
                        commands += [self._send(w, ListPoints(self.rows)) for w in view.workers]
                case "asking":
                    self.phase = "sharing"
                    if self.orphans:
                        commands += self._place_orphans(view)
                    commands += self._even_out(view)
                case "sharing":
                    self.phase = ""
        return commands

    def answer(
        self,
        worker: int,
        body: PointsListed | PointsGivenUp | PointsAssigned,
        arrays: tuple[Array, ...],
        view: View,
        store: ParameterStore,
    ) -> list[Command]:
        """Record a worker's answer; points that it gave up are assigned to other workers at once."""
        self._owed[worker] = max(self._owed.get(worker, 0) - 1, 0)
        seen = view.workers[worker]
        seen.points, seen.unseen, seen.halted = body.points, body.unseen, body.halted
        seen.carried = body.pass_sum - seen.visits
        match body:
            case PointsListed():
                self._censuses[worker] = arrays[0]
            case PointsGivenUp() if len(arrays[0]):
                return self._hand_on(worker, arrays, view, store)
            case _:
                pass
        return []

    def _send(self, worker: int, order: Order, arrays: tuple[Array, ...] = ()) -> Command:
        self._owed[worker] = self._owed.get(worker, 0) + 1
        return Send(worker, order, arrays)

    # -- points without an owner ---------------------------------------------------------------------------

    def _place_orphans(self, view: View) -> list[Command]:
        """Give points without an owner to newcomers, or to all who stay. Fails where a point has two owners."""
        owners = np.zeros(self.rows, np.int32)
        for worker, bits in self._censuses.items():
            listed = np.unpackbits(bits, count=self.rows)
            if worker in self._roster.excluded:
                self._withdrawn = listed if self._withdrawn is None else self._withdrawn | listed
            else:
                owners += listed
        if self._withdrawn is not None:
            owners += self._withdrawn
        if self.rows and owners.max() > 1:
            raise ProtocolError(f"{int((owners > 1).sum())} points have more than one owner.")
        ids = np.flatnonzero(owners == 0)
        self.orphans = False
        self._censuses.clear()
        if not len(ids):
            return []
        heirs = sorted(self._roster.newcomers - self._roster.leaving) or self._roster.staying(view)
        passes = int(min((w.passes for w in view.workers.values() if w.points), default=0.0))
        commands = []
        if self._keys is not None:
            ids = ids[np.argsort(self._keys[ids], kind="stable")]
        for heir, part in zip(heirs, self._split(ids, _weights(view, heirs)), strict=True):
            if len(part):
                commands.append(self._send(heir, AssignPoints(passes=passes), (part,)))
                self.unvisited.add(heir)
                self._roster.newcomers.discard(heir)
        return commands

    # -- points that change owner with their past ----------------------------------------------------------

    def _even_out(self, view: View) -> list[Command]:
        """Leavers give up everything; where newcomers have nothing yet, the others give up their surplus."""
        staying = self._roster.staying(view)
        self._roster.newcomers &= set(staying)
        quota = dict(zip(staying, _weights(view, staying), strict=True))
        total = sum(quota.values()) or 1.0
        few = min(TILE, self.rows // max(len(staying), 1))  # of the slowest, too: nobody learns its speed otherwise
        rows = self.rows - (0 if self._withdrawn is None else int(self._withdrawn.sum()))
        wanted = {w: max(int(rows * quota[w] / total), few) for w in staying}
        self._need = {w: max(wanted[w] - view.workers[w].points, 0) for w in sorted(self._roster.newcomers)}
        commands = [self._send(w, GiveUpPoints()) for w in sorted(self._roster.leaving) if view.workers[w].points]
        given = sum(view.workers[w].points for w in self._roster.leaving)
        short = sum(self._need.values()) - given
        givers = [view.workers[w] for w in staying if w not in self._roster.newcomers and view.workers[w].points > 1]
        have = sum(w.points for w in givers)
        for w in givers if short > 0 else ():
            points = min(round(short * w.points / max(have, 1)), w.points - 1)
            if points > 0:
                commands.append(self._send(w.id, GiveUpPoints(points)))
        return commands

    def _hand_on(self, source: int, arrays: tuple[Array, ...], view: View, store: ParameterStore) -> list[Command]:
        """Give points without an owner to newcomers until they have as many as others, the rest to all workers that
        stay."""
        left, at = len(arrays[0]), 0
        takers: list[tuple[int, int]] = []
        for newcomer in [n for n, need in self._need.items() if need > 0]:
            points = min(self._need[newcomer], left)
            if points:
                takers.append((newcomer, points))
                self._need[newcomer] -= points
                left -= points
        others = [w for w in self._roster.staying(view) if w != source and w not in self._roster.newcomers]
        heirs = (
            others or sorted(self._roster.newcomers - {source}) or [w for w in view.workers if w != source] or [source]
        )
        parts = np.split(np.arange(left), _shared(left, _weights(view, heirs))[:-1])
        takers += [(heir, len(part)) for heir, part in zip(heirs, parts, strict=True) if len(part)]
        commands = []
        for taker, points in self._whole_keys(takers, arrays[0]):
            store.join(source, taker)
            part = tuple(a[at : at + points] for a in arrays)
            commands.append(self._send(taker, AssignPoints(visited=True), part))
            at += points
        return commands

    # -- points that stay together -------------------------------------------------------------------------

    def _split(self, ids: Array, weights: Iterable[float]) -> list[Array]:
        """Consecutive parts in proportion to the weights, between two keys."""
        return np.split(ids, self._between_keys(ids, _shared(len(ids), weights))[:-1])

    def _whole_keys(self, takers: list[tuple[int, int]], ids: Array) -> list[tuple[int, int]]:
        """How many of these points each gets, where it is whole keys; nobody gets none."""
        ends = self._between_keys(ids, np.cumsum([points for _, points in takers]))
        sizes = np.diff(ends, prepend=0).tolist()
        return [(taker, size) for (taker, _), size in zip(takers, sizes, strict=True) if size]

    def _between_keys(self, ids: Array, places: Array) -> Array:
        return places if self._keys is None else nearest_borders(self._keys[ids], places)


def _weights(view: View, workers: list[int]) -> list[float]:
    """How much each can take: by speed, where the speed of all is known."""
    rates = [view.workers[w].rate for w in workers]
    return rates if all(rate > 0 for rate in rates) else [1.0] * len(workers)


def _shared(points: int, weights: Iterable[float]) -> Array:
    """Where parts of so many points in proportion to the weights end."""
    ends = np.cumsum(list(weights))
    return np.asarray(np.round(ends / ends[-1] * points).astype(np.int64))
