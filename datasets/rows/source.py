"""The interfaces of data sources, and the windows in which rows are read.

A `Source` is a numbered sequence of rows of which any ranges can be read. A `Stream` can only be read from the
beginning (compressed text, for example) and is converted to a source by the columnar cache. Never opens a file, never
decides which worker reads which rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from flegel.core.mapped_arrays import release
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.memory import allocate
from flegel.datasets.rows.row_ranges import compress, cut, expand, group
from flegel.errors import DataError
from flegel.wording import number, option

Description = dict[str, Any]
"""Plain JSON types only, because it is sent to the workers."""

STREAMS: dict[str, type[Stream]] = {}
SOURCES: dict[str, type[Source]] = {}
"""Classes by their `kind`, which is how a description names them. Defining a class with a `kind` enters it."""

WINDOW_BYTES = 8 << 20
"""Rows are read, checked and shuffled in windows of about this many bytes of numbers."""


SHUFFLED_NUMBERS = 1 << 20
"""Rows are shuffled so many numbers at a time, some columns after the others: a window may be as large as a block."""


def ways_out() -> str:
    """What to do about gaps, in messages."""
    return (
        f"use {option('missing', 'drop')} (leaves such rows out), {option('missing', 'mean')} or "
        f"{option('missing', 'median')} (fills gaps in) or {option('missing', 'indicator')} (fills them in and adds a "
        "column that marks them)"
    )


class Rows(NamedTuple):
    """Rows of a data set: features, labels and weights (None where it has none), and the global number of each row."""

    features: Array | Sparse
    labels: Array | None
    ids: Array
    weights: Array | None = None


class Chunk(NamedTuple):
    """The next rows of a stream. `labels` are class names if `named_classes`, else numbers."""

    features: Array | Sparse
    labels: Array | None


class Stream(ABC):
    """Rows that can only be read in order. The columnar cache converts them."""

    kind: ClassVar[str]
    columns: int
    dtype: np.dtype[Any]
    names: list[str] | None = None
    row_names: list[str] | None = None
    """Names of the rows, where the set has them: the users of ratings."""
    labelled: bool = False
    named_classes: bool = False
    """True where chunks carry class names rather than numbers as labels."""
    sparse: bool = False
    origin: str
    """How error messages name it: a path, an address or a phrase."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _register(cls, STREAMS)

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All rows, in order, in chunks that fit into memory."""

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
    row_names: list[str] | None = None
    """Names of the rows, where the set has them: the users of ratings."""
    labelled: bool = False
    classes: list[str] | None = None
    label_values: Sequence[float] | None = None
    """The different labels of all rows, where they are known without reading them (generators)."""
    sparse: bool = False
    weighted: bool = False
    """Rows come with weights."""
    keyed: bool = False
    """Rows of one key (`keys`) stay together on one worker."""
    treatment: Any = None
    """How the columns of a table became these rows (a `Treatment`), where they were not plain numbers."""
    report: Sequence[str] = ()
    """What became of each column, for people; empty where all are plain numbers."""
    window_bytes: ClassVar[int] = WINDOW_BYTES
    origin: str
    """How error messages name it: a path, an address or a phrase."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _register(cls, SOURCES)

    @abstractmethod
    def describe(self) -> Description: ...

    @classmethod
    @abstractmethod
    def from_description(cls, description: Description) -> Source: ...

    def feature_of(self, wanted: str | int, what: str) -> int:
        """The feature that holds `what`, such as weights, by the name or number of its column."""
        if self.treatment is not None and not self.treatment.plain:
            found: int = self.treatment.feature_of(wanted, self.origin, what)
            return found
        return find_column(wanted, self.names, self.columns, self.origin, what)

    def edges(self) -> Array | None:
        """Row numbers at which natural blocks begin, and `rows` at the end; None for random access."""
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
        lo = 0
        for window in self.windows(ranges):
            hi = lo + int((window[:, 1] - window[:, 0]).sum())
            part = features[lo:hi]
            part_labels = None if labels is None else labels[lo:hi]
            self.fill(window, part, part_labels)
            check_finite(part, part_labels, ids[lo:hi], self.names, self.origin)
            if rng is not None:
                order = rng.permutation(hi - lo)
                step = max(SHUFFLED_NUMBERS // max(hi - lo, 1), 1)
                for first in range(0, self.columns, step):
                    part[:, first : first + step] = part[order, first : first + step]
                ids[lo:hi] = ids[lo:hi][order]
                if part_labels is not None:
                    part_labels[...] = part_labels[order]
            release(features, lo, hi)
            lo = hi
        return Rows(features, labels, ids)

    def pick(self, ids: Array) -> Rows:
        """Rows by ascending number."""
        return self.take(compress(ids))

    def in_place(self) -> Rows | None:
        """All rows as `take` returns them, where they lie in memory and not checked; None where `take` copies them."""
        return None

    def windows(self, ranges: Array) -> Iterator[Array]:
        """`ranges` cut at natural blocks and grouped into windows."""
        rows = max(1, self.window_bytes // max(1, self.columns * self.dtype.itemsize))
        edges = self.edges()
        yield from group(cut(ranges, edges) if edges is not None else ranges, rows, exact=edges is None)

    def row_weights(self) -> Array:
        """The weight of each row, where the source is `weighted`."""
        raise NotImplementedError(f"{type(self).__name__} has no weights")

    def keys(self) -> Array:
        """The key of each row as a number from 0, where the source is `keyed`."""
        raise NotImplementedError(f"{type(self).__name__} has no keys")

    def record(self, job: str) -> None:  # noqa: B027 - most sources cache nothing
        """Write the rows read from now on to the columnar cache, where the source is slower than it.

        `job` is the same on all workers.
        """

    def finish_recording(self, index: int, count: int, good: bool) -> None:  # noqa: B027
        """All rows of worker `index` of `count` have been read; with `good` False, reading failed."""

    def labels_of(self, window: Array) -> Array:
        """The labels of the rows of a window. Sources that can read labels without features do."""
        count = int((window[:, 1] - window[:, 0]).sum())
        labels = np.empty(count)
        self.fill(window, np.empty((count, self.columns), self.dtype), labels)
        return labels

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


_Registered = TypeVar("_Registered", bound=Stream | Source)


def _register(cls: type[_Registered], known: dict[str, type[_Registered]]) -> None:
    kind = cls.__dict__.get("kind")
    if kind is None:
        return
    if kind in known:
        raise TypeError(f"{cls.__name__} has the kind {kind!r} of {known[kind].__name__}; give it another one.")
    known[kind] = cls


class WrappedSource(Source):
    """Rows of another source, some left out or with something added. Their type is that of the other source."""

    inner: Source

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        return self.inner.dtype

    @dtype.setter
    def dtype(self, wanted: np.dtype[Any]) -> None:
        self.inner.dtype = wanted


def concatenate_sparse(parts: list[Rows], columns: int) -> Rows:
    """Sparse rows one after the other."""
    matrices = [part.features for part in parts if isinstance(part.features, Sparse)]
    ends = np.cumsum([0] + [int(m.indptr[-1]) for m in matrices])
    indptr = np.concatenate([[0]] + [m.indptr[1:] + end for m, end in zip(matrices, ends.tolist(), strict=False)])
    labels = [part.labels for part in parts if part.labels is not None]
    return Rows(
        Sparse(
            indptr,
            np.concatenate([m.indices for m in matrices]),
            np.concatenate([m.values for m in matrices]),
            columns,
        ),
        np.concatenate(labels) if labels else None,
        np.concatenate([part.ids for part in parts]),
    )


def write_columns(columns: list[Array], out: Array) -> None:
    """Copy columns into a row-major matrix, in tiles that fit into the processor's cache."""
    step = max(64, (1 << 15) // len(columns))
    tile = np.empty((len(columns), step), out.dtype)
    for lo in range(0, len(out), step):
        hi = min(lo + step, len(out))
        for k, column in enumerate(columns):
            tile[k, : hi - lo] = column[lo:hi]
        out[lo:hi] = tile[:, : hi - lo].T


def adds_up(features: Array) -> bool:
    """False where some value is not finite, or the sum of all overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(features.sum())) if features.size else True


def check_finite(features: Array, labels: Array | None, ids: Array, names: list[str] | None, origin: str) -> None:
    """Raise for the first NaN or infinity, by row and column."""
    if not adds_up(features):
        bad = np.argwhere(~np.isfinite(features))
        if len(bad):
            row, column = bad[0]
            where = column_name(names, int(column))
            value = features[row, column]
            way = ways_out() if np.isnan(value) else f"correct it, or leave the column out with {option('drop')}"
            raise DataError(
                f"{origin}: row {number(ids[row])}, {where} is {value}; every value must be a finite "
                f"{features.dtype.name} number: {way}."
            )
    if labels is not None and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        left_out = f"leave such rows out with {option('missing', 'drop')}"
        way = left_out if np.isnan(labels[row]) else "correct it, or take the row out of the data"
        raise DataError(
            f"{origin}: row {number(ids[row])} has the label {labels[row]}; every label must be a finite number: {way}."
        )


def column_name(names: list[str] | None, column: int) -> str:
    """'column 3' or 'column 3 (eta)', counted as the reader counts; a name that is only a count is not shown."""
    return f"column {number(column)}" + (f" ({names[column]})" if names and names[column] != str(column) else "")
