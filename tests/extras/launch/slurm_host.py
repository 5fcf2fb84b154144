"""A Slurm of two nodes on this host for tests: munge, one slurmctld, two slurmd, in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import needs

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "scancel", "setpriv")
CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
NodeName=n[1-2] NodeHostName={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 State=UNKNOWN
PartitionName=batch Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder: Path) -> Iterator[Path]:
    """Daemons and `SLURM_CONF`, `MUNGE_SOCKET` in the environment; all of it is gone afterwards."""
    host, port = socket.gethostname().split(".")[0], _free_ports()
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, folder=folder, port=port, first=port + 1, last=port + 2))
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
    os.environ.update(SLURM_CONF=str(config), PATH=needs.search_path())
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        daemons.append(_munged(folder))
        daemons.append(_start(folder, "slurmctld", "-D"))
        daemons += [_start(folder, "slurmd", "-D", "-N", name) for name in ("n1", "n2")]
        _until_idle(folder)
        yield folder
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(600)
            daemon.kill()
            daemon.wait()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    """munge with a key of its own; its folders belong to its user, and all folders above may be entered."""
    place = folder / "munge"
    place.mkdir(mode=0o755)
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o600)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o711)
    words = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground", "--force"]
    words += [f"--key-file={place}/key", f"--socket={place}/socket", f"--pid-file={place}/pid"]
    words += [f"--log-file={place}/log", f"--seed-file={place}/seed"]
    daemon = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _until((place / "socket").exists, "munged has no socket")
    return daemon


def _start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{'-'.join(words)}.out").open("wb") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _until_idle(folder: Path) -> None:
    def idle() -> bool:
        found = subprocess.run(["sinfo", "-N", "-h", "-o", "%N %t"], capture_output=True, text=True).stdout
        return found.count("idle") == 2

    try:
        _until(idle, "the nodes are not idle")
    except AssertionError as error:
        said = "\n".join(p.read_text(errors="replace")[-800:] for p in sorted(folder.glob("*.log")))
        raise AssertionError(f"{error}\n{said}") from None


def _until(holds: object, why: str, seconds: float = 180.0) -> None:
    limit = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit, why
        time.sleep(0.1)


def _free_ports() -> int:
    """The first of three ports in a row."""
    for first in range(21000 + os.getpid() % 5000, 32000, 3):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no three free ports")
