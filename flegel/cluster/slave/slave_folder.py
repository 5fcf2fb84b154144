"""The folder of a slave: created, checked, cleaned up; and which files may be sent from it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container
from pathlib import Path

from flegel.cluster.transport.protocol import check_name
from flegel.errors import StorageError, UsageError

MAX_KEPT_JOB_FOLDERS = 50
"""Of jobs that do not run, kept for their checkpoints, the newest ones: a resumed job may come back to this slave."""


def tidy(jobs: Path, running_jobs: Container[str] = ()) -> None:
    """Remove the files of jobs that do not run, except the newest checkpoints."""
    folders = [p for p in jobs.glob("*") if p.is_dir() and p.name not in running_jobs]
    folders.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    for number, folder in enumerate(folders):
        for entry in folder.iterdir():
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink(missing_ok=True)
            elif entry.name != "checkpoints" or number >= MAX_KEPT_JOB_FOLDERS:
                shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def is_plain(path: Path) -> bool:
    """A file, and neither a link nor a pipe, with a name that the master accepts."""
    with contextlib.suppress(UsageError):
        return not path.is_symlink() and path.is_file() and bool(check_name(path.name, "file"))
    return False


def write_new(path: Path, text: str) -> None:
    """A file that was not there before: user code may have put a link in its place, to have another one written."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def data_home() -> Path:
    """Where daemons of this user keep their files, unless they are told another place."""
    home = os.environ.get("FLEGEL_HOME")
    return Path(home) if home else Path.home() / ".local" / "share" / "flegel"


def default_folder(name: str) -> Path:
    """Where a slave of this user keeps its files."""
    return data_home() / "slaves" / check_name(name, "slave")


def check_folder(folder: Path) -> None:
    """Create it, and check that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StorageError(f"Cannot use {folder}: {error.strerror}.") from None
