"""A slave's children: started, listened to, measured, ended to the last grandchild. Decides nothing about jobs.

Each child leads a session of its own. Its end is noticed by its pidfd; before it is reaped, its whole group is killed,
so nothing that user code has started outlives it. What it writes goes, line by line, into the log of its job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from flegel.cluster.child import Bounds
from flegel.runtime import clock

MARK = "FLEGEL_SLAVE"
"""Environment variable that all processes of a slave's jobs carry: what is left of a killed slave is found by it."""
GRACE = 2.0
"""Seconds between asking a process to end and ending it."""
MAX_LINE = 4096
MAX_LOG = 16 << 20
READ = 64 << 10

Name = tuple[str, int, int, int]
"""Job, attempt, worker, life."""


class Log:
    """What the processes of one job say on this slave; bounded."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")
        self.size = self._file.tell()

    def write(self, who: str, text: bytes) -> None:
        if self.size >= MAX_LOG:
            return
        line = f"{clock.wall()} {who} | ".encode() + text[:MAX_LINE] + b"\n"
        if self.size + len(line) >= MAX_LOG:
            line = f"{clock.wall()} slave | the log is full; what follows is not kept\n".encode()
            self.size = MAX_LOG
        with contextlib.suppress(OSError):  # a full disk must not end anybody
            self._file.write(line)
            self._file.flush()
            self.size = max(self.size, self._file.tell())

    def read(self, offset: int, most: int) -> bytes:
        with self.path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(most)

    @property
    def length(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self._file.close()


@dataclass
class Child:
    """One process."""

    name: Name
    process: subprocess.Popen[bytes]
    pidfd: int
    voice: int
    """Read end of its standard output and error."""
    log: Log
    memory: int | None
    reports: int | None = None
    """Read end of a coordinator's reports."""
    used: int = 0
    verdict: str = ""
    """Why the slave itself ended it; empty where it did not."""
    asked_at: float | None = None
    code: int | None = None
    rest: bytes = b""
    reported: bytes = field(default=b"", repr=False)

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def who(self) -> str:
        return "coordinator" if self.name[2] < 0 else f"worker {self.name[2]}"


def spawn(name: Name, role: str, lines: list[bytes], log: Log, scratch: Path, mark: str, memory: int | None) -> Child:
    """Start a job's process; `lines` follow its bounds on standard input, which stays open as long as it may live."""
    scratch.mkdir(parents=True, exist_ok=True)
    voice, tongue = os.pipe()
    reports, pen = os.pipe() if role == "coordinator" else (None, None)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
        "TMPDIR": str(scratch),
        MARK: mark,
    }
    if pen is not None:
        environment["FLEGEL_REPORTS"] = str(pen)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flegel.cluster.child"],
            stdin=subprocess.PIPE,
            stdout=tongue,
            stderr=tongue,
            cwd=scratch,
            env=environment,
            start_new_session=True,
            pass_fds=() if pen is None else (pen,),
        )
    except OSError:
        for fd in (voice, reports):
            if fd is not None:
                os.close(fd)
        raise
    finally:
        os.close(tongue)
        if pen is not None:
            os.close(pen)
    for fd in (voice, reports):
        if fd is not None:
            os.set_blocking(fd, False)
    child = Child(name, process, os.pidfd_open(process.pid), voice, log, memory, reports)
    bounds = msgspec.json.encode(Bounds(role, os.getpid(), memory)) + b"\n"
    tell(child, b"".join([bounds, *lines]))
    return child


def tell(child: Child, content: bytes) -> None:
    """Onto its standard input. A child that does not read is one that has ended or soon will."""
    assert child.process.stdin is not None
    with contextlib.suppress(OSError):
        child.process.stdin.write(content)
        child.process.stdin.flush()


def listen(child: Child) -> None:
    """Take what it has written, as lines, into the log."""
    content = _read(child.voice)
    if content is None:
        return
    *lines, child.rest = (child.rest + content).split(b"\n")
    if len(child.rest) > MAX_LINE:
        lines, child.rest = [*lines, child.rest], b""
    for line in lines:
        child.log.write(child.who, line)


def reports(child: Child) -> Iterator[bytes]:
    """Whole lines of a coordinator's reports."""
    if child.reports is None:
        return
    while content := _read(child.reports):
        *lines, child.reported = (child.reported + content).split(b"\n")
        yield from lines


def _read(fd: int) -> bytes | None:
    try:
        return os.read(fd, READ)
    except OSError:
        return None


def ask(child: Child, verdict: str, at_once: bool = False) -> None:
    """To end: by a signal first, by force after a while (see `insist`)."""
    if not child.alive:
        return
    child.verdict = child.verdict or verdict
    if at_once or child.asked_at is not None:
        if at_once:
            _signal_group(child, signal.SIGKILL)
        return
    child.asked_at = clock.now()
    assert child.process.stdin is not None
    with contextlib.suppress(OSError):
        child.process.stdin.close()
    _signal_group(child, signal.SIGTERM)
    _signal_group(child, signal.SIGCONT)  # one that was stopped must wake to hear it


def insist(child: Child) -> None:
    """By force, where asking did not help."""
    if child.alive and child.asked_at is not None and clock.now() - child.asked_at > GRACE:
        _signal_group(child, signal.SIGKILL)


def bury(child: Child) -> None:
    """After its end: kill what it has started, hear its last words, close everything."""
    _signal_group(child, signal.SIGKILL)  # while it is not reaped, its number cannot be anybody else's
    child.code = child.process.wait()
    for _ in range(256):
        before = child.rest
        listen(child)
        if child.rest == before and not _readable(child.voice):
            break
    if child.rest:
        child.log.write(child.who, child.rest)
    for fd in (child.voice, child.pidfd, child.reports):
        if fd is not None:
            os.close(fd)
    if child.process.stdin is not None:
        with contextlib.suppress(OSError):
            child.process.stdin.close()


def _readable(fd: int) -> bool:
    import select

    ready = select.select([fd], [], [], 0)[0]
    return bool(ready) and bool(_peek(fd))


def _peek(fd: int) -> int:
    import array
    import fcntl
    import termios

    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0]


def _signal_group(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def how(code: int) -> tuple[str, bool]:
    """The end of a process in words, and whether it was the job's own doing: others kill, code crashes."""
    if code >= 0:
        return f"ended with exit code {code}", True
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    return f"was killed by {name}", name not in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


def measure(children: list[Child]) -> None:
    """Memory of each child with all that it has started: anonymous and shared pages in use."""
    used = dict.fromkeys((c.process.pid for c in children if c.alive), 0)
    if not used:
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session in used:
                used[session] += _resident(entry)
        except (OSError, ValueError, IndexError):
            continue  # ended in the meantime
    for child in children:
        child.used = used.get(child.process.pid, 0)


def _resident(entry: Path) -> int:
    total = 0
    for line in (entry / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            total += int(value.split()[0]) << 10
    return total


def sweep(mark: str) -> int:
    """End processes that a killed slave with this mark has left; how many there were."""
    found = 0
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found
