"""Fault simulation by the thousand: jobs on virtual time under lost, doubled and reordered messages, deaths and worse.

    python -m bench.chaos.simulate --seeds 250                     250 of each kind, as `make faults` does
    python -m bench.chaos.simulate --seeds 100000 --book FILE      nightly; interrupted, it goes on where it was
        --minutes 25                                               and ends for today after so long
    python -m bench.chaos.simulate --seed 4711 -v                  replay one, with its event log

Kinds: `losing` (30 % dropped, 30 % doubled, reordered, under bsp: the result must be that of a calm job, bit for bit),
`anything` (any model, any mixture of faults), `freezing` (the coordinator and workers frozen for 1 to 60 s, alone and
together; 245 seeds are the matrix of all models), `partitioned` (in both directions or one, healed after 5 to 60 s),
`jumping` (clocks, by an hour), `delayed` (links); seeds of these four take the seven models in turn. `resting`: any
mixture of faults while workers rest and come back. `served`: any model with parameter servers, which die, freeze and
are cut off. `scaled`: such a job gets more and fewer servers meanwhile.
A seed that breaks a law is named; the same seed gives the same story.
Exit code 1 where a law was broken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.faults.faulty_job import Outcome, Violation, run
from bench.faults.scenarios import (
    Scenario,
    anything,
    delayed,
    freezing,
    jumping,
    losing,
    partitioned,
    resting,
    scaled,
    served,
)
from bench.faults.served_job import run_served

KINDS = {
    "losing": losing, "anything": anything, "freezing": freezing, "partitioned": partitioned, "jumping": jumping,
    "delayed": delayed, "resting": resting, "served": served, "scaled": scaled,
}  # fmt: skip
PIECE = 25  # seeds that a process takes at once
TOLD = ("events", "packets", "lost", "again", "stale", "commits", "moved", "incidents")


def _run(scenario: Scenario, log: Callable[[str], None] | None = None) -> Outcome:
    return (run_served if scenario.servers else run)(scenario, log)


def some(kind: str, first: int, last: int) -> tuple[Counter[str], dict[str, str]]:
    """What happened in these seeds, in sum, and which broke a law."""
    sums: Counter[str] = Counter()
    broken: dict[str, str] = {}
    for seed in range(first, last):
        sums["jobs"] += 1
        try:
            found = _run(KINDS[kind](seed))
        except Violation as violation:
            broken[f"{kind} {seed}"] = str(violation)
            continue
        for name in TOLD:
            sums[name] += getattr(found, name)
        sums["ended early"] += bool(found.error)
    return sums, broken


def pieces(kinds: list[str], start: int, seeds: int, done: set[str]) -> Iterator[tuple[str, int, int]]:
    for first in range(start, start + seeds, PIECE):
        for kind in kinds:
            if f"{kind} {first}" not in done:
                yield kind, first, min(first + PIECE, start + seeds)


def many(options: argparse.Namespace) -> int:
    kinds = [options.kind] if options.kind else list(KINDS)
    book: dict[str, Any] = {"start": options.start, "seeds": options.seeds, "done": [], "sums": {}, "broken": {}}
    if options.book and options.book.exists():
        book = json.loads(options.book.read_text())
        if (book["start"], book["seeds"]) != (options.start, options.seeds):
            print(
                f"{options.book} belongs to seeds {book['start']} + {book['seeds']}; give another --book.",
                file=sys.stderr,
            )
            return 2
    whole = len(list(pieces(kinds, options.start, options.seeds, set())))
    todo = list(pieces(kinds, options.start, options.seeds, set(book["done"])))
    sums, began = Counter(book["sums"]), time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        found = pool.map(some, *zip(*todo, strict=True)) if todo else ()
        for (kind, first, _), (more, broken) in zip(todo, found, strict=True):
            sums.update(more)
            book["broken"].update(broken)
            book["done"].append(f"{kind} {first}")
            for name, why in broken.items():
                print(f"BROKEN {name}: {why}")
                print(f"  replay: python -m bench.chaos.simulate --kind {name.replace(' ', ' --seed ')} -v")
            if options.book:
                book["sums"] = dict(sums)
                scratch = options.book.with_suffix(".part")
                scratch.write_text(json.dumps(book))
                scratch.replace(options.book)
            if time.monotonic() - began > 60 * options.minutes:
                pool.shutdown(cancel_futures=True)
                print(f"{options.minutes:g} minutes are over; {len(book['done'])} of {whole} pieces are done.")
                break
    print(", ".join(f"{sums[name]} {name}" for name in ("jobs", *TOLD, "ended early")))
    print(f"{len(book['broken'])} broke a law; {time.monotonic() - began:.0f} s with {options.processes} processes")
    return 1 if book["broken"] else 0


def one(options: argparse.Namespace) -> int:
    failed = 0
    for kind in [options.kind] if options.kind else list(KINDS):
        scenario = KINDS[kind](options.seed)
        print(scenario)
        try:
            found = _run(scenario, print if options.verbose else None)
            print(", ".join(f"{getattr(found, name)} {name}" for name in TOLD), f"in {found.seconds:.3f} virtual s")
            print(f"{kind} {options.seed} holds{': ' + found.error if found.error else ''}")
        except Violation as violation:
            print(f"BROKEN {kind} {options.seed}: {violation}")
            failed = 1
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=250, help="how many of each kind")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--book", type=Path, help="where to keep what is done, to go on after an interruption")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; with --book, go on later")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every event")
    options = parser.parse_args()
    if options.seeds < 1 or options.processes < 1 or not options.minutes > 0:
        parser.error("--seeds and --processes must be at least 1, --minutes more than 0.")
    sys.exit(many(options) if options.seed is None else one(options))


if __name__ == "__main__":
    main()
