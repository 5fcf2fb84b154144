"""Bytes of plain files: the size is known before anything is read, and nothing but a plain file is opened.

A pipe, a socket or a device would block or never end, so it is refused; opening does not wait for a writer either.
Never interprets what it reads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flegel.errors import FlegelError, StorageError

MAX_FILE_BYTES = 1 << 36
"""Bytes of any file that is read whole."""
MAX_DOCUMENT_BYTES = 64 << 20
"""Bytes of a document (JSON or a list of records) that is read whole."""


@contextmanager
def open_regular(
    path: str | os.PathLike[str], error: type[FlegelError] = StorageError
) -> Iterator[tuple[BinaryIO, int]]:
    """A stream and its size; raises `error` for what is no plain file, and `OSError` where the system refuses."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise error(f"{os.fspath(path)} is {kind(found.st_mode)}, not a plain file.")
        yield stream, found.st_size


def read_regular(path: str | os.PathLike[str], most: int, error: type[FlegelError] = StorageError) -> bytes:
    """The content of a plain file that has at most so many bytes."""
    with open_regular(path, error) as (stream, size):
        if size > most:
            raise error(f"{os.fspath(path)} has {size} bytes; at most {most} are expected.")
        return stream.read(size)


def check_regular(path: Path, error: type[FlegelError]) -> None:
    """Raise `error` where a path exists and is neither a plain file nor a folder; asks the system, opens nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever opens it says what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise error(f"{path} is {kind(mode)}; give a plain file.")


def kind(mode: int) -> str:
    """What a path is instead of a regular file, in words."""
    names = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a folder",
    }
    return names.get(stat.S_IFMT(mode), "something else")
