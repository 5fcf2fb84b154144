"""Threads that train as one worker (`--threads`)."""

from __future__ import annotations

from typing import Any

from flegel.errors import UsageError
from flegel.loading.class_source import is_built_in
from flegel.plan.devices import parse_devices
from flegel.runtime.job.part import Part
from flegel.runtime.job.teams import obstacle
from flegel.runtime.job.warm_clusters import Kind
from flegel.sync import make_policy
from flegel.wording import option


class ThreadsOfWorkers(Part):
    """Each worker visits its points by so many threads."""

    @property
    def threads(self) -> int:
        return self.request.job.threads or 1

    @property
    def _obstacle(self) -> str:
        return obstacle(self.request.algorithm)

    def check(self) -> None:
        if self.threads > 1 and self._obstacle:
            shown = option("threads", self.threads)
            raise UsageError(f"{shown} cannot be used: {self._obstacle}; give {option('workers')}.")

    def workers_in(self) -> Kind | None:
        """A lone team of a built-in algorithm needs no process of its own, however long it trains."""
        lone = self.request.workers == 1 and is_built_in(self.request.algorithm) and not self._obstacle
        return "threads" if lone and self.request.job.processes is None else None

    def loading(self) -> None:
        if self.threads > 1 and self.request.workers == 1:
            where = " of this process" if self.running.job_cluster.in_this_process else ""
            self.request.observers.say(f"{self.threads} threads{where} train as one worker")

    def load_options(self, worker: int) -> dict[str, Any]:
        job = self.request.job
        if worker in parse_devices(job.device, job.gpus, self.request.workers) or self._obstacle:
            return {}
        return {"threads": self.threads, "fixed_blocks": make_policy(job.sync).repeatable}

    def section(self) -> dict[str, Any]:
        return {"threads": self.threads}
