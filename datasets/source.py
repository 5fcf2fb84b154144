"""What a source of rows is, and the windows in which rows are moved.

Never opens a file, never decides who reads what.

A `Source` is a numbered sequence of rows of which any ranges can be read. A `Stream` can only be read from
its beginning (compressed text, for example) and becomes a source by way of the columnar cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.memory import allocate, release
from flegel.errors import DataError

Description = dict[str, Any]
"""Plain JSON types only: it travels to the workers."""

WINDOW_BYTES = 8 << 20
"""Rows are moved, checked and shuffled in windows of about this many bytes of numbers."""


class Rows(NamedTuple):
    """Rows of a data set: features, labels (None where it has none), and the global number of each row."""

    features: Array | Sparse
    labels: Array | None
    ids: Array


class Chunk(NamedTuple):
    """The next rows of a stream. `labels` are class names where the stream says so, else numbers."""

    features: Array | Sparse
    labels: Array | None


class Stream(ABC):
    """Rows that come in order, once: what the columnar cache is built from."""

    kind: ClassVar[str]
    columns: int
    dtype: np.dtype[Any]
    names: list[str] | None = None
    labelled: bool = False
    named_classes: bool = False
    """True where chunks carry class names rather than numbers as labels."""
    sparse: bool = False
    origin: str
    """What errors call it."""

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All rows, in order, in pieces that fit into memory."""

    @abstractmethod
    def describe(self) -> Description: ...

    @classmethod
    @abstractmethod
    def from_description(cls, description: Description) -> Stream: ...


class Source(ABC):
    """Numbered rows of which any ranges can be read."""

    kind: ClassVar[str]
    rows: int
    columns: int
    dtype: np.dtype[Any]
    names: list[str] | None = None
    labelled: bool = False
    classes: list[str] | None = None
    sparse: bool = False
    window_bytes: ClassVar[int] = WINDOW_BYTES
    origin: str

    @abstractmethod
    def describe(self) -> Description: ...

    @classmethod
    @abstractmethod
    def from_description(cls, description: Description) -> Source: ...

    def edges(self) -> Array | None:
        """Row numbers at which natural blocks begin, and `rows`; None where any row is as cheap as any
        other.
        """
        return None

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Write the rows of `ranges`, in that order, into `features` and `labels`."""
        raise NotImplementedError(f"{type(self).__name__} has no dense rows")

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        """The rows of `ranges`; with `rng`, shuffled within each window. Holds the result and one window."""
        total = int((ranges[:, 1] - ranges[:, 0]).sum())
        features = allocate((total, self.columns), self.dtype)
        labels = np.empty(total) if self.labelled else None
        ids = expand(ranges)
        spare = np.empty((0, self.columns), self.dtype)
        lo = 0
        for window in self.windows(ranges):
            hi = lo + int((window[:, 1] - window[:, 0]).sum())
            part = features[lo:hi]
            part_labels = None if labels is None else labels[lo:hi]
            self.fill(window, part, part_labels)
            check_finite(part, part_labels, ids[lo:hi], self.names, self.origin)
            if rng is not None:
                order = rng.permutation(hi - lo)
                if len(spare) < hi - lo:
                    spare = np.empty_like(part)
                np.take(part, order, axis=0, out=spare[: hi - lo], mode="clip")
                part[...] = spare[: hi - lo]
                ids[lo:hi] = ids[lo:hi][order]
                if part_labels is not None:
                    part_labels[...] = part_labels[order]
            release(features, lo, hi)
            lo = hi
        return Rows(features, labels, ids)

    def windows(self, ranges: Array) -> Iterator[Array]:
        """`ranges` cut at natural blocks and grouped into windows."""
        rows = max(1, self.window_bytes // max(1, self.columns * self.dtype.itemsize))
        edges = self.edges()
        yield from group(cut(ranges, edges) if edges is not None else ranges, rows, exact=edges is None)

    def record(self, job: str) -> None:  # noqa: B027 - most sources keep nothing
        """Keep what is read from now on for the next start, where that pays.

        `job` is the same on all workers.
        """

    def finish_recording(self, index: int, count: int, good: bool) -> None:  # noqa: B027
        """All rows of worker `index` of `count` have been read, or (not `good`) something failed."""

    def column(self, index: int) -> Array:
        """One whole column of features, or the labels for -1."""
        values = np.empty(self.rows)
        lo = 0
        for window in self.windows(np.array([[0, self.rows]])):
            hi = lo + int((window[:, 1] - window[:, 0]).sum())
            part = np.empty((hi - lo, self.columns), self.dtype)
            labels = np.empty(hi - lo) if self.labelled else None
            self.fill(window, part, labels)
            values[lo:hi] = labels if index < 0 else part[:, index]
            lo = hi
        return values


def expand(ranges: Array) -> Array:
    """Row numbers of (start, stop) ranges, in order."""
    lengths = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    ids = np.ones(total, np.int64)
    if total:
        kept = lengths > 0
        starts, lengths, ends = ranges[kept, 0], lengths[kept], ends[kept]
        ids[0] = starts[0]
        ids[ends[:-1]] = starts[1:] - (starts[:-1] + lengths[:-1] - 1)
    return np.cumsum(ids, out=ids)


def compress(ids: Array) -> Array:
    """The shortest (start, stop) ranges that give these row numbers in this order."""
    if not len(ids):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    starts = ids[np.concatenate(([0], breaks))]
    stops = ids[np.concatenate((breaks - 1, [len(ids) - 1]))] + 1
    return np.stack([starts, stops], axis=1).astype(np.int64)


def cut(ranges: Array, edges: Array) -> Array:
    """Ranges cut wherever a natural block begins."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    first = np.searchsorted(edges, ranges[:, 0], side="right")
    pieces = np.searchsorted(edges, ranges[:, 1] - 1, side="right") - first + 1
    last = np.cumsum(pieces) - 1
    owner = np.repeat(np.arange(len(ranges)), pieces)
    number = np.arange(len(owner))
    ends_at_edge = number != last[owner]
    found = ranges[owner]
    found[ends_at_edge, 1] = edges[(first[owner] + number - (last - pieces + 1)[owner])[ends_at_edge]]
    found[1:, 0] = np.where(owner[1:] == owner[:-1], found[:-1, 1], found[1:, 0])
    return found


def group(ranges: Array, rows: int, exact: bool) -> Iterator[Array]:
    """Consecutive ranges in groups of about `rows` rows; long ranges are cut where `exact`."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    total = int(ends[-1]) if len(ends) else 0
    done = 0
    while done < total:
        wanted = min(done + rows, total)
        first, last = np.searchsorted(ends, done, side="right"), np.searchsorted(ends, wanted)
        held = ranges[first : last + 1].copy()
        if exact:
            held[0, 0] = ranges[first, 1] - (ends[first] - done)
            held[-1, 1] -= ends[last] - wanted
        done = wanted if exact else int(ends[last])
        yield held


def write_columns(columns: list[Array], out: Array) -> None:
    """Columns into a matrix of rows, in tiles that stay in the processor's cache while they are turned."""
    step = max(64, (1 << 15) // len(columns))
    tile = np.empty((len(columns), step), out.dtype)
    for lo in range(0, len(out), step):
        hi = min(lo + step, len(out))
        for k, column in enumerate(columns):
            tile[k, : hi - lo] = column[lo:hi]
        out[lo:hi] = tile[:, : hi - lo].T


def check_finite(features: Array, labels: Array | None, ids: Array, names: list[str] | None, origin: str) -> None:
    """Raise for the first NaN or infinity, by row and column."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = features.sum() if features.size else 0.0  # NaN and infinity survive a sum; overflow is looked into
    if not np.isfinite(total):
        bad = np.argwhere(~np.isfinite(features))
        if len(bad):
            row, column = bad[0]
            where = column_name(names, int(column))
            raise DataError(
                f"{origin}: row {ids[row] + 1}, {where} is {features[row, column]}; every value must be a "
                f"finite {features.dtype.name} number, so drop or fill such rows first."
            )
    if labels is not None and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise DataError(
            f"{origin}: row {ids[row] + 1} has the label {labels[row]}; every label must be a finite number."
        )


def column_name(names: list[str] | None, column: int) -> str:
    """'column 3' or 'column 3 (eta)', counted from 1 as people do."""
    return f"column {column + 1}" + (f" ({names[column]})" if names else "")
