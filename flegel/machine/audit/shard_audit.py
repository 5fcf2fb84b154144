"""A worker's side of audits: its own points, counted and contributed again. Pure."""

from __future__ import annotations

from typing import NamedTuple

from flegel.core.pytree import Array
from flegel.machine.audit.owned_numbers import OwnedNumbers
from flegel.machine.audit.recount import Recount, held_runs
from flegel.machine.worker.point_store import PointStore
from flegel.messages import AuditPoints


class AuditAnswer(NamedTuple):
    """What a worker found in an audit of its points; the coordinator compares it with its own statistics."""

    points: int
    """Points that the worker owns."""
    id_checksum: int
    """Checksum of their ids (`owned_numbers.py`): over all workers it shows whether each point has one owner."""
    visit_error: float
    """Relative difference between a visit under θ(0) followed by one under θ, and a visit under θ alone; 0 where both
    contribute the same, as they must."""
    statistics: tuple[Array, ...]
    """Of all points, computed again under θ; empty where the order names a number of points."""


class ShardAudit:
    """Answers audits of one worker's points."""

    def __init__(self, recount: Recount, ids: Array) -> None:
        """`ids`: of the points that the worker begins with."""
        self._recount, self._owned_ids = recount, OwnedNumbers()
        self._owned_ids.learn(ids)

    def answer(
        self, store: PointStore, order: AuditPoints, theta: tuple[Array, ...], default_points: int
    ) -> AuditAnswer:
        """Count the points, sum their ids, and compare visits of `order.points` of them (`default_points` where that is
        0). Only where `order.points` is 0, the statistics of all points are computed again under `theta`."""
        points, id_checksum = self._owned_ids.count(held_runs(store))
        visit_error = self._recount.visit_error(store, theta, order.points or default_points, order.number)
        return AuditAnswer(points, id_checksum, visit_error, () if order.points else self._recount.whole(store, theta))
