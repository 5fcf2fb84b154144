"""What this machine is, and what else ran on it during a measurement. Reads /proc; changes nothing.

Without /proc, loads are unknown (None), never guessed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from flegel.runtime import clock

DISTURBING_FOREIGN_SHARE = 0.10
"""Of usable processor time. A measurement is disturbed if other programs use more."""
DISTURBING_STEAL_SHARE = 0.02
"""Of time. A measurement is disturbed if the hypervisor takes more."""
REPORTED_PACKAGES = (
    *("numpy", "numba", "pyzmq", "msgspec", "msgpack", "pandas"),
    *("scikit-learn", "dask", "ray", "torch"),
)
"""Packages whose versions are recorded beside a measurement."""


class Reading(NamedTuple):
    """Counters at one moment, in seconds."""

    at: float
    busy: float
    steal: float
    own: float


class HostLoad(NamedTuple):
    """Load between two readings."""

    other_programs_share: float | None
    """Processor time of other programs, as a share of what all usable cores offer."""
    steal: float | None
    average: float | None
    """The system's load average at the end."""

    @property
    def disturbance(self) -> str:
        """Why a measurement should not be trusted; empty if it can be."""
        if self.other_programs_share is not None and self.other_programs_share > DISTURBING_FOREIGN_SHARE:
            return f"other programs took {self.other_programs_share:.0%} of the processors"
        if self.steal is not None and self.steal > DISTURBING_STEAL_SHARE:
            return f"the hypervisor took {self.steal:.0%} of the time"
        return ""


def cores() -> list[int]:
    """Numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def host_memory() -> int:
    """Bytes of memory of this host, or of the control group (container) that this process runs in."""
    from flegel.datasets.rows import memory

    return memory.total()


def io_threads() -> int:
    """I/O threads of a coordinator. Connections are distributed over them: with a large θ or very many workers, one
    thread that copies θ to all of them and their reports back would take most of a barrier."""
    return max(min(2, len(cores())), min(4, len(cores()) // 4))


def reading() -> Reading | None:
    """The counters now; None where the system does not provide them."""
    try:
        tick = os.sysconf("SC_CLK_TCK")
        busy = steal = 0.0
        mine = {f"cpu{n}" for n in cores()}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name in mine:
                user, nice, system, _, _, irq, soft, stolen = (int(f) for f in fields[:8])
                busy += (user + nice + system + irq + soft) / tick
                steal += stolen / tick
        return Reading(clock.now(), busy, steal, _own_seconds() / tick)
    except (OSError, ValueError):
        return None


def _own_seconds() -> float:
    """Ticks of this process and all its descendants, including reaped ones."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended in the meantime
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(int(f) for f in fields[11:15])
    ours = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        grown = bool(more)
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours)


def load_since(before: Reading | None) -> HostLoad:
    """How much other programs have used the processors since `before`."""
    after = reading()
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if before is None or after is None:
        return HostLoad(None, None, average)
    usable = max(after.at - before.at, 1e-3) * len(cores())
    others = (after.busy - before.busy) - (after.own - before.own)
    resolution = 0.02 * len(cores())  # counters advance in steps of 0.01 s
    return HostLoad(max(0.0, others - resolution) / usable, max(0.0, after.steal - before.steal) / usable, average)


def machine() -> dict[str, str]:
    """Description of this machine for reports."""
    found = {
        "processor": _processor(),
        "cores": f"{len(cores())} usable of {os.cpu_count() or '?'}",
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    return found


def _processor() -> str:
    """The name of this host's processor, for people."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Flegel and of installed packages that affect speed."""
    import importlib.metadata

    from flegel import __version__

    found = {"flegel": __version__}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, "__version__"):
                found[name] = str(module.__version__)
    return found


CODE = (":/flegel", ":/algorithms", ":/datasets", ":/bench/*.py", ":/pyproject.toml")
"""What runs when something is measured, as git names it: pages and records may be written meanwhile."""


def commit(file: Path = Path(__file__)) -> str:
    """The commit that runs, with + if its code differs from it, also by files that were not added; outside a checkout
    the value of `FLEGEL_COMMIT`. `file` is this module: where it lies in the working copy of another project, as in an
    environment there, that project's commit says nothing."""
    here = file.resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", file.name)
        name = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=all", "--", *CODE)
        return name + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("FLEGEL_COMMIT", "")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
