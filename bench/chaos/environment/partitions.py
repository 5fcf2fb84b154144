"""Real partitions: a master and two slaves in network namespaces of their own, cut off from each other and healed.

    python -m bench.chaos.environment.partitions --cells 20 --out partitions.jsonl

A cell cuts the master from a slave, the slaves from each other (the coordinator from a worker), or one of them from
everybody, in both directions or one, for 5 to 60 s. Every job must be done, once, with the objective of an undisturbed
one; up to 20 s without another attempt. Interrupted, it goes on where its file ends. Takes root, `ip` and `tc`. Exit
code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.chaos.freezes import objective
from bench.chaos.result_log import ResultLog
from bench.common.namespaces import Network, unavailable
from bench.faults.scenarios import SEVEN
from flegel.algorithms.kmeans import KMeans
from tests.cluster.daemon_cluster import DaemonCluster, end_with_the_test, free_port

MASTER, FIRST, SECOND = 0, 1, 2
WHERE = (
    ("master from s0", (MASTER,), (FIRST,)),
    ("s0 from s1", (FIRST,), (SECOND,)),
    ("s1 from all", (SECOND,), (MASTER, FIRST)),
    ("s0 from master", (FIRST,), (MASTER,)),
    ("s1 from s0", (SECOND,), (FIRST,)),
)
SECONDS = (5.0, 10.0, 20.0, 60.0)
STRICT_UP_TO = 20.0
TRAINING = 8.0


class NamespaceCluster(DaemonCluster):
    """The master in the first namespace of a network, each slave in another one."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder, slaves=2, slots=1)
        self.network = network
        self.address = f"tcp://{network.address(MASTER)}:{free_port()}"
        self.environment["FLEGEL_MASTER"] = self.address

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        node = MASTER if what == "master" else 1 + self._names.index(what)
        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [*self.network.command(node), sys.executable, "-m", "flegel.cli.main", *words],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_the_test,
            )  # fmt: skip


def train(cluster: DaemonCluster, client: Any, model: str) -> str:
    """A job with a worker on each slave, once it is under way."""
    job = cluster.submit(
        KMeans(k=3, init="first"), "blobs:3000", client, workers=2, sync=model, tolerance=0.0, max_seconds=TRAINING
    )
    cluster.training(client, job)
    return job


def cell(cluster: NamespaceCluster, client: Any, number: int, calm: dict[str, float]) -> dict[str, Any]:
    model, (what, one, other) = SEVEN[number % 7], WHERE[number % len(WHERE)]
    seconds, both = SECONDS[number % len(SECONDS)], number // 4 % 2 == 0
    job = train(cluster, client, model)
    cluster.network.partition(one, other, both)
    time.sleep(seconds)
    cluster.network.heal()
    view = cluster.wait(client, job, seconds=300.0)
    found = objective(client, view) if view.state == "done" else float("nan")
    listed = [each.job for each in client.jobs()]
    holds = view.state == "done" and found <= calm[model] * 1.05 and listed.count(job) == 1
    return {
        "model": model, "fault": f"{what} {'both ways' if both else 'one way'} {seconds:g} s", "state": view.state,
        "attempts": view.attempt, "why": view.reason[:200], "objective": found, "calm": calm[model],
        "holds": holds and (view.attempt == 1 or seconds > STRICT_UP_TO),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("chaos/partitions.jsonl"))
    options = parser.parse_args()
    if why := unavailable():
        print(f"Not possible here: {why}.", file=sys.stderr)
        sys.exit(2)
    lines = ResultLog(options.out)
    with (
        tempfile.TemporaryDirectory() as folder,
        Network(3) as network,
        NamespaceCluster(Path(folder), network) as cluster,
        cluster.client() as client,
    ):
        calm = {}
        for model in SEVEN[: options.cells]:
            calm[model] = objective(client, cluster.wait(client, train(cluster, client, model)))
        for number in range(options.cells):
            if not lines.done(f"cell {number}"):
                lines.add(f"cell {number}", **cell(cluster, client, number, calm))
        cluster.no_orphans()
    broken = [row["name"] for row in lines.rows if not row["holds"]]
    print(f"{len(lines.rows)} partitions, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
