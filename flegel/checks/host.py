"""Whether this host is fit for jobs: cores, memory, shared memory, compiled code, sockets, clock, GPUs, versions.

Each check reads a few files or tries a small thing, and answers with one finding. Changes nothing.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flegel.core.code_folder import code_folder, is_lasting
from flegel.datasets.rows.memory import control_groups
from flegel.errors import in_words
from flegel.runtime import clock
from flegel.runtime.system.device_memory import free_memory
from flegel.runtime.system.processors import processor_quota

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_WANTED = 1 << 30  # bytes: rows of Python travel through it, and Docker gives 64 MiB
MEMORY_WANTED = 1 << 30  # bytes: two workers with their libraries take some 400 MiB
FILES_WANTED = 1024  # open files: some ten for each worker
DISK_WANTED = 1 << 28  # bytes of the cache: all kernels of one machine take some 60 MiB
PORTS_WANTED = 2000  # a worker takes a few, and so do other programs
MASTER_PORT = 7077  # TCP; where `flegel master` listens unless it is told otherwise
COARSE_CLOCK = 1e-4  # seconds: barriers are set by time, down to a millisecond
NEEDED = ("numpy", "numba", "pyzmq", "msgpack", "msgspec", "pandas")
OPTIONAL = ("torch", "scikit-learn", "pyarrow", "ray", "dask", "pyspark", "obstore", "cryptography")


@dataclass(frozen=True)
class HostFact:
    """What one check saw: `ok`, `note` (works, and could be better) or `broken` (jobs fail, or some of them)."""

    subject: str
    state: str
    text: str
    mend: str = ""
    """What to do, where something is to be done."""


def examine_host(root: Path = Path("/")) -> Iterator[HostFact]:
    """One finding after the other; `root`: where /proc and /sys are."""
    yield _python()
    yield from _packages()
    yield _cores(root)
    yield _vector_units(root)
    yield _linear_algebra()
    yield _memory(root)
    yield _huge_pages(root)
    yield _shared_memory()
    yield _open_files()
    yield _compiled_code()
    yield _sockets()
    yield _ports(root)
    yield _clock()
    yield _gpu(root)


def _python() -> HostFact:
    about = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return HostFact("python", "note", about, "Flegel is tested on Linux; elsewhere use a container or WSL.")
    return HostFact("python", "ok", about)


def _packages() -> Iterator[HostFact]:
    """Whether needed packages are installed, and which optional ones."""
    found, missing = _versions(NEEDED)
    if missing:
        yield HostFact(
            "packages", "broken", f"missing: {', '.join(missing)}", "Install Flegel again: pip install flegel."
        )
    else:
        yield HostFact("packages", "ok", ", ".join(found))
    extras, _ = _versions(OPTIONAL)
    yield HostFact("extras", "ok", ", ".join(extras) or "none installed; `pip install 'flegel[torch]'` adds networks")


def _versions(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Name and version of what is installed, and names of what is not."""
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return found, missing


def _cores(root: Path) -> HostFact:
    """Cores of the machine, those that this process may use, and a quota of its control group."""
    here = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else here
    quota = processor_quota(root)
    text = f"{allowed} of {here} cores" if allowed < here else f"{here} cores"
    if quota < allowed:
        return HostFact(
            "cores",
            "note",
            f"{text}, but a quota of {quota:g} processors",
            f"Workers are stopped when the quota is used up: use --workers {max(int(quota), 1)}, or raise the quota.",
        )
    load = os.getloadavg()[0]
    if load > 0.5 * allowed:
        return HostFact("cores", "note", f"{text}, load {load:.1f}", "Other programs use them: timings will vary.")
    return HostFact("cores", "ok", f"{text}, load {load:.1f}")


def _vector_units(root: Path) -> HostFact:
    """The processor and its best vector unit."""
    text = _read(root / "proc/cpuinfo")
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split()
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    best = next((name for name in ("avx512f", "avx2", "sve", "asimd", "neon") if name in flags), "")
    if not best:
        return HostFact("processor", "note", model or platform.machine(), "No vector unit was found; kernels are slow.")
    return HostFact("processor", "ok", f"{model or platform.machine()}, {best}")


def _linear_algebra() -> HostFact:
    """The linear algebra library of numpy, which wide rows need."""
    import numpy as np  # noqa: F401 - loads the library that is asked for
    from threadpoolctl import threadpool_info

    pools = [
        f"{p['internal_api']} {p.get('version') or ''}".strip() for p in threadpool_info() if p["user_api"] == "blas"
    ]
    if not pools:
        return HostFact("blas", "note", "none was found", "Install numpy from PyPI or conda-forge; wide rows need it.")
    return HostFact("blas", "ok", ", ".join(pools))


def _memory(root: Path) -> HostFact:
    """Free memory, and the limit of a control group."""
    fields = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    free = int(fields.get("MemAvailable", "0 kB").split()[0]) << 10
    limit = min((most for most, _ in control_groups(str(root)) if most < 1 << 60), default=None)
    text = f"{_size(free)} free" + (f", a limit of {_size(limit)}" if limit is not None else "")
    if 0 < free < MEMORY_WANTED or (limit is not None and limit < MEMORY_WANTED):
        return HostFact(
            "memory", "note", text, f"Jobs want {_size(MEMORY_WANTED)} besides their rows; use fewer workers."
        )
    return HostFact("memory", "ok", text)


def _huge_pages(root: Path) -> HostFact:
    """Whether huge pages can be asked for."""
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen == "never":
        return HostFact(
            "huge pages",
            "note",
            "never",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): large arrays are read faster.",
        )
    return HostFact("huge pages", "ok", chosen or "not known here")


def _shared_memory() -> HostFact:
    """Whether a file can be made there, and how much fits."""
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
        probe = SHARED_MEMORY / f"flegel-doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return HostFact(
            "shared memory",
            "broken",
            f"{SHARED_MEMORY}: {error.strerror or error}",
            "Workers of a host share rows there: mount it (docker run --shm-size 2g).",
        )
    if free < SHARED_MEMORY_WANTED:
        return HostFact(
            "shared memory",
            "note",
            f"{_size(free)} free in {SHARED_MEMORY}",
            "Larger rows from Python are copied to files instead: docker run --shm-size 2g.",
        )
    return HostFact("shared memory", "ok", f"{_size(free)} free in {SHARED_MEMORY}")


def _open_files() -> HostFact:
    """The limit of open files, and how to raise it where it is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_WANTED:
        higher = "Ask the administrator of this host for more: the hard limit is as low."
        if hard < 0 or hard > soft:
            higher = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
        return HostFact("open files", "note", f"{soft} at most", higher)
    return HostFact("open files", "ok", f"{soft} at most")


def _compiled_code() -> HostFact:
    """Whether the folder of compiled code lasts, has room and is filled."""
    folder = code_folder()
    if not is_lasting():
        return HostFact(
            "compiled code",
            "note",
            f"kept in {folder} until this process ends",
            "Each process compiles anew: set FLEGEL_CACHE to a folder that you own and can write.",
        )
    free = shutil.disk_usage(folder).free
    kernels = sum(len(files) for _, _, files in os.walk(folder))  # other processes may add and remove files meanwhile
    if free < DISK_WANTED:
        return HostFact("compiled code", "note", f"{_size(free)} free for {folder}", "Make room, or set FLEGEL_CACHE.")
    if not kernels:
        return HostFact("compiled code", "note", f"none yet in {folder}", "flegel warm compiles all kernels now.")
    return HostFact("compiled code", "ok", f"{kernels} files in {folder}")


def _sockets() -> HostFact:
    """A connection of this host to itself, by name and by number."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2.0)
            with socket.create_connection(server.getsockname(), timeout=2.0):
                server.accept()[0].close()
    except OSError as error:
        return HostFact(
            "sockets", "broken", f"127.0.0.1: {in_words(error)}", "Allow connections of this host to itself."
        )
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return HostFact(
            "sockets",
            "note",
            f"the name {socket.gethostname()!r} has no address",
            "For a cluster give --host an address, or add the name to /etc/hosts.",
        )
    if address.startswith("127."):
        return HostFact(
            "sockets",
            "note",
            f"the name {socket.gethostname()!r} is {address}, which other hosts cannot reach",
            "For a cluster give the master --host with an address that slaves can reach; one host needs nothing.",
        )
    return HostFact("sockets", "ok", f"this host is {address}")


def _ports(root: Path) -> HostFact:
    """Whether a master can listen at its usual port, and how many ports there are for connections."""
    limits = _read(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    given = int(limits[1]) - int(limits[0]) + 1 if len(limits) == 2 else None
    if given is not None and given < PORTS_WANTED:
        return HostFact(
            "ports", "note", f"{given} for connections",
            "A coordinator of many workers uses them up: sysctl net.ipv4.ip_local_port_range='32768 60999'.",
        )  # fmt: skip
    try:
        with socket.create_server(("127.0.0.1", MASTER_PORT)):
            return HostFact("ports", "ok", f"a master can listen at {MASTER_PORT}")
    except OSError as error:
        return HostFact(
            "ports", "note", f"{MASTER_PORT}: {in_words(error)}",
            "Where that is not a master (`flegel status`), start one at another port: flegel master --listen ADDRESS.",
        )  # fmt: skip


def _clock() -> HostFact:
    resolution = clock.resolution()
    if resolution > COARSE_CLOCK:
        return HostFact("clock", "note", f"{1e3 * resolution:g} ms", "Intervals below that cannot be kept.")
    return HostFact("clock", "ok", f"resolution {1e9 * resolution:g} ns")


def _gpu(root: Path) -> HostFact:
    """The first GPU, and whether torch can use it."""
    free = free_memory(0)
    if free is None:
        driver = (root / "proc/driver/nvidia/version").exists()
        mend = (
            "The driver is there, but its library is not: mount libnvidia-ml (docker run --gpus all)." if driver else ""
        )
        return HostFact("gpu", "note" if driver else "ok", "none that can be used" if driver else "none", mend)
    try:
        about = f"{_size(free)} free; torch {version('torch')}"
    except PackageNotFoundError:
        return HostFact("gpu", "note", f"{_size(free)} free, but no torch", "pip install 'flegel[torch]'")
    return HostFact("gpu", "ok", about)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.0f} MiB"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
