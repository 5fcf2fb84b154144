"""A worker's side of audits: its own points, counted and contributed again. Pure."""

from __future__ import annotations

from flegel.core.pytree import Array
from flegel.machine.audit.owned_numbers import OwnedNumbers
from flegel.machine.audit.recount import Recount, held_runs
from flegel.machine.worker.point_store import PointStore
from flegel.messages import AuditPoints


class ShardAudit:
    """The points of one worker."""

    def __init__(self, recount: Recount, ids: Array) -> None:
        """`ids`: numbers of the points that the worker begins with."""
        self._recount, self._numbers = recount, OwnedNumbers()
        self._numbers.learn(ids)

    def answer(
        self, store: PointStore, order: AuditPoints, theta: tuple[Array, ...], most: int
    ) -> tuple[int, int, float, tuple[Array, ...]]:
        """How many points these are and the sum of their numbers, by how much changes of some (`most` unless the order
        says how many) break the law, and, of a pass over all of them, the statistics."""
        points, numbers = self._numbers.count(held_runs(store))
        law = self._recount.law(store, theta, order.points or most, order.number)
        return points, numbers, law, () if order.points else self._recount.whole(store, theta)
