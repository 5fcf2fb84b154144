"""A whole cluster on this host for tests: a master and slaves as real processes, in a folder of their own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from flegel.cluster.client import Client, pack
from flegel.cluster.transport.protocol import ClusterJob, JobView
from flegel.job import Criteria, SyncSpec
from flegel.loading.class_source import reference
from tests.ports import free_port

WAIT = 600.0
"""Seconds after which a test that waits fails."""


def end_with_the_test() -> None:
    """In a daemon, before it starts: a test that is killed leaves no daemon behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class DaemonCluster:
    """`with DaemonCluster(folder) as cluster:` …; afterwards nothing of it is left."""

    def __init__(self, folder: Path, slaves: int = 2, slots: int = 2, keys: bool = True) -> None:
        self.folder, self.slots = folder, slots
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "FLEGEL_HOME": str(folder / "home"),
            "FLEGEL_MASTER": self.address,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        if not keys:
            self.environment["FLEGEL_INSECURE"] = "1"
        self.keys = keys
        self.master: subprocess.Popen[bytes] | None = None
        self.slaves: dict[str, subprocess.Popen[bytes]] = {}
        self._names = [f"s{i}" for i in range(slaves)]

    # -- daemons -------------------------------------------------------------------------------------------

    def start_daemon(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{what}.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "flegel.cli.main", *words],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_the_test,
            )  # fmt: skip

    def start_master(self) -> None:
        open_to_all = [] if self.keys else ["--insecure"]
        self.master = self.start_daemon("master", "master", "--listen", self.address, *open_to_all)

    def kill_master(self) -> None:
        assert self.master is not None
        self.master.kill()
        self.master.wait()

    def start_slave(self, name: str, *more: str) -> None:
        self.slaves[name] = self.start_daemon(
            name, "slave", "--name", name, "--slots", str(self.slots), "--folder", str(self.folder / name), *more
        )

    def kill_slave(self, name: str) -> None:
        self.slaves[name].kill()
        self.slaves.pop(name).wait()

    def __enter__(self) -> DaemonCluster:
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        os.environ["FLEGEL_HOME"] = self.environment["FLEGEL_HOME"]
        self.start_master()
        self.until(lambda: b"listening" in (self.folder / "master.log").read_bytes(), "the master listens")
        for name in self._names:
            self.start_slave(name)
        with self.client() as client:
            self.until(lambda: len(client.slaves()) == len(self._names), "all slaves have registered")
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.slaves.values(), *([self.master] if self.master else [])]:
            process.send_signal(signal.SIGINT)
        for process in [*self.slaves.values(), *([self.master] if self.master else [])]:
            try:
                process.wait(600)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.environ.pop("FLEGEL_HOME", None)

    # -- looking -------------------------------------------------------------------------------------------

    def until(self, holds: Any, what: str, seconds: float = WAIT) -> None:
        """Wait for something; the limit only guards against hanging."""
        limit = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < limit, f"{what}: not within {seconds:.0f} s\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))

    def processes(self) -> list[psutil.Process]:
        """Processes of jobs: everything that carries this cluster's environment and is not a daemon."""
        daemons = {p.pid for p in [*self.slaves.values(), *([self.master] if self.master else [])]}
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid not in daemons and process.pid != os.getpid() and self._ours(process):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def _ours(self, process: psutil.Process) -> bool:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if Path(f"/proc/{process.pid}/cwd").readlink() in [self.folder / name for name in self.slaves]:
            return False  # a spare process, which is not assigned yet
        return f"FLEGEL_HOME={self.environment['FLEGEL_HOME']}".encode() in (
            Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        )

    def no_orphans(self) -> None:
        """Every process of a job is gone, or will be in a moment."""
        self.until(lambda: not self.processes(), "no process of a job is left")

    # -- jobs ----------------------------------------------------------------------------------------------

    def client(self) -> Client:
        return Client(self.address, insecure=not self.keys)

    def submit(self, algorithm: Any, data: str, client: Client, **more: Any) -> str:
        ref, code, source = pack(reference(algorithm))
        names = ("max_iterations", "target", "tolerance", "max_seconds")
        criteria = Criteria(**{k: more.pop(k) for k in names if k in more})
        ticket = more.pop("ticket", None)
        sync = SyncSpec(more.pop("sync", "bsp"))
        spec = ClusterJob(algorithm=ref, data=data, code=code, sync=sync, criteria=criteria, **more)
        return client.submit(spec, source, ticket)

    def wait(self, client: Client, job: str, state: str = "", seconds: float = WAIT) -> JobView:
        """Until a job is over, or in that state."""
        seen: list[JobView] = []

        def there() -> bool:
            seen[:] = [client.job(job)]
            over = seen[0].state in ("done", "failed", "cancelled")
            return seen[0].state == state or (over and not state) or (over and seen[0].state != state)

        self.until(there, f"job {job} is {state or 'over'}", seconds)
        assert not state or seen[0].state == state, f"{seen[0]}\n{self.logs()}"
        return seen[0]

    def training(self, client: Client, job: str) -> JobView:
        """Until a job trains."""
        seen: list[JobView] = []

        def there() -> bool:
            seen[:] = [client.job(job)]
            assert seen[0].state in ("queued", "running"), f"{seen[0]}\n{self.logs()}"
            return bool(seen[0].snapshot.get("iteration"))

        self.until(there, f"job {job} trains")
        return seen[0]
