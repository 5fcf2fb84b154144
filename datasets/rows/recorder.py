"""Writes the rows that workers parse from text to the columnar cache, so that the next start does not parse.

All workers write their own rows into one file; the last one to finish renames the folder. An interrupted start
leaves a `partial-` folder, which is never read and which a start a day later removes. Never reads text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.arrays import ArraySource, open_npy
from flegel.datasets.rows.cache_folder import entry_folder, locked
from flegel.datasets.rows.source import Description
from flegel.errors import DataError

MIN_BYTES = 16 << 20
"""Smaller files are not cached: parsing them again is fast."""
_STALE_SECONDS = 86_400  # a day: what is older was left by a process that has ended
_writing: list[threading.Thread] = []


def enabled(size: int) -> bool:
    """Whether a file of `size` bytes is cached; never with `FLEGEL_CACHE=0`."""
    return size >= MIN_BYTES and os.environ.get("FLEGEL_CACHE", "1") != "0"


def wait_for_writes() -> None:
    """Wait until the background writes of this process have ended."""
    while _writing:
        _writing.pop().join()


def find_entry(key: Description, origin: str) -> tuple[ArraySource, dict[str, Any]] | None:
    """The rows of a complete entry and its manifest."""
    folder = entry_folder(key)
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        labels = open_npy(folder / "labels.npy") if manifest["labelled"] else None
        return ArraySource(open_npy(folder / "features.npy"), labels, origin=origin), manifest
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DataError):
        return None


class Recorder:
    """One worker's part in writing an entry."""

    def __init__(self, key: Description, manifest: dict[str, Any], dtype: np.dtype[Any], job: str) -> None:
        """`job` is the same for all workers that write together, and names how many there are."""
        self.folder = entry_folder(key)
        self.manifest = manifest
        tag = hashlib.sha256(job.encode()).hexdigest()[:12]
        self.partial = self.folder.with_name(f"partial-{self.folder.name}-{tag}")
        rows, columns = manifest["rows"], manifest["columns"]
        with locked(self.folder.with_suffix(".lock")):
            self._remove_stale()
            self.partial.mkdir(exist_ok=True)
            self._check_space(rows * (columns * dtype.itemsize + 8))
            self.features = _SharedNpyFile(self.partial / "features.npy", dtype, (rows, columns))
            self.labels = None
            if manifest["labelled"]:
                self.labels = _SharedNpyFile(self.partial / "labels.npy", np.dtype(np.float64), (rows,))

    def _check_space(self, size: int) -> None:
        free = shutil.disk_usage(self.partial).free
        if free < 2 * size:
            shutil.rmtree(self.partial, ignore_errors=True)
            raise OSError(28, f"{free:,} bytes are free and {size:,} are needed")

    def _remove_stale(self) -> None:
        for other in self.folder.parent.glob("partial-*"):
            with contextlib.suppress(FileNotFoundError):  # the start that wrote it completes or removes it meanwhile
                if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)

    def write(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Rows of `ranges`, one after the other."""
        at = 0
        for start, stop in ranges.tolist():
            end = at + stop - start
            self.features.write(start, features[at:end])
            if self.labels is not None and labels is not None:
                self.labels.write(start, labels[at:end])
            at = end

    def finish(self, index: int, count: int) -> None:
        """Flush this worker's rows and complete the entry after the last worker, in the background."""
        thread = threading.Thread(target=self._finish, args=(index, count), name="flegel-cache")
        _writing.append(thread)
        thread.start()

    def _finish(self, index: int, count: int) -> None:
        """Mark this worker's rows as written. The last of the workers makes the entry visible, under a lock."""
        try:
            for rows in (self.features, self.labels):
                if rows is not None:
                    os.fsync(rows.file.fileno())
            self._close()
            with locked(self.folder.with_suffix(".lock")):
                if not self.partial.exists():
                    return  # another worker found bad rows and removed it, or another job completed it
                (self.partial / f"done-{index}").touch()
                if len(list(self.partial.glob("done-*"))) == count:
                    self._complete()
        except OSError as error:
            warn_not_written(error)

    def _close(self) -> None:
        self.features.file.close()
        if self.labels is not None:
            self.labels.file.close()

    def abandon(self) -> None:
        """Remove everything that this start wrote, because rows were bad or the disk failed."""
        self._close()
        shutil.rmtree(self.partial, ignore_errors=True)

    def _complete(self) -> None:
        """Write the manifest and rename the folder, which makes it an entry. Called when all workers are done."""
        if self.folder.exists():
            shutil.rmtree(self.partial, ignore_errors=True)
            return
        with (self.partial / "manifest.json").open("w") as file:
            json.dump(self.manifest, file)
            file.flush()
            os.fsync(file.fileno())
        self.partial.rename(self.folder)


def warn_not_written(error: OSError) -> None:
    """Warn instead of raising: without the cache the next start is slower, but this job can run."""
    warnings.warn(
        f"The columnar cache was not written ({error.strerror or error}); the next start reads the origin again.",
        stacklevel=2,
    )


class _SharedNpyFile:
    """An `.npy` file in which several processes write different rows, with plain writes instead of a map, so that
    its pages do not count as memory of the process.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.width = dtype.itemsize * math.prod(shape[1:])
        if not path.exists():
            with path.open("wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + shape[0] * self.width)
        self.offset = path.stat().st_size - shape[0] * self.width
        self.file = path.open("r+b", buffering=0)

    def write(self, start: int, rows: Array) -> None:
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self.file.seek(self.offset + start * self.width)
        while len(data):
            data = data[self.file.write(data) :]
