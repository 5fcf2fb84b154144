"""Size and modification time of a file, by which a changed file is noticed. Never reads the content."""

from __future__ import annotations

from pathlib import Path

from flegel.datasets.rows.source import Description
from flegel.errors import DataError


def signature(path: Path) -> list[int]:
    """Size in bytes and time of modification in nanoseconds."""
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    return [state.st_size, state.st_mtime_ns]


def check_unchanged(path: Path, description: Description) -> None:
    """Raise where the file has another size than in the description.

    Only sizes are compared: a copy on another host has another modification time.
    """
    size = signature(path)[0]
    expected = description["signature"][0]
    if size != expected:
        raise DataError(
            f"{path} has {size} bytes here but had {expected} when the job was opened; "
            "use the same file on every host, or submit the job again."
        )
