"""Audits as a part of a coordinator: when the statistics are checked, and made anew where they are wrong. Pure."""

from __future__ import annotations

from typing import Any

from flegel.core.pytree import Array
from flegel.machine.audit.audit import Audit, Finding
from flegel.machine.coordinator.part import CoordinatorPart, CoordinatorPort, EndingStep
from flegel.messages import PointsAudited
from flegel.plan.termination import Progress, unsound
from flegel.sync.policy import Updated


class AuditPart(CoordinatorPart):
    """Checks the statistics of one job."""

    name = "audit"
    answers = (PointsAudited,)

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    def attach(self, coordinator: CoordinatorPort) -> None:
        super().attach(coordinator)
        coordinator.state.final_count = self.audit

    def at_barrier(self, workers: tuple[int, ...], updated: Updated, progress: Progress, now: float) -> bool:
        self.audit.at_barrier(self.coordinator.state, now)
        return False

    def workers_change(self, now: float) -> None:
        self.audit.forget()

    def endings(self) -> dict[str, EndingStep]:
        return {"count": self._count}

    def _count(self, now: float) -> bool:
        """One pass over all points under the final θ, where that says something."""
        job = self.coordinator
        if not self.audit.begin_final(job.state, job.commits.final_parameter(), now):
            return False
        job.state.phase = "auditing"
        for worker in job.state.view.workers:
            job.liveness.expect(worker, now)
        return True

    def answered(self, worker: int, body: PointsAudited, arrays: tuple[Array, ...], now: float) -> None:
        finding = self.audit.took(self.coordinator.state, worker, body, arrays, now)
        if finding is not None:
            self._found(finding, now)

    def _found(self, finding: Finding, now: float) -> None:
        """An audit is over. Wrong statistics are made anew by a recount under the same θ, and training goes on."""
        state = self.coordinator.state
        if self.audit.can_repair(finding) and state.phase in ("training", "auditing"):
            self.coordinator.recount(f"counted all points again: {finding.problem}", now)
        elif finding.final:
            if finding.problem and state.verdict is not None:
                state.verdict = unsound(state.verdict, finding.problem)
            self.coordinator.continue_ending(now)

    def overdue(self, worker: int, waited: float, now: float) -> str:
        return self.audit.overdue(worker, waited) if self.coordinator.state.phase == "auditing" else ""

    def section(self) -> dict[str, dict[str, Any]]:
        """What audits found; `objective`: by a pass over all points under the final θ; `difference`: of the statistics
        to it."""
        audit = self.audit
        return {
            "audit": {
                "mode": "on",
                "audits": audit.audits,
                "recounts": audit.repairs,
                "at_barriers": audit.at_barriers,
                "problems": list(audit.problems),
                "objective": audit.objective,
                "difference": audit.difference,
                "seconds": audit.seconds,
            }
        }

    def remarks(self) -> list[str]:
        if not self.audit.repairs:
            return []
        problems = "; ".join(dict.fromkeys(self.audit.problems))
        return [f"the statistics were wrong and all points were counted again ({problems})"]
