"""A slave's child processes: started, read, measured, ended with all their descendants. Decides nothing about jobs.

Each child leads a session of its own. Its end is noticed by its pidfd; before it is reaped, its whole process group is
killed, so nothing that user code has started outlives it. Its output goes, line by line, into the log of its job.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from flegel.cluster.slave.process_limits import ProcessLimits
from flegel.loading.input_files import FOLDERS_VARIABLE
from flegel.runtime import clock
from flegel.runtime.processes import fork_server
from flegel.runtime.system.process_activity import is_stopped

OWNER_VARIABLE = "FLEGEL_SLAVE"
"""Environment variable of all processes of a slave's jobs: processes that a killed slave has left are found by it."""
KILL_AFTER_SECONDS = 2.0
"""From the request to end (SIGTERM) to SIGKILL: user code may catch the first."""
MAX_LOG_LINE_BYTES = 4096
"""Of a line in the log; a longer one is cut or split."""
MAX_LOG_BYTES = 16 << 20
"""Of the log of one attempt on this slave; user code may print without end."""
PIPE_READ_BYTES = 64 << 10
"""Read from a pipe at a time: what a pipe of Linux holds."""

Name = tuple[str, int, int, int]
"""Job, attempt, worker, incarnation."""


class JobLog:
    """Output of the processes of one attempt on this slave; bounded, and readable even if its file is removed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        if path.is_symlink():  # put there by user code, to have another file written
            path.unlink()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, source: str, text: bytes) -> None:
        line = f"{clock.wall()} {source} | ".encode() + text[:MAX_LOG_LINE_BYTES] + b"\n"
        if self.length + len(line) >= MAX_LOG_BYTES:
            line = f"{clock.wall()} slave | the log is full; later output is dropped\n".encode()
        if self.length < MAX_LOG_BYTES - len(line):
            with contextlib.suppress(OSError):  # a full disk must not end the slave
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
    """One process of an attempt."""

    name: Name
    process: subprocess.Popen[bytes]
    pidfd: int
    output: int
    """Read end of its standard output and error."""
    log: JobLog
    memory: int | None
    reports: int | None = None
    """Read end of a coordinator's reports."""
    used: int = 0
    stopped: bool = False
    """By a signal (SIGSTOP) or a debugger, at the last measurement."""
    end_reason: str = ""
    """Why the slave itself ended it; empty if it did not."""
    asked_at: float | None = None
    code: int | None = None
    inbox: bytearray = field(default_factory=bytearray, repr=False)
    """Bytes for its standard input that it has not read yet."""
    closed: set[int] = field(default_factory=set)
    """Pipes that it has closed: nothing more will come."""
    partial_line: bytes = b""
    partial_report: bytes = field(default=b"", repr=False)

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def pipes(self) -> list[int]:
        """Descriptors to wait for."""
        return [fd for fd in (self.pidfd, self.output, self.reports) if fd is not None and fd not in self.closed]

    @property
    def source(self) -> str:
        _, _, worker, _ = self.name
        return "coordinator" if worker < 0 else f"worker {worker}"


@dataclass
class SpareProcess:
    """A process that has imported everything and waits for an assignment."""

    process: subprocess.Popen[bytes]
    pidfd: int
    output: int
    reports: int

    @property
    def dead(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def drop(self) -> None:
        """End a spare process that was never used."""
        self.process.kill()
        self.process.wait()
        for fd in (self.pidfd, self.output, self.reports):
            os.close(fd)
        assert self.process.stdin is not None
        self.process.stdin.close()


def start_spare(
    role: str, owner: str, folder: Path, data: Sequence[Path] = (), more: Mapping[str, str] | None = None
) -> SpareProcess:
    """Start a process that can become a `worker`, a `coordinator`, or `any` of the two. `data`: folders that files
    named by hyper-parameters may be read from; empty for all. `more`: for its environment."""
    output, output_write = os.pipe()
    reports, reports_write = os.pipe()
    environment = {**fork_server.environment(), "FLEGEL_REPORTS": str(reports_write), OWNER_VARIABLE: owner}
    environment |= more or {}
    if data:
        environment[FOLDERS_VARIABLE] = os.pathsep.join(str(each.resolve()) for each in data)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flegel.cluster.slave.job_process", str(os.getpid()), role],
            stdin=subprocess.PIPE,
            stdout=output_write,
            stderr=output_write,
            cwd=folder,
            env=environment,
            start_new_session=True,
            pass_fds=(reports_write,),
        )
    except OSError:
        os.close(output)
        os.close(reports)
        raise
    finally:
        os.close(output_write)
        os.close(reports_write)
    assert process.stdin is not None
    for fd in (output, reports, process.stdin.fileno()):
        os.set_blocking(fd, False)
    return SpareProcess(process, os.pidfd_open(process.pid), output, reports)


def assign(spare: SpareProcess, name: Name, limits: ProcessLimits, line: bytes, log: JobLog) -> ChildProcess:
    """Make it this process of this job; `line` is its configuration. It ends when its standard input closes."""
    Path(limits.scratch).mkdir(parents=True, exist_ok=True)
    child = ChildProcess(name, spare.process, spare.pidfd, spare.output, log, limits.memory, spare.reports)
    if limits.role == "worker":
        os.close(spare.reports)
        child.reports = None
    write_input(child, msgspec.json.encode(limits) + b"\n" + line + b"\n")
    return child


def write_input(child: ChildProcess, content: bytes = b"") -> None:
    """Write to the standard input of a process as far as it reads; what is left is written in later calls. Never
    waits."""
    child.inbox += content
    assert child.process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        while child.inbox:
            del child.inbox[: os.write(child.process.stdin.fileno(), child.inbox)]


def read_output(child: ChildProcess) -> None:
    """Append what it has written to the log, as lines."""
    _read_into_log(child)


def _read_into_log(child: ChildProcess) -> bool:
    """False where there was nothing to read. A line without an end is kept until its end is read."""
    content = _read(child, child.output)
    if not content:
        return False
    *lines, child.partial_line = (child.partial_line + content).split(b"\n")
    if len(child.partial_line) > MAX_LOG_LINE_BYTES:
        lines, child.partial_line = [*lines, child.partial_line], b""
    for line in lines:
        child.log.write(child.source, line)
    return True


def reports(child: ChildProcess) -> Iterator[bytes]:
    """Whole lines of a coordinator's reports."""
    if child.reports is None:
        return
    while content := _read(child, child.reports):
        *lines, child.partial_report = (child.partial_report + content).split(b"\n")
        yield from lines


def _read(child: ChildProcess, fd: int) -> bytes:
    """What there is; empty if there is nothing now, or never will be."""
    try:
        content = os.read(fd, PIPE_READ_BYTES)
    except OSError:
        return b""
    if not content:
        child.closed.add(fd)
    return content


def request_end(child: ChildProcess, end_reason: str, at_once: bool = False) -> None:
    """Ask it to end by SIGTERM, or kill it `at_once`; `kill_overdue` kills it later if it does not end."""
    if not child.alive:
        return
    child.end_reason = child.end_reason or end_reason
    if at_once or child.asked_at is not None:
        if at_once:
            _signal_group(child, signal.SIGKILL)
        return
    child.asked_at = clock.now()
    assert child.process.stdin is not None
    # Workers and coordinators end when their input does, also where user code catches the signal.
    with contextlib.suppress(OSError):
        child.process.stdin.close()
    _signal_group(child, signal.SIGTERM)
    _signal_group(child, signal.SIGCONT)  # a stopped process must continue to receive it


def kill_overdue(child: ChildProcess) -> None:
    """Kill it if it has not ended `KILL_AFTER_SECONDS` after the request."""
    if child.alive and child.asked_at is not None and clock.now() - child.asked_at > KILL_AFTER_SECONDS:
        _signal_group(child, signal.SIGKILL)


def clean_up(child: ChildProcess) -> None:
    """Clean up after a process has ended: kill what it has started, read its last output, close everything."""
    _signal_group(child, signal.SIGKILL)  # until it is reaped, its pid cannot belong to another process
    child.code = child.process.wait()
    for _ in range(1024):  # a descendant may still hold the pipe and write without end
        if not _read_into_log(child):
            break
    if child.partial_line:
        child.log.write(child.source, child.partial_line)
    for fd in (child.output, child.pidfd, child.reports):
        if fd is not None:
            os.close(fd)
    if child.process.stdin is not None:
        with contextlib.suppress(OSError):
            child.process.stdin.close()


def has_ended(child: ChildProcess) -> bool:
    """Whether the process has ended; it may not be reaped yet."""
    return bool(select.select([child.pidfd], [], [], 0)[0])


def _signal_group(child: ChildProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def measure_and_reap(children: list[ChildProcess], spare: SpareProcess | None) -> None:
    """Measure the memory of each child with its descendants; kill descendants that have outlived their child."""
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
        child.stopped = is_stopped(child.process.pid)


def _resident(entry: Path) -> int:
    total = 0
    for line in (entry / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            total += int(value.split()[0]) << 10
    return total


def kill_leftovers(owner: str) -> int:
    """Kill processes that an earlier slave of this owner has left; how many there were."""
    found = 0
    wanted = f"{OWNER_VARIABLE}={owner}".encode()
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
