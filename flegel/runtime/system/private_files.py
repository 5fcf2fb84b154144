"""Files of daemons for their own user alone: results, logs, checkpoints, source of classes. Changes no content."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

GROUP_AND_OTHERS_MODE = 0o077  # bits of a mode that a private file has not


def keep_private(folder: Path) -> None:
    """From now on this process and its children make files that no other user can read; nor can others enter the
    folder, which an earlier version may have made for everybody."""
    os.umask(GROUP_AND_OTHERS_MODE)
    folder.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & GROUP_AND_OTHERS_MODE:
        with contextlib.suppress(PermissionError):  # somebody else's folder: that user decides
            folder.chmod(mode & ~GROUP_AND_OTHERS_MODE)
