"""Text tables (CSV, TSV, blanks): blocks of whole lines that any worker can find and parse on its own.

A file is cut every so many bytes, each block beginning after the next line end, so a worker needs no other's
help to find its blocks. Lines are counted once, when the set is opened. Never reads a compressed file.
"""

from __future__ import annotations

import functools
import io
import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets import recorder
from flegel.datasets.arrays import ArraySource
from flegel.datasets.base import Description, Source
from flegel.datasets.cache import check_unchanged, signature
from flegel.datasets.recorder import Recorder
from flegel.datasets.text_dialect import LINE_LIMIT, Dialect, diagnose
from flegel.errors import DataError
from flegel.tree import Array

MIN_BLOCK, MAX_BLOCK, BLOCKS = 4 << 10, 4 << 20, 4096
_COUNT_BYTES = 1 << 18


@functools.cache
def arrow_csv() -> Any:
    """PyArrow with its CSV reader, or None; imported when the first text is parsed."""
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        return None
    return pyarrow


class Mapped:
    """A file as read-only memory; empty files are refused by whoever opened the set."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise DataError(f"{path} does not exist.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}).") from None
        self.size = len(self.map)


def block_starts(file: Mapped, header: int, block: int, origin: str) -> tuple[Array, int]:
    """Byte offsets of the blocks and of the end (trailing blank lines left out)."""
    end = file.size
    while end > header and file.map[end - 1] in b"\r\n \t":
        end -= 1
    line_end = file.map.find(b"\n", end)
    end = file.size if line_end < 0 else line_end + 1
    starts = [header]
    at = header + block
    while at < end:
        at = file.map.find(b"\n", max(at - 1, starts[-1])) + 1
        if at <= 0 or at >= end:
            break
        if at - starts[-1] > LINE_LIMIT + block:
            raise DataError(
                f"{origin} has a line longer than {LINE_LIMIT:,} bytes; is this a table of numbers?"
            )
        starts.append(at)
        at = max(at + 1, header + (((at - header) // block) + 1) * block)
    return np.array(starts, np.int64), end


def count_lines(file: Mapped, starts: Array, end: int) -> Array:
    """Lines in each block, counted by two threads (NumPy lets go of the interpreter's lock)."""
    data = np.frombuffer(file.map, np.uint8)
    stops = np.append(starts[1:], end)

    def count(block: int) -> int:
        lines = 0
        for lo in range(int(starts[block]), int(stops[block]), _COUNT_BYTES):
            lines += int(np.count_nonzero(data[lo : min(lo + _COUNT_BYTES, int(stops[block]))] == 10))
        return lines

    with ThreadPoolExecutor(2) as pool:
        counts = np.fromiter(pool.map(count, range(len(starts)), chunksize=64), np.int64, len(starts))
    if end and data[end - 1] != 10:
        counts[-1] += 1
    return counts


def parse(
    text: bytes, dialect: Dialect, dtype: np.dtype[Any], lines: int | None, first_line: int, origin: str
) -> tuple[list[Array], Array | None]:
    """Columns and labels of whole lines; `first_line` is the number of the first one in the file."""
    try:
        columns, labels = _parse(text, dialect, dtype)
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError) as error:
        raise diagnose(text, first_line, dialect, origin, error) from None
    if lines is not None and len(columns[0]) != lines:
        raise diagnose(text, first_line, dialect, origin, f"{lines} lines gave {len(columns[0])} rows")
    return columns, labels


def _parse(text: bytes, dialect: Dialect, dtype: np.dtype[Any]) -> tuple[list[Array], Array | None]:
    wanted = dialect.features if dialect.label is None else [*dialect.features, dialect.label]
    pyarrow = arrow_csv()
    if pyarrow is None or dialect.delimiter == " ":
        return _parse_pandas(text, dialect, dtype, wanted)
    number = pyarrow.float32() if dtype == np.float32 else pyarrow.float64()
    kinds = {str(i): number for i in dialect.features}
    if dialect.label is not None:
        kinds[str(dialect.label)] = pyarrow.string() if dialect.text_label else pyarrow.float64()
    table = pyarrow.csv.read_csv(
        pyarrow.BufferReader(text),
        pyarrow.csv.ReadOptions(
            use_threads=False, block_size=1 << 20, column_names=[str(i) for i in range(dialect.width)]
        ),
        pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, ignore_empty_lines=dialect.width > 1),
        pyarrow.csv.ConvertOptions(
            column_types=kinds, include_columns=[str(i) for i in wanted], null_values=[], check_utf8=True
        ),
    )
    columns = [table.column(k).to_numpy() for k in range(len(dialect.features))]
    labels = None if dialect.label is None else table.column(len(dialect.features)).to_numpy()
    return columns, labels


def _parse_pandas(
    text: bytes, dialect: Dialect, dtype: np.dtype[Any], wanted: list[int]
) -> tuple[list[Array], Array | None]:
    import pandas

    kinds: dict[int, Any] = dict.fromkeys(dialect.features, dtype)
    if dialect.label is not None:
        kinds[dialect.label] = str if dialect.text_label else np.float64
    frame = pandas.read_csv(
        io.BytesIO(text),
        sep=r"\s+" if dialect.delimiter == " " else dialect.delimiter,
        header=None,
        names=list(range(dialect.width)),
        index_col=False,
        usecols=wanted,
        dtype=kinds,
        na_filter=False,
        engine="c",
        skip_blank_lines=True,
        on_bad_lines="error",
    )
    columns = [frame[i].to_numpy() for i in dialect.features]
    labels = None if dialect.label is None else frame[dialect.label].to_numpy()
    return columns, labels


class TextSource(Source):
    """An uncompressed text table of numbers."""

    kind = "text"

    def __init__(
        self, path: Path, dialect: Dialect, dtype: str, *, block: int = 0, counts: list[int] | None = None
    ) -> None:
        self.path, self.dialect = path, dialect
        self.origin = str(path)
        self.dtype = np.dtype(dtype)
        self.columns = len(dialect.features)
        self.names = dialect.feature_names
        self.labelled = dialect.label is not None
        self.file = Mapped(path)
        self.signature = signature(path)
        self.recorder: Recorder | None = None
        self.known: ArraySource | None = None
        self.block = block or max(MIN_BLOCK, min(MAX_BLOCK, self.file.size // BLOCKS))
        self.starts, self.end = block_starts(self.file, dialect.header, self.block, self.origin)
        if recorder.enabled(self.file.size) and (found := recorder.recorded(self.key(), self.origin)):
            self.known, manifest = found
            counts = manifest["counts"]
        self.counts = count_lines(self.file, self.starts, self.end) if counts is None else np.array(counts)
        if len(self.counts) != len(self.starts):
            raise DataError(f"{path} changed since the job was submitted; submit it again.")
        self._edges = np.concatenate(([0], np.cumsum(self.counts)))
        self.rows = int(self._edges[-1])
        if self.rows == 0:
            raise DataError(f"{path} has a header but no rows.")

    def edges(self) -> Array | None:
        return self._edges

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """From the columnar cache if it has these rows; else parsed, and put there if it wants them."""
        if self.known is not None:
            self.known.fill(ranges, features, labels)
            return
        self._parse(ranges, features, labels)
        if self.recorder is not None:
            self.recorder.put(ranges, features, labels)

    def record(self, job: str) -> None:
        if self.known is None and recorder.enabled(self.file.size):
            manifest = {
                "rows": self.rows,
                "columns": self.columns,
                "labelled": self.labelled,
                "counts": self.counts.tolist(),
            }
            try:
                self.recorder = Recorder(self.key(), manifest, self.dtype, job)
            except OSError as error:
                recorder.not_kept(error)

    def finish_recording(self, index: int, count: int, good: bool) -> None:
        if self.recorder is not None:
            try:
                if good:
                    self.recorder.finish(index, count)
                else:
                    self.recorder.abandon()
            except OSError as error:
                recorder.not_kept(error)
            self.recorder = None

    def _parse(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """All blocks of the ranges in one go; of a block that is wanted in part, the rest is dropped."""
        stops = np.append(self.starts[1:], self.end)
        pieces: list[tuple[int, int]] = []
        kept: list[Array] = []
        seen = 0
        for start, stop in ranges.tolist():
            first = int(np.searchsorted(self._edges, start, side="right")) - 1
            last = int(np.searchsorted(self._edges, stop, side="left"))
            base = int(self._edges[first])
            kept.append(np.arange(seen + start - base, seen + stop - base))
            seen += int(self._edges[last]) - base
            pieces.append((first, last))
        text = b"".join(self._text(first, last, stops) for first, last in pieces)
        try:
            columns, values = parse(text, self.dialect, self.dtype, seen, 1, self.origin)
        except DataError:
            for first, last in pieces:  # once more, one by one, for the number of the line
                base = int(self._edges[first])
                lines, line = int(self._edges[last]) - base, self.dialect.skip_lines + base + 1
                parse(self._text(first, last, stops), self.dialect, self.dtype, lines, line, self.origin)
            raise
        rows = None if seen == len(features) else np.concatenate(kept)
        for k, column in enumerate(columns):
            features[:, k] = column if rows is None else column[rows]
        if labels is not None and values is not None:
            labels[...] = values if rows is None else values[rows]

    def _text(self, first: int, last: int, stops: Array) -> bytes:
        text = self.file.map[int(self.starts[first]) : int(stops[last - 1])]
        return text if text.endswith(b"\n") else text + b"\n"

    def key(self) -> Description:
        """What the rows depend on: the file and how it is read."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": self.signature,
            "dialect": self.dialect.plain(),
            "dtype": self.dtype.name,
            "block": self.block,
        }

    def describe(self) -> Description:
        return {**self.key(), "counts": self.counts.tolist()}

    @classmethod
    def from_description(cls, description: Description) -> TextSource:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(
            path,
            Dialect(**description["dialect"]),
            description["dtype"],
            block=description["block"],
            counts=description["counts"],
        )
