"""An HTTP endpoint that Prometheus scrapes, on prometheus_client (`flegel[metrics]`). Knows no job and no cluster.

Scrapes are answered by a thread of their own from the last families that were published; they never wait for a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flegel.errors import UsageError, require
from flegel.job import Job
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.metrics.families import Family, JobFigures, build_info
from flegel.options import parse_address
from flegel.result import Result
from flegel.runtime.job.observers import JobControl


class MetricsEndpoint:
    """Serves /metrics until it is closed."""

    def __init__(self, address: str) -> None:
        """`address`: PORT on this host alone, or HOST:PORT; port 0 is any that is free."""
        require("prometheus_client", "metrics")
        from prometheus_client import CollectorRegistry, start_http_server

        self._families: Sequence[Family] = [build_info()]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)  # type: ignore[arg-type,unused-ignore]
        host, port = parse_address(address)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"--metrics {address}: {error.strerror or error}; choose another port.") from None
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def publish(self, families: Sequence[Family]) -> None:
        self._families = families

    def describe(self) -> list[Any]:
        """Nothing in advance: what there is depends on the job."""
        return []

    def collect(self) -> Iterable[Any]:
        """For the library: the families as its own records."""
        from prometheus_client.core import Metric

        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for suffix, labels, value in family.samples:
                metric.add_sample(family.name + suffix, dict(labels), value)
            yield metric

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class JobMetrics:
    """The observer of one job behind `--metrics`."""

    every = 0.5
    shown = 0

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint, self._figures = endpoint, JobFigures()

    def begin(self, job: Job, control: JobControl) -> None:
        pass

    def look(self, seen: JobSnapshot, rows: Sequence[TraceRow]) -> None:
        self._figures.take(seen, rows)
        self._endpoint.publish(self._figures.families())

    def finish(self, result: Result | None, error: BaseException | None) -> None:
        pass
