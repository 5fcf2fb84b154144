"""The crew of a job: who works, who is hired, who leaves, and how points find new owners when that changes. Pure.

A change of the crew is made at rest, in steps; a loss in the middle of any of them begins them anew:

    quieting   everybody commits; the account of a lost worker is subtracted, and workers that shared it begin again
    asking     which points does nobody hold? (a census of the survivors, so nothing about points is ever guessed)
    sharing    those are loaded anew by newcomers or by all; leavers, and workers that have more than newcomers, give up
               points, and others take them over with their hidden states

No step trusts what a lost worker said: what it held is what no survivor holds. Points that were given up are on their
way to a new owner at once, and the two accounts are one before that: whoever dies, nothing counts twice or is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import ProtocolError
from flegel.machine.coordinator.events import Command, Send, StartWorker
from flegel.machine.ledger import Ledger
from flegel.messages import AssignPoints, GiveUpPoints, ListPoints, Order, PointsAssigned, PointsGivenUp, PointsListed
from flegel.sync.policy import View, WorkerView

FAULTS_IN_A_ROW = 3  # crashes without a whole pass over the lost points in between: the code's own fault
FAULTS = 10  # crashes in all
KILLS_IN_A_ROW = 10
SILENT = (
    f", as were {FAULTS_IN_A_ROW} of its lives in a row; its code may hold the interpreter (initState, or what that "
    "calls), or its host is out of reach"
)


@dataclass
class Incident:
    """A change of the crew, for the trace and the result."""

    kind: str
    """lost, joined or left."""
    worker: int
    why: str
    at: float
    resumed: float | None = None
    redone: int = 0
    """Visits that were reported and do not count: at most the interval under way."""
    unvisited: int = 0
    """Points that had to be visited anew."""


class Membership:
    """Orders come back as commands; the coordinator keeps view and ledger."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.phase = ""
        self.hired: dict[int, float] = {}
        self.replacing: set[int] = set()
        """Hired for somebody's points: worth waiting for."""
        self.newcomers: set[int] = set()
        """Loaded, and without points so far."""
        self.leaving: set[int] = set()
        self.lost: set[int] = set()
        """Their accounts, still to be subtracted, as `Ledger.bury` numbered them."""
        self.orphans = False
        """Some points have no owner."""
        self.unvisited: set[int] = set()
        """Workers that hold points to be visited anew."""
        self.incidents: list[Incident] = []
        self._owed: dict[int, int] = {}
        self._maps: dict[int, Array] = {}
        self._need: dict[int, int] = {}
        self._faults = self._faults_in_a_row = self._kills_in_a_row = 0
        self._silences: dict[int, int] = {}

    # -- coming and going ----------------------------------------------------------------------------------

    def hire(self, worker: int, now: float, replacing: bool) -> list[Command]:
        self.hired[worker] = now
        if replacing:
            self.replacing.add(worker)
        return [StartWorker(worker)]

    def unhire(self, worker: int) -> None:
        self.hired.pop(worker, None)
        self.replacing.discard(worker)

    def lose(self, worker: int, fault: bool, silent: bool = False) -> str:
        """A worker is gone; says where that has happened too often.

        Of one that fell `silent` while it loaded nobody knows whether its code holds the interpreter or its host is out
        of reach; when that happens to all its lives, it does not matter."""
        self.unhire(worker)
        self._owed.pop(worker, None)
        self.newcomers.discard(worker)
        self.leaving.discard(worker)
        self.unvisited.discard(worker)
        self._maps.pop(worker, None)
        if not fault:
            self._kills_in_a_row += 1
            return f"; that was loss {KILLS_IN_A_ROW} in a row" if self._kills_in_a_row >= KILLS_IN_A_ROW else ""
        if silent:
            self._silences[worker] = self._silences.get(worker, 0) + 1
            return SILENT if self._silences[worker] >= FAULTS_IN_A_ROW else ""
        self._faults += 1
        self._faults_in_a_row += 1
        cause = "the fault is in the code that it runs: initState, updateDataPoint or what these call"
        if self._faults_in_a_row >= FAULTS_IN_A_ROW:
            return f", the {FAULTS_IN_A_ROW}rd crash at the same place; {cause}"
        return f", the {FAULTS}th crash of this job; {cause}" if self._faults >= FAULTS else ""

    def passed(self) -> None:
        """The points of the lost were visited anew: the place of the crash is behind."""
        self._faults_in_a_row = self._kills_in_a_row = 0
        self._silences.clear()

    def stop_waiting(self, now: float, patience: float) -> None:
        """Replacements that are still not here will be given points when they come."""
        for worker in [w for w in self.replacing if now - self.hired[w] >= patience]:
            self.replacing.discard(worker)

    def late(self, now: float, patience: float) -> list[int]:
        """Hired long ago, and not here."""
        return [worker for worker, at in self.hired.items() if now - at > patience]

    # -- the steps -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """As soon as everybody rests, the crew is put in order."""
        self.phase = "quieting"
        self._maps.clear()
        self._need.clear()

    def busy(self, view: View) -> bool:
        """Somebody owes an answer, or a replacement is awaited, without which there may be nobody."""
        awaited = self.replacing or not self.staying(view)
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
        ledger: Ledger,
    ) -> list[Command]:
        """What a worker did; points that it gave up go to others at once."""
        self._owed[worker] = max(self._owed.get(worker, 0) - 1, 0)
        seen = view.workers[worker]
        seen.points, seen.unseen, seen.halted = body.points, body.unseen, body.halted
        seen.carried = body.traversed - seen.visits
        match body:
            case PointsListed():
                self._maps[worker] = arrays[0]
            case PointsGivenUp() if len(arrays[0]):
                return self._hand_on(worker, arrays, view, ledger)
            case _:
                pass
        return []

    def _send(self, worker: int, order: Order, arrays: tuple[Array, ...] = ()) -> Command:
        self._owed[worker] = self._owed.get(worker, 0) + 1
        return Send(worker, order, arrays)

    def staying(self, view: View) -> list[int]:
        return [w for w in view.workers if w not in self.leaving]

    # -- points without an owner ---------------------------------------------------------------------------

    def _place_orphans(self, view: View) -> list[Command]:
        owners = np.zeros(self.rows, np.int32)
        for bits in self._maps.values():
            owners += np.unpackbits(bits, count=self.rows)
        if self.rows and owners.max() > 1:
            raise ProtocolError(f"{int((owners > 1).sum())} points have more than one owner.")
        ids = np.flatnonzero(owners == 0)
        self.orphans = False
        self._maps.clear()
        if not len(ids):
            return []
        heirs = sorted(self.newcomers - self.leaving) or self.staying(view)
        passes = int(min((w.passes for w in view.workers.values() if w.points), default=0.0))
        commands = []
        for heir, part in zip(heirs, _split(ids, _weights(view, heirs)), strict=True):
            if len(part):
                commands.append(self._send(heir, AssignPoints(passes=passes), (part,)))
                self.unvisited.add(heir)
                self.newcomers.discard(heir)
        return commands

    # -- points that change hands with their past ----------------------------------------------------------

    def _even_out(self, view: View) -> list[Command]:
        """Leavers give up everything; where newcomers have nothing yet, the others give up their surplus."""
        staying = self.staying(view)
        self.newcomers &= set(staying)
        quota = self.rows // max(len(staying), 1)
        self._need = {w: max(quota - view.workers[w].points, 0) for w in sorted(self.newcomers)}
        commands = [self._send(w, GiveUpPoints()) for w in sorted(self.leaving) if view.workers[w].points]
        given = sum(view.workers[w].points for w in self.leaving)
        short = sum(self._need.values()) - given
        givers = [view.workers[w] for w in staying if w not in self.newcomers and view.workers[w].points > 1]
        have = sum(w.points for w in givers)
        for w in givers if short > 0 else ():
            points = min(round(short * w.points / max(have, 1)), w.points - 1)
            if points > 0:
                commands.append(self._send(w.id, GiveUpPoints(points)))
        return commands

    def _hand_on(self, source: int, arrays: tuple[Array, ...], view: View, ledger: Ledger) -> list[Command]:
        """To newcomers until they have their share, the rest to everybody who stays."""
        left, at = len(arrays[0]), 0
        takers: list[tuple[int, int]] = []
        for newcomer in [n for n, need in self._need.items() if need > 0]:
            points = min(self._need[newcomer], left)
            if points:
                takers.append((newcomer, points))
                self._need[newcomer] -= points
                left -= points
        others = [w for w in self.staying(view) if w != source and w not in self.newcomers]
        heirs = others or sorted(self.newcomers - {source}) or [w for w in view.workers if w != source] or [source]
        parts = _split(np.arange(left), _weights(view, heirs))
        takers += [(heir, len(part)) for heir, part in zip(heirs, parts, strict=True) if len(part)]
        commands = []
        for taker, points in takers:
            ledger.join(source, taker)
            part = tuple(a[at : at + points] for a in arrays)
            commands.append(self._send(taker, AssignPoints(visited=True), part))
            at += points
        return commands


def _weights(view: View, workers: list[int]) -> list[float]:
    """How much each can take: by speed, where the speed of all is known."""
    rates = [view.workers[w].rate for w in workers]
    return rates if all(rate > 0 for rate in rates) else [1.0] * len(workers)


def _split(ids: Array, weights: Iterable[float]) -> list[Array]:
    """Consecutive parts in proportion to the weights."""
    ends = np.cumsum(list(weights))
    bounds = np.round(ends / ends[-1] * len(ids)).astype(np.int64)
    return np.split(ids, bounds[:-1])


def newcomer(view: View, worker: int, former: WorkerView | None) -> WorkerView:
    """How a worker without points is seen: as far as the slowest, as fast as its former life or the others."""
    clock = min((w.clock for w in view.workers.values()), default=0)
    rates = sorted(w.rate for w in view.workers.values())
    seen = former or WorkerView(worker, 0, rate=rates[len(rates) // 2] if rates else 0.0)
    seen.points = seen.unseen = seen.halted = 0
    seen.carried, seen.clock = -seen.visits, clock
    seen.phase, seen.stopping, seen.exhausted = "idle", False, False
    return seen
