"""Dense rows in arrays: in the memory of this process, or mapped from `.npy` files.

The array has any numeric type; rows are converted when they are read. Never parses text, never copies a whole set.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeGuard, Unpack

import numpy as np

from flegel.core.mapped_arrays import release
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.datasets.rows.memory import exceeds_memory
from flegel.datasets.rows.row_ranges import expand
from flegel.datasets.rows.source import Description, Rows, Source, adds_up, check_finite
from flegel.errors import DataError, in_words
from flegel.loading.damage import damage_as
from flegel.loading.regular_files import check_regular

_SHORT_RANGE = 16
"""Ranges shorter than this on average are gathered row by row rather than copied range by range."""
_ROWS_GATHERED_AT_ONCE = 1 << 13
"""Rows that a thread gathers at a time."""


def open_npy(path: Path) -> Array:
    """A `.npy` file as a memory map; pickled objects are refused."""
    check_regular(path, DataError)
    text = f"{path} is no NumPy array that can be mapped, save it again with numpy.save"
    try:
        with damage_as(text, DataError):
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise DataError(f"{text}: {in_words(error)}.") from None
    return array


def wanted_dtype(stored: np.dtype[Any], dtype: str | None) -> np.dtype[Any]:
    """float32 and float64 stay as they are, small integers become float32, large ones float64."""
    return np.dtype(dtype) if dtype else np.dtype(np.result_type(stored, np.float32))


def as_matrix(array: Array, origin: str) -> Array:
    """Numbers as rows × columns; images are flattened."""
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise DataError(f"{origin} holds {array.dtype} values; convert them to real numbers of at most 64 bits.")
    if array.ndim == 1:
        return array.reshape(-1, 1)
    if array.ndim == 0 or 0 in array.shape:
        raise DataError(
            f"{origin} has the shape {array.shape}, which holds no rows; give at least one row and one column."
        )
    return array.reshape(len(array), -1)


def is_plain_map(array: Any) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether this is a read-only map in the order and type of the file, so that reads of the file can replace it."""
    return (
        isinstance(array, np.memmap)
        and isinstance(array.base, mmap.mmap)
        and array.mode == "r"
        and array.flags.c_contiguous
        and array.dtype.isnative
    )


def own_file(array: Any) -> str | None:
    """The `.npy` file that this array is the whole of, where it is a plain map of one: any process can then read it."""
    if not is_plain_map(array) or not isinstance(array.filename, str | Path):
        return None
    try:
        found: Any = np.load(array.filename, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    same = (found.offset, found.shape, found.dtype) == (array.offset, array.shape, array.dtype)
    return str(array.filename) if same else None


def read_ranges(mapped: Any, ranges: Array, out: Array) -> None:
    """Read rows of a mapped file with plain reads: for rows that are copied anyway this avoids the page faults."""
    width = out.strides[0]
    target = out.reshape(-1).view(np.uint8).data
    at = 0
    with Path(mapped.filename).open("rb", buffering=0) as file:
        for start, stop in ranges.tolist():
            file.seek(mapped.offset + start * width)
            end = at + (stop - start) * width
            while at < end:
                got = file.readinto(target[at:end])
                if not got:
                    raise DataError(
                        f"{mapped.filename} became shorter while it was read; leave it unchanged while a job runs."
                    )
                at += got


def _gather(array: Array, ids: Array, out: Array) -> None:
    np.take(array, ids, axis=0, out=out, mode="clip")  # other modes make a second copy first


class About(TypedDict, total=False):
    """What is known of rows besides their numbers."""

    names: list[str] | None
    classes: list[str] | None
    paths: Sequence[str | None] | None
    """Files of the arrays; None where they are in this process only."""


class KeptSource(Source):
    """What sources of arrays have in common, dense and sparse: labels beside the rows, and files where there are."""

    labels: Array | None
    paths: Sequence[str | None] | None

    def _keep(self, origin: str, dtype: np.dtype[Any], labels: Array | None, about: About) -> None:
        if labels is not None and labels.shape[:1] != (self.rows,):
            raise DataError(f"{origin} has {self.rows} rows but {len(labels)} labels; give one label per row.")
        self.origin, self.dtype = origin, dtype
        self.labels, self.labelled = labels, labels is not None
        self.names, self.classes, self.paths = about.get("names"), about.get("classes"), about.get("paths")

    def labels_of(self, window: Array) -> Array:
        assert self.labels is not None
        return np.concatenate([np.asarray(self.labels[start:stop], np.float64) for start, stop in window.tolist()])

    def describe(self) -> Description:
        if self.paths is None:
            raise DataError(
                f"{self.origin} is in the memory of this process only; save it to a file that the workers can read."
            )
        return {
            "kind": self.kind,
            "paths": list(self.paths),
            "dtype": self.dtype.name,
            "names": self.names,
            "classes": self.classes,
            "origin": self.origin,
        }


def described(description: Description) -> dict[str, Any]:
    """Arguments of such a source, as its description tells them."""
    return {name: description[name] for name in ("origin", "dtype", "names", "classes", "paths")}


class ArraySource(KeptSource):
    """Dense rows in an array, with labels in another or in one of its columns."""

    kind = "npy"

    def __init__(
        self,
        features: Array,
        labels: Array | None = None,
        *,
        origin: str,
        dtype: str | None = None,
        label_column: int | None = None,
        **about: Unpack[About],
    ) -> None:
        """Check shapes, and split a label column off the features where one is given."""
        self.array = as_matrix(features, origin)
        self.rows, self.columns = self.array.shape
        self.label_column = label_column
        if label_column is not None:
            if not -self.columns <= label_column < self.columns:
                raise DataError(
                    f"{origin} has {self.columns} columns, so there is no label column {label_column} (they "
                    "count from 0)."
                )
            self.label_column = label_column % self.columns
            labels = self.array[:, self.label_column]
            self.columns -= 1
            if self.columns == 0:
                raise DataError(f"{origin} has no column but the label; give a file with features.")
        self._keep(origin, wanted_dtype(self.array.dtype, dtype), labels, about)
        self.labels = None if labels is None else labels.reshape(self.rows)
        plain = is_plain_map(features) and features.dtype == self.dtype and label_column is None
        self.mapped = features if plain else None

    def _features(self, rows: slice | Array) -> Array:
        part = self.array[rows]
        return part if self.label_column is None else np.delete(part, self.label_column, axis=1)

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Many short ranges are gathered by index; long ones are copied range by range, from a mapped file with plain
        reads, which cause no page faults."""
        if len(ranges) * _SHORT_RANGE > len(features):
            ids = expand(ranges)
            features[...] = self._features(ids)
            if labels is not None and self.labels is not None:
                labels[...] = self.labels[ids]
            return
        lo = 0
        if self.mapped is not None and features.dtype == self.dtype and features.flags.c_contiguous:
            read_ranges(self.mapped, ranges, features)
            features = features[:0]
        if labels is not None and is_plain_map(self.labels) and self.labels.dtype == labels.dtype:
            read_ranges(self.labels, ranges, labels)
            labels = None
        for start, stop in ranges.tolist():
            hi = lo + stop - start
            if len(features):
                features[lo:hi] = self._features(slice(start, stop))
            if labels is not None and self.labels is not None:
                labels[lo:hi] = self.labels[start:stop]
            lo = hi

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        """One contiguous range of the wanted type is returned as a view of the map, without a copy."""
        if len(ranges) == 1 and rng is None and self.array.dtype == self.dtype and self.label_column is None:
            start, stop = ranges[0].tolist()
            features = self.array[start:stop]
            if features.flags.c_contiguous and features.dtype.isnative:
                labels = None if self.labels is None else np.array(self.labels[start:stop], np.float64)
                ids = np.arange(start, stop)
                self._check_range(features, labels, ids)
                return Rows(features, labels, ids)
        return super().take(ranges, rng)

    def pick(self, ids: Array) -> Rows:
        """From memory by several threads: a job waits for its sample."""
        if self.paths is not None or self.array.dtype != self.dtype or self.label_column is not None:
            return super().pick(ids)
        features = np.empty((len(ids), self.columns), self.dtype)
        sound: list[bool] = []

        def gather(lo: int, hi: int) -> None:
            _gather(self.array, ids[lo:hi], features[lo:hi])
            sound.append(adds_up(features[lo:hi]))

        in_pieces(len(ids), _ROWS_GATHERED_AT_ONCE, gather)
        labels = None if self.labels is None else np.array(self.labels[ids], np.float64)
        check_finite(features[: 0 if all(sound) else len(ids)], labels, ids, self.names, self.origin)
        return Rows(features, labels, ids)

    def in_place(self) -> Rows | None:
        plain = self.array.dtype == self.dtype and self.array.dtype.isnative and self.array.flags.c_contiguous
        if not plain or self.label_column is not None:
            return None
        labels = None if self.labels is None else np.ascontiguousarray(self.labels, np.float64)
        self._check_part(self.array[:0], labels, np.arange(self.rows if self.labelled else 0), 0, self.rows)
        return Rows(self.array, labels, np.empty(0, np.int64))

    def _check_range(self, features: Array, labels: Array | None, ids: Array) -> None:
        """Raises for the first value that is not finite. Rows from Python are looked at by several threads, because a
        job waits for it; files are not: there each worker looks at its own part, beside the others."""
        step = max(1, (32 << 20) // max(1, features.strides[0]))
        if self.paths is not None or self.mapped is not None:
            for lo in range(0, len(features), step):
                self._check_part(features, labels, ids, lo, lo + step)
                if self.mapped is not None and exceeds_memory(features.nbytes):
                    release(self.mapped, int(ids[lo]), int(ids[min(lo + step, len(ids)) - 1]) + 1)
            return
        suspects: list[int] = []

        def look(lo: int, hi: int) -> None:
            if not adds_up(features[lo:hi]):
                suspects.append(lo)

        in_pieces(len(features), step, look)
        for lo in sorted(suspects):
            self._check_part(features, None, ids, lo, lo + step)
        self._check_part(features[:0], labels, ids, 0, len(ids))

    def _check_part(self, features: Array, labels: Array | None, ids: Array, lo: int, hi: int) -> None:
        given = None if labels is None else labels[lo:hi]
        check_finite(features[lo:hi], given, ids[lo:hi], self.names, self.origin)

    def column(self, index: int) -> Array:
        if index < 0:
            return np.array(self.labels, np.float64)
        if self.label_column is not None and index >= self.label_column:
            index += 1
        return np.array(self.array[:, index], np.float64)

    def describe(self) -> Description:
        return {**super().describe(), "label_column": self.label_column}

    @classmethod
    def from_description(cls, description: Description) -> Source:
        features, labels = description["paths"]
        return cls(
            open_npy(Path(features)),
            None if labels is None else open_npy(Path(labels)),
            label_column=description["label_column"],
            **described(description),
        )
