"""How fast do points move under limited bandwidth, and does training notice?

Table 2 (k-means on HIGGS): bandwidth of a plain socket, of moves while nobody trains (`only`) and while everybody does
(`normal`), for links of several speeds, alone and beside a second real job (natural); visits a second while points
move; and the time to the same objective without balance, with asynchronous and with synchronous moves. Every worker
lives in a network namespace of its own, and what it sends is held back by `tc tbf`. That takes root, `ip` and `tc` on
Linux; elsewhere everything is left out.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

import numpy as np

from bench.common import suite
from bench.common.namespaces import Network, unavailable
from bench.common.record import Chart, Series
from bench.common.remote_cluster import SubprocessLauncher
from bench.common.runtime_comparison import reached_by
from bench.common.scripted_moves import Script, moves_of, point_bytes, scripted, visits_a_second
from bench.common.second_job import second_job, workers_beside
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.processes.endpoints import LocalEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.processes.worker_processes import launch
from flegel.runtime.worker.process import WorkerConfig

FIGURE = "Table 2"
NEEDS = ("option:straggler", "option:balance", "algorithm:kmeans")

LIMITS: dict[str, list[int]] = {
    "smoke": [200],
    "laptop": [1000, 200],
    "small": [0, 1000, 200, 50],
    "paper": [0, 1000, 500, 200, 100, 50],
}
"""Mbit/s; 0: not limited."""
SECONDS = {"smoke": 0.4, "laptop": 4.0, "small": 10.0, "paper": 10.0}
"""How long a move should take."""
INTERVAL = {"smoke": "25ms", "": "100ms"}
ROUNDS = {"smoke": 60}
"""After which the job around a move ends, where it is not to go on for longer than the move."""
ROWS = {"smoke": 0, "laptop": 1_000_000, "small": 4_000_000, "paper": 8_000_000}
"""Of the job around it, at least: rounds should be longer than barriers."""


class NamespaceCluster(WorkerCluster):
    """Workers that reach each other and the coordinator through their virtual cables only."""

    def __init__(self, workers: int, links: Network) -> None:
        def start(config: WorkerConfig) -> subprocess.Popen[bytes]:
            return launch(config, links.command(config.worker))

        super().__init__(workers, LocalEndpoint(links.host), SubprocessLauncher(start))


def raw_socket(links: Network, size: int) -> float:
    """Megabytes a second of one plain connection from the first namespace to the second."""
    server = links.inside(1, lambda: socket.create_server((links.address(1), 0)))
    address, chunk = server.getsockname(), os.urandom(256 << 10)

    def send() -> None:
        with socket.create_connection(address) as link:
            for _ in range(-(-size // len(chunk))):
                link.sendall(chunk)

    sender = threading.Thread(target=lambda: links.inside(0, send), daemon=True)
    sender.start()
    link, _ = server.accept()
    began, got, room = time.monotonic(), 0, bytearray(1 << 20)
    while part := link.recv_into(room):
        got += part
    took = time.monotonic() - began
    sender.join()
    link.close()
    server.close()
    return got / took / 1e6


def table(bench: suite.Suite, links: Network, cluster: Cluster, limits: list[int], scenario: str = "") -> None:
    """A line of the paper's table for each limit; `scenario`: what goes on beside it, for the titles."""
    lines: dict[str, list[tuple[float, float]]] = {"plain socket": [], "only": [], "normal": []}
    sample = np.zeros((64, 28), np.float32)
    each = point_bytes(sample)
    for limit in limits:
        name = (f"{limit} Mbit/s" if limit else "not limited") + scenario
        if bench.over(name):
            return
        rate = limit / 8 * 1e6 if limit else 5e8
        seconds = SECONDS[bench.scale] if limit else SECONDS[bench.scale] / 8
        points = int(rate * seconds / each)
        data = np.random.default_rng(0).standard_normal((max(4 * points, ROWS[bench.scale]), 28), dtype=np.float32)
        links.limit(limit)
        raw = raw_socket(links, int(rate * seconds))
        lines["plain socket"].append((float(limit), raw))
        told, arrived = [f"plain socket {raw:.1f} MB/s"], []
        for kind, mode in (("only", "sync"), ("normal", "async")):
            bench.say(f"{name}, {kind}")
            script = Script(1, (0, 1, points))
            result, watched = scripted(
                cluster, data, script, mode, 1.5 * seconds + 6,
                interval=INTERVAL.get(bench.scale, INTERVAL[""]), rounds=ROUNDS.get(bench.scale),
            )  # fmt: skip
            moved = moves_of(watched.arrivals, range(1))
            speed = moved["bytes"] / max(moved["seconds"], 1e-9) / 1e6
            lines[kind].append((float(limit), speed))
            arrived.append(int(moved["points"]))
            told.append(f"{kind} {speed:.1f} MB/s ({speed / raw:.0%})")
            if moved["points"] < 0.9 * points:
                told.append(f"only {moved['points']} of {points} points moved in time")
            if mode == "async":
                rest = result.rows[10:]
                quiet, moving = ([r for r in rest if bool(r["in_flight"]) == moves] for moves in (False, True))
                ratio = visits_a_second(result.rows, moving) / max(visits_a_second(result.rows, quiet), 1e-9)
                told.append(f"visits a second while points move / while none do: {ratio:.3f}")
        bench.answer_time(
            f"{name}: {', '.join(told)}.",
            f"{name}: {arrived[0]:,} of {points:,} points moved in time while nobody trained, {arrived[1]:,} while "
            "everybody did.",
        )
    bench.chart(
        Chart(
            title=f"Bandwidth of moving points{scenario}",
            x="limit of each link, Mbit/s (0: none)",
            y="MB/s",
            series=[Series(name=name, points=found) for name, found in lines.items()],
        )
    )


def main() -> None:
    told = {"default": "", "help": "Mbit/s with commas between, 0: not limited; by default as the scale says"}
    options = suite.arguments(__doc__, [("--limits", told)])
    try:
        limits = [int(word) for word in options.limits.split(",") if word] or LIMITS[options.scale]
    except ValueError:
        raise SystemExit(
            f"--limits {options.limits}: give whole numbers of Mbit/s with commas between, as in 200,50."
        ) from None
    with suite.Suite(__file__, __doc__, options) as bench:
        why = unavailable()
        if why:
            bench.skip("limited links", why)
            return
        with Network(bench.workers) as links, NamespaceCluster(bench.workers, links) as cluster:
            table(bench, links, cluster, limits)
            with second_job(workers_beside(bench.workers)):
                table(bench, links, cluster, limits, ", natural")
            bench.use_cluster(bench.workers, cluster)
            for limit in limits:
                name = f"kmeans-higgs, {f'{limit} Mbit/s' if limit else 'not limited'}"
                links.limit(limit)
                straggler = f"{suite.quarter(bench.workers)}:8x"
                candidates = "fsp:balance=off,fsp:balance=async,fsp:balance=sync"
                found = bench.compare(suite.KMEANS, candidates, straggler, title=name)
                if found is None:
                    continue
                for mode in ("async", "sync"):
                    ratio = suite.shown(found.ratio("fsp:balance=off", f"fsp:balance={mode}"))
                    bench.answer_time(
                        f"{name}: without balance it takes {ratio} times as long as with balance={mode}.",
                        f"{name}: {reached_by(found)}.",
                    )
            bench.leave_clusters()


if __name__ == "__main__":
    main()
