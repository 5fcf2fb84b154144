"""Is this commit slower than the ones before? Ratios to scikit-learn in the same run, kept for each commit.

    python -m bench.history measure [--keep]     # print the ratios; --keep appends them to bench/history.jsonl
    python -m bench.history check                # exit code 1 where a ratio is 10 % below the recent ones
    python -m bench.history check --only "small job, LR"
    python -m bench.history page                 # write docs/results/history.md, its JSON and its picture

A ratio is the peer's processor time over ours, so above 1 Flegel is ahead: processor time because other programs on the
machine change it little, and one thread for both because two machines of one kind then compare. The two take turns; the
least time of each counts. Recent ratios are the last five that were kept on this kind of processor. A ratio that has
fallen is measured up to three times before it counts as fallen; the least times of all count. Workers are threads of
this process, whose time is counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.common.history_page import write_page

KEPT = Path(__file__).with_name("history.jsonl")
FALLEN_SHARE = 0.9  # of the recent ratios, below which a commit is slower
RECENT = 5  # kept records that a commit is compared with
CHANGED = "+"  # after the commit of a record: files differed from it
TRIES = 3  # measurements of a ratio that seems to have fallen


class Least(NamedTuple):
    """The least processor time of a unit so far. Noise only makes times longer, on either side, so that the ratio of
    both least times comes closer to the truth with every call; the best of several ratios would not."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return round(self.theirs / self.ours, 3)

    def and_again(self, other: Least) -> Least:
        return Least(min(self.ours, other.ours), min(self.theirs, other.theirs))


class Pair(NamedTuple):
    """The same work by Flegel and by scikit-learn. Each returns how many units it did: passes, or whole jobs."""

    ours: Callable[[], int]
    theirs: Callable[[], int]


def blobs(rows: int, columns: int) -> Any:
    """Ten overlapping clusters, float32."""
    rng = np.random.default_rng(rows + columns)
    centres = 1.5 * rng.normal(size=(10, columns))
    return (centres[rng.integers(0, 10, rows)] + rng.normal(size=(rows, columns))).astype(np.float32)


def lloyd(rows: int, columns: int, k: int, passes: int) -> Pair:
    """Passes of k-means from a given start, each with its barrier."""
    from sklearn.cluster import KMeans as PeerKMeans

    import flegel
    from flegel.algorithms.kmeans.kmeans import KMeans

    data = blobs(rows, columns)
    start = data[np.random.default_rng(1).choice(rows, k, replace=False)].copy()
    options = {
        "sync": "bsp",
        "max_iterations": passes,
        "tolerance": 0.0,
        "workers": 1,
        "threads": 1,
        "processes": False,
    }
    peer = PeerKMeans(k, init=start, n_init=1, max_iter=passes, tol=0.0, algorithm="lloyd")
    return Pair(
        lambda: flegel.run(KMeans(k=k, init=start), data, **options).iterations,
        lambda: int(peer.fit(data).n_iter_),
    )


def seeding(rows: int, k: int) -> Pair:
    """A start by k-means++ and one pass."""
    from sklearn.cluster import KMeans as PeerKMeans

    import flegel
    from flegel.algorithms.kmeans.kmeans import KMeans

    data = blobs(rows, 28)
    options = {"sync": "bsp", "max_iterations": 1, "tolerance": 0.0, "workers": 1, "threads": 1, "processes": False}
    peer = PeerKMeans(k, n_init=1, max_iter=1, tol=0.0, random_state=0)
    return Pair(
        lambda: flegel.run(KMeans(k=k), data, **options).iterations,
        lambda: int(peer.fit(data).n_iter_),
    )


def small_jobs(algorithm: str, rows: int, jobs: int) -> Pair:
    """Whole calls with defaults, several of them, because one is short for the clock."""
    from sklearn.cluster import KMeans as PeerKMeans
    from sklearn.linear_model import LogisticRegression

    import flegel
    from flegel.algorithms import LR, KMeans

    data = blobs(rows, 28)
    labels = (data @ np.random.default_rng(2).normal(size=28) > 0).astype(int)
    given = data if algorithm == "kmeans" else (data, labels)
    peer = PeerKMeans(10, random_state=0) if algorithm == "kmeans" else LogisticRegression()

    def ours() -> int:
        for _ in range(jobs):
            flegel.run(KMeans(k=10) if algorithm == "kmeans" else LR(), given, workers=1, threads=1, processes=False)
        return jobs

    def theirs() -> int:
        for _ in range(jobs):
            peer.fit(data, labels)
        return jobs

    return Pair(ours, theirs)


MEASURES: dict[str, Callable[[], Pair]] = {
    "20 passes, 28 columns, k=10": lambda: lloyd(200_000, 28, 10, 20),
    "6 passes, 384 columns, k=256": lambda: lloyd(20_000, 384, 256, 6),
    "100 passes of 500 rows (barrier)": lambda: lloyd(500, 28, 10, 100),
    "start, k=100": lambda: seeding(100_000, 100),
    "small job, k-means": lambda: small_jobs("kmeans", 1_000, 10),
    "small job, LR": lambda: small_jobs("lr", 1_000, 10),
}


def least(name: str, rounds: int) -> Least:
    """Of several calls of each side in turn, after one of each that is not counted."""
    pair = MEASURES[name]()
    pair.ours(), pair.theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, found in zip(pair, times, strict=True):
            before = time.process_time()
            units = call()
            found.append((time.process_time() - before) / units)
    return Least(min(times[0]), min(times[1]))


def measure(rounds: int, names: list[str] | None = None) -> dict[str, Least]:
    """By name; of all measures where no names are given."""
    from threadpoolctl import threadpool_limits

    for module in ("sklearn.cluster", "sklearn.linear_model"):
        importlib.import_module(module)  # with its libraries of threads: the limit is for those that are there
    found = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both say that passes ran out
        for name in names or list(MEASURES):
            found[name] = least(name, rounds)
            print(f"{name:34s} {found[name].ratio:8.3f}", flush=True)
    return found


def kept_records(path: Path = KEPT) -> list[dict[str, Any]]:
    """Oldest first: commit, when it was made, the processor, ratios by name."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def recent_ratios(records: list[dict[str, Any]], processor: str) -> dict[str, float]:
    """The medians of the last ratios on this kind of processor; those of changed trees belong to no commit."""
    same = [r["ratios"] for r in records if r["processor"] == processor and not r["commit"].endswith(CHANGED)][-RECENT:]
    names = {name for ratios in same for name in ratios}
    return {name: statistics.median(ratios[name] for ratios in same if name in ratios) for name in sorted(names)}


def fallen(recent: dict[str, float], measured: dict[str, float]) -> list[str]:
    """Names of ratios that are below the recent ones by more than the limit."""
    return [name for name, value in measured.items() if name in recent and value < FALLEN_SHARE * recent[name]]


def check(
    recent: dict[str, float], again: Callable[[list[str]], dict[str, Least]]
) -> tuple[dict[str, float], list[str]]:
    """Ratios after up to three measurements, and those that are still fallen. `again` measures some of them."""
    known = again([])
    for _ in range(TRIES - 1):
        slow = fallen(recent, ratios_of(known))
        if not slow:
            break
        known |= {name: known[name].and_again(more) for name, more in again(slow).items()}
    return ratios_of(known), fallen(recent, ratios_of(known))


def ratios_of(times: dict[str, Least]) -> dict[str, float]:
    return {name: found.ratio for name, found in times.items()}


def keep(before: str, after: str, processor: str, ratios: dict[str, float], path: Path = KEPT) -> int:
    """Append a record. `before` and `after` are the commits, with their marks, around the measurement; where they
    differ, nobody knows what was measured."""
    if before != after or not before:
        print(f"Nothing was kept: measured from commit {before or 'none'} to {after or 'none'}.", file=sys.stderr)
        return 1
    if before.endswith(CHANGED):
        print(f"Kept as {before}: files differ from that commit, so no commit is compared with it.", file=sys.stderr)
    record = {"commit": before, "at": time.strftime("%Y-%m-%d"), "processor": processor, "ratios": ratios}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return 0


def main() -> int:
    from flegel.runtime.processes import host
    from flegel.terminal.reporting import errors_as_sentences

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "check", "page"])
    parser.add_argument("--rounds", type=int, default=7, help="calls of each side, of which the fastest counts")
    parser.add_argument("--keep", action="store_true", help="append what was measured to bench/history.jsonl")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="this measure; may be given again")
    options = parser.parse_args()
    processor = host.machine()["processor"]
    records = kept_records()
    if options.what == "page":
        if not records:
            print("Nothing is kept yet; use: python -m bench.history measure --keep", file=sys.stderr)
            return 2
        with errors_as_sentences():
            write_page(records)
        return 0
    if options.what == "measure":
        before = host.commit()
        ratios = ratios_of(measure(options.rounds, options.only))
        return keep(before, host.commit(), processor, ratios) if options.keep else 0
    recent = recent_ratios(records, processor)
    if not recent:
        print(
            f"No record of this processor ({processor}); use: python -m bench.history measure --keep", file=sys.stderr
        )
        return 2
    best, slow = check(recent, lambda names: measure(options.rounds, names or options.only))
    for name in slow:
        print(f"slower: {name}: {best[name]:.3g} times scikit-learn, and was {recent[name]:.3g}")
    print(f"{len(best) - len(slow)} of {len(best)} ratios held.")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
