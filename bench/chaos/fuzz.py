"""Fuzzing of everything that reads foreign bytes: models, checkpoints, journals, traces, data files, both wires.

Valid inputs are changed as bytes and as structures; an input that reaches new lines of the package joins the inputs
that are changed next. A finding is: an error that is not ours, a process that dies, an input that takes more than 5 s
of processor time (or 30 s by the clock), or memory that grows by more than the cap. The summary is one JSON object.

    python -m bench.chaos.fuzz --seconds 480 --jobs 16 --out fuzz.json
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SLOW = 5.0
"""Seconds of processor time for one input."""
STUCK = 30.0
"""Seconds without a sign of a job."""
CAP = 1 << 30
"""Bytes by which one input may raise the peak memory of its process."""
KEEP = 400
"""Inputs of a target that are kept for further changes."""


def work(number: int, seconds: float, report: Path) -> None:
    """One job: targets in turn, until the time is over. Writes its figures after each second and at the end."""
    from bench.chaos.fuzzing.coverage import LineCoverage
    from bench.chaos.fuzzing.targets import remove, scratch, targets

    folder = scratch()
    rng = random.Random(number)
    figures: dict[str, Any] = {"inputs": {}, "findings": [], "lines": 0, "slowest": 0.0, "growth": 0}
    os.environ["FLEGEL_MEMORY"] = "64M"
    try:
        made = targets(folder)
        coverage = LineCoverage()
        pools = {target.name: list(target.seeds) for target in made}
        until, written = time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            target = rng.choice(made)
            pool = pools[target.name]
            data = target.change(rng.choice(pool), rng, pool)
            (folder / "input").write_bytes(data)
            if _one(target, data, coverage, figures) and len(pool) < KEEP and len(data) < 1 << 20:
                pool.append(data)
            figures["inputs"][target.name] = figures["inputs"].get(target.name, 0) + 1
            if time.monotonic() - written > 1.0:
                written = time.monotonic()
                figures |= {"lines": len(coverage.lines), "coverage": coverage.kind, "input": target.name}
                report.write_text(json.dumps({**figures, "processor": time.process_time()}))
        report.write_text(json.dumps({**figures, "processor": time.process_time(), "over": True}))
    finally:
        remove(folder)


def _one(target: Any, data: bytes, coverage: Any, figures: dict[str, Any]) -> int:
    """Run one input; how many lines it reached first."""
    before, began, new = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), 0
    try:
        new = coverage.reached(lambda: target.run(data))
    except Exception:  # noqa: BLE001 - what is found
        _finding(figures, target.name, data, traceback.format_exc()[-1500:])
    taken = time.process_time() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    figures["slowest"], figures["growth"] = max(figures["slowest"], taken), max(figures["growth"], growth)
    if taken > SLOW:
        _finding(figures, target.name, data, f"took {taken:.1f} s of processor time")
    if growth > CAP:
        _finding(figures, target.name, data, f"took {growth >> 20} MiB more memory")
    return new


def _finding(figures: dict[str, Any], target: str, data: bytes, what: str) -> None:
    key = (target, what.splitlines()[-1])
    if len(figures["findings"]) < 20 and all(
        (f["target"], f["what"].splitlines()[-1]) != key for f in figures["findings"]
    ):
        shown = base64.b64encode(data).decode() if len(data) <= 4096 else ""
        figures["findings"].append({"target": target, "what": what, "input": shown, "bytes": len(data)})


def watch(jobs: int, seconds: float, seed: int) -> dict[str, Any]:
    """Start the jobs, notice those that die or stand still, add their figures up."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="flegel-fuzz-") as name:
        reports = [Path(name) / f"{i}.json" for i in range(jobs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.chaos.fuzz", "--work", str(seed + i), str(seconds), str(report)],
                env=environment, stderr=subprocess.DEVNULL,
            )
            for i, report in enumerate(reports)
        ]  # fmt: skip
        stuck = _wait(processes, reports, seconds)
        return _sum(processes, reports, stuck)


def _wait(processes: list[Any], reports: list[Path], seconds: float) -> set[int]:
    """Until all have ended; those without a sign for too long are killed, and returned."""
    stuck: set[int] = set()
    until = time.monotonic() + seconds + 600
    while any(p.poll() is None for p in processes):
        time.sleep(0.5)
        for i, process in enumerate(processes):
            silent = reports[i].exists() and time.time() - reports[i].stat().st_mtime > STUCK
            if process.poll() is None and (silent or time.monotonic() > until):
                stuck.add(i)
                process.kill()
                process.wait()
    return stuck


def _sum(processes: list[Any], reports: list[Path], stuck: set[int]) -> dict[str, Any]:
    total: dict[str, Any] = {
        "inputs": {},
        "findings": [],
        "lines": 0,
        "slowest_s": 0.0,
        "growth_mib": 0,
        "processor_hours": 0.0,
        "jobs": len(processes),
    }
    for i, report in enumerate(reports):
        figures = json.loads(report.read_text()) if report.exists() else {"inputs": {}, "findings": []}
        if not figures.get("over"):
            what = "stood still" if i in stuck else f"died ({processes[i].returncode})"
            total["findings"].append(
                {"target": figures.get("input", "the start"), "what": what, "input": "", "bytes": 0}
            )
        for name, count in figures["inputs"].items():
            total["inputs"][name] = total["inputs"].get(name, 0) + count
        total["findings"] += figures["findings"]
        total["lines"] = max(total["lines"], figures.get("lines", 0))
        total["slowest_s"] = max(total["slowest_s"], round(figures.get("slowest", 0.0), 3))
        total["growth_mib"] = max(total["growth_mib"], figures.get("growth", 0) >> 20)
        total["processor_hours"] = round(total["processor_hours"] + figures.get("processor", 0.0) / 3600, 4)
        total["coverage"] = figures.get("coverage", total.get("coverage", ""))
    total["all_inputs"] = sum(total["inputs"].values())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(int(given.work[0]), float(given.work[1]), Path(given.work[2]))
        return
    total = watch(given.jobs, given.seconds, given.seed)
    text = json.dumps(total, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    sys.exit(1 if total["findings"] else 0)


if __name__ == "__main__":
    main()
