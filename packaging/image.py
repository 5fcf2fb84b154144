"""Builds build/image, an OCI layout of Flegel on a small Debian, without Docker; `make image` runs it, as root.

debootstrap makes the file system, pip installs this checkout into it, `flegel warm` compiles the kernels, and umoci
packs it. `make image KERNELS="kmeans lr"` compiles the kernels of these algorithms alone: those of all take many
minutes, and a job compiles what it does not find. `skopeo copy oci:build/image:VERSION docker://REGISTRY/flegel:VERSION`
brings it to a registry. The Dockerfile beside this file makes such an image where Docker is at hand.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = ROOT / "build" / "image"
TOOLS = ("debootstrap", "umoci", "chroot", "mount")
DEBIAN = "http://deb.debian.org/debian"
SUITE = "trixie"
PYTHON = "3.13"
"""Of that suite."""
PACKAGES = "python3,python3-venv,ca-certificates"
STEP_SECONDS = 5400.0
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
"""Of wheels that the suite's C library can load."""
HOME = "/home/flegel"
ENVIRONMENT = {
    "PATH": "/opt/flegel/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "FLEGEL_CACHE": "/opt/flegel/cache",
    "FLEGEL_HOME": f"{HOME}/state",
}


def step(what: str, *words: str, inside: Path | None = None) -> None:
    """One command, in the new file system where that is given; says what it is for, ends the program where it fails."""
    print(what, flush=True)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if inside is not None:
        words = ("chroot", str(inside), *words)
        environment = {**ENVIRONMENT, "HOME": HOME, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"No image: {what} took longer than {STEP_SECONDS:.0f} s.") from None
    if done.returncode:
        raise SystemExit(f"{done.stdout[-3000:]}{done.stderr[-3000:]}\nNo image: {what} failed.")


def version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "flegel" / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def download(wheels: Path) -> None:
    """Flegel and what it needs, for the image's Python. The image itself reaches no package index."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack files of older versions
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    step("the wheel", *pip, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(ROOT))
    (flegel,) = wheels.glob("flegel-*.whl")
    kinds = [f"--platform={kind}_{platform.machine()}" for kind in PLATFORMS]
    wanted = ("--only-binary=:all:", f"--python-version={PYTHON}", *kinds, f"--dest={wheels}", f"{flegel}[parquet]")
    step("what it needs", *pip, "download", *wanted)


@contextlib.contextmanager
def processes_visible(system: Path) -> Iterator[None]:
    """/proc, where Flegel reads which processor and how many cores there are."""
    step("/proc", "mount", "-t", "proc", "proc", str(system / "proc"))
    try:
        yield
    finally:
        step("without /proc", "umount", "--lazy", str(system / "proc"))


def fill(system: Path, algorithms: Sequence[str]) -> None:
    """Python, Flegel, an account without rights, compiled kernels: of these algorithms, or of all."""
    step("a small Debian", "debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(system), DEBIAN)
    wheels = system / "tmp" / "wheels"
    download(wheels)
    (flegel,) = wheels.glob("flegel-*.whl")
    step("an environment", "python3", "-m", "venv", "/opt/flegel", inside=system)
    install = ("/opt/flegel/bin/pip", "install", "--no-cache-dir", "--quiet", "--no-index", "--find-links=/tmp/wheels")
    step("Flegel in it", *install, f"/tmp/wheels/{flegel.name}[parquet]", inside=system)
    step("an account", "useradd", "--create-home", "--uid", "10001", "flegel", inside=system)
    folders = [ENVIRONMENT[name] for name in ("FLEGEL_CACHE", "FLEGEL_HOME")]
    step("its folders", "install", "-d", "-o", "flegel", "-g", "flegel", *folders, inside=system)
    with processes_visible(system):
        user = ("setpriv", "--reuid=10001", "--regid=10001", "--clear-groups")
        for names in [(name,) for name in algorithms] or [()]:
            step(f"compiling kernels {' '.join(names)}".rstrip(), *user, "flegel", "warm", *names, inside=system)
        step("a job", *user, "flegel", "check", "kmeans", "--set", "k=3", inside=system)
    for left in ("tmp/wheels", "var/lib/apt/lists", "var/cache/apt/archives"):
        shutil.rmtree(system / left, ignore_errors=True)


def pack(scratch: Path, tag: str) -> None:
    """The file system as one layer, with the settings of the Dockerfile."""
    step("an empty layout", "umoci", "init", "--layout", str(LAYOUT))
    image = f"{LAYOUT}:{tag}"
    step("an empty image", "umoci", "new", "--image", image)
    step("one layer", "umoci", "insert", "--image", image, str(scratch / "system"), "/")
    settings = [
        "--config.user=10001",
        f"--config.workingdir={HOME}",
        "--config.entrypoint=flegel",
        "--config.cmd=--help",
    ]
    settings += [f"--config.env={name}={value}" for name, value in ENVIRONMENT.items()]
    step("its settings", "umoci", "config", "--image", image, *settings)


def missing(tools: Sequence[str] = TOOLS) -> list[str]:
    return [name for name in tools if shutil.which(name) is None]


def main() -> int:
    if gone := missing():
        print(f"{', '.join(gone)}: not found; `apt-get install debootstrap umoci` on Debian.", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("An image is built as root: `sudo make image`, or use Docker and packaging/Dockerfile.", file=sys.stderr)
        return 2
    shutil.rmtree(LAYOUT, ignore_errors=True)
    LAYOUT.parent.mkdir(exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that /proc is unmounted and the new file system removed
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="flegel-image-") as scratch:
        fill(Path(scratch) / "system", sys.argv[1:])
        pack(Path(scratch), version())
    print(f"build/image, an OCI layout with the tag {version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
