"""How a coordinator learns: reports into statistics, statistics into θ and objective, a line of the trace. Pure."""

from __future__ import annotations

import math
from collections import Counter
from numbers import Real
from typing import Any

import numpy as np

from flegel import tree
from flegel.algorithm import Algorithm
from flegel.errors import AlgorithmError, FlegelError, ProtocolError, own_traceback
from flegel.machine.balancing import Balancing
from flegel.machine.events import Row
from flegel.machine.ledger import Ledger
from flegel.machine.tally import Tally
from flegel.plan.interval import PARTS
from flegel.plan.termination import Progress
from flegel.sync.base import Policy, View, WorkerView
from flegel.tree import Array, Tree

SPANS_UP_TO = 256  # workers; beyond that the trace holds sums only


class Folding:
    """The part of the coordinator that learns. The attributes are the coordinator's."""

    view: View
    ledger: Ledger
    algorithm: Algorithm
    policy: Policy
    parameter: Tree
    balancing: Balancing | None
    iteration: int
    objective: float | None
    trace: list[Row]
    staleness: dict[int, int]
    began: float
    debug: bool
    attribute: bool
    _held: dict[int, Tree]
    _order: dict[int, int]
    _spans: dict[int, tuple[int, float, float, int, float, float, float]]
    _tally: Tally
    _updated_at: float
    _estimate: float | None
    _gain: float | None
    _said: tuple[int, Array | None]
    _diverged: str
    _reason: str

    def _where(self) -> str:
        raise NotImplementedError

    def _fold(self, workers: tuple[int, ...], now: float) -> tuple[int, float]:
        """Fold held reports into the statistics, make θ new, write a line of the trace."""
        order, held = self._order, self._held
        fixed = sorted(workers)  # so that the same reports give the same bits
        views = [self.view.workers[worker] for worker in fixed]
        self._commit(views, [held.pop(worker) for worker in fixed])
        for seen in views:
            seen.phase = "idle"
        visits = sum([seen.last_visits for seen in views])
        compute = sum([seen.last_compute for seen in views])
        for asked, number in Counter([order[worker] for worker in fixed]).items():
            behind = self.view.round - asked
            self.staleness[behind] = self.staleness.get(behind, 0) + number
        if self.debug and (gap := self.ledger.discrepancy()) > 1e-10:
            raise ProtocolError(f"Statistics and the sum over owners differ by {gap:.2g} in {self._where()}.")
        value = self._new_parameter()
        self.ledger.spend()
        self.iteration += 1
        cost = max(0.0, now - self._updated_at - compute / max(len(workers), 1))
        self._updated_at = now
        self._tally.count(workers)
        unseen = self._tally.unseen
        self.objective = float(value) if value is not None and not unseen else None
        estimate = self._scaled(value, unseen)
        better = -1.0 if self.algorithm.maximize else 1.0
        known = self._estimate is not None and estimate is not None
        self._gain = better * (self._estimate - estimate) if known else None  # type: ignore[operator]
        self._estimate = estimate
        self.trace.append(
            Row(
                now - self.began,
                self.iteration,
                self.objective,
                self.policy.interval,
                estimate,
                visits,
                cost,
                self._reason,
                [self._spans.pop(w) for w in sorted(workers) if w in self._spans],
                [w.passes for w in self.view.workers.values()] if len(self.view.workers) <= SPANS_UP_TO else [],
                self.balancing.moves.in_flight() if self.balancing else 0,
                self.balancing.moves.bytes if self.balancing else 0,
                [w.gain for w in self.view.workers.values()] if self.attribute else [],
            )
        )
        self._reason = ""
        return visits, cost

    def _commit(self, views: list[WorkerView], changes: list[Tree]) -> None:
        """Into the statistics; where asked for, with what each report alone does for the objective."""
        if not self.attribute:
            self.ledger.commit_all([seen.id for seen in views], changes)
            return
        for seen, change in zip(views, changes, strict=True):
            before = self._value()
            self.ledger.commit(seen.id, change)
            if before is not None and (after := self._value()) is not None and not seen.unseen:
                seen.gain += (after - before) if self.algorithm.maximize else (before - after)

    def _value(self) -> float | None:
        value = self._hook("objective", self.ledger.total, self.parameter)
        return None if value is None else float(value)

    def _new_parameter(self) -> float | None:
        """θ and objective from the statistics. Numbers that are not finite end the job; the last good θ stays."""
        fresh = tree.as_float64(self._hook("updateParameter", self.ledger.total, self.parameter))
        if not tree.same_shape(fresh, self.parameter):
            raise AlgorithmError(f"updateParameter returned θ in another shape in {self._where()}.")
        if not tree.is_finite(fresh):
            self._diverged = "θ holds numbers that are not finite"
            return None
        value = self._hook("objective", self.ledger.total, fresh)
        if value is not None and not math.isfinite(value):
            self._diverged = f"the objective became {value}"
            return None
        self.parameter = fresh
        return None if value is None else float(value)

    def final_parameter(self) -> Tree:
        """θ as the result."""
        return tree.as_float64(self._hook("finalParameter", self.ledger.total, self.parameter))

    def _worth(self) -> Array | None:
        """What the algorithm says of intervals; asked again when the number of workers is another."""
        workers = len(self.view.workers)
        if self._said[0] != workers:
            said = [self._hook("efficiency", float(part), workers) for part in PARTS]
            worth = None if any(value is None for value in said) else np.array([_number(v) for v in said])
            if worth is not None and not (worth.min() >= 0.0 < worth.max() < math.inf):
                wrong = np.flatnonzero(~((worth >= 0.0) & (worth < math.inf)))
                at = int(wrong[0]) if len(wrong) else 0
                raise AlgorithmError(
                    f"efficiency must return a number from 0 to 1, or None, and not 0 for every part of a pass; it "
                    f"returned {said[at]!r} for {PARTS[at]:.3g} of a pass and {workers} workers."
                )
            self._said = (workers, worth)
        return self._said[1]

    def _scaled(self, value: float | None, unseen: int) -> float | None:
        """While some points are unseen, the objective of the rest scaled up to all; of nothing, none."""
        points = self._tally.points
        if unseen and unseen >= points:
            return None
        if value is None or self.algorithm.averaged or not unseen:
            return value
        return value * points / max(points - unseen, 1)

    def _progress(self, now: float) -> Progress:
        tally = self._tally
        return Progress(
            iteration=self.iteration,
            seconds=now - self.began,
            objective=self.trace[-1].estimate,
            exact=tally.unseen == 0,
            slowest_pass=tally.slowest_pass,
            halted=tally.halted,
            points=tally.points,
            diverged=self._diverged,
        )

    def _hook(self, name: str, *args: Any) -> Any:
        """Call the user's code; what it raises comes back with its own traceback."""
        presented = [tree.present(a) if isinstance(a, tuple) or hasattr(a, "shape") else a for a in args]
        try:
            return getattr(self.algorithm, name)(*presented)
        except FlegelError:
            raise
        except Exception as error:
            where = f"coordinator, {self._where()}"
            raise AlgorithmError(
                f"{name} raised {type(error).__name__}: {error} ({where})", own_traceback(error)
            ) from error


def _number(value: object) -> float:
    return float(value) if isinstance(value, Real) else math.nan
