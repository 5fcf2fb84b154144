"""The migrations of a job as the coordinator records them: who owns which points, and when that changes. Pure.

Life of a move:   asked (the target is getting ready) → giving → sent (all windows known) → over
A window changes owner only at a barrier at which both workers have committed: then, and in one step, the points leave
one worker's count and enter the other's, the two accounts of the ledger become one, and both workers are told before
they train again. A move that is refused, late or cancelled leaves everything that did not change owner where it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from flegel.machine.worker.visit_schedule import Transfer
from flegel.messages import (
    MoveReady,
    MoveRefused,
    MoveSent,
    Order,
    ReceivePoints,
    SendPoints,
    TransferOwnership,
    WindowArrived,
)
from flegel.plan.balance.planner import MoveCost, Proposal


@dataclass
class Migration:
    """One migration on its way."""

    number: int
    source: int
    target: int
    points: int
    reason: str
    asked_at: float
    phase: str = "asked"
    heard_at: float = 0.0
    first_at: float = 0.0
    """When the first window changed owner."""
    windows: int | None = None
    waiting: dict[int, WindowArrived] = field(default_factory=dict)
    """Windows that lie at the target until the next barrier."""
    settled: set[int] = field(default_factory=set)
    moved: int = 0

    def complete(self) -> bool:
        return self.windows is not None and len(self.settled) >= self.windows


@dataclass(frozen=True)
class OwnershipChange:
    """A window that changes owner at this barrier."""

    transfer: Transfer
    source: int
    target: int
    arrived: WindowArrived


class Migrations:
    """All migrations of a job."""

    def __init__(self, timeout: float = 60.0) -> None:
        """`timeout`: seconds without progress after which a move is given up."""
        self._timeout = timeout
        self.open: dict[int, Migration] = {}
        """By number: moves that are under way."""
        self.full: dict[int, str] = {}
        """Workers that refused to take more, and why."""
        self.bytes = 0
        self.points = 0
        """Points that changed owner so far."""
        self.count = 0
        self.flows: dict[tuple[int, int], list[int]] = {}
        """By source and target: points that changed owner, and bytes that arrived."""
        self.notes: list[str] = []
        self.cost = MoveCost()
        """What the finished migrations took."""
        self._next_number = 0

    def busy(self) -> set[int]:
        return {w for m in self.open.values() for w in (m.source, m.target)}

    def in_flight(self) -> int:
        """Points that were promised and have not changed owner."""
        return sum(max(m.points - m.moved, 0) for m in self.open.values())

    def begin(self, proposal: Proposal, now: float) -> list[tuple[int, Order]]:
        number, self._next_number = self._next_number, self._next_number + 1
        move = Migration(number, proposal.source, proposal.target, proposal.points, proposal.reason, now, heard_at=now)
        self.open[number] = move
        self.count += 1
        return [(move.target, ReceivePoints(number, move.source, move.points))]

    def answer(
        self, worker: int, body: MoveReady | MoveRefused | WindowArrived | MoveSent, now: float
    ) -> list[tuple[int, Order]]:
        """What a worker says about a move; what is late or doubled changes nothing."""
        move = self.open.get(body.move)
        if move is None or worker not in (move.source, move.target):
            return []
        move.heard_at = now
        match body:
            case MoveReady(address=address) if worker == move.target and move.phase == "asked":
                move.phase = "giving"
                return [(move.source, SendPoints(move.number, move.target, address, move.points))]
            case MoveRefused(why=why):
                if worker == move.target:
                    self.full[worker] = why
                return self.cancel(move.number, f"worker {worker} refused: {why}")
            case WindowArrived(number=number) if worker == move.target:
                if number not in move.waiting and number not in move.settled:
                    move.waiting[number] = body
                    self.bytes += body.bytes
                    self._flow(move)[1] += body.bytes
            case MoveSent(windows=windows) if worker == move.source:
                move.windows = windows
                if move.phase == "giving":
                    move.phase = "sent"
        return []

    def settle(
        self, committed: Collection[int], now: float
    ) -> tuple[list[OwnershipChange], dict[int, TransferOwnership]]:
        """Change the owner of windows at a barrier, between workers that have both committed; complete moves end."""
        changes: list[OwnershipChange] = []
        given: dict[int, list[Transfer]] = {}
        taken: dict[int, list[Transfer]] = {}
        closed: dict[int, list[int]] = {}
        for move in list(self.open.values()):
            if move.source not in committed or move.target not in committed:
                continue
            for number, arrived in sorted(move.waiting.items()):
                transfer = (move.number, number)
                changes.append(OwnershipChange(transfer, move.source, move.target, arrived))
                given.setdefault(move.source, []).append(transfer)
                taken.setdefault(move.target, []).append(transfer)
                if not move.settled:
                    move.first_at = now
                move.settled.add(number)
                move.moved += arrived.points
                self.points += arrived.points
                self._flow(move)[0] += arrived.points
                self.full.pop(move.source, None)  # it has room again
            move.waiting = {}
            if move.complete():
                self._learn(move, now)
                for worker in (move.source, move.target):
                    closed.setdefault(worker, []).append(move.number)
                del self.open[move.number]
        orders = {
            worker: TransferOwnership(
                tuple(given.get(worker, ())), tuple(taken.get(worker, ())), tuple(closed.get(worker, ()))
            )
            for worker in {*given, *taken, *closed}
        }
        return changes, orders

    def _flow(self, move: Migration) -> list[int]:
        """Points and bytes that moved between the two workers of this move so far."""
        return self.flows.setdefault((move.source, move.target), [0, 0])

    def _learn(self, move: Migration, now: float) -> None:
        """Half of what is known comes from the last move: links and loads change."""
        if not move.moved:
            return
        lag, whole = move.first_at - move.asked_at, now - move.asked_at
        each = (whole - lag) / move.moved
        known = self.cost
        fresh = not (known.lag or known.each)
        self.cost = MoveCost(*((lag, each) if fresh else ((known.lag + lag) / 2, (known.each + each) / 2)))

    def cancel(self, number: int, why: str) -> list[tuple[int, Order]]:
        """Cancel a move: what has not changed owner stays with the source."""
        move = self.open.pop(number, None)
        if move is None:
            return []
        self.notes.append(f"move {number} from worker {move.source} to {move.target} was cancelled: {why}")
        return [(worker, TransferOwnership(closed=(number,))) for worker in (move.source, move.target)]

    def late(self, now: float) -> list[tuple[int, Order]]:
        """Cancel migrations of which nothing was heard for longer than the timeout."""
        orders: list[tuple[int, Order]] = []
        for move in list(self.open.values()):
            if now - move.heard_at > self._timeout:
                orders += self.cancel(move.number, f"nothing was heard of it for {now - move.heard_at:.0f} s")
        return orders
