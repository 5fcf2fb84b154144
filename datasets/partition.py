"""Which rows each worker reads. Pure arithmetic on row numbers: never reads a row itself.

`shuffle` assigns blocks of rows: of each run of N consecutive blocks, each of the N workers gets one, in a seeded
random order. So every shard covers the whole set evenly, even where the file is sorted by label. With shares
(`shuffle:0=100`) workers get blocks in proportion to them, and none where the share is `none`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.row_ranges import compress
from flegel.errors import UsageError

BLOCKS = 4096
"""A set without natural blocks is cut into about this many."""
MIN_BLOCKS_PER_WORKER = 8
"""Natural blocks (row groups, runs of lines) are assigned whole if each worker gets at least this many."""


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


def deal_blocks(edges: Array, index: int, count: int, seed: int, wanted: Partition) -> Array:
    """Row ranges of this worker's blocks, in shuffled order."""
    blocks = len(edges) - 1
    rounds = -(-blocks // count)
    rng = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1)))
    if wanted.shares:
        owners = rng.permutation(np.repeat(np.arange(count), wanted.portions(blocks, count)))
    else:
        owners = rng.permuted(np.tile(np.arange(count), (rounds, 1)), axis=1).ravel()[:blocks]
    mine = np.flatnonzero(owners == index)
    order = shard_rng(seed, index).permutation(mine)
    return np.stack([edges[order], edges[order + 1]], axis=1)


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
            f"{count} workers need at least {count} rows, and the set has {rows}; use at most {rows} workers."
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
