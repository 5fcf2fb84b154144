"""Row numbers as (start, stop) ranges: expand, compress, cut at block edges, group into windows.

Pure arithmetic; never reads a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flegel.core.pytree import Array


def expand(ranges: Array) -> Array:
    """Row numbers of (start, stop) ranges, in order."""
    lengths = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    ids = np.ones(total, np.int64)
    if total:
        kept = lengths > 0
        starts, lengths, ends = ranges[kept, 0], lengths[kept], ends[kept]
        ids[0] = starts[0]
        ids[ends[:-1]] = starts[1:] - (starts[:-1] + lengths[:-1] - 1)
    return np.cumsum(ids, out=ids)


def compress(ids: Array) -> Array:
    """The shortest (start, stop) ranges that give these row numbers in this order."""
    if not len(ids):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    starts = ids[np.concatenate(([0], breaks))]
    stops = ids[np.concatenate((breaks - 1, [len(ids) - 1]))] + 1
    return np.stack([starts, stops], axis=1).astype(np.int64)


def cut(ranges: Array, edges: Array) -> Array:
    """Ranges cut wherever a natural block begins."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    first = np.searchsorted(edges, ranges[:, 0], side="right")
    pieces = np.searchsorted(edges, ranges[:, 1] - 1, side="right") - first + 1
    last = np.cumsum(pieces) - 1
    owner = np.repeat(np.arange(len(ranges)), pieces)
    number = np.arange(len(owner))
    ends_at_edge = number != last[owner]
    found = ranges[owner]
    found[ends_at_edge, 1] = edges[(first[owner] + number - (last - pieces + 1)[owner])[ends_at_edge]]
    found[1:, 0] = np.where(owner[1:] == owner[:-1], found[:-1, 1], found[1:, 0])
    return found


def group(ranges: Array, rows: int, exact: bool) -> Iterator[Array]:
    """Consecutive ranges in groups of about `rows` rows; long ranges are cut where `exact`."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    total = int(ends[-1]) if len(ends) else 0
    done = 0
    while done < total:
        wanted = min(done + rows, total)
        first, last = np.searchsorted(ends, done, side="right"), np.searchsorted(ends, wanted)
        held = ranges[first : last + 1].copy()
        if exact:
            held[0, 0] = ranges[first, 1] - (ends[first] - done)
            held[-1, 1] -= ends[last] - wanted
        done = wanted if exact else int(ends[last])
        yield held
