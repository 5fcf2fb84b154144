"""Rows that workers parse from text, kept where the next start of the same job finds them.

Each worker writes its own rows into one file; the last one to finish gives the folder its name. A
start that is interrupted leaves a folder that nobody takes for an entry and that a later start removes.
Never reads text.
"""

from __future__ import annotations

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
from flegel.datasets.cache_folder import entry_folder, locked
from flegel.datasets.formats.arrays import ArraySource, open_npy
from flegel.datasets.source import Description
from flegel.errors import DataError

MIN_BYTES = 16 << 20
"""Smaller files are parsed again just as quickly."""
_STALE_SECONDS = 86_400
_writing: list[threading.Thread] = []


def enabled(size: int) -> bool:
    """Whether a file of so many bytes is worth an entry (`FLEGEL_CACHE=0` says never)."""
    return size >= MIN_BYTES and os.environ.get("FLEGEL_CACHE", "1") != "0"


def wait_for_writes() -> None:
    """Until entries that this process completes are in their place."""
    while _writing:
        _writing.pop().join()


def recorded(key: Description, origin: str) -> tuple[ArraySource, dict[str, Any]] | None:
    """The rows of a complete entry and its manifest."""
    folder = entry_folder(key)
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        labels = open_npy(folder / "labels.npy") if manifest["labelled"] else None
        return ArraySource(open_npy(folder / "features.npy"), labels, origin=origin), manifest
    except (OSError, ValueError, DataError):
        return None


class Recorder:
    """One worker's part in writing an entry."""

    def __init__(self, key: Description, manifest: dict[str, Any], dtype: np.dtype[Any], job: str) -> None:
        """`job` is the same for all workers that write together, and names how many there are."""
        self.folder = entry_folder(key)
        self.manifest = manifest
        tag = hashlib.sha256(job.encode()).hexdigest()[:12]
        self.half = self.folder.with_name(f"half-{self.folder.name}-{tag}")
        rows, columns = manifest["rows"], manifest["columns"]
        with locked(self.folder.with_suffix(".lock")):
            self._remove_stale()
            self.half.mkdir(exist_ok=True)
            self._room(rows * (columns * dtype.itemsize + 8))
            self.features = _Rows(self.half / "features.npy", dtype, (rows, columns))
            self.labels = None
            if manifest["labelled"]:
                self.labels = _Rows(self.half / "labels.npy", np.dtype(np.float64), (rows,))

    def _room(self, size: int) -> None:
        free = shutil.disk_usage(self.half).free
        if free < 2 * size:
            shutil.rmtree(self.half, ignore_errors=True)
            raise OSError(28, f"{free:,} bytes are free and {size:,} are needed")

    def _remove_stale(self) -> None:
        for other in self.folder.parent.glob("half-*"):
            if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(other, ignore_errors=True)

    def put(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Rows of `ranges`, one after the other."""
        at = 0
        for start, stop in ranges.tolist():
            end = at + stop - start
            self.features.put(start, features[at:end])
            if self.labels is not None and labels is not None:
                self.labels.put(start, labels[at:end])
            at = end

    def finish(self, index: int, count: int) -> None:
        """This worker's rows are written; what remains (to the disk, and the name) happens in the
        background.
        """
        thread = threading.Thread(target=self._finish, args=(index, count), name="flegel-cache")
        _writing.append(thread)
        thread.start()

    def _finish(self, index: int, count: int) -> None:
        try:
            for rows in (self.features, self.labels):
                if rows is not None:
                    os.fsync(rows.file.fileno())
            self._close()
            with locked(self.folder.with_suffix(".lock")):
                if not self.half.exists():
                    return  # another worker found bad rows and gave it up, or another job was first
                (self.half / f"done-{index}").touch()
                if len(list(self.half.glob("done-*"))) == count:
                    self._complete()
        except OSError as error:
            not_kept(error)

    def _close(self) -> None:
        self.features.file.close()
        if self.labels is not None:
            self.labels.file.close()

    def abandon(self) -> None:
        """Bad rows: nothing of this start is kept."""
        self._close()
        shutil.rmtree(self.half, ignore_errors=True)

    def _complete(self) -> None:
        """All workers are done: the manifest, and the name that makes it an entry."""
        if self.folder.exists():
            shutil.rmtree(self.half, ignore_errors=True)
            return
        with (self.half / "manifest.json").open("w") as file:
            json.dump(self.manifest, file)
            file.flush()
            os.fsync(file.fileno())
        self.half.rename(self.folder)


def not_kept(error: OSError) -> None:
    """A cache that cannot be written costs time at the next start, not the job."""
    warnings.warn(
        f"The columnar cache was not written ({error.strerror or error}); the next start parses the text again.",
        stacklevel=2,
    )


class _Rows:
    """An `.npy` file of which several processes write different rows, with plain writes: no pages of it stay
    mapped.
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

    def put(self, start: int, rows: Array) -> None:
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self.file.seek(self.offset + start * self.width)
        while len(data):
            data = data[self.file.write(data) :]
