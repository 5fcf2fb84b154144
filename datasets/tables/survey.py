"""One pass over a table that decides what becomes of each column. Reads every row once, keeps none.

`ColumnSurvey` counts what the cells of a column look like; counts of several parts of a table can be merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from flegel.configuration.active import active
from flegel.datasets.tables import cells
from flegel.datasets.tables.columns import RawColumn, RawTable, as_category


@dataclass
class ColumnSurvey:
    """What a column holds."""

    name: str
    place: int = 0
    """Its number in the table."""
    rows: int = 0
    missing: int = 0
    first_gap: int = -1
    kinds: set[str] = field(default_factory=set)
    shapes: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Row and text of the first cell of each shape."""
    spaced: bool = False
    texts: dict[str, int] | None = field(default_factory=dict)
    """Different texts and how often they occur; None where they are too many."""
    pairs: set[int] = field(default_factory=set)
    """Pairs of boolean words that occur."""
    timed: bool = False
    """Some dates have a time of day, of which float32 would lose minutes."""
    counts_up: bool = True
    """Each value so far is its row's number from 0, or from 1."""

    @property
    def present(self) -> int:
        return self.rows - self.missing

    def add(self, raw: RawColumn) -> None:
        """The next rows."""
        self.kinds.add(raw.kind)
        before, self.rows = self.rows, self.rows + len(raw.values)
        if raw.textual:
            self._add_texts(raw, before)
            return
        gaps = np.isnan(raw.values)
        self.timed = self.timed or (raw.kind == "date" and bool((raw.values[~gaps] % 1.0 != 0.0).any()))
        self.counts_up = self.counts_up and _counts_up(raw.values, before)
        if gaps.any():
            self.missing += int(gaps.sum())
            self.first_gap = before + int(np.argmax(gaps)) if self.first_gap < 0 else self.first_gap

    def _add_texts(self, raw: RawColumn, before: int) -> None:
        """Count how the cells of one chunk are written. Each distinct text is examined once and counted as often as it
        occurs."""
        counts = np.bincount(raw.values + 1, minlength=len(raw.texts) + 1).tolist()
        if counts[0]:
            self._gap(before + int(np.argmax(raw.values == -1)), counts[0])
        plain = cells.plain_numbers(raw.texts) if raw.kind == "cells" else None
        gaps = None if plain is None else np.isnan(plain).tolist()
        for k, text in enumerate(raw.texts):
            if not counts[k + 1]:
                continue
            if gaps is not None:
                name = "missing" if gaps[k] else cells.plain_shape(text)
            else:
                name = cells.shape(text) if raw.kind == "cells" else "text"
            if name == "missing":
                self._gap(before + int(np.argmax(raw.values == k)), counts[k + 1])
                continue
            self._count(name, text, counts[k + 1], raw, k, before)
        if self.counts_up:
            numbers = [float(t) if cells.shape(t) == "integer" and not cells.is_spaced(t) else -1.0 for t in raw.texts]
            self.counts_up = _counts_up(np.array([*numbers, -1.0])[raw.values], before)
        numeric = sum(self.shapes[name] for name in cells.NUMBERS) == self.present
        rules = active().tables
        most = rules.most_remembered_numbers if numeric else rules.most_texts
        if self.texts is not None and len(self.texts) > most:
            self.texts = None

    def _count(self, name: str, text: str, count: int, raw: RawColumn, k: int, before: int) -> None:
        """A text of this shape, which is not missing, occurs `count` times."""
        self.shapes[name] += count
        if name not in self.first:
            self.first[name] = (before + int(np.argmax(raw.values == k)), text)
        self.timed = self.timed or (name in cells.DATES and ":" in text)
        if name == "boolean":
            self.pairs |= {i for i, pair in enumerate(cells.BOOLEANS) if text.lower() in pair}
        self.spaced = self.spaced or ((not text.isascii() or " " in text or "'" in text) and cells.is_spaced(text))
        if self.texts is not None:
            self.texts[text] = self.texts.get(text, 0) + count

    def _gap(self, row: int, count: int) -> None:
        self.missing += count
        self.first_gap = row if self.first_gap < 0 else min(self.first_gap, row)

    def merge(self, other: ColumnSurvey) -> None:
        """The rows of `other` come after these."""
        if other.first_gap >= 0 and self.first_gap < 0:
            self.first_gap = self.rows + other.first_gap
        for name, (row, text) in other.first.items():
            self.first.setdefault(name, (self.rows + row, text))
        self.counts_up = self.counts_up and other.counts_up and self.rows == 0
        self.rows += other.rows
        self.missing += other.missing
        self.kinds |= other.kinds
        self.shapes += other.shapes
        self.pairs |= other.pairs
        self.spaced |= other.spaced
        self.timed |= other.timed
        if self.texts is None or other.texts is None:
            self.texts = None
        else:
            for text, count in other.texts.items():
                self.texts[text] = self.texts.get(text, 0) + count
            self.texts = self.texts if len(self.texts) <= active().tables.most_texts else None


def _counts_up(values: np.ndarray, before: int) -> bool:  # type: ignore[type-arg]
    """Whether values are row numbers from 0 or from 1."""
    if not len(values) or values[0] - before not in (0.0, 1.0):
        return False
    return bool(np.array_equal(values, np.arange(len(values)) + values[0]))


def survey(table: RawTable, wanted: Iterable[int], categories: Collection[int] = ()) -> dict[int, ColumnSurvey]:
    """What the wanted columns of a table hold, by their numbers; those of `categories` hold categories, whatever they
    look like."""
    places = list(wanted)
    found = {k: ColumnSurvey(table.names[k], k) for k in places}
    for chunk in table.chunks(places):
        for k, raw in zip(places, chunk, strict=True):
            found[k].add(as_category(raw) if k in categories else raw)
    return found
