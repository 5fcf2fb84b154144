"""A cluster that works for a while with a kill a minute: does it grow, does it lose anything, does it leave anything?

    python -m bench.chaos.soak [--minutes 20] [--jobs 200] [--out FILE]
    python -m bench.chaos.soak --random --minutes 30 --jobs 50       a random fault of any kind every 20 s

Short jobs are submitted evenly over the time. Once a minute something dies: processes of jobs (workers, coordinators),
slave s1 (which is started again) and, during the warm-up, the master (likewise). Slave s0 and the last life of the
master go through the whole rest, so that growth shows. Memory and open files of the daemons are written down every five
seconds. Growth is the slope through a life's samples after the warm-up, a quarter of the time (Theil and Sen: the
median of the slopes of all pairs, which no single jump can bend). Open files are counted when no job is about: at the
end of the warm-up, where submitting pauses until all is done, and at the end. The first minute of a life is its own
warm-up; lives with less than half of the rest are shown, but prove nothing. The master begins with as many finished
jobs in its table as it keeps; from then on each new one takes the place of an old one. A job that was lost with its
slave leaves its checkpoints there, of which a slave keeps some; they are shown, not judged.

With `--random`, faults are those of `disturbances.py`: freezes of any process, kills, daemons that die and come back,
links that are cut in one or both directions or slowed. Growth is not judged then; that every job is done and right, and
that nothing is left, is.

Exit code 0: each job is done, once, and nothing is left, has grown or stays open. A run that was broken off is begun
anew; its lines stay.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil

from bench.chaos.disturbances import LinkedCluster, disturb
from bench.chaos.result_log import ResultLog, quantile
from bench.faults.scenarios import SEVEN
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.master.facts import Ended, Placed, Submitted
from flegel.cluster.master.job_lifecycle import MAX_LISTED_ENDED_JOBS
from flegel.cluster.master.journal import Journal
from flegel.cluster.transport.protocol import ClusterJob
from flegel.loading.class_source import reference
from tests.cluster.daemon_cluster import DaemonCluster

SAMPLE = 5.0
QUIET = 3  # looks in a quiet moment
OWN_WARM_UP = 60.0
MAX_GROWTH = 1.0  # MB an hour
MAX_FILES = 5
FAULT_EVERY = 20.0
PATIENCE = 300.0  # seconds for a job, after which it hangs


@dataclass
class Life:
    """One process of a daemon, as it was seen."""

    name: str
    at: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def after(self, moment: float) -> Life:
        moment = max(moment, self.at[0] + OWN_WARM_UP)
        keep = [i for i, at in enumerate(self.at) if at >= moment]
        return Life(self.name, *([values[i] for i in keep] for values in (self.at, self.memory, self.files)))

    @property
    def seconds(self) -> float:
        return self.at[-1] - self.at[0] if self.at else 0.0

    def growth(self) -> float:
        """MB an hour: the median slope of pairs that are a third of the life apart or more."""
        far = [(i, j) for i, j in combinations(range(len(self.at)), 2) if self.at[j] - self.at[i] >= self.seconds / 3]
        return 3600 * statistics.median((self.memory[j] - self.memory[i]) / (self.at[j] - self.at[i]) for i, j in far)

    def opened(self) -> int:
        """Files more in the quiet at the end than in that at the beginning."""
        return min(self.files[-QUIET:]) - min(self.files[:QUIET])

    def summary(self) -> dict[str, Any]:
        return {
            "minutes": round(self.seconds / 60, 1), "mb": [round(self.memory[0], 2), round(self.memory[-1], 2)],
            "mb_per_hour": round(self.growth(), 2), "files_more": self.opened(),
        }  # fmt: skip


class Diary:
    """Lives of all daemons, by process."""

    def __init__(self, cluster: DaemonCluster) -> None:
        self._cluster = cluster
        self.lives: dict[int, Life] = {}

    def look(self, now: float) -> dict[str, tuple[float, int]]:
        assert self._cluster.master is not None
        found = {}
        for name, process in {"master": self._cluster.master, **self._cluster.slaves}.items():
            seen = psutil.Process(process.pid)
            life = self.lives.setdefault(process.pid, Life(name))
            life.at.append(now)
            life.memory.append(seen.memory_info().rss / 1e6)
            life.files.append(seen.num_fds())
            found[name] = (round(life.memory[-1], 3), life.files[-1])
        return found


def fill_journal(home: Path) -> None:
    """As if the master had worked for a long time: its journal is full of jobs that are over."""
    (home / "master").mkdir(parents=True, mode=0o700)
    journal = Journal(home / "master" / "journal")
    spec = ClusterJob(reference(KMeans(k=2, init="first")), "blobs:500", workers=1)
    for number in range(MAX_LISTED_ENDED_JOBS):
        name, at = f"old-{number}", 1e9 + number
        facts = [
            Submitted(name, at, f"old-ticket-{number}", "somebody", spec),
            Placed(name, at, 1, "s0", "boot", {"s0": 1}),
            Ended(name, at, 1, "done", "stopped: reached 3 iterations"),
        ]
        for fact in facts:
            journal.table.apply(fact)
    journal.compact()
    journal.close()


def kill_something(cluster: DaemonCluster, what: str, rng: random.Random) -> str:
    if what == "master":
        cluster.kill_master()
        time.sleep(rng.uniform(0, 2))
        cluster.start_master()
    elif what == "slave":
        cluster.kill_slave("s1")
        time.sleep(rng.uniform(0, 2))
        cluster.start_slave("s1")
    else:
        found = cluster.processes()
        try:
            rng.choice(found).kill()
        except (psutil.NoSuchProcess, IndexError):
            return "nothing"
    return what


def choose(kills: int, warm: bool, daemons_live: bool) -> str:
    """Whose turn it is."""
    if daemons_live or kills % 2 == 0:
        return "process"
    return "slave" if warm or kills % 4 == 1 else "master"


def ends(cluster: DaemonCluster, client: Any, jobs: list[str]) -> list[str]:
    """The state in which each job has ended; `hanging` where it has not."""
    states = []
    for job in jobs:
        try:
            states.append(cluster.wait(client, job, seconds=PATIENCE).state)
        except AssertionError:
            states.append("hanging")
    return states


def look_in_quiet(diary: Diary, began: float) -> float:
    """Some looks while no job is about; when the first of them was."""
    time.sleep(4)
    first = time.monotonic() - began
    for _ in range(QUIET):
        diary.look(time.monotonic() - began)
        time.sleep(2)
    return first


def soak(options: argparse.Namespace, lines: ResultLog, cluster: DaemonCluster, client: Any) -> dict[str, Any]:
    rng = random.Random(len(lines.rows))
    run = f"run {sum(r['name'].startswith('end of') for r in lines.rows)}"
    diary, began, seconds = Diary(cluster), time.monotonic(), options.minutes * 60
    warm_up = seconds / 4
    submitted: list[str] = []
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    next_kill, next_sample, kills = 60.0, 0.0, 0
    quiet_at: float | None = None
    while (now := time.monotonic() - began) < seconds:
        if len(submitted) < options.jobs * now / seconds:
            ticket = f"soak-ticket-{len(submitted)}"
            submitted.append(
                cluster.submit(
                    KMeans(k=2, init="first"), "blobs:500", client, workers=1, max_iterations=3, ticket=ticket
                )
            )  # fmt: skip
        if quiet_at is None and now >= warm_up:
            ends(cluster, client, submitted)
            quiet_at = look_in_quiet(diary, began)
            lines.add(f"{run} quiet", at=round(quiet_at, 1))
        if now >= next_kill:
            next_kill += 60.0
            what = kill_something(cluster, choose(kills, now > warm_up - 30, options.daemons_live), rng)
            kills += 1
            lines.add(f"{run} kill {kills}", what=what, at=round(now, 1))
        if now >= next_sample:
            next_sample += SAMPLE
            lines.add(f"{run} sample", at=round(now, 1), daemons=diary.look(now))
        time.sleep(0.1)
    states = ends(cluster, client, submitted)
    look_in_quiet(diary, began)
    with contextlib.suppress(AssertionError):  # counted below
        cluster.no_orphans()
    lives = [life.after(quiet_at or warm_up) for life in diary.lives.values()]
    long = [life for life in lives if life.seconds >= (seconds - warm_up) / 2]
    left = [path for name in cluster.slaves for path in (cluster.folder / name / "jobs").glob("*/*")]
    views = [view for view in client.jobs() if not view.job.startswith("old-")]
    return {
        "name": f"end of {run}", "minutes": options.minutes, "kills": kills, "jobs": len(submitted),
        "listed": len(views), "done": states.count("done"), "others": sorted(set(states) - {"done"}),
        "attempts_most": max((v.attempt for v in views), default=0),
        "wait_p50": round(quantile([v.ended - v.submitted for v in views if v.ended], 0.5), 1),
        "whole": {life.name: life.summary() for life in long},
        "short": [{"name": life.name, **life.summary()} for life in lives if life.seconds > 60 and life not in long],
        "orphans": len(cluster.processes()), "shared_memory": len(set(os.listdir("/dev/shm")) - shared),  # noqa: PTH208
        "left_on_slaves": sum(path.name != "checkpoints" for path in left), "checkpoints_left": len(left),
        "load": [round(x, 1) for x in os.getloadavg()],
    }  # fmt: skip


def random_faults(options: argparse.Namespace, lines: ResultLog) -> bool:
    """Jobs evenly over the time, a random fault every 20 s; whether all are done, right, once, and nothing is left."""
    rng, submitted, faults = random.Random(options.seed), [], 0
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    with tempfile.TemporaryDirectory() as folder, LinkedCluster(Path(folder)) as cluster, cluster.client() as client:
        began, seconds = time.monotonic(), options.minutes * 60
        while (now := time.monotonic() - began) < seconds:
            if len(submitted) < options.jobs * now / seconds:
                submitted.append(_random_job(cluster, client, len(submitted)))
            if now >= (faults + 1) * FAULT_EVERY:
                faults += 1
                lines.add(f"fault {faults}", at=round(now, 1), what=disturb(cluster, cluster.links, rng))
            time.sleep(0.1)
        states = ends(cluster, client, submitted)
        with contextlib.suppress(AssertionError):  # counted below
            cluster.no_orphans()
        values = [client.figures(client.job(job))["objective"] for job in submitted if client.job(job).state == "done"]
        end = {
            "jobs": len(submitted), "done": states.count("done"), "others": sorted(set(states) - {"done"}),
            "faults": faults, "attempts_most": max(v.attempt for v in client.jobs()), "listed": len(client.jobs()),
            "objectives": len({round(v, 6) for v in values}), "orphans": len(cluster.processes()),
            "shared_memory": len(set(os.listdir("/dev/shm")) - shared),  # noqa: PTH208
        }  # fmt: skip
    lines.add(f"end of seed {options.seed}", **end)
    return end["done"] == end["jobs"] == end["listed"] and not end["orphans"] + end["shared_memory"]


def _random_job(cluster: DaemonCluster, client: Any, number: int) -> str:
    """Under each model in turn, some seconds long, from the same start."""
    return cluster.submit(
        KMeans(k=3, init="first"), "blobs:3000", client, workers=1 + number % 2, sync=SEVEN[number % 7], tolerance=0.0,
        max_seconds=6.0, ticket=f"soak-ticket-{number}",
    )  # fmt: skip


def in_cluster(folder: Path, options: argparse.Namespace, lines: ResultLog) -> dict[str, Any]:
    with DaemonCluster(folder) as cluster, cluster.client() as client:
        end = soak(options, lines, cluster, client)
        lines.add(**end)
        if not holds(end):
            print(cluster.logs()[-4000:], file=sys.stderr)
        return end


def holds(end: dict[str, Any]) -> bool:
    whole = end["whole"]
    return (
        end["done"] == end["jobs"] == end["listed"]
        and not end["orphans"] + end["shared_memory"] + end["left_on_slaves"]
        and {"master", "s0"} <= set(whole)
        and all(w["mb_per_hour"] <= MAX_GROWTH and abs(w["files_more"]) <= MAX_FILES for w in whole.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("chaos/soak.jsonl"))
    parser.add_argument("--random", action="store_true", help="a random fault of any kind every 20 s")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--daemons-live", action="store_true", help="kill processes of jobs only, to measure growth")
    options = parser.parse_args()
    lines = ResultLog(options.out)
    if options.random:
        sys.exit(not random_faults(options, lines))
    with tempfile.TemporaryDirectory() as folder:
        fill_journal(Path(folder) / "home")
        end = in_cluster(Path(folder), options, lines)
    grown = {name: (w["mb_per_hour"], w["files_more"]) for name, w in end["whole"].items()}
    print(
        f"{end['done']} of {end['jobs']} jobs done, {end['listed']} listed, {end['kills']} kills, MB an hour and files "
        f"more {grown}, orphans {end['orphans']}, left on slaves {end['left_on_slaves']}: "
        f"{'holds' if holds(end) else 'does not hold'}"
    )
    sys.exit(not holds(end))


if __name__ == "__main__":
    main()
