"""Columns that are scaled before training (`--scale`): how, from the moments of all rows."""

from __future__ import annotations

from flegel.datasets.rows import scale
from flegel.datasets.rows.scale import Scaling
from flegel.machine.scaling_moments import MomentsCollector
from flegel.messages import MeasureMoments
from flegel.runtime.job.driver import drive
from flegel.runtime.job.part import Part
from flegel.runtime.job.rows_of_job import partition_source


class ScaledColumns(Part):
    """Finds shift and factor of each column. Moments of rows in memory are computed in this process, all others by the
    workers, each of its own partition."""

    def scaling(self) -> Scaling:
        """Shift and factor of each column by the method that the job names; columns that must not be scaled keep
        their values."""
        request = self.request
        method = scale.check_method(request.job.scale)
        if request.data.in_memory:
            found = scale.scaling(scale.moments(request.data.load()[0]), method)
        else:
            found = scale.scaling(self._moments(), method)
        return scale.keep(found, request.data.treatment.unscaled())

    def _moments(self) -> scale.ColumnMoments:
        """Have every worker measure mean and variance of its shard's columns, and merge them in the order of workers,
        so that the sums are the same in each run."""
        request = self.request
        cluster = self.running.job_cluster.get()
        cluster.start()
        cluster.wait_ready(request.job.worker_timeout, request.observers.say)
        source = partition_source(request)
        working = set(range(request.workers)) - set(request.first_partition.resting)
        orders = {i: MeasureMoments(source, i, request.workers, request.job.seed) for i in working}
        collector = MomentsCollector(orders, self.running.timeouts, request.job.replace)
        drive(collector, cluster, release_rows=False)
        total = scale.empty_moments(request.data.columns)
        for worker in sorted(collector.moments):
            total = scale.merge(total, scale.ColumnMoments(*collector.moments[worker]))
        return total
