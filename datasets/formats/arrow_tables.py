"""Parquet, Arrow and Feather files: row groups and record batches are the blocks that workers read.

Needs PyArrow, an optional dependency. Never reads a column that is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flegel.core.mapped_arrays import release
from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.datasets.rows.chosen_columns import chosen_columns
from flegel.datasets.rows.columnar_cache import columnar
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.memory import allocate
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.row_ranges import cut, group
from flegel.datasets.rows.source import Chunk, Description, Source, Stream, column_name, ways_out, write_columns
from flegel.datasets.tables.columns import FileTable, RawColumn, column_of, unique_names
from flegel.errors import DataError, UsageError, in_words
from flegel.wording import number, option

DECODED_NUMBERS = 1 << 20
"""Numbers of a row group that are decoded at a time: a row group may have a million rows, and its file as many columns
as memory has no room for."""
PART_BYTES = 32 << 20
"""Rows of a row group that takes more are read in parts of about this size."""
STREAM_BEGINS = b"\xff\xff\xff\xff"
"""Of an Arrow stream: a message follows."""


def import_pyarrow() -> Any:
    """PyArrow, or an error that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError("Parquet and Arrow files need PyArrow: pip install 'flegel[parquet]'.") from None
    return pyarrow


class _Parquet:
    """Row groups of a Parquet file."""

    decodes = True
    """A part of a block cannot be read alone, and what was read is private memory."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.path = path
        self.file = parquet.ParquetFile(path, pre_buffer=False)  # else a row group is in memory twice
        meta = self.file.metadata
        self.schema = self.file.schema_arrow
        self.counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def read(self, block: int, columns: list[str]) -> Any:
        with _whole_file(self.path):
            found = self.file.read_row_group(block, columns=columns, use_threads=False)
            found.validate(full=True)
            return found

    def gaps(self, columns: list[str]) -> bool:
        """Whether the statistics of the file tell of missing values."""
        with _whole_file(self.path):
            meta = self.file.metadata
            groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
            chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
            counted = [c.statistics for c in chunks if c.path_in_schema in columns and c.statistics is not None]
            return any(each.has_null_count and each.null_count for each in counted)


class _Arrow:
    """Record batches of an Arrow (Feather) file, which is mapped: what is not used is not read."""

    decodes = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._validated: set[tuple[int | str, ...]] = set()
        self._open()
        self.counts = [self._batch(i).num_rows for i in range(self.batches)]

    def _open(self) -> None:
        pa = import_pyarrow()
        self.file = pa.ipc.open_file(pa.memory_map(str(self.path)))
        self.schema, self.batches = self.file.schema, self.file.num_record_batches

    def _stored(self, block: int) -> Any:
        return self.file.get_batch(block)

    def _batch(self, block: int) -> Any:
        """A batch whose offsets stay inside of its buffers: those of a damaged file may not, and Arrow itself would
        read beyond them."""
        with _whole_file(self.path):
            found = self._stored(block)
            found.validate()
            return found

    def read(self, block: int, columns: list[str]) -> Any:
        pa = import_pyarrow()
        with _whole_file(self.path):
            places = _places(self.schema.names)
            found = pa.Table.from_batches([self._batch(block)]).select([at for name in columns for at in places[name]])
            if (block, *columns) not in self._validated:  # reads all values; a large block is asked for part by part
                found.validate(full=True)
                self._validated.add((block, *columns))
            return found

    def gaps(self, columns: list[str]) -> bool:
        """Whether a value is missing."""
        found = (self._batch(i).column(name) for i in range(self.batches) for name in columns)
        return any(c.null_count or getattr(getattr(c, "dictionary", None), "null_count", 0) for c in found)


class _ArrowStream(_Arrow):
    """Record batches of an Arrow stream in a file, as `datasets` of Hugging Face keeps its tables. It has no index, so
    where batches begin is found once, by the lengths in front of them."""

    def _open(self) -> None:
        ipc, whole = import_pyarrow().ipc, import_pyarrow().memory_map(str(self.path)).read_buffer()
        file = import_pyarrow().BufferReader(whole)
        self._whole, self._begins = whole, []
        self.schema = ipc.read_schema(ipc.read_message(file))
        while (begin := file.tell()) < whole.size:
            try:
                kind = ipc.read_message(file).type
            except EOFError:  # the mark at the end of a stream
                break
            if kind != "record batch":
                raise DataError(
                    f"{self.path} is an Arrow stream with dictionaries, of which parts cannot be read; write it as "
                    "an Arrow file (pyarrow.ipc.new_file) or as Parquet."
                )
            self._begins.append(begin)
        self.batches = len(self._begins)

    def _stored(self, block: int) -> Any:
        pa = import_pyarrow()
        message = pa.ipc.read_message(pa.BufferReader(self._whole.slice(self._begins[block])))
        return pa.ipc.read_record_batch(message, self.schema)


def _places(names: Sequence[str]) -> dict[str, list[int]]:
    """Where each name stands: several columns may have the same."""
    found: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        found.setdefault(name, []).append(at)
    return found


@contextmanager
def _whole_file(path: Path) -> Iterator[None]:
    """Around calls of PyArrow: what it says about damage, as a sentence."""
    pa = import_pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, LookupError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no complete Parquet or Arrow file ({in_words(error)[:200]}); write it again."
        ) from None


def open_blocks(path: Path) -> _Parquet | _Arrow:
    with _whole_file(path):
        with path.open("rb") as file:
            magic = file.read(6)
        if not magic:
            raise DataError(f"{path} is empty; give a file with rows.")
        if magic[:4] == STREAM_BEGINS:
            return _ArrowStream(path)
        return _Parquet(path) if magic[:4] == b"PAR1" else _Arrow(path)


def is_numeric(kind: Any) -> bool:
    types = import_pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


class DecodedBlock(NamedTuple):
    """A block of which parts are read: columns × rows, and its labels."""

    block: int
    columns: Array
    labels: Array | None


class TableSource(Source):
    """A Parquet or Arrow file whose feature columns are numbers."""

    kind = "table"

    def __init__(self, path: Path, features: list[str], label: str | None, dtype: str) -> None:
        """Check the columns against the schema before any block is read, so that a wrong name fails at once."""
        self.path, self.origin = path, str(path)
        self.blocks = open_blocks(path)
        self.names, self.label = features, label
        self.columns, self.dtype = len(features), np.dtype(dtype)
        self.labelled = label is not None
        self.wanted = features if label is None else [*features, label]
        schema = self.blocks.schema
        for name in self.wanted:
            if name not in schema.names:
                raise DataError(
                    f"{path} has no column {name!r}; it has {', '.join(schema.names[:20])}; choose one of them."
                )
            if name != label and not is_numeric(schema.field(name).type):
                raise DataError(
                    f"{path}: column {name!r} holds {schema.field(name).type}, not numbers; "
                    f"leave it out with {option('drop', name)}."
                )
        self._held: DecodedBlock | None = None
        self._edges = np.concatenate(([0], np.cumsum(self.blocks.counts, dtype=np.int64)))
        self.rows = int(self._edges[-1])
        if self.rows == 0:
            raise DataError(f"{path} has no rows; give a file with at least one.")

    @property
    def has_text_label(self) -> bool:
        """Whether the label is text."""
        return self.label is not None and not is_numeric(self.blocks.schema.field(self.label).type)

    def edges(self) -> Array | None:
        return self._edges

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Decode each block that the ranges touch, some columns at a time; ranges come in the order of the file."""
        pieces, at = cut(ranges, self._edges), 0
        if not len(pieces):
            return
        blocks = np.searchsorted(self._edges, pieces[:, 0], side="right") - 1
        begins = np.flatnonzero(np.diff(blocks, prepend=-1))
        for block, own in zip(blocks[begins].tolist(), np.split(pieces, begins[1:]), strict=True):
            end = at + int((own[:, 1] - own[:, 0]).sum())
            self._fill_from(block, own, features[at:end], None if labels is None else labels[at:end])
            at = end
        import_pyarrow().default_memory_pool().release_unused()  # otherwise each process keeps room for some blocks

    def _fill_from(self, block: int, ranges: Array, features: Array, labels: Array | None) -> None:
        """Rows of one block. Never are more of its columns in memory than `DECODED_NUMBERS` allow, or one."""
        base = int(self._edges[block])
        if self.blocks.decodes and self._is_large(block):
            self._fill_from_decoded(block, ranges - base, features, labels)
            return
        for first, columns in self._decoded(block, labels is not None):
            at = 0
            for lo, hi in (ranges - base).tolist():
                _put([column[lo:hi] for column in columns], first, features[at : at + hi - lo], labels, at)
                at += hi - lo

    def _decoded(self, block: int, labelled: bool) -> Iterator[tuple[int, list[Array]]]:
        """Some columns of a block after the others: the number of the first, and all rows of each."""
        count = self.columns + labelled
        step = max(DECODED_NUMBERS // max(self.blocks.counts[block], 1), 1) if self.blocks.decodes else count
        for first in range(0, count, step):
            numbers = range(first, min(first + step, count))
            table = self.blocks.read(block, [self.wanted[k] for k in numbers])
            base = int(self._edges[block])
            yield first, [self._column(table.column(k), number, base) for k, number in enumerate(numbers)]
            del table  # before the next ones are read

    def _is_large(self, block: int) -> bool:
        """Whether rows of this block are read in parts."""
        return bool(self.blocks.counts[block] > self._part_rows)

    @property
    def _part_rows(self) -> int:
        return max(PART_BYTES // (self.columns * self.dtype.itemsize), TILE)

    def windows(self, ranges: Array) -> Iterator[Array]:
        """As those of every source; blocks that exceed a window by far are cut as well."""
        edges, step = self._edges, self._part_rows
        large = [block for block in range(len(edges) - 1) if self._is_large(block)]
        if not large:
            yield from super().windows(ranges)
            return
        inner = [np.arange(edges[block], edges[block + 1], step)[1:] for block in large]
        fine = np.sort(np.concatenate([edges, *inner]))
        rows = max(1, self.window_bytes // max(1, self.columns * self.dtype.itemsize))
        yield from group(cut(ranges, fine), rows, exact=False)

    def _fill_from_decoded(self, block: int, ranges: Array, features: Array, labels: Array | None) -> None:
        """Rows of a large block, whose columns are decoded once, into an array that is a scratch file where memory is
        short; windows come in the order of the file, and the array goes with the last row."""
        if self._held is None or self._held.block != block:
            self._held = None  # before the next one is made
            count = self.blocks.counts[block]
            columns = allocate((self.columns, count), self.dtype)
            answers = np.empty(count) if self.labelled else None
            for first, some in self._decoded(block, self.labelled):
                for k, column in enumerate(some, first):
                    if k == self.columns:
                        assert answers is not None
                        answers[:] = column
                    else:
                        columns[k] = column
                release(columns, first, first + len(some))
            self._held = DecodedBlock(block, columns, answers)
        held, at = self._held, 0
        for lo, hi in ranges.tolist():
            write_columns([column[lo:hi] for column in np.asarray(held.columns)], features[at : at + hi - lo])
            if labels is not None:
                assert held.labels is not None
                labels[at : at + hi - lo] = held.labels[lo:hi]
            at += hi - lo
        if ranges[-1, 1] == self.blocks.counts[block]:
            self._held = None

    def labels_of(self, window: Array) -> Array:
        """Reads the label column alone."""
        labels = np.empty((int((window[:, 1] - window[:, 0]).sum()), 1))
        self._label_alone.fill(window, labels, None)
        return labels[:, 0]

    @functools.cached_property
    def _label_alone(self) -> TableSource:
        assert self.label is not None
        return TableSource(self.path, [self.label], None, "float64")

    def _column(self, column: Any, wanted: int, base: int) -> Array:
        """The numbers of a column, which is the `wanted` one of this source."""
        if column.null_count:
            row = base + int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DataError(
                f"{self.path}: row {number(row)}, {column_name(self.wanted, wanted)} has no value; {ways_out()}."
            )
        if import_pyarrow().types.is_decimal(column.type):
            column = column.cast(import_pyarrow().float64())
        return np.asarray(column.to_numpy())

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "features": self.names,
            "label": self.label,
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> TableSource:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["features"], description["label"], description["dtype"])


def _put(columns: list[Array], first: int, features: Array, labels: Array | None, at: int) -> None:
    """Columns from number `first` on into rows of features; the last one may be that of the labels, from `at` on."""
    own = columns[: features.shape[1] - first]
    if own:
        write_columns(own, features[:, first : first + len(own)])
    if labels is not None and len(own) < len(columns):
        labels[at : at + len(features)] = columns[-1]


class TableStream(Stream):
    """A table whose label is text: read in order, because the classes are known only at the end."""

    kind = "table-stream"
    labelled = True
    named_classes = True

    def __init__(self, source: TableSource) -> None:
        self.source = source
        self.columns, self.dtype, self.names = source.columns, source.dtype, source.names
        self.origin = source.origin

    def chunks(self) -> Iterator[Chunk]:
        numbers = TableSource(self.source.path, list(self.source.names or ()), None, self.dtype.name)
        edges = numbers.edges()
        assert edges is not None
        for block in range(len(edges) - 1):
            if edges[block] == edges[block + 1]:
                continue
            rows = numbers.take(edges[block : block + 2].reshape(1, 2))
            labels = numbers.blocks.read(block, [str(self.source.label)]).column(0)
            if labels.null_count:
                row = int(edges[block]) + int(np.flatnonzero(labels.is_null().to_numpy())[0])
                raise DataError(
                    f"{self.origin}: row {number(row)} has no label; leave such rows out with "
                    f"{option('missing', 'drop')}."
                )
            yield Chunk(rows.features, np.array(labels.to_pylist(), dtype=object))

    def describe(self) -> Description:
        return {"kind": self.kind, "source": self.source.describe()}

    @classmethod
    def from_description(cls, description: Description) -> TableStream:
        return cls(TableSource.from_description(description["source"]))


def _columns(path: Path, options: Options) -> tuple[list[str], str | None]:
    """Names of the features and of the label."""
    names = list(open_blocks(path).schema.names)
    indexes = frozenset(k for k, name in enumerate(names) if name.startswith("__index_level_"))
    label, features = chosen_columns(names, len(names), options, str(path), indexes)
    return [names[k] for k in features], None if label is None else names[label]


def open_rows(path: Path, options: Options) -> Source:
    """Open a table; all columns except a text label must be numbers."""
    source = TableSource(path, *_columns(path, options), options.dtype or "float32")
    return columnar(TableStream(source)) if source.has_text_label else source


def _categories(schema: Any) -> frozenset[str]:
    """Columns of numbers that were categories in pandas: Parquet keeps that in a remark only."""
    told = (schema.pandas_metadata or {}).get("columns", [])
    return frozenset(each["field_name"] for each in told if each.get("pandas_type") == "categorical")


def is_plain(path: Path, options: Options) -> bool:
    """Whether `open_rows` takes it: numbers without gaps in sight, and no column that is marked as an index."""
    blocks = open_blocks(path)
    names = list(blocks.schema.names)
    if len(set(names)) != len(names):
        return False
    marked = (blocks.schema.pandas_metadata or {}).get("index_columns", [])
    if any(name in names for name in marked if isinstance(name, str)) and options.columns is None:
        return False
    features, label = _columns(path, options)
    kinds, types = [blocks.schema.field(name).type for name in features], import_pyarrow().types
    if not all(is_numeric(kind) and not types.is_boolean(kind) for kind in kinds):  # booleans are not scaled
        return False
    if _categories(blocks.schema) & set(features):
        return False
    return not blocks.gaps([*features, *([] if label is None else [label])])


class ArrowTable(FileTable):
    """A Parquet or Arrow file, block by block."""

    kind = "arrow"

    def __init__(self, path: Path) -> None:
        self.path, self.origin = path, str(path)
        self.blocks = open_blocks(path)
        stored = list(self.blocks.schema.names)
        self.names = unique_names(stored)
        marked = (self.blocks.schema.pandas_metadata or {}).get("index_columns", [])
        self._categories = _categories(self.blocks.schema)
        self.indexes = frozenset(
            k for k, name in enumerate(stored) if name in marked or name.startswith("__index_level_")
        )

    def chunks(self, wanted: Sequence[int]) -> Iterator[list[RawColumn]]:
        stored = self.blocks.schema.names
        turns = {at: turn for places in _places(stored).values() for turn, at in enumerate(places)}
        for block, rows in enumerate(self.blocks.counts):
            if rows:
                table = self.blocks.read(block, sorted({stored[k] for k in wanted}))
                read = _places(table.column_names)
                columns = [table.column(read[stored[k]][turns[k]]) for k in wanted]
                pairs = zip(columns, wanted, strict=True)
                columns = [self._encoded(column) if stored[k] in self._categories else column for column, k in pairs]
                yield [column_of(c, self.names[k], self.origin) for k, c in zip(wanted, columns, strict=True)]

    def _encoded(self, column: Any) -> Any:
        """With a dictionary, if it has none yet."""
        return column if import_pyarrow().types.is_dictionary(column.type) else column.dictionary_encode()
