"""What a worker learned counts only where its model is good enough on rows that nobody trains on (`--gate`)."""

from __future__ import annotations

from flegel.algorithm import Sample
from flegel.core.parallel_sums import add_fields
from flegel.errors import UsageError
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.machine.worker_gate import WorkerGate
from flegel.params.gated import GatedStore
from flegel.params.protocol import ParameterStore
from flegel.runtime.job.gate_score import gate_scorer, new_gate
from flegel.runtime.job.part import Part
from flegel.wording import option


class GateOfWorkers(Part):
    """One gate for each worker, judged at every barrier by the coordinator."""

    def check(self) -> None:
        new_gate(self.request.job.sites)
        if why := self._against():
            raise UsageError(f"{option('gate')} judges each worker by its own contributions: {why}.")

    def _against(self) -> str:
        """Why the contributions of single workers cannot be judged in this job; empty where they can."""
        job = self.request.job
        if str(job.servers) != "0" or job.topology != "coordinator":
            shown = option("servers") if str(job.servers) != "0" else option("topology", job.topology)
            return f"with {shown} the coordinator has none of them, so omit one of both"
        if job.sync.balance not in (None, "", "off"):
            return f"{option('balance', job.sync.balance)} mixes them, so omit it"
        if job.checkpoint is not None:
            return f"a checkpoint holds none that are withheld, so omit {option('checkpoint')}"
        if job.attribute:
            return f"{option('attribute')} counts all of them, so omit it"
        return ""

    def joint_sample(self, sample: Sample) -> Sample:
        """Starts of clusters wait until all points have been visited. The model of a worker rests on its own points,
        and points of workers that fail are never counted, so the number of one worker's is enough. Networks count
        epochs by that number."""
        if self.request.algorithm.kernels.in_batches:
            return sample
        points = max(sample.points // self.request.workers, 1)
        total = sample.total_weight
        return sample._replace(points=points, total_weight=None if total is None else total * points / sample.points)

    def started(self) -> None:
        algorithm, prepared = self.request.algorithm, self.running.prepared
        sites = self.request.job.sites
        names = [str(name) for name in self.request.data.treatment.feature_names or ()]
        score = gate_scorer(self.request.job, algorithm, self.running.scaling, names)
        score(prepared.parameter)  # a class that cannot be scored is told so now
        self._store = GatedStore(
            algorithm, prepared.parameter, prepared.zero, lambda: new_gate(sites), score, add_fields
        )

    def store(self) -> ParameterStore:
        return self._store

    def machine(self) -> CoordinatorPart:
        return WorkerGate(self._store, self.request.job.sites.gate_failures)
