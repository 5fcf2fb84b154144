"""The coordinator's side of audits: when the statistics are checked, what the answers mean, what is found. Pure.

The statistics must equal a recomputation from scratch. That is checked at barriers, where every worker has committed
and rests for a moment:

    checksums    what workers have reported in all (`machine/worker/checksums.py`) is what the statistics hold
    owners       all workers together hold each point once
    changes      on some points of each worker a change is the new contribution less the old one (`recount.py`)

and, when training is over, by one pass over all points with fresh states under the final θ: the objective of those
statistics is reported, and it must be near the one that the job's statistics gave. What is found is returned as a
sentence; the coordinator has everything counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flegel.algorithm import visit_hook
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array, Tree
from flegel.machine.audit.owned_numbers import OWNER_SUM_MODULUS, sum_below
from flegel.machine.coordinator.reported_times import credible
from flegel.machine.coordinator.state import JobState
from flegel.machine.worker.checksums import checksum, differences
from flegel.messages import AuditPoints, PointsAudited
from flegel.params.hooks import call_hook
from flegel.params.objective_error import objective_error
from flegel.wording import option

OUTCOMES_BEFORE_CONVERGENCE = frozenset({"limit", "stopped", "halted"})
"""Ends that say nothing about convergence: the pass gives the objective, and is not compared with the statistics."""


@dataclass(frozen=True)
class Finding:
    """What an audit found when its last answer came."""

    problem: str = ""
    """What is wrong, in a sentence without its end; empty where all is well."""
    final: bool = False


class Audit:
    """One audit at a time."""

    def __init__(self, points: int | None = None, resumed: bool = False) -> None:
        """`points`: checked on each worker at barriers; 0 for none, None for as many as the settings say."""
        self._points = active().audit.points_each_worker if points is None else points
        self._number = 0
        self._next_audit_at = 0.0
        self._statistics_checksum: Array | None = None
        self._answers: dict[int, tuple[PointsAudited, tuple[Array, ...]]] = {}
        self._awaited: set[int] = set()
        self._offset: Array | None = None if resumed else np.zeros(())
        """What the statistics hold beyond the reports of the present workers; None: to be found at the next audit."""
        self._final_statistics: Tree | None = None
        self._audit_began_at = 0.0
        self.seconds = 0.0
        """Seconds that the check at the end took."""
        self.at_barriers = 0.0
        """Seconds that audits took while training, of the worker that took longest each time."""
        self.audits = 0
        self.repairs = 0
        self.problems: list[str] = []
        self.objective: float | None = None
        """Of the final θ, by one pass over all points."""
        self.counted: Tree | None = None
        """The statistics of that pass."""
        self.difference: float | None = None
        """Relative, between that objective and the one by the job's statistics."""
        self.own_statistics: list[Array] | None = None
        """Of all points of this job under the final θ; None until that pass was made, or where it does not tell."""

    # -- asking --------------------------------------------------------------------------------------------

    def at_barrier(self, job: JobState, now: float) -> None:
        """Begin an audit where one is due and no worker trains."""
        rules = active().audit
        if not self._next_audit_at:
            self._next_audit_at = job.began + rules.first_after_seconds
        resting = not any(w.phase == "training" for w in job.view.workers.values())
        if now >= self._next_audit_at and not self._awaited and resting and self._points:
            self._next_audit_at, self._audit_began_at = now + rules.least_seconds_between, now
            self._ask(job, self._points, job.store.parameter)

    def begin_final(self, job: JobState, parameter: Tree, now: float) -> bool:
        """Training is over: one pass under the final θ. False where that would say nothing."""
        self._awaited.clear()
        if job.totals.unseen or job.objective is None or not pytree.is_finite(parameter):
            return False
        if call_hook(job.algorithm, job.place, "recounted", job.store.statistics, parameter) is None:
            return False
        self._final_statistics, self._audit_began_at = parameter, now
        self._ask(job, 0, parameter)
        return True

    def _ask(self, job: JobState, points: int, parameter: Tree) -> None:
        """Order an audit of all workers under this θ: `points` points of each, or all (0); the statistics are summed up
        now, while no worker trains."""
        self._number += 1
        self._answers.clear()
        self._awaited = set(job.view.workers)
        self._statistics_checksum = checksum(pytree.flatten(job.store.own_statistics()))
        arrays = tuple(pytree.flatten(pytree.without(parameter, job.algorithm.placement.unsent)))
        for worker in job.view.workers:
            job.send(worker, AuditPoints(self._number, points), arrays)

    def forget(self) -> None:
        """Workers change or points begin again: what is under way does not count, and the next audit begins anew."""
        self._awaited.clear()
        self._final_statistics = self.own_statistics = None
        self._offset = None

    def overdue(self, worker: int, waited: float) -> str:
        """What to say of a worker that counts its points again for so long; empty where all is well."""
        if worker not in self._awaited or waited <= active().audit.max_final_pass_seconds:
            return ""
        return (
            f"Worker {worker} did not count its points within {waited:.0f} s; {option('audit', 'off')} leaves that out."
        )

    def can_repair(self, finding: Finding) -> bool:
        """Count again: something is wrong, and it was not tried too often."""
        if not finding.problem or self.repairs >= active().audit.max_recounts:
            return False
        self.repairs += 1
        return True

    # -- answers -------------------------------------------------------------------------------------------

    def took(
        self, job: JobState, worker: int, body: PointsAudited, arrays: tuple[Array, ...], now: float
    ) -> Finding | None:
        """An answer came; what was found, when it is the last."""
        if body.number != self._number or worker not in self._awaited:
            return None
        self._awaited.discard(worker)
        self._answers[worker] = (body, arrays)
        if self._awaited:
            return None
        self.audits += 1
        final = self._final_statistics is not None
        self.seconds = now - self._audit_began_at if final else 0.0
        if not final:
            waited = max(now - self._audit_began_at, 0.0)
            took = max(credible(answer.seconds, waited) for answer, _ in self._answers.values())
            self.at_barriers += took
            self._next_audit_at = max(self._next_audit_at, now + took / active().audit.max_share_of_time)
        problem = self._owners(job) or self._reports(job) or self._changes(job)
        problem = problem or (self._evaluate(job) if final else "")
        if problem:
            self.problems.append(problem)
        return Finding(problem, final)

    def _owners(self, job: JobState) -> str:
        """Whether all workers together hold each point once, by its number of points and the checksum of their ids;
        returns what is wrong, or an empty text."""
        bodies = [body for body, _ in self._answers.values()]
        held, wanted = sum(b.points for b in bodies), job.points
        checksum_of_ids = sum(b.id_checksum for b in bodies) % OWNER_SUM_MODULUS
        if held != wanted or checksum_of_ids != sum_below(wanted):
            return f"workers hold {held} points instead of each of the {wanted} once"
        return ""

    def _reports(self, job: JobState) -> str:
        """Compare the statistics with the sum of all reports. After a resume, or a change of workers, the first audit
        only records how far both are apart: reports from before it are not known."""
        assert self._statistics_checksum is not None
        reports = sum((np.array(body.reported).reshape(-1, 2) for body, _ in self._answers.values()), np.zeros((1, 2)))
        if self._offset is None:
            self._offset = self._statistics_checksum[:, 0] - reports[:, 0]
            return ""
        statistics = self._statistics_checksum.copy()
        statistics[:, 0] -= self._offset
        arrays = pytree.flatten(job.store.statistics)
        apart = differences(statistics, reports, [a.dtype for a in arrays])
        for name, far in zip(pytree.names(job.store.statistics), apart, strict=True):
            if far > 1.0 and name not in job.algorithm.statistics.spent:
                return f"the statistics ({name}) are not the sum of what workers reported"
        return ""

    def _changes(self, job: JobState) -> str:
        """Whether a change was the new contribution less the old one on the points that workers visited again; returns
        what is wrong, or an empty text."""
        error, worst_worker = max((body.visit_error, worker) for worker, (body, _) in self._answers.items())
        if error > 0:
            return (
                f"on worker {worst_worker} changes of points are not new less old contributions (off by {error:.2g}): "
                f"{visit_hook(type(job.algorithm))} or the kernel keeps wrong statistics"
            )
        return ""

    def _evaluate(self, job: JobState) -> str:
        """Compute the objective of all points under the final θ and compare it with that of the job's statistics;
        returns what is wrong, or an empty text."""
        assert self._final_statistics is not None and job.objective is not None
        own = [np.zeros_like(a) for a in pytree.flatten(job.store.statistics)]
        for worker in sorted(self._answers):
            for into, part in zip(own, self._answers[worker][1], strict=True):
                into += part
        self.own_statistics = own
        self.evaluate_over(job, [pytree.flatten(theirs) for theirs in job.store.remote.values()])
        if self.objective is None:
            return ""
        scale = max(abs(self.objective), abs(job.objective), SMALLEST_DIVISOR)
        self.difference = (job.objective - self.objective) / scale
        if job.verdict is not None and job.verdict.outcome in OUTCOMES_BEFORE_CONVERGENCE:
            return ""  # points keep contributions from before the last updates: how far behind, nothing bounds
        rules = active().audit
        allowed = rules.equal_within + 10.0 * (job.criteria.tolerance or 0.0)
        allowed += rules.final_lag * _last_change(job) / scale
        if abs(self.difference) > allowed:  # the statistics hold what kernels computed in the type of the rows
            allowed += self._error(job, self.counted, self.objective) / scale
        if not abs(self.difference) <= allowed:
            return (
                f"the statistics say objective {job.objective:.6g}, and a pass over all points says "
                f"{self.objective:.6g}"
            )
        return ""

    def _error(self, job: JobState, counted: Tree, value: float) -> float:
        def objective(statistics: Tree) -> Any:
            return call_hook(job.algorithm, job.place, "objective", statistics, self._final_statistics)

        return objective_error(objective, counted, value, job.rounding)

    def evaluate_over(self, job: JobState, statistics_of_groups: Sequence[Sequence[Array]]) -> None:
        """The objective of the final θ over all points of this job, and those of other groups by their statistics."""
        assert self._final_statistics is not None and self.own_statistics is not None
        total = [np.array(a) for a in self.own_statistics]
        for theirs in statistics_of_groups:
            for into, part in zip(total, theirs, strict=True):
                into += part
        counted = pytree.unflatten(job.store.statistics, total)
        value = call_hook(job.algorithm, job.place, "recounted", counted, self._final_statistics)
        self.objective, self.counted = (None, None) if value is None else (float(value), counted)


def _last_change(job: JobState) -> float:
    """By how much the objective changed in the last two passes of the slowest worker, whose points lag the most
    (without barriers it has made fewer than the others); infinite where there were not so many.
    """
    visits = sum(row.visits for row in job.trace)
    left = 2.0 * max(visits / max(job.totals.slowest_pass, SMALLEST_DIVISOR), job.points)
    for row in reversed(job.trace):
        if left <= 0 or row.objective is None:
            break
        left -= row.visits
        first = row.objective
    if left > 0 or job.objective is None:
        return np.inf
    return abs(first - job.objective)
