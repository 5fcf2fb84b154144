"""Workers that rest because the job is faster without them (`--resting`): who rests first, by the options of a job."""

from __future__ import annotations

from flegel.machine.resting.part import RestingPart
from flegel.machine.resting.resting_control import RestingControl
from flegel.plan.devices import parse_devices, relative_speeds
from flegel.runtime.job.part import Part


class Resting(Part):
    """The coordinator sends workers to rest and calls them back."""

    def machine(self) -> RestingPart:
        """Who rests first: as when a job that goes on stopped, else as the rows were dealt."""
        request, running = self.request, self.running
        job = request.job
        first = running.resting if running.owners else request.first_partition.active_workers
        devices = parse_devices(job.device, job.gpus, request.workers)
        speeds = relative_speeds(devices, request.workers, bool(request.algorithm.kernels.backend))
        return RestingPart(RestingControl(job.sync.interval, first, speeds))
