"""The columnar cache: data sets converted once to `.npy` files that are memory-mapped afterwards.

An entry is a folder of `.npy` files and a manifest. It is written to a temporary folder and renamed when complete, so
a partial entry is never seen. Never decides which sets are cached.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.arrays import ArraySource, open_npy
from flegel.datasets.rows.cache_folder import entry_folder, locked
from flegel.datasets.rows.descriptions import source_from, stream_from
from flegel.datasets.rows.source import Chunk, Description, Source, Stream, check_finite
from flegel.datasets.rows.sparse_arrays import SparseSource, check_finite_entries
from flegel.errors import DataError


def columnar(stream: Stream) -> Source:
    """The stream's rows as a mapped source: from the cache, or converted now and stored there."""
    description = stream.describe()
    folder = entry_folder(description)
    found = _open_entry(folder, stream, description)
    if found is not None:
        return found
    try:
        with locked(folder.with_suffix(".lock")):
            found = _open_entry(folder, stream, description)
            if found is not None:
                return found
            temporary = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
            try:
                _write(stream, temporary)
                shutil.rmtree(folder, ignore_errors=True)
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{stream.origin} could not be converted in the cache folder {folder.parent} "
            f"({error.strerror or error}); "
            "point FLEGEL_DATA to a folder with space that you may write to."
        ) from None
    opened = _open_entry(folder, stream, description)
    if opened is None:
        raise DataError(f"The cache entry {folder} was removed while it was opened; run the command again.")
    return opened


def _open_entry(folder: Path, stream: Stream, description: Description) -> Source | None:
    """Map the arrays of a complete entry; None where the entry is absent or damaged, so that it is written again."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if not isinstance(manifest, dict) or not {"labelled", "names", "classes", "columns"} <= manifest.keys():
            return None  # damaged; it is made anew
    except (OSError, ValueError, RecursionError):
        return None
    paths = {name: folder / f"{name}.npy" for name in ("features", "labels", "indptr", "indices", "values")}
    labels = open_npy(paths["labels"]) if manifest["labelled"] else None
    common: dict[str, Any] = {
        "origin": stream.origin,
        "dtype": stream.dtype.name,
        "names": manifest["names"],
        "classes": manifest["classes"],
    }
    source: CachedArrays | CachedSparse
    if stream.sparse:
        indptr, indices, values = (open_npy(paths[name]) for name in ("indptr", "indices", "values"))
        source = CachedSparse(Sparse(indptr, indices, values, manifest["columns"]), labels, **common)
    else:
        source = CachedArrays(open_npy(paths["features"]), labels, **common)
    source.description = description
    source.row_names = manifest.get("row_names")
    return source


class FromCache(Source):
    """Rows from the columnar cache; another host converts the origin itself."""

    description: Description

    def describe(self) -> Description:
        return {"kind": self.kind, "origin": self.description}

    @classmethod
    def from_description(cls, description: Description) -> Source:
        return columnar(stream_from(description["origin"]))


class CachedArrays(FromCache, ArraySource):
    """Dense ones."""

    kind = "cached"


class CachedSparse(FromCache, SparseSource):
    """Sparse ones."""

    kind = "cached-sparse"


class _NpyWriter:
    """Writes a one- or two-dimensional `.npy` file in pieces; the header is written last, with the final shape."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = path.open("wb")
        self.rows = 0
        self.width: int | None = None
        self.dtype: np.dtype[Any] | None = None
        self.file.write(b"\0" * 128)

    def append(self, piece: Array) -> None:
        self.width = piece.shape[1] if piece.ndim == 2 else None
        self.dtype = self.dtype or piece.dtype
        self.rows += len(piece)
        self.file.write(np.ascontiguousarray(piece, self.dtype).data)

    def close(self) -> None:
        shape = (self.rows,) if self.width is None else (self.rows, self.width)
        text = repr({"descr": (self.dtype or np.dtype(np.float64)).str, "fortran_order": False, "shape": shape})
        header = text.ljust(117).encode() + b"\n"
        self.file.seek(0)
        self.file.write(np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _write(stream: Stream, folder: Path) -> None:
    """Write the columns chunk by chunk. Class names get numbers as they appear, and are numbered alphabetically at the
    end."""
    names = ["indptr", "indices", "values"] if stream.sparse else ["features"]
    columns = {name: _NpyWriter(folder / f"{name}.npy") for name in names}
    if stream.labelled:
        columns["labels"] = _NpyWriter(folder / "labels.npy")
    codes: dict[str, int] = {}
    rows, width = 0, 0
    try:
        for chunk in stream.chunks():
            rows, width = _append(chunk, columns, codes, stream, rows, width)
    finally:
        if stream.sparse and rows == 0:
            columns["indptr"].append(np.zeros(1, np.int64))
        for column in columns.values():
            column.close()
    if rows == 0:
        raise DataError(f"{stream.origin} has no rows; give a file with at least one.")
    classes = None
    if stream.named_classes:
        classes = sorted(codes)
        order = np.array([classes.index(name) for name in codes], np.float64)
        labels = np.load(folder / "labels.npy", mmap_mode="r+", allow_pickle=False)
        labels[...] = order[np.asarray(labels, np.int64)]
        labels.flush()
    manifest = {
        "rows": rows,
        "columns": max(width, stream.columns),
        "labelled": stream.labelled,
        "names": stream.names,
        "row_names": stream.row_names,
        "classes": classes,
        "origin": stream.describe(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _append(
    chunk: Chunk, columns: dict[str, _NpyWriter], codes: dict[str, int], stream: Stream, rows: int, width: int
) -> tuple[int, int]:
    """Add one chunk to the open columns; returns the new numbers of rows and columns."""
    features, labels = chunk
    if isinstance(features, Sparse):
        offset = columns["values"].rows
        pointers = np.asarray(features.indptr, np.int64)
        count = len(pointers) - 1
        columns["indptr"].append((pointers if rows == 0 else pointers[1:]) + offset)
        columns["indices"].append(np.asarray(features.indices, np.int32))
        columns["values"].append(features.values)
        width = max(width, features.columns)
        check_finite_entries(features, np.arange(rows, rows + count), stream.names, stream.origin)
    else:
        count = len(features)
        width = features.shape[1]
        columns["features"].append(features)
    ids = np.arange(rows, rows + count)
    if stream.named_classes and labels is not None:
        labels = np.array([codes.setdefault(str(name), len(codes)) for name in labels.tolist()], np.float64)
    dense = features.values.reshape(-1, 1)[:0] if isinstance(features, Sparse) else features
    check_finite(dense, None if labels is None else np.asarray(labels, np.float64), ids, stream.names, stream.origin)
    if labels is not None:
        columns["labels"].append(np.asarray(labels, np.float64))
    return rows + count, width


class SourceStream(Stream):
    """A source read from beginning to end, for conversion into the columnar cache."""

    kind = "source"

    def __init__(self, source: Source) -> None:
        self.source = source
        self.columns, self.dtype, self.names = source.columns, source.dtype, source.names
        self.labelled, self.sparse, self.origin = source.labelled, source.sparse, source.origin

    def chunks(self) -> Iterator[Chunk]:
        for window in self.source.windows(np.array([[0, self.source.rows]])):
            rows = self.source.take(window)
            yield Chunk(rows.features, rows.labels)

    def describe(self) -> Description:
        return {"kind": self.kind, "source": self.source.describe()}

    @classmethod
    def from_description(cls, description: Description) -> SourceStream:
        return cls(source_from(description["source"]))
