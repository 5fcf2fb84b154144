"""Launched clusters that are kept for many jobs: each has a process that holds it, and a folder that says where it is.

The folder is `launches/NAME` beside this user's other files. Its process ends the cluster on SIGTERM; a cluster whose
process is gone ends by itself. Launches nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.transport import keys
from flegel.cluster.transport.keys import KeyEntry
from flegel.errors import FlegelError, UsageError, nearest
from flegel.runtime import clock
from flegel.runtime.system.signals import raise_lost_signal

RECORD_FILE = "cluster.json"
"""In the folder of a kept cluster; it appears when the cluster can be used."""
HOLDER_POLL_SECONDS = 0.1
"""Between two checks whether the process that holds a cluster has started or ended."""
HOLDER_END_SECONDS = 90.0
"""That this process has to end all slaves and the master; pods and jobs of Slurm take half a minute."""


class KeptCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `flegel launch list` shows."""

    name: str
    system: str
    address: str
    pid: int
    slaves: int


def folder_of(name: str) -> Path:
    """Where a kept cluster has its keys, its journal and its log."""
    home = os.environ.get("FLEGEL_HOME")
    base = Path(home) if home else Path.home() / ".local" / "share" / "flegel"
    return base / "launches" / keys.check_name(name)


def start_holder(name: str, command: Sequence[str], more: Mapping[str, str], timeout: float) -> KeptCluster:
    """Run `command` with `more` in its environment, so that it holds a cluster, and wait until that is up."""
    folder = folder_of(name)
    if folder.exists():
        raise UsageError(f"There is a kept cluster {name} already; end it with `flegel launch stop {name}`.")
    folder.mkdir(parents=True, mode=0o700)
    with (folder / "holder.log").open("wb") as log:
        holder = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **more},
        )
    try:
        return _wait_for(holder, folder, timeout)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            holder.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            holder.wait(HOLDER_END_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _wait_for(holder: subprocess.Popen[bytes], folder: Path, timeout: float) -> KeptCluster:
    """Wait until the process that holds a cluster has written its record, and return that; an error where it ends
    before, or the time is over."""
    until = clock.now() + timeout
    while not (folder / RECORD_FILE).exists():
        if holder.poll() is not None:
            lines = (folder / "holder.log").read_text(errors="replace").strip().splitlines()
            raise FlegelError((lines[-1] if lines else "The cluster did not start.").removeprefix("flegel: "))
        if clock.now() > until:
            raise FlegelError(f"The cluster was not up within {timeout:.0f} s.")
        clock.sleep(HOLDER_POLL_SECONDS)
    return msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=KeptCluster)


@contextmanager
def held(cluster: LaunchedCluster, name: str, system: str, slaves: int) -> Iterator[None]:
    """In the process that holds it: this user's keys are known to the cluster, and its key to this user."""
    folder = folder_of(name)
    own = keys.KeyRegistry()
    launch_keys = keys.KeyRegistry(folder / "keys")
    launch_keys.write(KeyEntry(keys.ensure("submit").public, "submit", "this-user", admin=True))
    server = keys.load(keys.MASTER, folder / "keys").public
    own.write(KeyEntry(server, keys.MASTER, name, cluster.address))
    try:
        record = msgspec.json.encode(KeptCluster(name, system, cluster.address, os.getpid(), slaves))
        (folder / f".{RECORD_FILE}").write_bytes(record)
        (folder / f".{RECORD_FILE}").rename(folder / RECORD_FILE)
        yield
    finally:
        with contextlib.suppress(UsageError):
            own.revoke(server)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_end() -> None:
    """Block until SIGTERM or SIGINT arrives."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    raise_lost_signal()
    over.wait()


def kept_clusters() -> list[KeptCluster]:
    """The clusters whose holding process runs; folders of those that were killed are removed."""
    found = []
    for folder in sorted(folder_of("x").parent.glob("*")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=KeptCluster)
            if _alive(record):
                found.append(record)
            else:
                _forget(record)
    return found


def stop(name: str) -> None:
    """End the cluster of this name; returns when its processes and files have gone."""
    known = {each.name: each for each in kept_clusters()}
    if name not in known:
        raise UsageError(f"No cluster is kept as {name!r}{nearest(name, list(known)) if known else '; none is kept.'}")
    os.kill(known[name].pid, signal.SIGTERM)
    until = clock.now() + HOLDER_END_SECONDS
    while _alive(known[name]):
        if clock.now() > until:
            raise FlegelError(f"The process {known[name].pid} that holds {name} has not ended; see its log.")
        clock.sleep(HOLDER_POLL_SECONDS)
    _forget(known[name])


def _alive(record: KeptCluster) -> bool:
    """Whether the process that holds the cluster runs, and is that of a launch: numbers of processes are used again."""
    try:
        return b"launch" in Path(f"/proc/{record.pid}/cmdline").read_bytes()
    except OSError:
        return False


def _forget(record: KeptCluster) -> None:
    with contextlib.suppress(UsageError, FlegelError):
        keys.KeyRegistry().revoke(record.name)
    shutil.rmtree(folder_of(record.name), ignore_errors=True)
