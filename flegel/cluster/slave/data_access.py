"""Which data a slave lets its jobs open (`flegel slave --data FOLDER`), and which folders they see. Opens nothing.

Data are judged by their name. It may lead anywhere by `..`, by a link, by `file://` or by a pattern, so the resolved
path is checked. What user code itself opens is limited by `confinement_for`, where the slave isolates jobs.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import flegel
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.slave.slave_folder import data_home
from flegel.cluster.transport import keys
from flegel.core.code_folder import code_folder
from flegel.errors import in_words
from flegel.runtime.system.confinement import Confinement

MOVE_BY_SOCKET = {"FLEGEL_MOVE": "socket"}
"""Environment of strictly isolated workers, which cannot read each other's memory."""
_REGISTERED_SET = re.compile(r"[A-Za-z0-9_-]+(:[0-9_.eE+]*)?")
"""A registered set, with the number of its rows; no file path matches."""


def why_refused(data: str, folders: Sequence[Path]) -> str:
    """Why data may not be read here; empty if they may. Without `folders` everything may be read."""
    if not folders or _REGISTERED_SET.fullmatch(data):
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
        return f"files are read from {allowed} only, and {data[:200]!r} cannot be resolved: {in_words(error)}"
    return f"files are read from {allowed} only, not {data}"


def _resolved_names(path: Path) -> Iterable[Path]:
    """The path itself, and each file that a pattern finds."""
    yield path
    if glob.has_magic(str(path)):
        yield from map(Path, glob.iglob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns


def _inside(path: Path, folders: Sequence[Path]) -> bool:
    end = path.resolve()
    return any(end.is_relative_to(folder.resolve()) for folder in folders)


def confinement_for(settings: SlaveSettings, job: Path, submitted: bool, join: int | None) -> Confinement | None:
    """What a process of the job in this folder may see; None where the slave does not isolate. Code that was
    `submitted` gets private copies of the package and of compiled code, which others run; `join`: see `Confinement`."""
    if settings.isolation == "none":
        return None
    home = Path.home()
    strict = settings.isolation == "strict"
    daemons = (keys.folder(), data_home() / "master", data_home() / "slaves", settings.folder)
    compiled = (code_folder(), Path(os.environ.get("NUMBA_CACHE_DIR") or code_folder()))
    hidden, private = (*daemons, home / ".ssh", home / ".gnupg"), (Path(flegel.__file__).parents[1], *compiled)
    fixed = (Path(sys.prefix), Path(sys.base_prefix))
    return Confinement(
        hidden=_named(hidden),
        visible=_named((job,)),
        private=_named(private) if submitted else (),
        fixed=_named(fixed) if submitted else (),
        join=join,
        strict=strict,
        writable=_named(settings.write),
    )


def _named(paths: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(str(path.resolve()) for path in paths)
