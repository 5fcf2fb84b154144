"""How many processors this process may use: its affinity, the quota of its control group, what others told it."""

from __future__ import annotations

import math
import os
import sys
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

CONTROL_GROUPS = Path("sys/fs/cgroup")
TOLD_BY_OTHERS = ("OMP_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
"""Variables by which whoever started this process says how many threads it should compute with: joblib and Dask set
them in their workers, launchers of PyTorch in theirs."""


def available_processors() -> int:
    """Processors for this process: those it may run on, and no more than the quota of its control group pays for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _own_quota())))


def computing_threads() -> int:
    """Threads that this process should compute with at most."""
    told = [int(text) for name in TOLD_BY_OTHERS if (text := os.environ.get(name, "").strip()).isdigit()]
    told += limits_of_openmp(numeric_libraries().info())
    return max(1, min([available_processors(), *(number for number in told if number > 0)]))


def processors_for_processes() -> int:
    """Processes that this one should compute with at most. In a worker of joblib, Dask or `multiprocessing` the
    processors are shared with its siblings; elsewhere those variables are about threads alone."""
    processes: Any = sys.modules.get("multiprocessing.process")
    among_others = processes is not None and processes.parent_process() is not None
    return computing_threads() if among_others else available_processors()


def numeric_libraries() -> ThreadpoolController:
    """The libraries of linear algebra and of OpenMP in this process, and the threads that each uses."""
    return _found_libraries(len(sys.modules))


@lru_cache(maxsize=1)
def _found_libraries(modules: int) -> ThreadpoolController:
    """Finding them takes 5 ms; they are looked for again when modules were imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def limits_of_openmp(libraries: list[dict[str, Any]]) -> list[int]:
    """Threads that OpenMP may use in this thread, by library: `threadpool_limits` sets them, and PyTorch, to 1 in the
    workers of a `DataLoader`. By itself PyTorch takes one for each core, which may be half of the processors, so more
    than 1 of its own are no limit."""
    found = [(str(one["filepath"]), int(one["num_threads"])) for one in libraries if one["user_api"] == "openmp"]
    return [threads for path, threads in found if threads == 1 or "torch" not in Path(path).parts]


_team_limits: list[int] = []


def limit_team(threads: int) -> None:
    """Whoever started this process gives its team so many threads, whatever its job asks for, and no more than there
    are processors. What its environment says is about numeric libraries, which have one thread in workers."""
    _team_limits[:] = [min(threads, available_processors())]


def threads_of_team(wanted: int) -> int:
    """Threads of a team whose job asks for so many; 0 stays 0, no team."""
    return min([wanted, *_team_limits])


@cache
def _own_quota() -> float:
    """Read once: a job asks several times, and quotas hardly ever change while a process runs."""
    return processor_quota()


def processor_quota(root: Path = Path("/")) -> float:
    """Processors that the control groups of this process pay for; `root`: where /proc and /sys are."""
    return _quota(root / CONTROL_GROUPS, _groups(root))


def _groups(root: Path) -> list[str]:
    """The control groups of this process, as paths; none where the system has none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") >= 2]


def _quota(root: Path, groups: list[str]) -> float:
    """Processors that the tightest of the groups, and of those around them, pays for."""
    found = math.inf
    for group in {"", *groups}:
        place = Path(group)
        for inner in (place, *place.parents):
            found = min(found, _of_version_2(root / inner), _of_version_1(root / "cpu" / inner))
    return found


def _of_version_2(folder: Path) -> float:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _of_version_1(folder: Path) -> float:
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
