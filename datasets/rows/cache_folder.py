"""Where the cache folder and its entries are, and the lock under which they are written.

Never reads or writes an entry itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from flegel.datasets.rows.source import Description

_FORMAT = 1
"""Version of the layout of entries. Entries of another version are not found."""


def data_folder() -> Path:
    """The cache folder: FLEGEL_DATA, or flegel/data in the user's cache folder."""
    given = os.environ.get("FLEGEL_DATA")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "flegel" / "data"


def entry_folder(description: Description) -> Path:
    """The folder of the columnar cache for what `description` describes."""
    text = json.dumps([_FORMAT, description], sort_keys=True)
    return data_folder() / "columns" / hashlib.sha256(text.encode()).hexdigest()[:32]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which is created; other processes wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
