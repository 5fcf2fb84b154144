"""A slave's children: started, listened to, measured, ended to the last grandchild. Decides nothing about jobs.

Each child leads a session of its own. Its end is noticed by its pidfd; before it is reaped, its whole group is killed,
so nothing that user code has started outlives it. What it writes goes, line by line, into the log of its job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from flegel.cluster.slave.job_process import ProcessLimits
from flegel.runtime import clock

MARK = "FLEGEL_SLAVE"
"""Environment variable that all processes of a slave's jobs carry: what is left of a killed slave is found by it."""
GRACE = 2.0
"""Seconds between asking a process to end and ending it."""
MAX_LINE = 4096
_PR_SET_CHILD_SUBREAPER = 36
MAX_LOG = 16 << 20
READ = 64 << 10

Name = tuple[str, int, int, int]
"""Job, attempt, worker, life."""


class JobLog:
    """What the processes of one job say on this slave; bounded, and there even if somebody removes its name."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, who: str, text: bytes) -> None:
        line = f"{clock.wall()} {who} | ".encode() + text[:MAX_LINE] + b"\n"
        if self.length + len(line) >= MAX_LOG:
            line = f"{clock.wall()} slave | the log is full; what follows is not kept\n".encode()
        if self.length < MAX_LOG - len(line):
            with contextlib.suppress(OSError):  # a full disk must not end anybody
                os.write(self._fd, line)

    def read(self, offset: int, most: int) -> bytes:
        return os.pread(self._fd, most, offset)

    @property
    def length(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class ChildProcess:
    """One process."""

    name: Name
    process: subprocess.Popen[bytes]
    pidfd: int
    voice: int
    """Read end of its standard output and error."""
    log: JobLog
    memory: int | None
    reports: int | None = None
    """Read end of a coordinator's reports."""
    used: int = 0
    verdict: str = ""
    """Why the slave itself ended it; empty where it did not."""
    asked_at: float | None = None
    code: int | None = None
    inbox: bytearray = field(default_factory=bytearray, repr=False)
    """What it has not read yet."""
    closed: set[int] = field(default_factory=set)
    """Pipes that it has closed on its side: there is nothing to wait for any more."""
    rest: bytes = b""
    reported: bytes = field(default=b"", repr=False)

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def pipes(self) -> list[int]:
        """What can be waited for."""
        return [fd for fd in (self.pidfd, self.voice, self.reports) if fd is not None and fd not in self.closed]

    @property
    def who(self) -> str:
        return "coordinator" if self.name[2] < 0 else f"worker {self.name[2]}"


@dataclass
class SpareProcess:
    """A process that has started and waits to be told what it is."""

    process: subprocess.Popen[bytes]
    pidfd: int
    voice: int
    reports: int

    @property
    def dead(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def drop(self) -> None:
        """It is not needed."""
        self.process.kill()
        self.process.wait()
        for fd in (self.pidfd, self.voice, self.reports):
            os.close(fd)
        assert self.process.stdin is not None
        self.process.stdin.close()


def start_spare(role: str, mark: str, folder: Path) -> SpareProcess:
    """Start a process that can become a `worker`, a `coordinator`, or `any` of the two."""
    voice, tongue = os.pipe()
    reports, pen = os.pipe()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
        "FLEGEL_REPORTS": str(pen),
        MARK: mark,
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flegel.cluster.slave.job_process", str(os.getpid()), role],
            stdin=subprocess.PIPE,
            stdout=tongue,
            stderr=tongue,
            cwd=folder,
            env=environment,
            start_new_session=True,
            pass_fds=(pen,),
        )
    except OSError:
        os.close(voice)
        os.close(reports)
        raise
    finally:
        os.close(tongue)
        os.close(pen)
    assert process.stdin is not None
    for fd in (voice, reports, process.stdin.fileno()):
        os.set_blocking(fd, False)
    return SpareProcess(process, os.pidfd_open(process.pid), voice, reports)


def assign(
    egg: SpareProcess, name: Name, role: str, line: bytes, log: JobLog, scratch: Path, memory: int | None
) -> ChildProcess:
    """It is this process of this job; `line` tells it the rest. Its standard input is open as long as it may live."""
    scratch.mkdir(parents=True, exist_ok=True)
    child = ChildProcess(name, egg.process, egg.pidfd, egg.voice, log, memory, egg.reports)
    if role == "worker":
        os.close(egg.reports)
        child.reports = None
    tell(child, msgspec.json.encode(ProcessLimits(role, str(scratch), memory)) + b"\n" + line + b"\n")
    return child


def tell(child: ChildProcess, content: bytes = b"") -> None:
    """Onto its standard input, as far as it reads; the rest when this is called again. Never waits for it."""
    child.inbox += content
    assert child.process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        while child.inbox:
            del child.inbox[: os.write(child.process.stdin.fileno(), child.inbox)]


def listen(child: ChildProcess) -> None:
    """Take what it has written, as lines, into the log."""
    _read_into_log(child)


def _read_into_log(child: ChildProcess) -> bool:
    content = _read(child, child.voice)
    if not content:
        return False
    *lines, child.rest = (child.rest + content).split(b"\n")
    if len(child.rest) > MAX_LINE:
        lines, child.rest = [*lines, child.rest], b""
    for line in lines:
        child.log.write(child.who, line)
    return True


def reports(child: ChildProcess) -> Iterator[bytes]:
    """Whole lines of a coordinator's reports."""
    if child.reports is None:
        return
    while content := _read(child, child.reports):
        *lines, child.reported = (child.reported + content).split(b"\n")
        yield from lines


def _read(child: ChildProcess, fd: int) -> bytes:
    """What there is; nothing where there is nothing now, or never will be."""
    try:
        content = os.read(fd, READ)
    except OSError:
        return b""
    if not content:
        child.closed.add(fd)
    return content


def ask(child: ChildProcess, verdict: str, at_once: bool = False) -> None:
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


def insist(child: ChildProcess) -> None:
    """By force, where asking did not help."""
    if child.alive and child.asked_at is not None and clock.now() - child.asked_at > GRACE:
        _signal_group(child, signal.SIGKILL)


def clean_up(child: ChildProcess) -> None:
    """After its end: kill what it has started, hear its last words, close everything."""
    _signal_group(child, signal.SIGKILL)  # while it is not reaped, its number cannot be anybody else's
    child.code = child.process.wait()
    for _ in range(1024):  # something of it may still hold the pipe, and write without end
        if not _read_into_log(child):
            break
    if child.rest:
        child.log.write(child.who, child.rest)
    for fd in (child.voice, child.pidfd, child.reports):
        if fd is not None:
            os.close(fd)
    if child.process.stdin is not None:
        with contextlib.suppress(OSError):
            child.process.stdin.close()


def ended(child: ChildProcess) -> bool:
    """Has the process ended, though nobody has reaped it yet?"""
    return bool(select.select([child.pidfd], [], [], 0)[0])


def _signal_group(child: ChildProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def how(code: int) -> tuple[str, bool]:
    """The end of a process in words, and whether it was the job's own doing: others kill, code crashes."""
    if code >= 0:
        return f"ended with exit code {code}", True
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    return f"was killed by {name}", name not in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


def adopt_orphans() -> None:
    """From now on processes whose parents have died become children of this one, however they hid (see `patrol`)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def patrol(children: list[ChildProcess], spare: SpareProcess | None) -> None:
    """Memory of each child with all that it has started; and an end to what has outlived the child that started it."""
    used = {c.process.pid: 0 for c in children if c.alive}
    if spare is not None:
        used[spare.process.pid] = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parent, session = int(fields[1]), int(fields[3])
            if session in used:
                used[session] += _resident(entry)
            elif parent == os.getpid() and int(entry.name) not in used:
                os.kill(int(entry.name), signal.SIGKILL)
                os.waitpid(int(entry.name), os.WNOHANG)
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
