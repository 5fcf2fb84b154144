"""Generated rows in the columnar cache: a million rows take two seconds to generate and a tenth of that to read.

An entry is named by the set and by everything that its numbers depend on, so an edit of a generator needs no deletion.
All entries together stay below `MOST_BYTES`, the newest are kept. What cannot be written is generated again, without a
word. Generates nothing itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.native_code import target
from flegel.core.pytree import Array
from flegel.datasets.rows import recorder
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.cache_folder import entry_folder
from flegel.datasets.rows.recorder import Recorder
from flegel.datasets.rows.source import Description

MOST_ENTRY, MOST_BYTES = 512 << 20, 1 << 30  # bytes of one set and of all of them


@cache
def generators() -> str:
    """Of the text of all generators with their figures, and of what computes them."""
    digest = hashlib.sha256(f"{np.__version__} {platform.machine()} {target()[0]}".encode())  # roundings differ
    home = resources.files("flegel.datasets.synthetic")
    files = [file for folder in (home, home / "fitted") for file in folder.iterdir() if file.is_file()]
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith((".py", ".json")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class RowCache:
    """The rows of one generated set, as far as they are in the cache; and one worker's part in writing them there."""

    def __init__(self, described: Description, rows: int, columns: int, dtype: np.dtype[Any], labelled: bool) -> None:
        self._size = rows * (columns * dtype.itemsize + 8)
        self._described, self._dtype = described, dtype
        self._manifest = {"rows": rows, "columns": columns, "labelled": labelled, "generated": self._size}
        self._found: ArraySource | None = None
        self._looked = False
        self._recorder: Recorder | None = None

    def _worth_it(self) -> bool:
        return self._size <= MOST_ENTRY and recorder.enabled(self._size)

    def _key(self) -> Description:
        return {"generated": self._described, "dtype": self._dtype.name, "generators": generators()}

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> bool:
        """Read rows from the cache; False where they are not there."""
        found = self._look()
        if found is None:
            return False
        found.fill(ranges, features, labels)
        return True

    def _look(self) -> ArraySource | None:
        """The entry, where there is one; looked for once."""
        if not self._looked:
            self._looked = True
            found = recorder.find_entry(self._key(), "generated rows") if self._worth_it() else None
            self._found = found[0] if found is not None else None
        return self._found

    def record(self, job: str) -> None:
        """Keep what is generated from now on; nothing where the rows are in the cache."""
        if self._look() is None and self._worth_it():
            with contextlib.suppress(OSError):
                make_room(entry_folder({}).parent, MOST_BYTES - self._size)
                self._recorder = Recorder(self._key(), self._manifest, self._dtype, job)

    def write(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Rows that were generated; nothing where they are not recorded."""
        if self._recorder is not None:
            try:
                self._recorder.write(ranges, features, labels)
            except OSError:
                self.finish(0, 0, False)

    def finish(self, index: int, count: int, good: bool) -> None:
        """All rows of worker `index` of `count` have been generated."""
        if self._recorder is not None:
            if good:
                self._recorder.finish(index, count)
            else:
                self._recorder.abandon()
            self._recorder = None


def make_room(folder: Path, most: int) -> None:
    """Remove entries of generated rows, the oldest first, until the others have at most this many bytes."""
    entries = []
    for manifest in folder.glob("*/manifest.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            size = json.loads(manifest.read_bytes()).get("generated")
            if isinstance(size, int):
                entries.append((manifest.stat().st_mtime, size, manifest.parent))
    kept = 0
    for _, size, entry in sorted(entries, reverse=True):
        kept += size
        if kept > most:
            shutil.rmtree(entry, ignore_errors=True)
