"""Slaves placed by Slurm: one `srun` each, its ticket as a munge credential on standard input. Edits no partition.

An `srun` is a job of its own, or a step where this process runs inside an allocation.

`flegel.slurm.Cluster(slaves=4, options={"partition": "batch", "time": "2:00:00"})`. A credential can be decoded only by
this user's processes on hosts of the same Slurm cluster, once, within five minutes. A slave that is killed, or whose
node fails, is one lost worker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes import munge
from flegel.cluster.launch.processes.placer import SLAVE_COMMAND, CommandPlacer, outward_address
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError

SCANCEL_TIMEOUT_SECONDS = 60.0
"""Of one `scancel`; the controller of a busy cluster answers within seconds."""
STEP_OPTIONS = (
    "--quiet",
    "--nodes=1",
    "--ntasks=1",
    "--exact",
    "--kill-on-bad-exit=1",
    "--unbuffered",
)
"""Options of a step: its own processors, so that the steps of an allocation spread over its nodes."""


class SlurmPlacer(CommandPlacer):
    """One job with one task for each slave."""

    system = "slurm"

    def __init__(self, options: Mapping[str, str] | None = None, cpus: int = 1) -> None:
        super().__init__()
        self._options = {name.replace("_", "-"): value for name, value in (options or {}).items()}
        self._cpus = cpus
        self._launch = ""

    def address(self) -> str:
        return outward_address()

    def open(self, folder: Path) -> None:
        super().open(folder)
        for program in ("srun", "scancel", "munge"):
            if shutil.which(program) is None:
                raise UsageError(f"There is no {program} here; run this on a login node of Slurm.")

    def command(self, ticket: SlaveTicket) -> list[str]:
        """A step of the allocation around this process, where there is one; else a job of its own with the options of
        `srun`."""
        self._launch = ticket.launch
        if "SLURM_JOB_ID" in os.environ:
            return ["srun", *STEP_OPTIONS, f"--cpus-per-task={self._cpus}", *SLAVE_COMMAND]
        options = [f"--{name}={value}" if value else f"--{name}" for name, value in self._options.items()]
        return [
            "srun",
            "--quiet",
            f"--job-name={job_name(ticket.launch)}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self._cpus}",
            "--kill-on-bad-exit=1",
            "--unbuffered",
            *options,
            *SLAVE_COMMAND,
        ]

    def seal(self, line: bytes) -> bytes:
        return munge.seal(line)

    def drain(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """A signal to the step, not to `srun`, which would kill it."""
        if self.places.get(name):
            scancel("--signal=TERM", self.places[name])

    def close(self) -> None:
        super().close()
        if self._launch and "SLURM_JOB_ID" not in os.environ:
            scancel(f"--name={job_name(self._launch)}", "--quiet")


def job_name(launch: str) -> str:
    """Name of all jobs of a launch."""
    return f"flegel-{launch}"


def scancel(*words: str) -> None:
    """Signal or cancel jobs; ones that have ended already are no error."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", *words], capture_output=True, timeout=SCANCEL_TIMEOUT_SECONDS)


class SlurmCluster(LaunchedCluster):
    """`with flegel.slurm.Cluster(slaves=4, options={"partition": "batch"}) as cluster: …`."""

    def __init__(
        self,
        slaves: int,
        *,
        cpus: int | None = None,
        slots: int = 1,
        options: Mapping[str, str] | None = None,
        timeout: float = 86400.0,
        **launch: Any,
    ) -> None:
        """`options` are those of `srun`, such as `{"partition": "batch", "time": "2:00:00", "gres": "gpu:1"}`; `cpus`
        are processors of each slave, one for each slot by default; jobs may wait in the queue for `timeout` seconds."""
        super().__init__(SlurmPlacer(options, cpus or slots), slaves, slots=slots, timeout=timeout, **launch)


Cluster = SlurmCluster
