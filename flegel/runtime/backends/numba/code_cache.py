"""Where compiled code is kept between runs. Decides nothing; falls back to a private temporary folder."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path


@lru_cache
def code_folder() -> Path:
    """FLEGEL_CACHE, else the user's cache folder, else one that lasts as long as the machine is up. (FLEGEL_CACHE=0
    keeps parsed text out of the cache; compiled code is none.)"""
    told = os.environ.get("FLEGEL_CACHE", "")
    base = (told if told != "0" else "") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for folder in (
        Path(base).expanduser() / "flegel" / "code",
        Path(tempfile.gettempdir()) / f"flegel-{os.getuid()}",
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError:
            continue
        return folder
    return Path(tempfile.mkdtemp(prefix="flegel-"))


def write_once(path: Path, text: str) -> None:
    """Put a file in place in one step, so that several processes may do it at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
