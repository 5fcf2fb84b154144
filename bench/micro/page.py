"""Does the dashboard's page stay fluid and small? Many simulated workers, a real Chromium, its own measure of inputs.

    python -m bench.micro.page --workers 1024 --minutes 30 --out page.json

A server in a process of its own gets one look a second; Chromium shows the page. Once a minute the slider is dragged by
ten steps and a worker is looked for. An interaction is what Chromium reports as an event's duration: from the input to
the next frame that shows its effect, in steps of 8 ms; on a busy machine it is mostly waiting for a processor, so the
processor time of the page's main thread per input stands beside it. Memory is the private memory of the
page's process and of the server. Needs playwright and a chromium.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def serve(workers: int, seconds: float, link: Any) -> None:
    """One look a second, as a job with many workers gives."""
    from flegel.dashboard.frames import RunHistory
    from flegel.dashboard.hub import Hub
    from flegel.dashboard.server import DashboardServer
    from flegel.machine.coordinator.events import TraceRow
    from flegel.machine.coordinator.observation import JobSnapshot, WorkerSnapshot

    hub, history = Hub(), RunHistory("many", {"title": f"{workers} workers", "sync": "fsp", "live": True})
    hub.add(history)
    server = DashboardServer(hub, None, ("127.0.0.1", 0))
    link.send(server.link)
    began = time.monotonic()
    for look in range(int(seconds)):
        crew = tuple(
            WorkerSnapshot(i, 1000, look / 3 + i / 977, 1e5, (0.8 - 0.5 * (i % 8 == 0)) * look, 0.2 * look, 0.0, 0.0)
            for i in range(workers)
        )
        seen = JobSnapshot("KMeans", "fsp", "training", workers, workers, workers=crew, at=float(look), members=workers)
        row = TraceRow(float(look), look, 1 / (look + 1), 0.2, 1 / (look + 1), 500_000, 0.01, f"round {look}")
        hub.publish(lambda seen=seen, row=row: history.take(seen, [row]))  # type: ignore[misc]
        time.sleep(max(0.0, began + look + 1 - time.monotonic()))
    link.recv()
    server.close()


def private_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def page_process() -> int:
    """The largest renderer among the descendants of this process."""
    parents: dict[int, int] = {}
    renderers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, status = (entry / "cmdline").read_bytes(), (entry / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
            if b"--type=renderer" in command:
                renderers.append(int(entry.name))

    def is_ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return max((r for r in renderers if is_ours(r)), key=private_mb)


WATCH = """() => { window.durations = []; new PerformanceObserver((list) => { for (const e of list.getEntries())
  if (e.name === "input" || e.name === "keydown") durations.push([e.target ? e.target.id : "", e.name, e.duration]); })
  .observe({ type: "event", durationThreshold: 16, buffered: false }); }"""


INPUTS = 16  # of one round of `interact`


def interact(page: Any, number: int) -> None:
    page.focus("#time")
    for _ in range(10):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(150)
    page.keyboard.press("End")
    page.fill("#find", "")
    page.type("#find", str(number % 900 + 100), delay=150)
    page.wait_for_timeout(300)
    page.fill("#find", "")


def main_thread(session: Any) -> float:
    """Seconds of processor time of the page's main thread so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("there is no chromium")
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(args.workers, 60 * args.minutes, there), daemon=True
    )
    server.start()
    rows: list[dict[str, float]] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(here.recv())
        page.wait_for_selector("#timelines canvas")
        page.evaluate(WATCH)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for minute in range(int(args.minutes)):
            page.wait_for_timeout(55_000)
            before = main_thread(session)
            interact(page, minute * 37)
            spent = main_thread(session) - before
            heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
            server_mb, page_mb = private_mb(server.pid or 0), private_mb(page_process())
            rows.append({"heap_mb": heap, "server_mb": server_mb, "page_mb": page_mb, "main_ms": 1e3 * spent / INPUTS})
            print(json.dumps(rows[-1]), flush=True)
        durations = page.evaluate("durations")
        browser.close()
    here.send("end")
    return {"workers": args.workers, "minutes": args.minutes, **summary(durations, rows)}


def summary(durations: list[tuple[str, str, float]], rows: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("time", "find"):
        took = sorted(d for target, _, d in durations if target == name)
        if took:
            found[name] = {
                "slow_inputs": len(took), "median_ms": statistics.median(took), "most_ms": took[-1],
                "over_100_ms": sum(d > 100 for d in took),
            }  # fmt: skip
    for key in ("main_ms", "page_mb", "heap_mb", "server_mb"):
        found[key] = {"most": max(r[key] for r in rows), "last": rows[-1][key]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1024)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    text = json.dumps(measure(args), indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
