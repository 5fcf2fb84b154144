"""The master is killed: at random moments while jobs run, and at every write of its journal.

    python -m bench.chaos.master [--kills 60] [--out FILE]

Three parts, each resumable by its lines in the output file:

* kill: SIGKILL at a random moment of a real cluster with a job that trains all the time. Jobs are submitted before,
  during and after, each twice under one ticket. No job may be lost, doubled or started a second time, and the processes
  of the job that trains must be the same ones.
* write: a real master under strace is killed at its nth system call that touches the journal, for every n that a day of
  three jobs has. A slave made of a few lists runs them over the real wire.
* compact: the journal alone, killed at every system call of appends and compactions.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from bench.chaos.result_log import ResultLog
from bench.common.program import ROOT, environment
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.client import Client
from flegel.cluster.master import journal
from flegel.cluster.master.facts import Placed, Submitted
from flegel.cluster.transport.protocol import COORDINATOR, TO_SLAVE, ClusterJob
from flegel.cluster.transport.secure_client import dial
from flegel.errors import FlegelError
from flegel.job import AlgorithmRef
from tests.cluster.daemon_cluster import DaemonCluster, free_port
from tests.cluster.simulated_cluster import FakeSlave

CALLS = ("pwrite64", "fsync", "renameat", "rename", "ftruncate")


# -- at random moments -------------------------------------------------------------------------------------


def random_kills(lines: ResultLog, kills: int) -> None:
    todo = [n for n in range(kills) if not lines.done(f"kill {n}")]
    if not todo:
        return
    with tempfile.TemporaryDirectory() as folder, DaemonCluster(Path(folder)) as cluster, cluster.client() as client:
        canary = cluster.submit(
            KMeans(k=4, init="first"), "blobs:4000", client, workers=2, tolerance=0.0, max_seconds=1e6
        )
        cluster.training(client, canary)
        before = {p.pid for p in cluster.processes()}
        tickets: dict[str, str] = {}
        for number in todo:
            rng = random.Random(number)
            told: list[str] = []

            def submit(ticket: str = f"ticket-{number:05d}", told: list[str] = told) -> None:
                with cluster.client() as other:
                    for _ in range(2):
                        told.append(
                            cluster.submit(
                                KMeans(k=2, init="first"),
                                "blobs:500",
                                other,
                                workers=1,
                                max_iterations=2,
                                ticket=ticket,
                            )
                        )

            asking = threading.Thread(target=submit)
            asking.start()
            time.sleep(rng.uniform(0.0, 2.0))
            cluster.kill_master()
            time.sleep(rng.uniform(0.0, 1.0))
            began = time.monotonic()
            cluster.start_master()
            asking.join(60)
            try:
                seen = client.job(canary)
            except FlegelError:
                print(cluster.logs(), flush=True)
                raise
            back = time.monotonic() - began
            tickets[f"ticket-{number:05d}"] = told[0] if told else ""
            lines.add(
                f"kill {number}", answered=len(told), same=len(set(told)) == 1, seconds_back=round(back, 2),
                canary=seen.state == "running" and seen.attempt == 1,
                pids=before <= {p.pid for p in cluster.processes()},
            )  # fmt: skip
        for job in tickets.values():
            cluster.wait(client, job, "done", 600)
        views = {v.job: v for v in client.jobs()}
        client.cancel(canary)
        cluster.no_orphans()
        lines.add(
            f"jobs after {len(lines.rows)}", submitted=len(todo), jobs=len(views) - 1,
            done=sum(v.state == "done" for v in views.values()),
            first_attempt=sum(v.attempt == 1 for v in views.values()) - 1,
        )  # fmt: skip


# -- at every write ----------------------------------------------------------------------------------------


class MasterWithFakeSlave:
    """A real master and a slave of lists, without keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"tcp://127.0.0.1:{free_port()}"
        self.slave = FakeSlave("s0", 2)
        self.ran: dict[str, int] = {}
        self.over = False

    def master(self, call: str = "", when: int = 0) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "flegel.cli.main", "master", "--listen", self.address, "--insecure"]
        words += ["--folder", str(self.folder)]
        if call:
            inject = f"inject={call}:signal=KILL:when={when}"
            words = ["strace", "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-P", str(self.folder / "journal"),
                     "-P", str(self.folder / "journal.new"), "-o", "/dev/null", *words]  # fmt: skip
        return subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL)

    def live(self) -> None:
        """In a thread: beats, orders, coordinators that are done at once."""
        with dial(self.address, TO_SLAVE, insecure=True) as line:
            beat_at = 0.0
            while not self.over:
                for order, _ in line.receive(0.02):
                    self.slave.execute(order)
                    beat_at = 0.0
                for name in self.slave.living():
                    if name[2] == COORDINATOR:
                        status = self.slave.coordinators[name[:2]]
                        if {n[2:] for n in self.slave.living() if n[:2] == name[:2]} >= set(status.wanted.items()):
                            self.slave.end(name, "done", "converged")
                            self.ran[name[0]] = self.ran.get(name[0], 0) + 1
                            beat_at = 0.0
                if time.monotonic() >= beat_at and line.channel.pending < 3:
                    beat_at = time.monotonic() + 0.5
                    line.send(self.slave.beat())


def every_write(lines: ResultLog) -> None:
    if shutil.which("strace") is None:
        print("strace is not installed: the process `write` is left out")
        return
    for call in CALLS:
        for when in range(1, 200):
            name = f"write {call} {when}"
            if lines.done(name):
                if next(r for r in lines.rows if r["name"] == name)["survived"]:
                    break
                continue
            if one_write(lines, name, call, when):
                break


def one_write(lines: ResultLog, name: str, call: str, when: int) -> bool:
    """One day with a death in it; True where the master lived through it, so there is no such write."""
    with tempfile.TemporaryDirectory() as folder:
        pair = MasterWithFakeSlave(Path(folder))
        first = pair.master(call, when)
        thread = threading.Thread(target=pair.live)
        thread.start()
        state: dict[str, str] = {}
        again: subprocess.Popen[bytes] | None = None
        spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs", workers=1)
        try:
            told: dict[str, str] = {}

            def day() -> None:
                with Client(pair.address, insecure=True) as client:
                    for number in range(3):
                        told[f"ticket-{number:03d}"] = client.submit(spec, ticket=f"ticket-{number:03d}")
                    for job in told.values():
                        state[job] = client.wait(job).state

            asking = threading.Thread(target=day)
            asking.start()
            while asking.is_alive() and first.poll() is None:
                time.sleep(0.02)
            survived = first.poll() is None
            if not survived:
                again = pair.master()
            asking.join(60)
            lines.add(
                name, survived=survived, jobs=len(set(told.values())), done=sum(s == "done" for s in state.values()),
                ran=sorted(pair.ran.values()),
            )  # fmt: skip
            return survived
        finally:
            pair.over = True
            thread.join()
            for process in (first, again):
                if process is not None and process.poll() is None:
                    for child in psutil.Process(process.pid).children(recursive=True):
                        child.kill()
                    process.kill()
                    process.wait()


# -- the journal alone -------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from bench.chaos import master
from flegel.cluster.master import journal
journal.COMPACT_ABOVE_BYTES = 600
book = journal.Journal(Path(sys.argv[1]))
for number in range(8):
    fact = master.fact(number)
    book.table.apply(fact)
    book.append([fact])
    os.write(1, b".")
"""


def fact(number: int) -> Submitted | Placed:
    """Every third is a new job, the others move it about."""
    job = f"job-{number // 3}"
    if number % 3 == 0:
        spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs", workers=1)
        return Submitted(job, 1.0, f"ticket-{number}", "ann", spec)
    return Placed(job, 2.0, number, "s0", "boot", {"s0": 1})


def every_call_of_a_compaction(lines: ResultLog) -> None:
    if shutil.which("strace") is None:
        return
    for call in (*CALLS, "openat", "unlink", "close"):
        for when in range(1, 400):
            name = f"compact {call} {when}"
            if lines.done(name):
                if next(r for r in lines.rows if r["name"] == name)["survived"]:
                    break
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "journal"
                words = ["strace", "-qq", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}",
                         "-P", str(path), "-P", str(path.with_suffix(".new")), "-P", folder, "-o", "/dev/null",
                         sys.executable, "-c", SCRIPT.format(root=str(ROOT)), str(path)]  # fmt: skip
                ended = subprocess.run(words, capture_output=True, timeout=120, check=False)
                acknowledged = len(ended.stdout)
                table = journal.JobTable()
                for number in range(acknowledged):
                    table.apply(fact(number))
                more = journal.JobTable()
                for number in range(min(acknowledged + 1, 8)):
                    more.apply(fact(number))
                found = journal.Journal(path)
                found.close()
                lines.add(
                    name, survived=ended.returncode == 0, acknowledged=acknowledged,
                    kept=found.table in (table, more),
                )  # fmt: skip
            if ended.returncode == 0:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("chaos/master.jsonl"))
    options = parser.parse_args()
    lines = ResultLog(options.out)
    every_call_of_a_compaction(lines)
    every_write(lines)
    random_kills(lines, options.kills)
    rows = lines.rows
    kills = [r for r in rows if r["name"].startswith("kill ")]
    days = [r for r in rows if r["name"].startswith("write ") and not r["survived"]]
    calls = [r for r in rows if r["name"].startswith("compact ") and not r["survived"]]
    print(
        f"{len(kills)} random kills: {sum(r['same'] for r in kills)} answered with one job per ticket, "
        f"{sum(r['canary'] and r['pids'] for r in kills)} left the running job alone; "
        f"{len(days)} deaths at a write: {sum(r['done'] == 3 and r['ran'] == [1, 1, 1] for r in days)} with every job "
        f"done exactly once; {len(calls)} deaths of the journal: {sum(r['kept'] for r in calls)} kept what was said"
    )


if __name__ == "__main__":
    main()
