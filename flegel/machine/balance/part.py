"""Balance as a part of a coordinator: points change owner at barriers, moves begin when everybody trains. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flegel.core.pytree import Array
from flegel.machine.balance.balance_control import BalanceControl, MoveAnswer
from flegel.machine.coordinator.events import Timer
from flegel.machine.coordinator.observation import FlowSnapshot
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.messages import MoveReady, MoveRefused, MoveSent, WindowArrived
from flegel.plan.termination import Progress
from flegel.sync.policy import Updated

FLOWS_SHOWN = 64
"""Pairs of workers in a snapshot: a picture of more cannot be read."""
FLOWS_TOLD = 256
"""Pairs of workers whose moved points `--json` tells."""


class FlowTold(NamedTuple):
    """Points that moved from one worker to another; in `--json` a list in this order."""

    source: int
    target: int
    points: int
    bytes: int


class BalancePart(CoordinatorPart):
    """Moves points of one job to faster workers."""

    name = "balance"
    answers = (MoveReady, MoveRefused, WindowArrived, MoveSent)
    timers = ("balance",)

    def __init__(self, control: BalanceControl) -> None:
        self.control = control

    def begin(self, now: float, fresh: bool) -> None:
        if fresh:
            self.control.start(self.coordinator.state.view, now)
        else:
            self.control.go_on(now)

    def happened(self, event: Timer, now: float) -> None:
        if self.coordinator.steady:
            self.control.plan_moves(self.coordinator.state, now)

    def busy(self) -> Collection[int]:
        return self.control.migrations.busy()

    def before_commit(self) -> None:
        moves, state = self.control.migrations, self.coordinator.state
        state.in_flight, state.moved_bytes = moves.in_flight(), moves.bytes

    def at_barrier(self, workers: tuple[int, ...], updated: Updated, progress: Progress, now: float) -> bool:
        return self.control.after_commit(self.coordinator.state, updated, workers, progress, now)

    def answered(self, worker: int, body: MoveAnswer, arrays: tuple[Array, ...], now: float) -> None:
        state = self.coordinator.state
        if state.phase == "training" and (moved := self.control.on_answer(state, worker, body, now)):
            self.coordinator.proceed(moved, now)

    def workers_change(self, now: float) -> None:
        self.control.abandon(self.coordinator.state, "workers come or go")

    def workers_changed(self, now: float) -> None:
        self.control.go_on(now)

    def check_deadlines(self, now: float) -> None:
        if moved := self.control.check_deadlines(self.coordinator.state, now):
            self.coordinator.proceed(moved, now)

    def stored(self) -> BalanceControl:
        return self.control

    def seen(self) -> Mapping[str, Any]:
        """Pairs of workers between which points moved or move, the largest ones."""
        moves = self.control.migrations
        under_way = dict.fromkeys(moves.flows, 0)
        for move in moves.open.values():
            pair = (move.source, move.target)
            under_way[pair] = under_way.get(pair, 0) + max(move.points - move.moved, 0)
        found = []
        for (source, target), left in under_way.items():
            points, size = moves.flows.get((source, target), (0, 0))
            found.append(FlowSnapshot(source, target, points, size, left))
        found.sort(key=lambda flow: (-flow.under_way, -flow.points, flow.source))
        return {"flows": tuple(found[:FLOWS_SHOWN])}

    def section(self) -> dict[str, dict[str, Any]]:
        """Moves, points, bytes and the reasons."""
        moves = self.control.migrations
        flows = [FlowTold(source, target, points, size) for (source, target), (points, size) in moves.flows.items()]
        flows.sort(key=lambda flow: -flow.points)
        return {
            "balance": {
                "mode": self.control.mode,
                "moves": moves.count,
                "points": moves.points,
                "bytes": moves.bytes,
                "notes": list(moves.notes),
                "flows": [list(flow) for flow in flows[:FLOWS_TOLD]],
            }
        }

    def moving(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for move in self.control.migrations.open.values():
            left = max(move.points - move.moved, 0)
            found[move.target] = found.get(move.target, 0) + left
            found[move.source] = found.get(move.source, 0) - left
        return found
