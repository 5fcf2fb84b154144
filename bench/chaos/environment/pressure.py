"""Memory limits by control groups, and disks that fill and empty, around real daemons.

    python -m bench.chaos.environment.pressure --out pressure.jsonl

Memory: a slave in a control group (version 1 or 2) of 900 MB. A job that hoards ends with its cause, also where it was
allowed more than the group has and the kernel ends it; its slave and the job beside it go on. Disks: the folder of a
slave, then that of the master, on a file system of some MB that is filled while jobs train and emptied again; no job is
lost, and the daemons go on. Takes root on Linux. Exit code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.chaos.freezes import objective
from bench.chaos.result_log import ResultLog
from bench.faults.scenarios import SEVEN
from flegel.algorithms.kmeans import KMeans
from flegel.errors import FlegelError
from tests.cluster.daemon_cluster import DaemonCluster, end_with_the_test
from tests.cluster.poison import poison

GROUP_BYTES = 900 << 20
DISK_BYTES = 24 << 20
FULL = 6.0
"""Seconds that a disk stays full."""


# -- memory ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path]:
    """A group with this limit; its file `cgroup.procs` takes processes."""
    base = Path("/sys/fs/cgroup/memory")
    if base.is_dir():
        folder, name = base / f"flegel-{os.getpid()}", "memory.limit_in_bytes"
    else:
        folder, name = Path(f"/sys/fs/cgroup/flegel-{os.getpid()}"), "memory.max"
    folder.mkdir()
    try:
        (folder / name).write_text(str(limit))
        yield folder
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


class GroupedCluster(DaemonCluster):
    """Its slaves run in a control group."""

    def __init__(self, folder: Path, group: Path) -> None:
        super().__init__(folder, slaves=1, slots=2)
        self._group = group

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        def enter() -> None:
            end_with_the_test()
            if what != "master":
                (self._group / "cgroup.procs").write_text(str(os.getpid()))

        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flegel.cli.main", *words],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=enter,
            )  # fmt: skip


def memory(lines: ResultLog, folder: Path) -> None:
    with control_group(GROUP_BYTES) as group, GroupedCluster(folder, group) as cluster, cluster.client() as client:
        slave = cluster.slaves["s0"].pid
        for name, limit in (("its part", None), ("more than there is", 64 << 30)):
            beside = train(cluster, client, "bsp", 8.0)
            spec, source = poison("initState", "bomb", "worker")
            job = client.submit(_with_memory(spec, limit), source)
            view, other = cluster.wait(client, job, seconds=200.0), cluster.wait(client, beside, seconds=200.0)
            holds = view.state == "failed" and other.state == "done" and cluster.slaves["s0"].poll() is None
            lines.add(
                f"memory, {name}", state=view.state, why=view.reason[:200], beside=other.state, attempts=other.attempt,
                holds=holds and cluster.slaves["s0"].pid == slave,
            )  # fmt: skip
        cluster.no_orphans()


def _with_memory(spec: Any, limit: int | None) -> Any:
    import msgspec

    return msgspec.structs.replace(spec, memory=limit)


# -- disks -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> Path:
    """Until nothing more fits."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return ballast


def train(cluster: DaemonCluster, client: Any, model: str, seconds: float) -> str:
    job = cluster.submit(
        KMeans(k=3, init="first"), "blobs:3000", client, workers=1, sync=model, tolerance=0.0, max_seconds=seconds
    )
    cluster.training(client, job)
    return job


def slaves_disk(lines: ResultLog, folder: Path) -> None:
    with small_disk(folder / "s0"), DaemonCluster(folder, slaves=1) as cluster, cluster.client() as client:
        calm = objective(client, cluster.wait(client, train(cluster, client, "bsp", 3.0)))
        for model in SEVEN:
            job = train(cluster, client, model, FULL + 4.0)
            ballast = fill(folder / "s0")
            time.sleep(FULL)
            ballast.unlink()
            view = cluster.wait(client, job, seconds=200.0)
            found = objective(client, view) if view.state == "done" else float("nan")
            holds = view.state == "done" and view.attempt == 1 and found <= 1.05 * calm
            lines.add(f"slave's disk, {model}", state=view.state, why=view.reason[:200], objective=found, holds=holds)
        job = train(cluster, client, "bsp", 4.0)
        ballast = fill(folder / "s0")
        view = cluster.wait(client, job, seconds=200.0)
        ballast.unlink()
        after = cluster.wait(client, train(cluster, client, "bsp", 2.0))
        said = view.state == "failed" and ("space" in view.reason or "saved" in view.reason)
        lines.add(
            "slave's disk, full at the end", state=view.state, why=view.reason[:300], after=after.state,
            holds=said and after.state == "done",
        )  # fmt: skip
        cluster.no_orphans()


def masters_disk(lines: ResultLog, folder: Path) -> None:
    place = folder / "home" / "master"
    with small_disk(place), DaemonCluster(folder, slaves=1) as cluster, cluster.client() as client:
        job = train(cluster, client, "fsp", FULL + 4.0)
        ballast = fill(place)
        try:
            refused = f"accepted as {train(cluster, client, 'bsp', 1.0)}"
        except (FlegelError, AssertionError) as error:
            refused = str(error)[:300]
        time.sleep(FULL)
        with contextlib.suppress(FileNotFoundError):
            ballast.unlink()
        if cluster.master is not None and cluster.master.poll() is not None:
            cluster.start_master()
        view = cluster.wait(client, job, seconds=200.0)
        after = cluster.wait(client, train(cluster, client, "bsp", 2.0))
        lines.add(
            "master's disk", state=view.state, attempts=view.attempt, refused=refused, after=after.state,
            jobs=len(client.jobs()), died=cluster.master is not None and cluster.master.poll() is not None,
            holds=view.state == after.state == "done" and view.attempt == 1,
        )  # fmt: skip
        cluster.no_orphans()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("chaos/pressure.jsonl"))
    parser.add_argument("--only", choices=["memory", "slave", "master"])
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("Not possible here: control groups and mounts take root.", file=sys.stderr)
        sys.exit(2)
    lines = ResultLog(options.out)
    for name, run in (("memory", memory), ("slave", slaves_disk), ("master", masters_disk)):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                run(lines, Path(folder))
    broken = [row["name"] for row in lines.rows if not row["holds"]]
    print(f"{len(lines.rows)} faults, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
