"""Ratings with some held out: synthetic ones in the shape of MovieLens (skewed users and films, half stars, a planted
low rank), and real ones from files.

Only generates and reads; the benchmarks decide what to do with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets import open_data


class Ratings(NamedTuple):
    """Training rows, and the entries held out of them."""

    train: Sparse
    rows: Any
    columns: Any
    values: Any


def make(
    count: int = 10_000_000, users: int = 69_878, films: int = 10_677, held: float = 0.05, seed: int = 0
) -> Ratings:
    """About `count` ratings; user activity is log-normal from 20 up, film popularity falls like a power
    law.
    """
    rng = np.random.default_rng(seed)
    activity = np.maximum(rng.lognormal(4.2, 1.1, users), 20.0)
    activity *= 1.27 * count / activity.sum()
    popularity = np.cumsum(1.0 / (np.arange(films) + 30.0) ** 1.1)
    user = np.repeat(np.arange(users), np.minimum(activity, films // 3).astype(np.int64))
    film = rng.permutation(films)[np.searchsorted(popularity, rng.random(len(user)) * popularity[-1])]
    both = np.unique(user.astype(np.int64) * films + film)
    user, film = both // films, (both % films).astype(np.int32)
    rank = 12
    taste = rng.standard_normal((users, rank)).astype(np.float32)
    trait = (rng.standard_normal((films, rank)) / np.sqrt(np.arange(1, rank + 1)) * 0.25).astype(np.float32)
    mean = 3.5 + 0.4 * rng.standard_normal(users)[user] + 0.45 * rng.standard_normal(films)[film]
    score = mean + np.einsum("ij,ij->i", taste[user], trait[film]) + 0.7 * rng.standard_normal(len(user))
    value = (np.clip(np.round(2 * score), 1, 10) / 2).astype(np.float32)
    return _divided(user, film, value, (users, films), held, rng)


def read(path: Path, held: float = 0.05, seed: int = 0) -> Ratings:
    """Ratings of a file; raised by a constant where they begin below a half, because factors have no sign."""
    found = open_data(str(path)).load()[0]
    user = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr))
    value = found.values + max(0.0, 0.5 - float(found.values.min()))
    shape = (len(found.indptr) - 1, found.columns)
    return _divided(user, found.indices, value.astype(np.float32), shape, held, np.random.default_rng(seed))


def _divided(
    user: Any, film: Any, value: Any, shape: tuple[int, int], held: float, rng: np.random.Generator
) -> Ratings:
    test = rng.random(len(user)) < held
    kept = np.flatnonzero(~test)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(user[kept], minlength=shape[0]))]).astype(np.int64)
    train = Sparse(indptr, film[kept], value[kept], shape[1])
    return Ratings(train, user[test], film[test], value[test])
