"""Generators that make rows in blocks of fixed size, each from its own counter of a counter-based generator.

Any worker makes any rows, and the result does not depend on how many workers there are. Rows of large sets are read
from the columnar cache the second time (`row_cache`).
"""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.source import Source
from flegel.datasets.synthetic.row_cache import RowCache
from flegel.errors import DataError

BLOCK_VALUES = 1 << 15
"""Approximate number of values in a block."""


def block_rng(name: str, seed: int, block: int) -> np.random.Generator:
    """The generator of one block of one set: the same numbers on every worker."""
    key = [seed & (2**64 - 1), int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "little")]
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, block, 0]))


class BlockSource(Source):
    """A generator that makes whole blocks; subclasses define `block`."""

    def __init__(self, rows: int, columns: int, seed: int = 0) -> None:
        if rows < 1:
            raise DataError(f"{rows} rows are too few; use at least 1.")
        self.rows, self.columns, self.seed = rows, columns, seed
        self.dtype = np.dtype(np.float32)
        self.block_rows = max(64, 1 << (BLOCK_VALUES // columns).bit_length() - 1)
        self._cache: RowCache | None = None

    def edges(self) -> Array | None:
        return np.append(np.arange(0, self.rows, self.block_rows, dtype=np.int64), self.rows)

    def block(self, rng: np.random.Generator) -> tuple[Array, Array | None]:
        """`block_rows` rows and their labels."""
        raise NotImplementedError

    def _kept(self) -> RowCache:
        if self._cache is None:
            self._cache = RowCache(self.describe(), self.rows, self.columns, self.dtype, self.labelled)
        return self._cache

    def record(self, job: str) -> None:
        self._kept().record(job)

    def finish_recording(self, index: int, count: int, good: bool) -> None:
        self._kept().finish(index, count, good)

    def fill(self, ranges: Array, features: Array, labels: Array | None) -> None:
        if not self._kept().fill(ranges, features, labels):
            self._generate(ranges, features, labels)
            self._kept().write(ranges, features, labels)

    def _generate(self, ranges: Array, features: Array, labels: Array | None) -> None:
        at = 0
        size = self.block_rows
        for start, stop in ranges.tolist():
            for number in range(start // size, -(-stop // size)):
                lo, hi = max(start, number * size), min(stop, (number + 1) * size)
                made, labels_of_block = self.block(block_rng(self.kind + self.origin, self.seed, number))
                part = slice(lo - number * size, hi - number * size)
                features[at : at + hi - lo] = made[part]
                if labels is not None and labels_of_block is not None:
                    labels[at : at + hi - lo] = labels_of_block[part]
                at += hi - lo
