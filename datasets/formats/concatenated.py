"""Several files as one set, one after the other. Never reads a file of which a shard has no rows."""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.text_dialect import is_number
from flegel.datasets.rows.descriptions import source_from
from flegel.datasets.rows.partition import block_edges
from flegel.datasets.rows.row_ranges import cut
from flegel.datasets.rows.source import Description, Rows, Source, concatenate_sparse
from flegel.errors import DataError

FILE_LABEL = "@file"
"""The value of `label` for which the class of a row is the name of its file."""


class ConcatenatedSource(Source):
    """Parts with the same columns. With `stems`, the label of a row is the stem of its part."""

    kind = "concatenated"

    def __init__(self, parts: list[Source], origin: str, stems: list[str] | None = None) -> None:
        """Check that all files have the same columns, and give equal class names equal numbers in all of them."""
        first = parts[0]
        for part in parts[1:]:
            if part.sparse != first.sparse or (not first.sparse and part.columns != first.columns):
                raise DataError(
                    f"{part.origin} has {part.columns} columns where {first.origin} has {first.columns}; "
                    "give files with the same columns."
                )
            if first.names and part.names and part.names != first.names and not first.sparse:
                other = next(b for a, b in zip(first.names, part.names, strict=True) if a != b)
                raise DataError(
                    f"{part.origin} has a column {other!r} that {first.origin} does not have there; "
                    "give files with the same columns."
                )
            if part.labelled != first.labelled:
                raise DataError(
                    f"Of {first.origin} and {part.origin} only one has labels; give labels in all files or in none."
                )
        self.parts, self.origin = parts, origin
        self.columns = max(part.columns for part in parts)
        self.dtype = np.result_type(*[part.dtype for part in parts])
        self.sparse, self.names = first.sparse, first.names
        self.starts = np.concatenate(([0], np.cumsum([part.rows for part in parts])))
        self.rows = int(self.starts[-1])
        self.stems = stems
        self.labelled = stems is not None or first.labelled
        self.classes = None if stems is None or all(map(is_number, stems)) else sorted(set(stems))
        self.recode: list[Array | None] = [None] * len(parts)
        if stems is None and first.classes is not None:
            self.classes = sorted({name for part in parts for name in part.classes or ()})
            self.recode = [
                np.array([self.classes.index(name) for name in part.classes or ()], np.float64) for part in parts
            ]

    def edges(self) -> Array | None:
        """Natural blocks of the parts; None where every part has random access."""
        found = [part.edges() for part in self.parts]
        if all(edges is None for edges in found):
            return None
        pieces = [
            (block_edges(part.rows) if edges is None else edges)[:-1] + start
            for part, edges, start in zip(self.parts, found, self.starts.tolist(), strict=False)
        ]
        return np.append(np.concatenate(pieces), self.rows)

    def _pieces(self, ranges: Array) -> list[tuple[int, Array]]:
        """Ranges cut at the parts, as runs of (part, ranges within the part)."""
        pieces = cut(ranges, self.starts)
        numbers = np.searchsorted(self.starts, pieces[:, 0], side="right") - 1
        breaks = np.flatnonzero(np.diff(numbers)) + 1
        return [
            (int(run_numbers[0]), run - self.starts[run_numbers[0]])
            for run, run_numbers in zip(np.split(pieces, breaks), np.split(numbers, breaks), strict=True)
        ]

    def _labels(self, number: int, labels: Array) -> Array:
        if self.stems is not None:
            stem = self.stems[number]
            return np.full(len(labels), float(stem) if self.classes is None else float(self.classes.index(stem)))
        recode = self.recode[number]
        return labels if recode is None else recode[labels.astype(np.int64)]

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        at = 0
        for number, within in self._pieces(ranges):
            end = at + int((within[:, 1] - within[:, 0]).sum())
            part = self.parts[number]
            given = np.empty(end - at) if part.labelled else None
            part.fill(within, features[at:end], given)
            if labels is not None:
                labels[at:end] = self._labels(number, np.empty(end - at) if given is None else given)
            at = end

    def labels_of(self, window: Array) -> Array:
        found = []
        for number, within in self._pieces(window):
            part = self.parts[number]
            count = int((within[:, 1] - within[:, 0]).sum())
            found.append(self._labels(number, part.labels_of(within) if part.labelled else np.empty(count)))
        return np.concatenate(found)

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        if not self.sparse:
            return super().take(ranges, rng)
        found = []
        for number, within in self._pieces(ranges):
            rows = self.parts[number].take(within, rng)
            given = np.empty(len(rows.ids)) if rows.labels is None else rows.labels
            labels = self._labels(number, given) if self.labelled else None
            found.append(Rows(rows.features, labels, rows.ids + self.starts[number]))
        return concatenate_sparse(found, self.columns)

    def record(self, job: str) -> None:
        for part in self.parts:
            part.record(job)

    def finish_recording(self, index: int, count: int, good: bool) -> None:
        for part in self.parts:
            part.finish_recording(index, count, good)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "parts": [part.describe() for part in self.parts],
            "origin": self.origin,
            "stems": self.stems,
        }

    @classmethod
    def from_description(cls, description: Description) -> ConcatenatedSource:
        parts = [source_from(part) for part in description["parts"]]
        return cls(parts, description["origin"], description["stems"])
