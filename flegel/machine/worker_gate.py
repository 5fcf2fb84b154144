"""Part: workers whose models do not pass their gate so often that they leave the job, with their points. Pure.

Whether a model passes is found by the store (`flegel/params/gated.py`); here it is told, and has consequences. Reports
that say nothing of a worker's points do not count as failures:

- before it has visited all of them its model is made of a part, and clusters stay at their start;
- another report under the same θ gives the same model. Where reports are folded one by one (`asp`, `ssp`) a fast worker
  is judged many times before anybody else, so a failure counts when all others were judged since the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

from flegel.machine.coordinator.events import Note
from flegel.machine.coordinator.part import CoordinatorPart, EndingStep
from flegel.params.gate import what_to_do
from flegel.params.gated import GatedStore
from flegel.plan.termination import Progress, Verdict
from flegel.sync.policy import Updated


class WorkerGate(CoordinatorPart):
    """Consequences of models that do not pass."""

    def __init__(self, store: GatedStore, most_failures: int) -> None:
        """`most_failures`: N_τ; after so many reports in a row that do not pass a worker is excluded."""
        self._store, self._most_failures = store, most_failures
        self._failures: dict[int, tuple[int, int]] = {}
        """By worker: failures in a row, and the commit at which the last one was counted."""
        self._commits = 0
        self._judged_at: dict[int, int] = {}
        """By worker: the commit at which it was judged last."""
        self._excluded: dict[int, str] = {}
        self._told: set[int] = set()
        """Workers that did not pass when they were judged last: that is said once until they pass."""

    def before_commit(self) -> None:
        state, failed = self.coordinator.state, self._store.failed()
        for worker, why in failed.items():
            if worker not in self._told:
                state.out.append(Note(f"nothing of worker {worker} counts from {state.place} on: {why}"))
        self._told = set(failed)

    def at_barrier(self, workers: tuple[int, ...], updated: Updated, progress: Progress, now: float) -> bool:
        """Workers that are to leave do so now; where nobody would be left, the job ends."""
        failed, coordinator = self._store.failed(), self.coordinator
        self._commits += 1
        self._judged_at.update(dict.fromkeys(workers, self._commits))
        out = {w: failed[w] for w in workers if self._fails_too_often(w, w in failed)}
        if not out:
            return False
        if not set(coordinator.membership.roster.staying(coordinator.state.view)) - set(out):
            why = f"no worker passes its gate: {next(iter(out.values()))}; {what_to_do()}"
            coordinator.end(Verdict(converged=False, reason=why, outcome="excluded"), now)
            return True
        self._excluded.update(out)
        coordinator.carry_out(coordinator.membership.exclude(out, now), now)
        return True

    def _fails_too_often(self, worker: int, failed: bool) -> bool:
        """Note whether the model of a worker has failed now, where that says something of its points."""
        present = self.coordinator.state.view.workers
        seen = present.get(worker)
        if seen is None or not failed or seen.unseen:
            self._failures.pop(worker, None)
            return False
        count, counted_at = self._failures.get(worker, (0, -1))
        if min(self._judged_at.get(other, 0) for other in present) > counted_at:
            count += 1
            self._failures[worker] = count, self._commits
        return count >= self._most_failures

    def endings(self) -> Mapping[str, EndingStep]:
        return {"settle": self._settle}

    def _settle(self, now: float) -> bool:
        """The objective of the result is that of its θ, also where nobody passed in the last round."""
        if self.coordinator.state.objective is None:
            self.coordinator.state.objective = self._store.objective
        return False

    def remarks(self) -> list[str]:
        """Who left, and whose last reports do not count."""
        gone = [f"worker {w} was excluded with its points: {why}" for w, why in self._excluded.items()]
        last = {w: why for w, why in self._store.failed().items() if w not in self._excluded}
        return [*gone, *(f"the last report of worker {w} is not in the model: {why}" for w, why in last.items())]
