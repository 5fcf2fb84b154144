"""python -m bench.thirty: thirty tasks of a newcomer beside scikit-learn, quality and time with default settings.

    python -m bench.thirty --jobs 8                           all of them on 16 cores, two cores each
    python -m bench.thirty --tasks kmeans-skin lr --seeds 3   tasks whose name begins with one of these words
    python -m bench.thirty --out thirty.json                  also a summary
    python -m bench.thirty --write                            also docs/results/thirty.json and thirty.md
    python -m bench.thirty --summary thirty.json --write      the page of a summary that was made elsewhere

Each task runs in a process of its own, bound to two cores where the system allows that; a line is printed as soon as it
is done. Tables are found as in the gauntlet: in ../shared/data, or in FLEGEL_TEST_DATA. Exits with 1 where a task
failed; that one is worse or slower is a result.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.common.program import ROOT, command, commit, environment, list_page, machine
from bench.thirty.report import page, shown, summary
from bench.thirty.tasks import MORE, SMALL, TASKS

RESULTS = ROOT / "docs" / "results"
CORES = 2  # of a task
TASK_SECONDS = 1800.0  # after which a process is ended
FIRST = ("kmeans-kdd99", "lr-kdd99", "lr-text", "lr-embeddings", "lr-fashion", "gmm-full-higgs", "nmf-fashion")
"""Tasks that take longest begin first, so that none runs alone at the end."""


def chosen(words: list[str]) -> list[str]:
    """Names of tasks that begin with one of the words; the thirty by default."""
    every = [*TASKS, *MORE, *SMALL]
    names = [name for name in every if any(name.startswith(word) for word in words)] if words else list(TASKS)
    return sorted(names, key=lambda name: (name not in FIRST, every.index(name)))


def pairs_of_cores(jobs: int) -> list[set[int] | None]:
    """Cores for each process; None where the system cannot bind or has too few."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    own = sorted(os.sched_getaffinity(0))
    groups = [set(own[at : at + CORES]) for at in range(0, len(own) - CORES + 1, CORES)]
    return [groups[job] if job < len(groups) else None for job in range(jobs)]


def run_all(names: list[str], seeds: str, jobs: int) -> list[dict[str, Any]]:
    """Records of all tasks, in the order of the table."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    done: dict[str, dict[str, Any]] = {}

    def work(cores: set[int] | None) -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)  # of this thread; its children inherit it
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            done[name] = measured(name, seeds)
            print(shown(done[name]), flush=True)

    threads = [threading.Thread(target=work, args=(cores,)) for cores in pairs_of_cores(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[name] for name in (*TASKS, *MORE, *SMALL) if name in done]


def measured(name: str, seeds: str) -> dict[str, Any]:
    """The record of one task; `failed` says why there is none."""
    try:
        asked = subprocess.run(
            command("bench.thirty.measure", name, seeds), capture_output=True, text=True, check=False,
            timeout=TASK_SECONDS, env=environment(), cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"task": name, "absent": False, "failed": f"took more than {TASK_SECONDS:g} s"}
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"ended with {asked.returncode}"]
        return {"task": name, "absent": False, "failed": lines[-1][:200]}
    found: dict[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[], help="names, or how they begin (default: the thirty)")
    parser.add_argument("--seeds", default="10", help="how many, or the first and the last such as 5-9 (default 10)")
    parser.add_argument("--jobs", type=int, default=1, help="tasks at a time, two cores each (default 1)")
    parser.add_argument("--out", type=Path, help="where the summary goes")
    parser.add_argument("--write", action="store_true", help="write docs/results/thirty.json and thirty.md")
    parser.add_argument("--summary", type=Path, help="measure nothing, take this summary")
    parser.add_argument("--commit", default=None, help="the commit that is measured (default: git is asked)")
    parser.add_argument("--list", action="store_true", help="print the names of the tasks and stop")
    options = parser.parse_args()
    names = chosen(options.tasks)
    if options.list:
        print(*names, sep="\n")
        return
    if not names:
        parser.error(f"no task begins with {' or '.join(options.tasks)}; --list names all")
    if options.summary:
        whole = json.loads(options.summary.read_text(encoding="utf-8"))
    else:
        began = time.perf_counter()
        records = run_all(names, options.seeds, options.jobs)
        about = {"command": shlex.join(["python", "-m", "bench.thirty", *sys.argv[1:]]), "machine": machine(),
                 "commit": options.commit or commit(), "seeds": options.seeds,
                 "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
        whole = summary(records, about)
        facts = whole["figures"]
        print(f"{facts['tasks']} tasks: {facts['as_good']} as good, {facts['as_fast']} as fast; {facts['seconds']} s")
    text = json.dumps(whole, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if options.write:
        (RESULTS / "thirty.json").write_text(text, encoding="utf-8")
        (RESULTS / "thirty.md").write_text(page(whole), encoding="utf-8")
        list_page("thirty", "as good and as fast as scikit-learn on thirty tasks, with default settings?")
    sys.exit(1 if any("failed" in record for record in whole["figures"]["records"]) else 0)


if __name__ == "__main__":
    main()
