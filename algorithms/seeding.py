"""Starting centroids for the clustering algorithms, drawn from a sample. Never sees the whole data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UsageError

NAMED = ("k-means++", "random", "first")


def start_rows(rows: Array, k: int, init: str | Array, columns: int, rng: np.random.Generator, owner: str) -> Array:
    """k starting centroids as `init` says: by one of NAMED, from a .npy file, or given as an array."""
    if not (isinstance(init, str) and init in NAMED):
        return given_rows(init, k, columns, owner)
    if k > len(rows):
        raise UsageError(f"{owner}: k={k} is more than the {len(rows)} points drawn; lower k.")
    return seed_rows(rows, k, init, rng)


def origin_of(rows: Array) -> Array:
    """The mean of each column, as a number that the rows' own precision holds exactly."""
    return rows.mean(axis=0, dtype=np.float64).astype(rows.dtype).astype(np.float64)


def standard_units(rows: Array) -> tuple[Array, Array]:
    """Origin, and standard deviation of each column to a power of two; 1 where a column does not vary.

    Both are exact in the rows' precision, so shifting and scaling there costs no more than one rounding.
    """
    origin = origin_of(rows)
    largest = np.abs(rows - origin).max(axis=0)
    safe = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers must stay representable
    deviation = safe * np.sqrt((((rows - origin) / safe) ** 2).mean(axis=0))
    varies = (largest > 0) & (deviation > 1e-13 * np.abs(origin))
    return origin, np.where(varies, 2.0 ** np.round(np.log2(np.where(varies, deviation, 1.0))), 1.0)


def numbered(rows: Array, centres: Array, chunk: int = 8192) -> Array:
    """The number of the nearest centre of each row."""
    half = 0.5 * (centres**2).sum(axis=1)
    parts = [(half - rows[i : i + chunk] @ centres.T).argmin(axis=1) for i in range(0, len(rows), chunk)]
    return np.concatenate(parts)


def seed_rows(rows: Array, k: int, how: str, rng: np.random.Generator) -> Array:
    """k rows of the sample: `first` ones, `random` ones without repetition, or spread out by `k-means++`."""
    if how == "first":
        return np.array(rows[:k], dtype=np.float64)
    if how == "random":
        return np.array(rows[rng.choice(len(rows), k, replace=False)], dtype=np.float64)
    return _plus_plus(rows, k, rng)


def given_rows(given: str | Array, k: int, columns: int, owner: str) -> Array:
    """Centroids from an array or a .npy file, checked against k and the width of the data."""
    name = "init"
    if isinstance(given, str):
        name = given
        try:
            given = np.load(Path(given), allow_pickle=False)
        except FileNotFoundError:
            raise UsageError(
                f"{owner}: init={name!r} is neither k-means++, random or first nor a file that exists."
            ) from None
        except (ValueError, OSError) as error:
            raise UsageError(f"{owner}: init={name!r} cannot be read as a .npy file ({error}).") from None
    start = np.array(given, dtype=np.float64)
    if start.shape != (k, columns):
        raise UsageError(f"{owner}: {name} has shape {start.shape}; k and the data ask for {(k, columns)}.")
    if not np.isfinite(start).all():
        raise UsageError(f"{owner}: {name} holds numbers that are not finite.")
    return start


def _plus_plus(rows: Array, k: int, rng: np.random.Generator) -> Array:
    """Greedy k-means++ (Arthur & Vassilvitskii 2007): of a few candidates drawn by D², keep the best."""
    exact = rows
    rows = rows - rows.mean(axis=0, dtype=np.float64)  # products below must not lose digits to a large mean
    norms = np.einsum("ij,ij->i", rows, rows)
    trials = 2 + int(np.log(k))
    chosen = np.empty(k, np.intp)
    chosen[0] = rng.integers(len(rows))
    nearest = _distances(rows, norms, chosen[:1])[0]
    for j in range(1, k):
        total = nearest.sum()
        if total > 0:
            candidates = np.searchsorted(nearest.cumsum(), rng.random(trials) * total).clip(max=len(rows) - 1)
        else:  # fewer distinct points than clusters: any point is as good as another
            candidates = rng.integers(len(rows), size=1)
        shrunk = np.minimum(nearest, _distances(rows, norms, candidates))
        best = shrunk.sum(axis=1).argmin()
        chosen[j], nearest = candidates[best], shrunk[best]
    return np.array(exact[chosen], dtype=np.float64)


def _distances(rows: Array, norms: Array, centres: Any) -> Array:
    """Squared distances, (centres, rows), not below zero, exactly zero from a row to itself."""
    squared = norms - 2.0 * (rows[centres] @ rows.T) + norms[centres, None]
    squared[np.arange(len(centres)), centres] = 0.0
    return np.maximum(squared, 0.0)
