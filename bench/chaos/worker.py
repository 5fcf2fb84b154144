"""Workers of running jobs are killed, or frozen and woken, at random times: does training go on, and how soon?

    python -m bench.chaos.worker --kills 300 --out kills.jsonl
    python -m bench.chaos.worker --stops 60 --out stops.jsonl

K-means, mixtures and factorizations under every synchronization model. Each disturbance is a line of JSON: how long
until training went on, visits that had to be redone, whether anything hung. Each job is another line: its objective
beside that of an undisturbed run, the statistics beside a recomputation, processes and memory left behind. Lines are
appended, and what is there already counts, so a run that was broken off can be taken up again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import flegel
from flegel import LocalCluster
from flegel.messages import Envelope, Report
from flegel.runtime import clock
from flegel.runtime.job import run

MODELS = ("fsp", "bsp", "asp", "ssp", "psp", "bsp-mini", "fsp-binary")
ALGORITHMS = ("kmeans", "gmm", "nmf")
HANG = 60.0  # seconds without going on: a hang
TIMEOUT = 4.0  # --worker-timeout of the jobs whose workers are frozen
NEAR = 0.01  # relative distance from the undisturbed objective that counts as the same


class Lenient(LocalCluster):
    """Does not kill workers that it evicts, as if they were out of reach: they may come back and send messages."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.registry.end = lambda worker, process, gently: self.registry.departing.append(process)  # type: ignore[method-assign]
        self.stale: dict[str, int] = {}

    def dismiss(self, envelope: Envelope) -> None:
        kind = type(envelope.body).__name__
        self.stale[kind] = self.stale.get(kind, 0) + 1
        super().dismiss(envelope)


def data_for(algorithm: str) -> Any:
    rng = np.random.default_rng(7)
    if algorithm == "nmf":
        from scipy import sparse

        left, right = rng.random((12_000, 5)), rng.random((5, 200))
        mask = sparse.random(12_000, 200, density=0.05, random_state=7, format="csr")
        mask.data = np.asarray([left[i] @ right[:, j] for i, j in zip(*mask.nonzero(), strict=True)])
        return mask
    rows, columns = (120_000, 8) if algorithm == "kmeans" else (30_000, 5)
    means = rng.normal(scale=4.0, size=(6, columns))
    return means[rng.integers(6, size=rows)] + rng.normal(size=(rows, columns))


def make(algorithm: str) -> flegel.Algorithm:
    from flegel.api.jobs import resolve

    chosen = resolve(algorithm)
    return type(chosen)(rank=5) if algorithm == "nmf" else type(chosen)(k=6)


class Trouble(threading.Thread):
    """Disturbs a job from the outside while it runs."""

    def __init__(self, cluster: LocalCluster, seen: list[Any], kind: str, seconds: float, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.cluster, self.seen, self.kind, self.seconds, self.rng = cluster, seen, kind, seconds, rng
        self.lines: list[dict[str, Any]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not (self.seen and self.seen[-1].trace) and not self.over.wait(0.02):
            pass
        end = clock.now() + self.seconds
        while not self.over.is_set() and clock.now() < end:
            if self.over.wait(self.rng.expovariate(1.5)):
                return
            self.kill() if self.kind == "kill" else self.freeze()

    def victim(self) -> tuple[int, int] | None:
        crew = list(self.seen[-1].view.workers)  # those who are just being hired have nothing to lose
        present = [(w, p.pid) for w, p in list(self.cluster.registry.processes.items()) if w in crew]
        return self.rng.choice(present) if present else None

    def kill(self) -> None:
        chosen, machine = self.victim(), self.seen[-1]
        if chosen is None:
            return
        before = len(machine.membership.incidents)
        at = clock.now()
        try:
            os.kill(chosen[1], signal.SIGKILL)
        except ProcessLookupError:
            return
        found = self.resumed(machine, before, chosen[0])
        if found is None and self.over.is_set():
            return  # the job ended first
        line = {"kind": "kill", "worker": chosen[0], "hang": found is None}
        if found is not None:
            began = machine.state.began
            line |= {
                "detect_s": began + found.at - at,
                "resume_s": began + found.resumed - at,
                "redone_visits": found.redone,
                "redone_intervals": 1,
                "unvisited": found.unvisited,
            }
        self.lines.append(line)

    def freeze(self) -> None:
        chosen, machine = self.victim(), self.seen[-1]
        if chosen is None:
            return
        seconds, before = self.rng.uniform(1.0, 10.0), len(machine.membership.incidents)
        try:
            os.kill(chosen[1], signal.SIGSTOP)
            self.over.wait(seconds)
            lost = any(i.kind == "lost" for i in machine.membership.incidents[before:])
            os.kill(chosen[1], signal.SIGCONT)
        except ProcessLookupError:
            return
        if self.over.is_set():
            return
        found = self.resumed(machine, before, chosen[0]) if lost else None
        gone = not lost or ended(chosen[1], 20.0)
        self.lines.append(
            {
                "kind": "stop",
                "worker": chosen[0],
                "seconds": seconds,
                "fenced": lost,
                "zombie_ended": gone,
                "hang": lost and found is None and not self.over.is_set(),
            }
        )

    def resumed(self, machine: Any, before: int, worker: int) -> Any:
        deadline = clock.now() + HANG
        while clock.now() < deadline and not self.over.is_set():
            for incident in machine.membership.incidents[before:]:
                if incident.kind == "lost" and incident.worker == worker and incident.resumed is not None:
                    return incident
            time.sleep(0.01)
        return None


def ended(pid: int, seconds: float) -> bool:
    deadline = clock.now() + seconds
    while clock.now() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def shared_memory() -> int:
    return sum("memfd:flegel" in line for line in Path("/proc/self/maps").read_text().splitlines())


@contextmanager
def coordinators(seen: list[Any]) -> Iterator[None]:
    """The coordinator of the job, which observers do not get: noted whenever the runtime makes a snapshot of it."""
    original = run.observe

    def observe(job: Any) -> Any:
        seen.append(job)
        return original(job)

    run.observe = observe
    try:
        yield
    finally:
        run.observe = original


def recomputed(algorithm: str, data: Any, result: flegel.Result, machine: Any) -> float:
    """How far the statistics are from those of the final states (k-means), or from the sum over owners."""
    gap = float(machine.store.discrepancy())
    if algorithm != "kmeans" or machine.state.policy.name == "psp":  # who lingers has done more than was committed
        return gap
    z, total = result.state[:, 0], machine.store.statistics
    assert (z >= 0).all(), "a point was never visited"
    assert np.array_equal(np.bincount(z, minlength=len(total.counts)), total.counts), "counts are off"
    for j in range(len(total.counts)):
        wanted = (data[z == j] - machine.parameter.origin).sum(axis=0)
        gap = max(gap, float(np.abs(total.sums[j] - wanted).max() / max(np.abs(wanted).max(), 1e-300)))
    return gap


def job(kind: str, algorithm: str, sync: str, workers: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """One job with trouble; its lines."""
    data, rng = data_for(algorithm), random.Random(seed)
    options: dict[str, Any] = {"workers": workers, "sync": sync, "tolerance": 0.0, "seed": seed % 5}
    reference = flegel.run(make(algorithm), data, **options, max_seconds=3.0)
    cluster = Lenient(workers) if kind == "stop" else LocalCluster(workers)
    seen: list[Any] = []
    about = {"algorithm": algorithm, "sync": sync, "workers": workers, "seed": seed, "at": time.time()}
    if kind == "stop":
        options["worker_timeout"] = TIMEOUT
    with cluster, coordinators(seen):
        trouble = Trouble(cluster, seen, kind, seconds, rng)
        trouble.start()
        error = ""
        result = None
        try:
            result = flegel.run(
                make(algorithm), data, **options, max_seconds=seconds + 8.0, cluster=cluster, watch=lambda _: None,
                collect_state=True,
            )  # fmt: skip
        except flegel.FlegelError as failed:
            error = str(failed)
        finally:
            trouble.over.set()
            trouble.join(30.0)
    machine = seen[-1] if seen else None
    gc.collect()
    line: dict[str, Any] = {
        "kind": "job", **about, "error": error, "disturbances": len(trouble.lines),
        "orphans": len(children()), "shared_memory": shared_memory(),
    }  # fmt: skip
    if result is not None and machine is not None:
        sign = -1.0 if machine.state.algorithm.learning.maximize else 1.0
        worse = sign * (result.objective - reference.objective) / abs(reference.objective)
        line |= {
            "objective": result.objective, "undisturbed": reference.objective, "worse_by": worse, "same": worse <= NEAR,
            "statistics_off": recomputed(algorithm, data, result, machine), "iterations": result.iterations,
        }  # fmt: skip
    if isinstance(cluster, Lenient):
        line["stale_refused"] = cluster.stale
        line["stale_deltas_refused"] = cluster.stale.get(Report.__name__, 0)
    return [*({**entry, **about} for entry in trouble.lines), line]


def summarize(path: Path) -> None:
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    for kind in ("kill", "stop"):
        mine = [entry for entry in lines if entry["kind"] == kind]
        if not mine:
            continue
        print(f"{kind}s: {len(mine)}, hangs: {sum(entry['hang'] for entry in mine)}")
        times = [entry["resume_s"] for entry in mine if "resume_s" in entry]
        if times:
            p50, p90, p99 = np.percentile(times, [50, 90, 99])
            print(f"  resumed after p50 {p50:.2f} s, p90 {p90:.2f} s, p99 {p99:.2f} s, at most {max(times):.2f} s")
        if kind == "stop":
            fenced, ends = (sum(entry[key] for entry in mine) for key in ("fenced", "zombie_ended"))
            print(f"  fenced: {fenced}, zombies that ended by themselves: {ends}")
    jobs = [entry for entry in lines if entry["kind"] == "job"]
    done = [entry for entry in jobs if not entry["error"]]
    print(f"jobs: {len(jobs)}, failed: {len(jobs) - len(done)}, orphans: {sum(e['orphans'] for e in jobs)}")
    if done:
        print(f"  statistics off by at most {max(e['statistics_off'] for e in done):.2g}")
        print(f"  objective as undisturbed, or better: {sum(e['same'] for e in done)} of {len(done)}")
        print(f"  deltas of zombies refused: {sum(e.get('stale_deltas_refused', 0) for e in done)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="kill so many workers in all")
    parser.add_argument("--stops", type=int, default=0, help="freeze so many workers in all, 1 to 10 s each")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of trouble in each job")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; appended to")
    chosen = parser.parse_args()
    os.environ.setdefault("FLEGEL_DEBUG", "1")  # the conservation laws are asserted at every barrier
    for kind, wanted in (("kill", chosen.kills), ("stop", chosen.stops)):
        while True:
            lines = [json.loads(t) for t in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
            if sum(entry["kind"] == kind for entry in lines) >= wanted:
                break
            number = sum(entry["kind"] == "job" for entry in lines)
            algorithm, sync = ALGORITHMS[number % len(ALGORITHMS)], MODELS[(number // 2) % len(MODELS)]
            made = job(kind, algorithm, sync, chosen.workers, chosen.seconds, number)
            with chosen.out.open("a") as out:
                out.writelines(json.dumps(entry) + "\n" for entry in made)
            last = made[-1]
            print(f"{algorithm} under {sync}: {len(made) - 1} {kind}s, {last['error'] or 'done'}", flush=True)
    summarize(chosen.out)


if __name__ == "__main__":
    sys.exit(main())
