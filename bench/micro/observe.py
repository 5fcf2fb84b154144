"""What does it cost to be watched? Pairs of runs under fsp: one alone, one with the dashboard open and metrics scraped.

    python -m bench.micro.observe --workers 16 --seconds 10 --pairs 7 --out observe.json
    python -m bench.micro.observe --memory

A figure is points visited a second of training with the page open and `/metrics` scraped every second, over that of the
run alone right before or after it; 1 is no cost. The page is a process of its own that reads the stream of frames;
`--chromium` opens a real one. `--memory` feeds the server with 30 minutes of looks at 1,024 workers and reports its
memory, without training. Needs starlette, uvicorn and prometheus_client, all pure Python.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.dashboard.frames import RunHistory
from flegel.dashboard.hub import Hub
from flegel.dashboard.local_job import JobDashboard
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot, WorkerSnapshot
from flegel.metrics.endpoint import JobMetrics, MetricsEndpoint

MANY = 1024
HALF_HOUR = 1800


def read_stream(link: str, read: Any) -> None:
    """A page, as far as the server can tell."""
    host = link.partition("//")[2].partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", "/" + link.rpartition("/")[2])
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    connection.request("GET", "/events", headers={"Cookie": cookie})
    stream = connection.getresponse()
    while piece := stream.read1(1 << 16):
        read.value += len(piece)


def scrape(url: str, scrapes: Any) -> None:
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            return
        scrapes.value += 1
        time.sleep(1.0)


def open_page(stack: ExitStack, link: str, chromium: bool, read: Any) -> None:
    if not chromium:
        page = multiprocessing.Process(target=read_stream, args=(link, read), daemon=True)
        page.start()
        stack.callback(page.kill)
        return
    program = shutil.which("chromium") or sys.exit("there is no chromium")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", link]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(browser.wait)
    stack.callback(browser.kill)


def train(rows: Any, cluster: Any, seconds: float, observers: list[Any]) -> dict[str, float]:
    result = flegel.run(
        KMeans(k=10, init="first"), rows, workers=cluster.workers, sync="fsp", straggler="0:4x", tolerance=0,
        max_seconds=seconds, cluster=cluster, observers=observers,
    )  # fmt: skip
    return {"rate": sum(r["visits"] for r in result.rows) / result.seconds, "barriers": result.iterations}


def watched(rows: Any, cluster: Any, seconds: float, chromium: bool) -> dict[str, float]:
    read, scrapes = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    with ExitStack() as stack:
        hub = Hub()
        job, endpoint = JobDashboard(hub, "observed"), MetricsEndpoint("0")
        stack.callback(endpoint.close)
        from flegel.dashboard.server import DashboardServer  # needs the extra dashboard, which --help does not

        server = DashboardServer(hub, job, ("127.0.0.1", 0))
        stack.callback(server.close)
        open_page(stack, server.link, chromium, read)
        scraper = multiprocessing.Process(target=scrape, args=(endpoint.url, scrapes), daemon=True)
        scraper.start()
        stack.callback(scraper.kill)
        deadline = time.monotonic() + 60
        while not hub.pages and time.monotonic() < deadline:
            time.sleep(0.05)
        assert hub.pages, "no page came"
        figures = train(rows, cluster, seconds, [job, JobMetrics(endpoint)])
    return {**figures, "bytes_read": read.value, "scrapes": scrapes.value}


def pairs(args: argparse.Namespace) -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(args.rows, 28)).astype("float32")
    found = []
    with flegel.LocalCluster(args.workers) as cluster:
        train(rows, cluster, min(2.0, args.seconds), [])
        for pair in range(args.pairs):
            runs = {}
            for kind in ("alone", "watched") if pair % 2 == 0 else ("watched", "alone"):
                if kind == "alone":
                    runs[kind] = train(rows, cluster, args.seconds, [])
                else:
                    runs[kind] = watched(rows, cluster, args.seconds, args.chromium)
            found.append({**runs, "ratio": runs["watched"]["rate"] / runs["alone"]["rate"]})
            print(f"pair {pair + 1}: {found[-1]['ratio']:.4f}", flush=True)
    ratios = [pair["ratio"] for pair in found]
    return {
        "workers": args.workers, "seconds": args.seconds, "rows": args.rows, "chromium": args.chromium,
        "median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "pairs": found,
    }  # fmt: skip


def memory() -> dict[str, Any]:
    """Half an hour of looks at many workers, as fast as they can be made; resident memory before and after."""
    before = resident()
    hub, history = Hub(), RunHistory("many", {"title": "many", "sync": "fsp", "live": True})
    hub.add(history)
    from flegel.dashboard.server import DashboardServer

    server = DashboardServer(hub, None, ("127.0.0.1", 0))
    read = multiprocessing.Value("q", 0)
    with ExitStack() as stack:
        stack.callback(server.close)
        open_page(stack, server.link, False, read)
        began = time.monotonic()
        for look in range(HALF_HOUR):
            workers = tuple(
                WorkerSnapshot(
                    i, 1000, look / 3 + i / MANY, 123456.0, 0.7 * look + i / 977, 0.2 * look, 0.1 * look, 0.0
                )
                for i in range(MANY)
            )
            seen = JobSnapshot("KMeans", "fsp", "training", MANY, MANY, workers=workers, at=float(look), members=MANY)
            row = TraceRow(float(look), look, 1.0 / (look + 1), 0.2, 1.0 / (look + 1), 500_000, 0.01, f"round {look}")
            hub.publish(lambda seen=seen, row=row: history.take(seen, [row]))  # type: ignore[misc]
        took = time.monotonic() - began
        after = resident()
    return {
        "workers": MANY, "looks": HALF_HOUR, "milliseconds_a_look": 1e3 * took / HALF_HOUR,
        "resident_mb_before": before, "resident_mb_after": after, "sent_mb": read.value / 1e6,
    }  # fmt: skip


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--chromium", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = memory() if args.memory else pairs(args)
    text = json.dumps(found, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text if args.memory else json.dumps({k: v for k, v in found.items() if k != "pairs"}))


if __name__ == "__main__":
    main()
