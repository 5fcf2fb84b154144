"""A lock in a folder that several processes use, which nobody can hold by being stopped. Waits have a bound.

Each turn of the lock is a symbolic link with a number, made in one step that fails where it exists. It names the file
that its holder will rename, and the turn lasts as long as that file is there. A holder that takes too long is fenced:
whoever waits removes that file before it makes the next turn, so the rename of the former holder fails whenever it
wakes. So a process that is frozen (SIGSTOP, a suspended host) neither keeps the lock nor writes late.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path

from flegel.runtime import clock

TURNS = ".locks"
"""Folder of the turns."""
FENCED_AFTER_SECONDS = 0.5  # a holder compares two file states and renames: below 1 ms, some 10 ms over a network
WAIT_SECONDS = 20.0  # the deadline of a call to a folder, as that of an object store
LOOK_SECONDS = 0.005  # between two looks at a turn that somebody has
KEPT_TURNS = 64  # so that a process which slept finds that its number has been used
MAX_LISTED_TURNS = 10_000  # of one listing; there are hardly more than are kept
_NUMBER = re.compile(r"[0-9]{1,200}")
_SCRATCH = re.compile(r"(?:[A-Za-z0-9._-]+/)*\.[A-Za-z0-9_]+\.part")


class FolderLock:
    """The lock of one folder, for one process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._turns = folder, folder / TURNS

    def take(self, scratch: Path) -> None:
        """Return when it is this process's turn, which ends when `scratch`, a file below the folder, is renamed or
        removed. Raises `OSError` after `WAIT_SECONDS`."""
        named = scratch.relative_to(self._folder).as_posix()
        self._make_folder()
        until = clock.now() + WAIT_SECONDS
        seen, since = -1, 0.0
        while True:
            newest, now = self._newest(), clock.now()
            if newest != seen:
                seen, since = newest, now
            holder = self._holder(newest)
            if holder is not None and now - since < FENCED_AFTER_SECONDS:
                if now > until:
                    raise OSError(f"other processes keep {self._turns} busy")
                clock.sleep(LOOK_SECONDS)
            else:
                if holder is not None:
                    holder.unlink(missing_ok=True)
                if self._begin(self._after(newest), named):
                    return
                if now > until:
                    raise OSError(f"other processes keep {self._turns} busy")
                clock.sleep(LOOK_SECONDS)

    def _make_folder(self) -> None:
        self._turns.mkdir(exist_ok=True)
        if self._turns.is_symlink():
            raise OSError(f"{self._turns} is a link; remove it")

    def _newest(self) -> int:
        """The number of the last turn; 0 before the first. A file of this name that is no link is no turn."""
        with os.scandir(self._turns) as found:
            names = [entry.name for entry in itertools.islice(found, MAX_LISTED_TURNS) if entry.is_symlink()]
        return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=0)

    def _after(self, turn: int) -> int:
        """The number of the next turn: names that files of somebody else have are left out."""
        turn += 1
        while os.path.lexists(place := self._turns / str(turn)) and not place.is_symlink():
            turn += 1
        return turn

    def _holder(self, turn: int) -> Path | None:
        """The file by whose existence a turn lasts; None where the turn is over, or no turn of a group."""
        try:
            named = (self._turns / str(turn)).readlink().as_posix()
        except OSError:
            return None
        held = self._folder / named
        if not _SCRATCH.fullmatch(named) or ".." in named or not self._is_inside(held.parent):
            return None
        return held if held.is_file() else None

    def _is_inside(self, folder: Path) -> bool:
        return folder.resolve().is_relative_to(self._folder.resolve())

    def _begin(self, turn: int, named: str) -> bool:
        """Whether the turn of this number is now that of this process: nobody was first, also long ago."""
        try:
            (self._turns / str(turn)).symlink_to(named)
        except FileExistsError:
            return False
        if self._newest() > turn:  # this process slept, and its number has been used and removed
            (self._turns / str(turn)).unlink(missing_ok=True)
            return False
        with contextlib.suppress(FileNotFoundError):  # somebody else removes old ones, too
            (self._turns / str(turn - KEPT_TURNS)).unlink()
        return True
