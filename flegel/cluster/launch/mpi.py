"""Slaves placed by `mpiexec`, one command each, so that a lost one does not end the others. Speaks no MPI itself.

`flegel.mpi.Cluster(slaves=4, hosts=["node1", "node2"])`. A ticket goes to the standard input of `mpiexec`, which hands
it to the process that it starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes.placer import SLAVE_COMMAND, CommandPlacer, outward_address
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError

MPIEXEC = "mpiexec"


class MpiPlacer(CommandPlacer):
    """One `mpiexec -n 1` for each slave, on the hosts in turn."""

    system = "mpi"

    def __init__(self, hosts: Sequence[str] = (), mpiexec: str = "") -> None:
        super().__init__()
        self._hosts, self._words = list(hosts), shlex.split(mpiexec)
        self._placed_slaves = 0

    def address(self) -> str:
        return outward_address() if self._hosts else super().address()

    def open(self, folder: Path) -> None:
        super().open(folder)
        self._words = self._words or _found_mpiexec()

    def command(self, ticket: SlaveTicket) -> list[str]:
        where = ["--host", self._hosts[self._placed_slaves % len(self._hosts)]] if self._hosts else []
        self._placed_slaves += 1
        return [*self._words, *where, "-n", "1", *SLAVE_COMMAND]

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """`mpiexec` does not tell its process that standard input has ended; after SIGTERM it ends it."""
        super().stop(process)
        process.terminate()


def _found_mpiexec() -> list[str]:
    beside = Path(sys.executable).with_name(MPIEXEC)
    path = str(beside) if beside.exists() else shutil.which(MPIEXEC)
    if path is None:
        raise UsageError("There is no mpiexec here; install MPI, for instance with pip install 'flegel[mpi]'.")
    return [path, *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def read_hostfile(path: Path) -> list[str]:
    """Hosts of an MPI host file, each as often as it has slots."""
    if not path.is_file():
        raise UsageError(f"There is no file {path}; write one host a line, such as `node1 slots=4`.")
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            slots = [field.removeprefix("slots=") for field in fields[1:] if field.startswith("slots=")]
            found += [fields[0]] * (int(slots[0]) if slots and slots[0].isdigit() else 1)
    if not found:
        raise UsageError(f"{path} names no host.")
    return found


class MpiCluster(LaunchedCluster):
    """`with flegel.mpi.Cluster(slaves=4) as cluster: …`."""

    def __init__(self, slaves: int, *, hosts: Sequence[str] = (), mpiexec: str = "", **launch: Any) -> None:
        """`hosts` are used in turn; `mpiexec` is the command with its options, where another than the first found."""
        super().__init__(MpiPlacer(hosts, mpiexec), slaves, **launch)


Cluster = MpiCluster
