"""Which data a slave lets its jobs open: `flegel slave --data FOLDER`. Decides by the name alone, opens nothing.

A name may lead anywhere by `..`, by a link, by `file://` or by a pattern, so the resolved path is checked.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9_-]+(:[0-9_.eE+]*)?")
"""A registered set, with the number of its rows; no file path matches."""


def why_refused(data: str, folders: Sequence[Path]) -> str:
    """Why data may not be read here; empty if they may. Without `folders` everything may be read."""
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
            return f"files are read from {allowed} only, and {data} is not an absolute path"
        if all(_inside(found, folders) for found in _resolved_names(whole)):
            return ""
    except (OSError, ValueError, RuntimeError) as error:
        return f"files are read from {allowed} only, and {data[:200]!r} cannot be resolved: {error}"
    return f"files are read from {allowed} only, not {data}"


def _resolved_names(path: Path) -> Iterable[Path]:
    """The path itself, and each file that a pattern finds."""
    yield path
    if glob.has_magic(str(path)):
        yield from map(Path, glob.iglob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns


def _inside(path: Path, folders: Sequence[Path]) -> bool:
    end = path.resolve()
    return any(end.is_relative_to(folder.resolve()) for folder in folders)
