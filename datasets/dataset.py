"""`Dataset`, which `open_data` returns, and `read_shard`, which reads the rows of one worker.

A description is plain JSON; a worker opens it and reads only its own rows. Never trains, never sends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flegel.core.pytree import Array, protected
from flegel.core.row_windows import RowWindow, RowWindows
from flegel.core.shard import TILE, WINDOW_NUMBERS, Sparse
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.chosen_columns import find_column
from flegel.datasets.rows.columnar_cache import SourceStream, columnar
from flegel.datasets.rows.descriptions import source_from
from flegel.datasets.rows.kept_rows import KeptRows
from flegel.datasets.rows.keys import KeyedSource, deal_keys
from flegel.datasets.rows.memory import exceeds_memory
from flegel.datasets.rows.partition import (
    MIN_BLOCKS_PER_WORKER,
    Partition,
    one_by_one,
    own_rows,
    parse,
    plan_rows,
    rows_of_block,
    shard_rng,
)
from flegel.datasets.rows.row_ranges import expand
from flegel.datasets.rows.source import Description, Rows, Source
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.datasets.rows.weights import WeightedSource
from flegel.datasets.tables.treatment import Treatment
from flegel.errors import DataError
from flegel.wording import option

SAMPLE_BLOCKS = 256
"""A sample reads at most this many natural blocks, spread evenly over the set."""


@dataclass
class Dataset:
    """A set of rows, opened but not read."""

    name: str
    source: Source
    rows: int
    stand_in: bool = False
    note: str | None = None
    """One line for the user where the rows are a stand-in for the named set."""
    remote: str | None = None
    """The address of a downloaded set, from which other hosts download it too."""
    label_place: int | None = None
    """Number of the label column, where columns have no names."""
    held_out: HeldOut | None = None
    """Rows of the same set that are not among these, to follow a model on."""

    @property
    def columns(self) -> int:
        return self.source.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features, float32 or float64."""
        return self.source.dtype

    @property
    def sparse(self) -> bool:
        return self.source.sparse

    @property
    def labelled(self) -> bool:
        return self.source.labelled

    @property
    def weighted(self) -> bool:
        """True where each row has a weight."""
        return self.source.weighted

    @property
    def classes(self) -> list[str] | None:
        """Class names where labels are text; the label of a row is then an index into this list."""
        return self.source.classes

    @property
    def names(self) -> list[str] | None:
        """Names of the feature columns, where the set has them."""
        return self.source.names

    @property
    def treatment(self) -> Treatment:
        """How a table becomes rows like these."""
        if self.source.treatment is not None:
            found: Treatment = self.source.treatment
            return found
        return Treatment(self.columns, self.names, self.label_place, sparse=self.sparse, dtype=self.dtype.name)

    @property
    def in_memory(self) -> bool:
        """True for arrays and frames from Python: only this process can read them, and `describe` raises."""
        source = self.source
        while isinstance(source, WeightedSource | KeyedSource):
            source = source.inner
        return getattr(source, "paths", ...) is None and source.kind in ("npy", "csr")

    def load(self) -> tuple[Array | Sparse, Array | None]:
        """The whole set, in order: features (C-ordered, or CSR) and float64 labels or None."""
        return self.read()[:2]

    def read(self) -> Rows:
        """The whole set, in order, with weights where it has them."""
        return self.source.take(np.array([[0, self.rows]]))

    def in_place(self) -> Rows | None:
        """The whole set as `read` returns it, but where it lies, features not looked at for NaN, without numbers; None
        where rows have to be converted first, and where they are not in the memory of this process."""
        return self.source.in_place() if self.in_memory else None

    def label_values(self, most: int) -> Array | None:
        """The different labels of all rows, in order; None where there are no labels, or more than `most`."""
        if not self.labelled:
            return None
        if self.source.label_values is not None and self.rows == self.source.rows:
            return np.unique(self.source.label_values)
        known = np.empty(0)
        for window in self.source.windows(np.array([[0, self.rows]])):
            known = with_new_values(known, self.source.labels_of(window))
            if len(known) > most:
                return None
        return known

    def total_weight(self) -> float | None:
        """What all rows weigh together; None where each weighs 1."""
        return float(self.source.row_weights()[: self.rows].sum()) if self.weighted else None

    def sample(self, n: int, seed: int = 0) -> tuple[Array | Sparse, Array | None]:
        """`n` distinct rows (all, if there are fewer) spread evenly over the set; never loads the whole set."""
        return self.draw(n, seed)[:2]

    def draw(self, n: int, seed: int = 0, head: int = 0) -> Rows:
        """The rows of `sample` with their numbers, and weights where the set has them. Of sets in the memory of this
        process they may come behind the first `head` rows, without a second copy."""
        drawn = sample_rows(self.rows, self.source.edges(), n, seed)
        return take_rows(self.source, np.concatenate([np.arange(head), drawn]) if head else drawn)

    def describe(self) -> Description:
        """The argument of `read_shard`, in plain JSON types."""
        return {
            "name": self.name,
            "rows": self.rows,
            "dtype": self.dtype.name,
            "remote": self.remote,
            "source": self.source.describe(),
        }

    def shard(self, index: int, count: int, partition: str = "shuffle", seed: int = 0) -> Rows:
        """The rows of worker `index` of `count`, read in this process."""
        return _read_shard(self.source, self.rows, index, count, partition, seed)

    def owners(self, count: int, partition: str = "shuffle", seed: int = 0) -> list[Array]:
        """Row numbers of each worker, for sets in the memory of this process, which every worker can read."""
        wanted = parse(partition)
        if self.source.keyed:
            return deal_keys(self.keys(), count, wanted, seed)
        if wanted.kind == "shuffle" and rows_of_block(self.rows, self.columns) > 1:
            return [own_rows(self.rows, self.columns, i, count, wanted, seed).ids() for i in range(count)]
        if wanted.kind == "shuffle":
            return np.split(*one_by_one(self.rows, count, wanted, seed))
        read = column_reader(self.source)
        return [expand(plan_rows(self.rows, i, count, wanted, seed, column=read)) for i in range(count)]

    def keys(self) -> Array:
        """The key of each row as a number from 0; rows of one key stay together."""
        return self.source.keys()[: self.rows]

    def summary(self) -> dict[str, Any]:
        """The `dataset` part of a result."""
        return (
            {"name": self.name, "rows": self.rows, "columns": self.columns, "stand_in": self.stand_in}
            | ({"note": self.note} if self.stand_in and self.note else {})
            | ({} if self.held_out is None else {"held_out": len(self.held_out.ids)})
        )


class HeldOut:
    """Rows of a data set that no worker trains on, read when they are asked for."""

    def __init__(self, whole: Dataset, ids: Array) -> None:
        self.whole, self.ids = whole, ids

    def read(self, most: int | None = None) -> Rows:
        """All of them, or `most`, spread evenly."""
        ids = self.ids
        if most is not None and most < len(ids):
            ids = ids[np.linspace(0, len(ids) - 1, most).astype(np.int64)]
        return take_rows(self.whole.source, ids)


def read_shard(description: Description, index: int, count: int, partition: str = "shuffle", seed: int = 0) -> Rows:
    """The rows of worker `index` of `count`: (features, labels or None, global row numbers)."""
    return _read_shard(_open_source(description), description["rows"], index, count, partition, seed)


def _open_source(description: Description) -> Source:
    if description["remote"] is not None:
        from flegel.datasets.catalog.remote import stage

        stage(description["remote"])
    source = source_from(description["source"])
    source.dtype = np.dtype(description["dtype"])
    return source


def read_rows(description: Description, ids: Array) -> Rows:
    """Rows by their numbers, in ascending order, for a worker that takes over rows of others."""
    return take_rows(_open_source(description), np.sort(ids))


def _read_shard(source: Source, rows: int, index: int, count: int, partition: str, seed: int) -> Rows:
    """Read the rows of shard `index` of `count`. A text file read from its beginning to its end is recorded for the
    cache on the way; a selection of its first rows is not."""
    source, ranges, rng = _planned(source, rows, index, count, partition, seed)
    with _recorded(source, rows, index, count, f"{count} {partition} {seed}"):
        return source.take(ranges, rng)


def _planned(
    source: Source, rows: int, index: int, count: int, partition: str, seed: int
) -> tuple[Source, Array, np.random.Generator | None]:
    """From where a shard is read, which ranges of rows, and how they are shuffled within a window."""
    wanted = parse(partition)
    edges = clip(source.edges(), rows)
    if edges is not None:
        few = wanted.kind == "shuffle" and len(edges) - 1 < MIN_BLOCKS_PER_WORKER * count
        if wanted.needs_column or few:
            source, edges = random_access(source), None
    ranges = plan_rows(rows, index, count, wanted, seed, edges=edges, column=column_reader(source))
    rng = shard_rng(seed, count + index) if edges is not None and wanted.kind == "shuffle" else None
    return source, ranges, rng


@contextlib.contextmanager
def _recorded(source: Source, rows: int, index: int, count: int, job: str) -> Iterator[None]:
    if rows < source.rows:
        yield
        return
    good = False
    source.record(job)
    try:
        yield
        good = True
    finally:
        source.finish_recording(index, count, good)


class StreamedShard(NamedTuple):
    """Rows of a shard that are read while they are laid out. Only then labels, numbers and weights are there, too."""

    features: RowWindows
    labels: Array | None
    ids: Array
    weights: Array | None


def stream_shard(description: Description, index: int, count: int, partition: str, seed: int) -> StreamedShard | None:
    """The rows of `read_shard` where they exceed the memory limit: a window of them is in memory at a time, and nobody
    needs a file of them before they are laid out. None where they do not, and where they are mapped in place."""
    if parse(partition).kind == "contiguous" or description["rows"] < count:
        return None
    source = _open_source(description)
    size = (description["rows"] // count) * source.columns * source.dtype.itemsize
    if source.sparse or not exceeds_memory(size):
        return None
    rows = description["rows"]
    source, ranges, rng = _planned(source, rows, index, count, partition, seed)
    total = int((ranges[:, 1] - ranges[:, 0]).sum())
    ids = np.empty(total, np.int64)
    labels, weights = (np.empty(total) if there else None for there in (source.labelled, source.weighted))

    def parts() -> Iterator[Array]:
        at = 0
        for window in source.windows(ranges):
            part = source.take(window, rng)
            assert not isinstance(part.features, Sparse)
            end = at + len(part.ids)
            ids[at:end] = part.ids
            for into, values in ((labels, part.labels), (weights, part.weights)):
                if into is not None and values is not None:
                    into[at:end] = values
            at = end
            yield part.features
            del part  # before the next one is read

    def windows() -> Iterator[RowWindow]:
        with _recorded(source, rows, index, count, f"{count} {partition} {seed}"):
            yield from in_whole_tiles(parts(), source.columns, source.dtype)

    return StreamedShard(RowWindows((total, source.columns), source.dtype, windows), labels, ids, weights)


def in_whole_tiles(parts: Iterator[Array], columns: int, dtype: np.dtype[Any]) -> Iterator[RowWindow]:
    """The same rows in windows of a whole number of tiles each, but for the last, in memory that is used again."""
    room = np.empty((TILE * max(WINDOW_NUMBERS // (TILE * columns), 1), columns), dtype)
    shown, plain = protected(room), np.arange(len(room))
    filled = 0
    for part in parts:
        begin = 0
        while begin < len(part):
            size = min(len(part) - begin, len(room) - filled)
            room[filled : filled + size] = part[begin : begin + size]
            filled, begin = filled + size, begin + size
            if filled == len(room):
                yield RowWindow(shown, plain)
                filled = 0
        del part  # before the next one is read
    if filled:
        yield RowWindow(shown[:filled], plain[:filled])


def random_access(source: Source) -> Source:
    """The same rows with random access: in memory up to 32 MB, else in the columnar cache."""
    if isinstance(source, WeightedSource):
        return WeightedSource(random_access(source.inner), source.weights, source.at)
    if isinstance(source, KeyedSource):
        return KeyedSource(random_access(source.inner), source.known, source.at)
    if isinstance(source, KeptRows):
        return source.over(random_access(source.inner))
    width = min(source.columns, 256) if source.sparse else source.columns
    if source.rows * width * source.dtype.itemsize > 32 << 20:
        return columnar(SourceStream(source))
    rows = source.take(np.array([[0, source.rows]]))
    if isinstance(rows.features, Sparse):
        return SparseSource(rows.features, rows.labels, origin=source.origin, names=source.names)
    return ArraySource(rows.features, rows.labels, origin=source.origin, names=source.names)


def column_reader(source: Source) -> Callable[[Partition], Array]:
    def read(wanted: Partition) -> Array:
        if wanted.kind == "dirichlet" or (wanted.column == "label" and "label" not in (source.names or ())):
            if not source.labelled:
                raise DataError(
                    f"{source.origin} has no labels, which this partition needs; name the label column with "
                    f"{option('label')}."
                )
            return source.column(-1)
        return source.column(find_column(wanted.column, source.names, source.columns, source.origin, "column"))

    return read


def with_new_values(known: Array, values: Array) -> Array:
    """Known values, in order, and those that are new. Fast where few are: values are looked up, not sorted."""
    if not len(known):
        return np.unique(values)
    place = np.searchsorted(known, values).clip(max=len(known) - 1)
    new = values[known[place] != values]
    return np.union1d(known, new) if len(new) else known


def clip(edges: Array | None, rows: int) -> Array | None:
    """Block edges of the first `rows` rows."""
    return None if edges is None else np.append(edges[edges < rows], rows)


def sample_rows(rows: int, edges: Array | None, n: int, seed: int) -> Array:
    """Ascending row numbers of a sample; with natural blocks, from at most SAMPLE_BLOCKS of them where they suffice."""
    if n >= rows:
        return np.arange(rows)
    rng = np.random.default_rng([seed & (2**64 - 1), 0])
    if edges is None:
        bounds = np.linspace(0, rows, n + 1).astype(np.int64)
        return rng.integers(bounds[:-1], bounds[1:])
    edges = clip(edges, rows)
    assert edges is not None
    sizes = np.diff(edges)
    blocks = min(len(sizes), SAMPLE_BLOCKS)
    while True:
        bounds = np.linspace(0, len(sizes), blocks + 1).astype(np.int64)
        chosen = rng.integers(bounds[:-1], bounds[1:])
        if sizes[chosen].sum() >= n:
            break
        blocks = min(len(sizes), blocks * 2)
    pool = np.concatenate([np.arange(edges[b], edges[b + 1]) for b in chosen])
    return np.sort(rng.choice(pool, n, replace=False))


def take_rows(source: Source, ids: Array) -> Rows:
    """Rows by ascending number; natural blocks are read whole, one window at a time, and other rows are dropped."""
    edges = source.edges()
    if edges is None or source.sparse:
        return source.pick(ids)
    blocks = np.unique(np.searchsorted(edges, ids, side="right") - 1)
    features = np.empty((len(ids), source.columns), source.dtype)
    labels, weights = (np.empty(len(ids)) if there else None for there in (source.labelled, source.weighted))
    at = 0
    for window in source.windows(np.stack([edges[blocks], edges[blocks + 1]], axis=1)):
        rows = source.take(window)
        assert not isinstance(rows.features, Sparse)
        kept = np.flatnonzero(np.isin(rows.ids, ids, assume_unique=True))
        end = at + len(kept)
        np.take(rows.features, kept, axis=0, out=features[at:end], mode="clip")
        for into, values in ((labels, rows.labels), (weights, rows.weights)):
            if into is not None and values is not None:
                into[at:end] = values[kept]
        at = end
        del rows  # before the next ones are read
    return Rows(features, labels, ids, weights)
