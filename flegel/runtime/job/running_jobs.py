"""Jobs of this user that run on this host, as files that `flegel top` reads. Trains nothing, and fails no job.

A file for each job, in a folder that no other user can enter. The job replaces its file at most once a second and
removes it when it ends; what a killed process has left is removed by the next process that runs a job, and by who looks
next."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from flegel.errors import StorageError
from flegel.loading.regular_files import read_regular
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime import clock
from flegel.runtime.job.observers import JobEvent, JobSeen, Observer, PhaseBegan

LONG_PHASES = ("init", "compiling", "training")
"""Noted when they begin: a small job takes 30 ms, and each note takes a tenth of one."""
CLEANED_EVERY_SECONDS = 60.0
"""A process looks for what killed ones have left at most so often: it takes 0.2 ms of a small job."""
MOST_BYTES = 1 << 20
"""Of a file that is read: a note has less than 2,000 bytes."""
_numbers = itertools.count(1)


class RunningJob(msgspec.Struct, frozen=True):
    """A job and how far it is."""

    pid: int
    born: int
    """When its process started, as the kernel counts: numbers of processes are used again."""
    name: str
    algorithm: str
    data: str
    workers: int | None
    started: float
    phase: str = "reading"
    seen: JobSnapshot | None = None
    """Once it trains."""


_decoder = msgspec.msgpack.Decoder(RunningJob)
"""Made here, once: msgspec crashes where two threads decode a record with records in it for the first time."""


def folders() -> list[Path]:
    """Where notes may be: the folder that the system makes for a user who is logged in, else one in memory (replacing a
    file on a disk takes a millisecond), else one for temporary files. Variables of the environment do not decide which:
    a job and who looks for it may have different ones."""
    uid = os.getuid()
    shared = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return [Path(f"/run/user/{uid}/flegel-jobs"), *(place / f"flegel-jobs-{uid}" for place in shared)]


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _own_folder() -> Path | None:
    """The folder for notes of this user's running jobs, made where it is missing; None where none can be made that only
    this user can write."""
    for folder in folders():
        with contextlib.suppress(OSError):
            if not folder.parent.is_dir():
                continue
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder):
                return folder
    return None


def born(pid: int) -> int | None:
    """When a process started, or 0 where the system does not tell; None where there is no such process."""
    try:
        os.kill(pid, 0)
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except ProcessLookupError:
        return None
    except (OSError, ValueError, IndexError, OverflowError):
        return 0


# -- of a job ----------------------------------------------------------------------------------------------


class JobNote(Observer):
    """The note of one job."""

    every = 1.0  # `flegel top` looks as often
    shown = 0

    def __init__(self, path: Path | None, job: RunningJob) -> None:
        self._path, self._job = "" if path is None else str(path), job
        self._write()

    def see(self, event: JobEvent) -> None:
        """What it does before it trains, and how far it is then; without lists that may be long."""
        match event:
            case PhaseBegan(name) if name != self._job.phase and name in LONG_PHASES:
                self._job = msgspec.structs.replace(self._job, phase=name)
                self._write()
            case JobSeen(seen) if seen.phase != "over":
                short = msgspec.structs.replace(seen, workers=(), flows=(), incidents=(), news=(), servers=None)
                self._job = msgspec.structs.replace(self._job, phase=seen.phase, seen=short)
                self._write()

    def _write(self) -> None:
        """Write the note anew. A job whose note cannot be written trains on without being listed."""
        if not self._path:
            return
        try:
            self._replace()
        except FileNotFoundError:  # the job that was the last one there has just removed the folder
            with contextlib.suppress(OSError):
                Path(self._path).parent.mkdir(mode=0o700, exist_ok=True)
                self._replace()
        except OSError:  # a full disk: the job trains without being shown
            self._path = ""

    def _replace(self) -> None:
        """Write a second file and rename it, so that readers see the old note or the new one, never a part."""
        scratch = f"{self._path}.new"
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(file, msgspec.msgpack.encode(self._job))
        finally:
            os.close(file)
        os.replace(scratch, self._path)  # noqa: PTH105 - a small job makes three of these, and pathlib is slow

    def remove(self) -> None:
        """The last job there removes the folder, too."""
        if self._path:
            Path(self._path).unlink(missing_ok=True)
            Path(self._path).parent.rmdir()


@contextlib.contextmanager
def announced_as_running(algorithm: str, data: str, workers: int | None) -> Iterator[JobNote]:
    """Around a job: who looks sees it, until it ends in whatever way."""
    pid, number = os.getpid(), next(_numbers)
    _remove_old_once(pid, int(clock.now() // CLEANED_EVERY_SECONDS))
    folder = _own_folder()
    path = folder / f"{pid}-{number}.job" if folder is not None else None
    note = JobNote(path, RunningJob(pid, _own_birth(pid), f"{algorithm}-{pid}", algorithm, data, workers, clock.now()))
    try:
        yield note
    finally:
        with contextlib.suppress(OSError):
            note.remove()


@lru_cache(maxsize=1)
def _remove_old_once(pid: int, period: int) -> None:
    """Remove what killed processes have left. Cached: done once in a process and a period of time."""
    running()


@lru_cache(maxsize=1)
def _own_birth(pid: int) -> int:
    """Of this process, which may be a fork of another."""
    return born(pid) or 0


# -- of who looks ------------------------------------------------------------------------------------------


def running() -> list[RunningJob]:
    """All of them, the oldest first; files of processes that have ended are removed."""
    found = []
    for folder in folders():
        with contextlib.suppress(OSError):
            if _is_private(folder):
                found += [job for path in sorted(folder.iterdir()) if (job := _alive(path)) is not None]
    return sorted(found, key=lambda job: (job.started, job.name))


def _alive(path: Path) -> RunningJob | None:
    """The job of a file; None, and the file is removed where it can be, where its process has ended."""
    pid = path.name.partition("-")[0]
    try:
        known = born(int(pid)) if pid.isascii() and pid.isdecimal() else None
        job = None
        if path.suffix == ".job":
            job = _decoder.decode(read_regular(path, MOST_BYTES))
    except FileNotFoundError:  # it ended just now
        return None
    except (OSError, StorageError, msgspec.MsgspecError, OverflowError, RecursionError):
        job = None
    if known is None or (job is not None and job.born != known):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return job
