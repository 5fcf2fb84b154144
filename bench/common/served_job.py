"""A real job whose coordinator, workers and servers are in network namespaces of their own; prints its rounds as JSON.

Started by other programs inside the coordinator's namespace (`python -m bench.common.served_job DESCRIPTION`). Every
process has a host name of its own, so that the engine takes the namespaces for hosts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from bench.common import program
from bench.common.large_model import LargeModel
from bench.common.namespaces import Network
from bench.common.process_memory import peak_of
from bench.common.remote_cluster import RemoteCluster
from flegel import run
from flegel.machine.server.care import FIRST_SERVER
from flegel.runtime.processes.worker_processes import launch
from flegel.runtime.worker.process import WorkerConfig

IMAGES = 32  # of a worker, all of which are one mini-batch
NAMED = 'hostname "$0" && exec "$@"'


class ServedJob(msgspec.Struct, frozen=True):
    """What to run and where: names of namespaces by role."""

    address: str
    """Of the coordinator."""
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    """Of workers and servers beside each other, the same names."""
    parameters: int
    rounds: int
    options: dict[str, Any]
    network: str = ""
    """Name of a network (`sized_networks.py`) that is trained; empty: `LargeModel` with so many parameters."""
    part: float = 1.0
    """The network's weights are divided by about this."""

    def namespace(self, process: int) -> str:
        if process >= FIRST_SERVER:
            return self.servers[process - FIRST_SERVER]
        return self.workers[process]


def run_in(network: Network, coordinator: int, job: ServedJob, timeout: float) -> dict[str, Any]:
    """Start it in the coordinator's namespace; its figures."""
    words = program.command("bench.common.served_job", msgspec.json.encode(job).decode())
    done = subprocess.run(
        [*network.command(coordinator), *words],
        capture_output=True, text=True, timeout=timeout, env=program.environment(), check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the job failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _start(job: ServedJob, config: WorkerConfig) -> subprocess.Popen[bytes]:
    name = job.namespace(config.worker)
    return launch(config, ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", NAMED, name])


def problem(job: ServedJob) -> tuple[Any, Any]:
    """What is trained, and on which rows: a mini-batch of images for each worker, or a row."""
    generator = np.random.default_rng(0)
    if not job.network:
        return LargeModel(parameters=job.parameters), generator.normal(size=(len(job.workers), 2))
    from bench.common.sized_networks import SizedNetwork

    images = generator.normal(size=(IMAGES * len(job.workers), 3 * 32 * 32)).astype(np.float32)
    labels = (np.arange(len(images)) % 10).astype(np.float64)
    network = SizedNetwork(
        network=job.network, part=job.part, optimizer="sgd", batch=None, epochs=1e6, shape=[3, 32, 32]
    )
    return network, (images, labels)


def main(words: Sequence[str]) -> None:
    job = msgspec.json.decode(words[0], type=ServedJob)
    algorithm, rows = problem(job)
    peaks: dict[int, int] = {}
    with RemoteCluster(len(job.workers), job.address, start=lambda config: _start(job, config)) as cluster:

        def look(_: Any) -> None:
            for process, handle in list(cluster.registry.processes.items()):
                peaks[process] = max(peaks.get(process, 0), peak_of(handle.pid))

        result = run(
            algorithm, rows, cluster=cluster, workers=len(job.workers), sync="bsp",
            max_iterations=job.rounds, tolerance=0.0, balance="off", audit="off", watch=look, **job.options,
        )  # fmt: skip
    ends = [row["seconds"] for row in result.rows]
    print(
        json.dumps(
            {
                "rounds": [round(b - a, 4) for a, b in zip([0.0, *ends], ends, strict=False)],
                "servers": result.servers,
                "weight": float(result.parameter.weights[0]),
                "peak_mb": {str(process): round(size / 1e6) for process, size in sorted(peaks.items())},
            }
        )
    )


if __name__ == "__main__":
    main(program.words_of(__doc__, "job"))
