"""Fuzzing of everything that reads foreign bytes: models, checkpoints, journals, results, objects of groups, windows of
points, keys, data files, both wires.

Valid inputs are changed as bytes and as structures; an input that reaches new lines of the package joins the inputs
that are changed next. A finding is: an error that is not ours, a process that dies, an input that takes more than 5 s
of processor time (or 30 s by the clock), or memory that grows by more than the cap. It ends when every reader has had
its inputs or the time is over, whichever comes first. The summary is one JSON object: inputs, findings, and for each
reader the share of the lines of its modules that were reached. Exit code 1 where something was found.

    python -m bench.chaos.fuzz --inputs 10000 --minutes 60 --jobs 16 --out fuzz.json
    python -m bench.chaos.fuzz --minutes 1 --only window,objects
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
import tempfile
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
TURN = 100
"""Inputs of a reader in a row: coverage begins anew with each turn."""
WITHOUT_LIMIT = 1 << 62


def work(number: int, seconds: float, inputs: int, only: list[str], report: Path) -> None:
    """One job: readers in turn, until each has had its inputs or the time is over. Writes its figures every second."""
    from bench.chaos.fuzzing.coverage import LineCoverage
    from bench.chaos.fuzzing.targets import remove, scratch, targets

    folder = scratch()
    rng = random.Random(number)
    figures: dict[str, Any] = {"inputs": {}, "findings": [], "slowest": 0.0, "growth": 0}
    os.environ["FLEGEL_MEMORY"] = "64M"
    os.environ["FLEGEL_HOME"] = str(folder / "home")
    try:
        made = [target for target in targets(folder) if chosen(target.name, only)]
        coverage = LineCoverage()
        figures["coverage"] = coverage.kind
        pools = {target.name: list(target.seeds) for target in made}
        until, written = time.monotonic() + seconds, 0.0
        counts: dict[str, int] = dict.fromkeys(pools, 0)
        figures["inputs"] = counts
        rng.shuffle(made)
        while time.monotonic() < until and any(count < inputs for count in counts.values()):
            for target in [each for each in made if counts[each.name] < inputs]:
                coverage.turn(target.name)
                for _ in range(min(TURN, inputs - counts[target.name])):
                    pool = pools[target.name]
                    sound = counts[target.name] < len(target.seeds)
                    data = pool[counts[target.name]] if sound else target.change(rng.choice(pool), rng, pool)
                    (folder / "input").write_bytes(data)
                    if _one(target, data, coverage, figures, sound) and len(pool) < KEEP and len(data) < 1 << 20:
                        pool.append(data)
                    counts[target.name] += 1
                    if time.monotonic() - written > 1.0:
                        written = time.monotonic()
                        _write(report, {**figures, "input": target.name})
                    if time.monotonic() > until:
                        break
        lines = {name: sorted(found) for name, found in coverage.lines.items()}
        _write(report, {**figures, "lines": lines, "over": True})
    finally:
        remove(folder)


def chosen(name: str, only: list[str]) -> bool:
    return not only or any(word in name for word in only)


def _write(report: Path, figures: dict[str, Any]) -> None:
    """In one step: it is read when the job is dead, too."""
    scratch = report.with_suffix(".part")
    scratch.write_text(json.dumps({**figures, "processor": time.process_time()}))
    scratch.replace(report)


def _one(target: Any, data: bytes, coverage: Any, figures: dict[str, Any], sound: bool) -> int:
    """Run one input, changed or sound; how many lines it reached first."""
    before, began, new = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), 0
    try:
        new = coverage.reached(lambda: target.run(data), sound)
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


def watch(jobs: int, seconds: float, inputs: int, only: list[str], seed: int) -> dict[str, Any]:
    """Start the jobs, notice those that die or stand still, add their figures up."""
    each = -(-inputs // jobs) if inputs else WITHOUT_LIMIT
    with tempfile.TemporaryDirectory(prefix="flegel-fuzz-") as name:
        reports = [Path(name) / f"{i}.json" for i in range(jobs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bench.chaos.fuzz", "--work"]
        processes, logs = [], []
        for i, report in enumerate(reports):
            log = report.with_suffix(".log")
            with log.open("wb") as stream:
                words = [str(seed + i), str(seconds), str(each), ",".join(only), str(report)]
                processes.append(subprocess.Popen([*command, *words], env=environment, stderr=stream))
            logs.append(log)
        stuck = _wait(processes, reports, seconds)
        return _sum(processes, reports, logs, stuck)


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


def _sum(processes: list[Any], reports: list[Path], logs: list[Path], stuck: set[int]) -> dict[str, Any]:
    total: dict[str, Any] = {
        "inputs": {}, "findings": [], "slowest_s": 0.0, "growth_mib": 0, "processor_hours": 0.0, "jobs": len(processes),
    }  # fmt: skip
    lines: dict[str, set[tuple[str, int]]] = {}
    for i, report in enumerate(reports):
        figures = json.loads(report.read_text()) if report.exists() else {"inputs": {}, "findings": []}
        if not figures.get("over"):
            what = "stood still" if i in stuck else f"died ({processes[i].returncode})"
            last = logs[i].read_text(errors="replace")[-1500:]
            total["findings"].append(
                {"target": figures.get("input", "the start"), "what": f"{what}\n{last}", "input": "", "bytes": 0}
            )
        for name, count in figures["inputs"].items():
            total["inputs"][name] = total["inputs"].get(name, 0) + count
        for name, found in figures.get("lines", {}).items():
            lines.setdefault(name, set()).update((file, line) for file, line in found)
        total["findings"] += figures["findings"]
        total["slowest_s"] = max(total["slowest_s"], round(figures.get("slowest", 0.0), 3))
        total["growth_mib"] = max(total["growth_mib"], figures.get("growth", 0) >> 20)
        total["processor_hours"] = round(total["processor_hours"] + figures.get("processor", 0.0) / 3600, 4)
        total["coverage_by"] = figures.get("coverage", total.get("coverage_by", ""))
    total["coverage"] = _coverage(lines)
    total["all_inputs"] = sum(total["inputs"].values())
    return total


def _coverage(lines: dict[str, set[tuple[str, int]]]) -> dict[str, Any]:
    """Of each reader: share of the lines in all functions of its modules, and in those that were entered."""
    from bench.chaos.fuzzing.coverage import covered
    from bench.chaos.fuzzing.targets import modules_of_readers

    modules = modules_of_readers()
    found = {}
    for name in sorted(lines):
        reached, known, entered = covered(modules[name], lines[name])
        found[name] = {
            "share": round(reached / max(known, 1), 3), "share_of_entered": round(reached / max(entered, 1), 3),
            "lines": known, "modules": list(modules[name]),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="by the clock, for all readers together")
    parser.add_argument("--inputs", type=int, default=0, help="of each reader, by all jobs together; 0: no limit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--only", default="", help="readers whose name contains one of these words, with commas between"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        number, seconds, inputs, only, report = given.work
        work(int(number), float(seconds), int(inputs), [w for w in only.split(",") if w], Path(report))
        return
    only = [word for word in given.only.split(",") if word]
    total = watch(given.jobs, 60 * given.minutes, given.inputs, only, given.seed)
    text = json.dumps(total, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    sys.exit(1 if total["findings"] else 0)


if __name__ == "__main__":
    main()
