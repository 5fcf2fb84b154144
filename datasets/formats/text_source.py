"""Text tables (CSV, TSV, blanks) in blocks of whole lines, which every worker finds and parses independently.

A block begins after the first line end behind each multiple of the block size. Lines are counted once, when the set is
opened. Never reads a compressed file.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.text_blocks import BLOCKS, MAX_BLOCK, MIN_BLOCK, TextFile, block_starts, count_lines
from flegel.datasets.formats.text_dialect import CellDialect, Dialect, MissingCell
from flegel.datasets.formats.text_parse import parse
from flegel.datasets.formats.text_table import TextTable
from flegel.datasets.rows import recorder
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.recorder import Recorder
from flegel.datasets.rows.source import Description, Source, column_name, ways_out, write_columns
from flegel.datasets.tables.columns import unique_names
from flegel.datasets.tables.survey import survey
from flegel.errors import DataError

COUNTED_BYTES = 256 << 20
"""Gaps of a file of up to this size are counted for the message about the first."""


class TextSource(Source):
    """An uncompressed text table of numbers."""

    kind = "text"
    window_bytes = 2 << 20  # the text of a window is several times larger than its numbers

    def __init__(
        self, path: Path, dialect: Dialect, dtype: str, *, block: int = 0, counts: list[int] | None = None
    ) -> None:
        """Find the blocks of the file and count their lines, or take both from the cache if the file was read
        before."""
        self.path, self.dialect = path, dialect
        self.origin = str(path)
        self.dtype = np.dtype(dtype)
        self.columns = len(dialect.features)
        self.names = dialect.feature_names
        self.labelled = dialect.label is not None
        self.file = TextFile(path)
        self.signature = signature(path)
        self.recorder: Recorder | None = None
        self.cached: ArraySource | None = None
        self.block = block or max(MIN_BLOCK, min(MAX_BLOCK, self.file.size // BLOCKS))
        self.starts, self.end = block_starts(self.file, dialect.header, self.block, self.origin)
        if recorder.enabled(self.file.size) and (found := recorder.find_entry(self.cache_key(), self.origin)):
            self.cached, manifest = found
            counts = manifest["counts"]
        self.counts = count_lines(self.file, self.starts, self.end) if counts is None else np.array(counts)
        if len(self.counts) != len(self.starts):
            raise DataError(f"{path} changed since the job was submitted; submit the job again.")
        self._edges = np.concatenate(([0], np.cumsum(self.counts)))
        self.rows = int(self._edges[-1])
        if self.rows == 0:
            raise DataError(f"{path} has a header but no rows; give a file with at least one row.")

    def edges(self) -> Array | None:
        return self._edges

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """From the columnar cache if there is an entry; else parsed, and recorded if a recorder is active."""
        if self.cached is not None:
            self.cached.fill(ranges, features, labels)
            return
        self._parse(ranges, features, labels)
        if self.recorder is not None:
            try:
                self.recorder.write(ranges, features, labels)
            except OSError as error:
                self.recorder.abandon()
                self.recorder = None
                recorder.warn_not_written(error)

    def labels_of(self, window: Array) -> Array:
        """Parses the label column alone."""
        if self.cached is not None:
            return self.cached.labels_of(window)
        labels = np.empty((int((window[:, 1] - window[:, 0]).sum()), 1))
        self._label_alone._parse(window, labels, None)
        return labels[:, 0]

    @functools.cached_property
    def _label_alone(self) -> TextSource:
        assert self.dialect.label is not None
        alone = copy.copy(self)
        alone.dialect = dataclasses.replace(self.dialect, features=[self.dialect.label], label=None)
        alone.dtype, alone.columns = np.dtype(np.float64), 1
        return alone

    def record(self, job: str) -> None:
        if self.cached is None and recorder.enabled(self.file.size):
            manifest = {
                "rows": self.rows,
                "columns": self.columns,
                "labelled": self.labelled,
                "counts": self.counts.tolist(),
            }
            try:
                self.recorder = Recorder(self.cache_key(), manifest, self.dtype, job)
            except OSError as error:
                recorder.warn_not_written(error)

    def finish_recording(self, index: int, count: int, good: bool) -> None:
        if self.recorder is not None:
            if good:
                self.recorder.finish(index, count)
            else:
                self.recorder.abandon()
            self.recorder = None

    def _parse(self, ranges: Array, features: Array, labels: Array | None) -> None:
        """Parse all blocks of the ranges at once; rows of these blocks outside of the ranges are dropped."""
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
        text = self._read_blocks(pieces, stops)
        try:
            columns, values = parse(text, self.dialect, self.dtype, seen, 1, self.origin)
        except DataError:
            for first, last in pieces:  # parse range by range to find the number of the line
                base = int(self._edges[first])
                lines, line = int(self._edges[last]) - base, self.dialect.skip_lines + base + 1
                block = self._read_blocks([(first, last)], stops)
                try:
                    parse(block, self.dialect, self.dtype, lines, line, self.origin)
                except MissingCell as gap:
                    raise self._counted(gap) from None
            raise
        rows = None if seen == len(features) else np.concatenate(kept)
        write_columns(columns if rows is None else [column[rows] for column in columns], features)
        if labels is not None and values is not None:
            labels[...] = values if rows is None else values[rows]

    def _counted(self, gap: MissingCell) -> DataError:
        """The same error with the number of gaps of its column, where the file is not too large to count them."""
        if self.file.size > COUNTED_BYTES:
            return gap
        names = unique_names(self.dialect.names or range(self.dialect.width))
        header = bool(self.dialect.skip_lines)
        table = TextTable(self.path, CellDialect("utf-8-sig", self.dialect.delimiter, header, names, simple=True))
        found = survey(table, [gap.column])[gap.column]
        where = column_name(self.dialect.names, gap.column)
        first = table.row_name(found.first_gap)
        return DataError(
            f"{self.origin}: {where} has no value in {found.missing:,} of {found.rows:,} rows (first: {first}); "
            f"{ways_out()}."
        )

    def _read_blocks(self, pieces: list[tuple[int, int]], stops: Array) -> memoryview:
        """Blocks first … last-1 of each piece, one after the other; a missing last line end is added."""
        spans = [(int(self.starts[first]), int(stops[last - 1])) for first, last in pieces]
        text = bytearray(sum(stop - start + 1 for start, stop in spans))
        view = memoryview(text)
        at = 0
        for start, stop in spans:
            self.file.read_into(start, view[at : at + stop - start])
            at += stop - start
            if text[at - 1] != 10:
                text[at] = 10
                at += 1
        return view[:at]

    def cache_key(self) -> Description:
        """Everything that determines the rows: the file and how it is read."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": self.signature,
            "dialect": self.dialect.plain(),
            "dtype": self.dtype.name,
            "block": self.block,
        }

    def describe(self) -> Description:
        return {**self.cache_key(), "counts": self.counts.tolist()}

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
