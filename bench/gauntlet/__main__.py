"""python -m bench.gauntlet: tables that nobody prepared × algorithms × models × workers, beside other libraries.

    python -m bench.gauntlet --jobs 16                     everything; goes on where it was interrupted
    python -m bench.gauntlet --part gmm --part botnet      units whose table or algorithm contains one of these words
    python -m bench.gauntlet --workers rotate              one number of workers a model, instead of all four
    python -m bench.gauntlet --workers team                a team of threads in place of several workers
    python -m bench.gauntlet --write                       also docs/results/gauntlet.md and gauntlet.json

Each process of a pool trains units on a cluster of its own; one that exceeds the time limit is ended, and that is a
finding. Exits with 1 where a cell failed.
"""

from __future__ import annotations

import argparse
import json
import queue
import selectors
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.program import ROOT, command, commit, environment, list_page, machine
from bench.gauntlet import real
from bench.gauntlet.cells import FAILURES, MODELS, WORKERS, algorithms_of
from bench.gauntlet.report import counted, load, page, summary
from bench.gauntlet.tables import REAL, TABLES

UNIT_SECONDS = 300.0  # after which a process is ended
RESULTS = ROOT / "docs" / "results"
FIRST = ("plain kmeans", "plain gmm", "plain fcm", "lr_plain lr", "nmf_low_rank nmf", "lr_rare_classes lr")
"""Units that compile what the others load from the cache; they run before all others."""
Unit = tuple[str, str]


def units(parts: list[str]) -> list[Unit]:
    """Everything that was asked for; large tables first, so that no long unit remains at the end."""
    found = []
    for name, build in TABLES.items():
        if name in REAL and not real.present():
            continue
        if parts and not any(part in name for part in parts) and not _by_algorithm(parts):
            continue
        made = build()
        size = made.rows[2].size if hasattr(made.rows, "indptr") else made.rows.size
        for kind in algorithms_of(name, made):
            if not parts or any(part in name or kind.startswith(part) for part in parts):
                found.append((size * made.k, (name, kind)))
    return [unit for _, unit in sorted(found, key=lambda pair: -pair[0])]


def _by_algorithm(parts: list[str]) -> bool:
    return any(part.startswith(("kmeans", "gmm", "fcm", "lr", "nmf")) for part in parts)


def cells_of(unit: Unit, workers: str, models: tuple[str, ...]) -> list[str]:
    if workers == "all":
        return [f"{model}:{count}" for model in models for count in WORKERS]
    if workers != "rotate":
        return [f"{model}:{count}" for model in models for count in workers.split(",")]
    shift = sum(map(ord, "".join(unit)))
    return [f"{model}:{WORKERS[(shift + i) % len(WORKERS)]}" for i, model in enumerate(models)]


class Child:
    """A process that trains one unit after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, line: str, seconds: float) -> str | None:
        """Its answer; None where it ended or took too long. Then the next call starts another one."""
        if self._process is None:
            one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                command("bench.gauntlet.cells"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=environment(**one_thread), cwd=ROOT,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            answer = process.stdout.readline() if selector.select(seconds) else ""
        if not answer:
            process.kill()
            process.wait()
            self._process = None
            return None
        return answer

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def run_all(wanted: list[Unit], cells: Callable[[Unit], list[str]], jobs: int, out: Path) -> None:
    """Every unit once; each record is appended as soon as it is there."""
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in wanted:
        todo.put(unit)
    lock, done = threading.Lock(), 0

    def work() -> None:
        nonlocal done
        child = Child()
        while True:
            try:
                unit = todo.get_nowait()
            except queue.Empty:
                break
            line = " ".join([*unit, *cells(unit)])
            answer = child.ask(line, UNIT_SECONDS)
            record: dict[str, Any] = (
                json.loads(answer)
                if answer
                else {"table": unit[0], "algorithm": unit[1], "points": 0, "columns": 0, "peer": None,
                      "cells": {"all": {"verdict": "error", "reason": f"ended or no answer in {UNIT_SECONDS:g} s"}}}
            )  # fmt: skip
            with lock:
                done += 1
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                verdicts = dict(counted([record]))
                print(f"{done:4}/{len(wanted)} {unit[0]:28} {unit[1]:14} {verdicts}", flush=True)
        child.close()

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(wanted)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes that train units (default 2)")
    parser.add_argument("--workers", default="all", help="all (default), rotate, team, or numbers such as 1,4")
    parser.add_argument("--models", default=",".join(MODELS), help="with commas between (default: %(default)s)")
    parser.add_argument("--part", action="append", default=[], help="only units whose table or algorithm matches")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gauntlet.jsonl", help="records; added to")
    parser.add_argument("--fresh", action="store_true", help="forget earlier records")
    parser.add_argument("--list", action="store_true", help="print the units and stop")
    parser.add_argument("--write", action="store_true", help="write docs/results/gauntlet.md and gauntlet.json")
    options = parser.parse_args()
    wanted = units(options.part)
    if options.list:
        print(*(" ".join(unit) for unit in wanted), sep="\n")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        options.out.unlink(missing_ok=True)
    known = {(r["table"], r["algorithm"]) for r in load(options.out)}
    rest = [unit for unit in wanted if unit not in known]
    began = time.perf_counter()
    first = [unit for unit in rest if " ".join(unit) in FIRST]
    cells = partial(cells_of, workers=options.workers, models=tuple(options.models.split(",")))
    run_all(first, cells, options.jobs, options.out)
    run_all([unit for unit in rest if unit not in first], cells, options.jobs, options.out)
    records = [r for r in load(options.out) if (r["table"], r["algorithm"]) in set(wanted)]
    order = {name: place for place, name in enumerate(TABLES)}
    records.sort(key=lambda r: order[r["table"]])
    about = {"command": shlex.join(["python", "-m", "bench.gauntlet", *sys.argv[1:]]), "commit": commit(),
             "machine": machine(), "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    record = summary(records, about)
    facts = record["figures"]
    print(json.dumps({k: facts[k] for k in ("tables", "units", "cells", "verdicts", "seconds")}))
    for each in facts["failures"]:
        print(json.dumps(each))
    if options.write:
        (RESULTS / "gauntlet.md").write_text(page(records, about), encoding="utf-8")
        (RESULTS / "gauntlet.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        list_page("gauntlet", "right on tables that nobody prepared?")
    sys.exit(1 if any(facts["verdicts"].get(verdict) for verdict in FAILURES) else 0)


if __name__ == "__main__":
    main()
