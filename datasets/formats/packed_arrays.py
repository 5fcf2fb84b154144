"""Arrays inside other files: IDX (MNIST) and `.npz`. The columnar cache keeps them in their own type.

Never unpickles.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.formats.compressed import open_unpacked
from flegel.datasets.rows.arrays import as_matrix, wanted_dtype
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.memory import available
from flegel.datasets.rows.source import Chunk, Description, Stream
from flegel.datasets.rows.sparse_arrays import checked_csr
from flegel.errors import DataError, UsageError, in_words
from flegel.loading.array_files import check_zip_member
from flegel.loading.damage import damage_as
from flegel.wording import option

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_BYTES_PER_CHUNK = 8 << 20  # that are unpacked at a time
_ROW_LIMIT = 64 << 20
"""A header that announces longer rows is taken to be damaged."""
_FEATURE_NAMES = ("X", "x", "features", "data", "images", "arr_0", "X_train", "x_train")
_LABEL_NAMES = ("y", "labels", "label", "target", "Y", "arr_1", "y_train")


def read_idx_header(path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """(type, shape, bytes of the header)."""
    with open_unpacked(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or not 1 <= magic[3] <= 8:
            raise DataError(
                f"{path} is no IDX file (it begins with {magic.hex() or 'no byte'}); check its name, or get it again."
            )
        sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} is truncated in its header; get the file again.")
    shape = tuple(int(s) for s in np.frombuffer(sizes, ">u4"))
    return np.dtype(_IDX_TYPES[magic[2]]), shape, 4 + len(sizes)


def idx_labels_beside(path: Path) -> Path | None:
    """The labels file that belongs to an images file, by the names of the MNIST files."""
    for one, other in (("images-idx3", "labels-idx1"), ("images.idx3", "labels.idx1")):
        if one in path.name:
            for name in (path.name.replace(one, other), path.name.replace(one, other).removesuffix(".gz")):
                if (path.parent / name).exists():
                    return path.parent / name
    return None


class IdxStream(Stream):
    """Images of an IDX file as flat rows, with the labels of the file beside it, if there is one."""

    kind = "idx"

    def __init__(self, path: Path, labels: Path | None, dtype: str | None) -> None:
        """Refuse a header that announces nothing, or rows too large to be true, before memory is taken for them."""
        self.path, self.labels, self.origin = path, labels, str(path)
        self.stored, self.shape, self.header = read_idx_header(path)
        if 0 in self.shape:
            raise DataError(
                f"{path} has the shape {self.shape}, which holds no rows; give at least one row and one column."
            )
        self.columns = math.prod(self.shape[1:])
        if self.columns * self.stored.itemsize > _ROW_LIMIT:
            raise DataError(
                f"{path} is damaged: its header announces rows of {self.columns:,} values; get the file again."
            )
        self.dtype = wanted_dtype(self.stored.newbyteorder("="), dtype)
        self.labelled = labels is not None

    def chunks(self) -> Iterator[Chunk]:
        """Unpack a bounded number of bytes at a time: the whole file may not fit into memory."""
        labels = None if self.labels is None else self._read_labels(self.labels)
        size = self.columns * self.stored.itemsize
        with open_unpacked(self.path) as file:
            file.read(self.header)
            step = max(1, _BYTES_PER_CHUNK // size)
            for lo in range(0, self.shape[0], step):
                rows = min(step, self.shape[0] - lo)
                data = file.read(rows * size)
                if len(data) < rows * size:
                    raise DataError(
                        f"{self.path} is truncated: its header announces {self.shape[0]} rows; get the file again."
                    )
                part = np.frombuffer(data, self.stored).reshape(rows, self.columns)
                yield Chunk(
                    part.astype(self.stored.newbyteorder("=")),
                    None if labels is None else labels[lo : lo + rows],
                )

    def _read_labels(self, path: Path) -> Array:
        stored, shape, header = read_idx_header(path)
        if shape != self.shape[:1]:
            raise DataError(
                f"{path} has {shape[0]} labels for {self.shape[0]} rows; put the matching file beside the images."
            )
        with open_unpacked(path) as file:
            data = file.read()[header:]
        if len(data) < shape[0] * stored.itemsize:
            raise DataError(f"{path} is truncated: its header announces {shape[0]} labels; get the file again.")
        return np.frombuffer(data, stored, count=shape[0]).astype(np.float64)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "labels": None if self.labels is None else str(self.labels),
            "labels_signature": None if self.labels is None else signature(self.labels),
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> IdxStream:
        path, labels = Path(description["path"]), description["labels"]
        check_unchanged(path, description)
        return cls(path, None if labels is None else Path(labels), description["dtype"])


class NpzStream(Stream):
    """Features and labels of an `.npz`, by the usual names; or a sparse matrix that scipy saved."""

    kind = "npz"

    def __init__(self, path: Path, label: str | int | None, dtype: str | None) -> None:
        """Find out which arrays hold the features and the labels, by their usual names unless they are given."""
        self.path, self.label, self.origin = path, label, str(path)
        members = self.read(None)
        if {"format", "shape", "data"} <= set(members) and self.read("format").tolist() not in (b"csr", "csr"):
            raise DataError(f"{path} holds a sparse matrix that is not CSR; save matrix.tocsr() instead.")
        self.sparse = {"indptr", "indices", "data", "shape"} <= set(members)
        self.labels_name = label if isinstance(label, str) else None
        if self.sparse:
            self.features_name = "data"
        else:
            self.features_name = self._features_among(members)
            if label is None:
                self.labels_name = next((n for n in _LABEL_NAMES if n in members and n != self.features_name), None)
        if self.labels_name is not None and self.labels_name not in members:
            raise DataError(f"{path} has no array {self.labels_name!r}; it has: {', '.join(members)}.")
        array = self.read(self.features_name)
        if not self.sparse:
            array = as_matrix(array, f"{path} ({self.features_name})")
        self.columns = self._matrix().columns if self.sparse else array.shape[1]
        self.dtype = wanted_dtype(array.dtype, dtype)
        if isinstance(label, int):
            raise UsageError(f"{path}: give the name of the array with the labels as {option('label')}, not a number.")
        self.labelled = self.labels_name is not None
        if self.labelled:
            labels = self.read(self.labels_name)
            if labels.dtype.kind not in "fiubUS":
                raise DataError(f"{path}: {self.labels_name} holds {labels.dtype} values; save numbers or words.")
            self.named_classes = labels.dtype.kind in "US"
            rows = int(self.read("shape")[0]) if self.sparse else len(array)
            if labels.shape != (rows,):
                raise DataError(
                    f"{path} has {rows} rows but labels of the shape {labels.shape}; save one label per row."
                )

    def _features_among(self, members: list[str]) -> str:
        """The array with the rows: by its usual name, or the only one that is no label."""
        usual = next((name for name in _FEATURE_NAMES if name in members), None)
        others = [name for name in members if name != self.labels_name and name not in _LABEL_NAMES]
        if usual is None and len(others) != 1:
            has = f"the arrays {', '.join(members)}, and none has a usual name" if members else "no arrays"
            raise DataError(f"{self.path} has {has}; save the rows as X, and labels as y.")
        return usual or others[0]

    def _matrix(self) -> Sparse:
        indptr, indices, values, shape = (self.read(name) for name in ("indptr", "indices", "data", "shape"))
        return checked_csr(indptr, indices, values, shape, str(self.path))

    def read(self, name: str | None) -> Any:
        """One array of the file, or the names of all where no name is given."""
        text = f"{self.path} is no .npz of plain arrays, save it again with numpy.savez"
        try:
            with damage_as(text, DataError), np.load(self.path, allow_pickle=False) as data:
                if name is None:
                    return list(data.files)
                self._check_size(data.zip.infolist(), name)
                found = data[name]
                if not isinstance(found, np.ndarray):
                    raise DataError(f"{self.path}: {name} is no array; save it again with numpy.savez.")
                return found
        except FileNotFoundError:
            raise DataError(f"{self.path} does not exist.") from None
        except OSError as error:
            raise DataError(f"{text}: {in_words(error)}.") from None

    def _check_size(self, members: list[zipfile.ZipInfo], name: str) -> None:
        """Before it is unpacked: a member of a few megabytes may unpack to many gigabytes."""
        own = [info for info in members if info.filename in (name, f"{name}.npy")]
        for info in own:
            check_zip_member(info)
        size = sum(info.file_size for info in own)
        if size > available():
            raise DataError(f"{self.path}: {name} unpacks to {size} bytes, more than this host has; save it as .npy.")

    def chunks(self) -> Iterator[Chunk]:
        labels = self.read(self.labels_name) if self.labels_name else None
        if self.sparse:
            yield Chunk(self._matrix(), labels)
        else:
            yield Chunk(as_matrix(self.read(self.features_name), self.origin), labels)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "label": self.label,
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> NpzStream:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["label"], description["dtype"])
