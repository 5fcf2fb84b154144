"""Which rows each worker reads. Pure arithmetic on row numbers: never reads a row itself.

`shuffle` assigns blocks of rows: of each run of N consecutive blocks, each of the N workers gets one, in a seeded
random order. So every shard covers the whole set evenly, even where the file is sorted by label. With shares
(`shuffle:0=100`) workers get blocks in proportion to them, and none where the share is `none`.

Rows in memory are dealt one by one as long as they are few, later in small blocks too (`own_rows`): to shuffle ten
million numbers takes longer than to copy the rows, and to fetch rows one by one from all over the memory does, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.datasets.rows.row_ranges import compress, expand, group
from flegel.errors import UsageError
from flegel.wording import counted

BLOCKS = 4096
"""A set without natural blocks is cut into about this many; rows in memory into as many at least."""
MIN_BLOCKS_PER_WORKER = 8
"""Natural blocks (row groups, runs of lines) are assigned whole if each worker gets at least this many."""
MANY_ROWS = 1 << 16
"""Rows in memory from which on they are dealt in blocks, of 16 rows at first."""
BLOCK_NUMBERS, LONGEST_BLOCK = 4096, 256
"""A block of rows in memory has so many numbers, but not more rows than that. To fetch a block from another process
takes 8 µs beside its copy while 15 other processes do the same."""
MIXED_NUMBERS = 1 << 19
"""Numbers of a window, in which rows are mixed: rows that were neighbours must not stay beside each other. Stays in a
processor's own cache."""


class Partition(NamedTuple):
    """The parsed value of `--partition`."""

    kind: str
    column: str = ""
    alpha: float = 0.0
    shares: tuple[tuple[int, float], ...] = ()
    """Of `shuffle`: relative sizes of the shards of some workers; those of all others are 1. 0 (`none`): no rows,
    of a worker that rests."""

    def portions(self, total: int, count: int) -> Array:
        """How many of so many things each worker gets, in proportion to the shares; at least one of enough, or none."""
        weights = np.ones(count)
        for worker, share in self.shares:
            if worker < count:
                weights[worker] = share
        edges = np.round(np.cumsum(weights) / weights.sum() * total).astype(np.int64)
        sizes: Array = np.diff(edges, prepend=0)
        for empty in np.flatnonzero((sizes == 0) & (weights > 0)) if total >= count else ():
            sizes[int(sizes.argmax())] -= 1
            sizes[empty] = 1
        return sizes

    @property
    def needs_column(self) -> bool:
        return self.kind in ("sorted-by", "dirichlet")


def parse(text: str) -> Partition:
    """`shuffle`, `shuffle:WORKER=SHARE,…`, `contiguous`, `sorted-by COLUMN`, `dirichlet:ALPHA`."""
    name = text.strip()
    if name in ("shuffle", "contiguous"):
        return Partition(name)
    if name.startswith("shuffle:"):
        return Partition("shuffle", shares=_shares(name.removeprefix("shuffle:")))
    for separator in (" ", ":", "="):
        kind, found, rest = name.partition(separator)
        if found and kind == "sorted-by" and rest.strip():
            return Partition("sorted-by", column=rest.strip())
        if found and kind == "dirichlet":
            try:
                alpha = float(rest)
            except ValueError:
                alpha = 0.0
            if not 0 < alpha < float("inf"):
                raise UsageError(f"dirichlet:{rest} needs a positive number, for example dirichlet:0.3.")
            return Partition("dirichlet", alpha=alpha)
    raise UsageError(f"{text!r} is no partition; use shuffle, contiguous, 'sorted-by COLUMN' or dirichlet:ALPHA.")


def _shares(text: str) -> tuple[tuple[int, float], ...]:
    """Parse `0=50,2-3=none`: the share of each named worker, 0 for none."""
    found = []
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*=\s*(none|[\d.eE+]+)\s*", part)
        nothing = matched is not None and matched[3] == "none"
        try:
            share = float(matched[3]) if matched and not nothing else 0.0
        except ValueError:
            share = 0.0
        if matched is None or not (nothing or 0 < share < float("inf")):
            raise UsageError(
                f"shuffle:{text} needs shares above 0 by worker, for example shuffle:0=50 or shuffle:0-1=4."
            )
        found += [(worker, share) for worker in range(int(matched[1]), int(matched[2] or matched[1]) + 1)]
    return tuple(found)


def block_edges(rows: int, count: int = 1) -> Array:
    """Edges of equal blocks for a set with random access."""
    size = max(1, rows // max(BLOCKS, MIN_BLOCKS_PER_WORKER * count))
    return np.append(np.arange(0, rows, size, dtype=np.int64), rows)


@lru_cache(maxsize=2)  # all workers may be in one process
def _owners_of_blocks(blocks: int, count: int, seed: int, wanted: Partition) -> Array:
    rng = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1)))
    if wanted.shares:
        return rng.permutation(np.repeat(np.arange(count), wanted.portions(blocks, count)))
    rounds = -(-blocks // count)
    return rng.permuted(np.tile(np.arange(count), (rounds, 1)), axis=1).ravel()[:blocks]


def deal_blocks(edges: Array, index: int, count: int, seed: int, wanted: Partition) -> Array:
    """Row ranges of this worker's blocks, in shuffled order."""
    owners = _owners_of_blocks(len(edges) - 1, count, seed, wanted)
    mine = np.flatnonzero(owners == index)
    order = shard_rng(seed, index).permutation(mine)
    return np.stack([edges[order], edges[order + 1]], axis=1)


class OwnRows(NamedTuple):
    """The rows of one worker: these ranges, and of each `window` of rows first number `mixed[0]`, then `mixed[1]`, …"""

    ranges: Array
    window: int
    mixed: Array | None = None

    @property
    def total(self) -> int:
        return int((self.ranges[:, 1] - self.ranges[:, 0]).sum())

    def order(self, rows: int) -> Array:
        """The order of the rows of a window, of which there are fewer in the last one."""
        if self.mixed is None:
            return np.arange(rows)
        return self.mixed if rows == self.window else self.mixed[self.mixed < rows]

    def windows(self) -> Iterator[Array]:
        """Ranges of each window."""
        return group(self.ranges, self.window, exact=True)

    def ids(self) -> Array:
        """Row numbers in the order of this worker."""
        plain = expand(self.ranges)
        if self.mixed is None:
            return plain
        found, whole = np.empty_like(plain), len(plain) // self.window * self.window
        windows, into = (array[:whole].reshape(-1, self.window) for array in (plain, found))
        np.take(windows, self.mixed, axis=1, out=into, mode="clip")
        found[whole:] = plain[whole:][self.order(len(plain) - whole)]
        return found


def rows_of_block(rows: int, columns: int) -> int:
    """Rows in memory that go to the same worker together: 1 where rows are few or long."""
    if rows < MANY_ROWS:
        return 1
    block, most = 1, min(LONGEST_BLOCK, rows // BLOCKS)
    while 2 * block <= most and block * columns < BLOCK_NUMBERS:
        block *= 2
    return block


def one_by_one(rows: int, count: int, wanted: Partition, seed: int) -> tuple[Array, Array]:
    """All row numbers shuffled, and where the rows of the second worker and of those behind it begin."""
    order = shard_rng(seed, 0).permutation(rows)
    sizes = wanted.portions(rows, count) if wanted.shares else (rows + np.arange(count, 0, -1) - 1) // count
    return order, np.cumsum(sizes)[:-1]


def own_rows(rows: int, columns: int, index: int, count: int, wanted: Partition, seed: int) -> OwnRows:
    """The rows in memory of one worker, where sizes and seed tell (not of partitions that look at values)."""
    block = rows_of_block(rows, columns)
    window = TILE * max(1, MIXED_NUMBERS // (TILE * columns))
    if wanted.kind == "contiguous":
        return OwnRows(contiguous(rows, index, count), window)
    if block == 1:
        mine = np.split(*one_by_one(rows, count, wanted, seed))[index]
        return OwnRows(np.stack([mine, mine + 1], axis=1), window)
    edges = np.append(np.arange(0, rows, block, dtype=np.int64), rows)
    mixed = shard_rng(seed, count + index).permutation(window)
    return OwnRows(deal_blocks(edges, index, count, seed, wanted), window, mixed)


def contiguous(rows: int, index: int, count: int) -> Array:
    return np.array([[rows * index // count, rows * (index + 1) // count]], np.int64)


def sorted_slice(values: Array, index: int, count: int) -> Array:
    """Row numbers of slice `index` of the rows sorted by value, ascending."""
    order = np.argsort(values, kind="stable")
    start, stop = contiguous(len(values), index, count)[0]
    return np.sort(order[start:stop])


def dirichlet_rows(labels: Array, alpha: float, index: int, count: int, seed: int) -> Array:
    """Row numbers of one worker; the fractions of each class over the workers are drawn from a Dirichlet."""
    rng = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1)))
    owners = np.empty(len(labels), np.int64)
    for value in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == value))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(count, alpha))) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owners[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    sizes = np.bincount(owners, minlength=count)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        owners[np.flatnonzero(owners == largest)[0]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return shard_rng(seed, index).permutation(np.flatnonzero(owners == index))


def shard_rng(seed: int, index: int) -> np.random.Generator:
    """The random generator for the order of one worker's rows."""
    return np.random.default_rng([seed & (2**64 - 1), 1 + index])


def plan_rows(
    rows: int,
    index: int,
    count: int,
    partition: str | Partition = "shuffle",
    seed: int = 0,
    *,
    edges: Array | None = None,
    column: Callable[[Partition], Array] | None = None,
) -> Array:
    """Row ranges (start, stop) of worker `index` of `count`; over all workers, each row occurs once.

    `column` returns the values that a skewed partition needs (labels, or the column to sort by).
    """
    if not 0 <= index < count:
        raise UsageError(f"There is no worker {index} among {count}; workers count from 0.")
    if rows < count:
        raise UsageError(
            f"{counted(count, 'worker')} need at least {counted(count, 'row')}, and the set has {rows}; use at most "
            f"{counted(rows, 'worker')}."
        )
    wanted = parse(partition) if isinstance(partition, str) else partition
    if wanted.kind == "contiguous":
        return contiguous(rows, index, count)
    if wanted.kind == "shuffle":
        natural = edges is not None and len(edges) - 1 >= MIN_BLOCKS_PER_WORKER * count
        blocks = edges if natural and edges is not None else block_edges(rows, count)
        return deal_blocks(blocks, index, count, seed, wanted)
    if column is None:
        raise UsageError(f"{wanted.kind} needs the values of a column; pass column=, or use shuffle or contiguous.")
    values = column(wanted)[:rows]
    if wanted.kind == "sorted-by":
        return compress(sorted_slice(values, index, count))
    return compress(dirichlet_rows(values, wanted.alpha, index, count, seed))
