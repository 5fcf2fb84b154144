"""Which data a slave lets its jobs open: `flegel slave --data FOLDER`. Decides by the name alone, opens nothing.

A name may lead anywhere by `..`, by a link, by `file://` or by a pattern, so what counts is where it ends.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9_-]+(:[0-9_.eE+]*)?")
"""A registered set, with the number of its rows; no file of the host is called so."""


def why_refused(data: str, folders: Sequence[Path]) -> str:
    """Why data may not be read here; empty where they may. No `folders`: everything may."""
    if not folders or _NAME.fullmatch(data):
        return ""
    path = data
    if "://" in data:
        parts = urlsplit(data)
        if parts.scheme.lower() != "file":
            return ""  # not on this host
        path = parts.path
    allowed = ", ".join(map(str, folders))
    try:
        whole = Path(path).expanduser()
        if not whole.is_absolute():
            return f"files are read from {allowed} only, and {data} is no whole path"
        if all(_inside(end, folders) for end in _ends(whole)):
            return ""
    except (OSError, ValueError, RuntimeError) as error:
        return f"files are read from {allowed} only, and {data[:200]!r} cannot be followed: {error}"
    return f"files are read from {allowed} only, not {data}"


def _ends(path: Path) -> Iterable[Path]:
    """What the name stands for, and each file that a pattern finds."""
    yield path
    if glob.has_magic(str(path)):
        yield from map(Path, glob.iglob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns


def _inside(path: Path, folders: Sequence[Path]) -> bool:
    end = path.resolve()
    return any(end.is_relative_to(folder.resolve()) for folder in folders)
