"""Starting centroids and standard units for the clustering algorithms, from a sample. Never sees the whole data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel.algorithm import Sample
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.errors import UsageError
from flegel.loading.input_files import NamesFile, read_array
from flegel.wording import setting

KMEANS_PLUS_PLUS = "k-means++"
NAMED = (KMEANS_PLUS_PLUS, "random", "first")
START_FILE = NamesFile(NAMED)
"""Marks the hyper-parameter `init`."""
QUANTILE_NUMBERS, LEAST_QUANTILE_ROWS = 2**20, 1024
"""Numbers from which the quantiles of wide rows are computed, about 50 ms, and rows in any case."""


def polishing_passes(work: int) -> int:
    """Further passes over the sample for the start that is chosen, where a pass takes so many multiplications.

    Small tables are trained to the end here. Otherwise the order of visits under `ssp`, `asp` and `psp` decides which
    of several optima is found, and some are worse by a few tenths of a percent. Large ones have no time for it.
    """
    return min(active().starts.polishing_work // max(work, 1), 300)


def start_rows(
    rows: Array,
    k: int,
    init: str | Array,
    columns: int,
    rng: np.random.Generator,
    owner: str,
    weights: Array | None = None,
) -> Array:
    """k starting centroids as `init` says: by one of NAMED, from a .npy file, or given as an array."""
    if not (isinstance(init, str) and init in NAMED):
        return given_rows(init, k, columns, owner)
    if k > len(rows):
        raise UsageError(f"{owner}: k={k} is more than the {len(rows)} points drawn; lower k.")
    return seed_rows(rows, k, init, rng, weights)


def weighted_rows(features: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """The rows that count, and their weights where they have some."""
    if weights is None or (weights > 0).all():
        return features, weights
    if not (weights > 0).any():
        raise UsageError("Every row that was drawn has the weight 0; give some rows a positive weight.")
    return features[weights > 0], weights[weights > 0]


def check_enough(k: int, weights: Array | None, owner: str, others: str = "have the weight 0") -> None:
    """Refuse a start by rows of the sample where fewer than k of them count; `others` says of the rest why not."""
    if weights is not None and 0 < (counted := int((weights > 0).sum())) < min(k, len(weights)):
        rows = "row of those drawn counts" if counted == 1 else "rows of those drawn count"
        raise UsageError(f"{owner}: k={k}, and only {counted} {rows}: the others {others}; lower k.")


def origin_of(rows: Array) -> Array:
    """The mean of each column, its outliers drawn in to the middle 90 %, as a number that the rows' precision holds."""
    most = max(min(active().starts.quantile_rows, QUANTILE_NUMBERS // max(rows.shape[1], 1)), LEAST_QUANTILE_ROWS)
    few = rows[:: max(1, len(rows) // most)]
    low, high = np.quantile(few, [0.05, 0.95], axis=0, method="nearest")
    middle = np.clip(few, low, high).mean(axis=0, dtype=np.float64).astype(rows.dtype)
    return np.asarray(np.where(low == high, low, middle), dtype=np.float64)


class ColumnUnits(NamedTuple):
    """Origin, unit and deviation of each column."""

    origin: Array
    unit: Array
    deviation: Array


def standard_units(rows: Array) -> ColumnUnits:
    """Origin, unit and deviation of each column: the unit is its deviation to a power of two.

    Origin and unit are exact in the rows' precision, so shifting and scaling there costs no more than one rounding.
    The deviation is that of the middle half of the numbers, or of the middle 90 or 98 % where these hardly differ, or
    of all; in any case no more than the standard deviation. A column that does not vary has the median of the others'.
    """
    origin = origin_of(rows)
    largest = np.abs(rows - origin).max(axis=0)
    safe = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers must stay representable
    deviation = safe * np.sqrt((((rows - rows.mean(axis=0, dtype=np.float64)) / safe) ** 2).mean(axis=0))
    few = rows[:: max(1, len(rows) // active().starts.quantile_rows)].astype(np.float64)
    cuts = np.quantile(few, [0.01, 0.05, 0.25, 0.75, 0.95, 0.99], axis=0)
    half, most, nearly_all = (cuts[3] - cuts[2]) / 1.349, (cuts[4] - cuts[1]) / 3.29, (cuts[5] - cuts[0]) / 4.653
    robust = np.where(half > 1e-3 * most, half, most)
    robust = np.where(robust > 1e-4 * nearly_all, robust, nearly_all)
    robust = np.where(robust > 0, np.minimum(robust, deviation), deviation)
    varies = (largest > 0) & (robust > 1e-13 * np.abs(origin))
    usual = np.exp(np.median(np.log(robust[varies]))) if varies.any() else 1.0
    robust = np.where(varies, robust, usual)
    return ColumnUnits(origin, 2.0 ** np.round(np.log2(robust)), robust)


def some_rows(rows: Array, most: int, rng: np.random.Generator) -> Array:
    """At most `most` rows, drawn without repetition."""
    return rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]


def some_weighted(
    rows: Array, weights: Array | None, most: int, rng: np.random.Generator
) -> tuple[Array, Array | None]:
    """Draw at most `most` rows with their weights, as `some_rows` does."""
    if weights is None or len(rows) <= most:
        return some_rows(rows, most, rng), weights
    chosen = rng.choice(len(rows), most, replace=False)
    return rows[chosen], weights[chosen]


def clipped(rows: Array) -> Array:
    """Rows in standard units, cut at `starts.clipped_deviations`: no outlier gets a cluster of its own."""
    far = active().starts.clipped_deviations
    return np.clip(rows, -far, far)


def in_deviations(rows: Array) -> Array:
    """Rows in standard deviations of their columns, outliers included; columns that do not vary stay as they are."""
    largest = np.abs(rows).max(axis=0)
    safe = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers must stay representable
    deviation = (rows / safe).std(axis=0) * safe
    return np.asarray(rows / np.where(deviation > 0, deviation, 1.0))


class LloydResult(NamedTuple):
    """What k-means found."""

    centres: Array
    labels: Array
    """The cluster of each row."""
    squared_distances: float
    """Weighted sum over all rows."""


def lloyd(rows: Array, k: int, rng: np.random.Generator, weights: Array | None = None) -> LloydResult:
    """k-means from a start by k-means++."""
    return lloyd_from(rows, plus_plus(rows, k, rng, weights), weights=weights)


def lloyd_from(rows: Array, centres: Array, passes: int | None = None, weights: Array | None = None) -> LloydResult:
    """A few passes of Lloyd's algorithm, those of a start where nothing is said. A cluster that loses its rows keeps
    its centre."""
    labels = nearest_centre(rows, centres)
    for _ in range(active().starts.lloyd_passes if passes is None else passes):
        counts = np.bincount(labels, weights, minlength=len(centres))
        shares = np.zeros((len(centres), len(rows)))
        shares[labels, np.arange(len(rows))] = 1.0 if weights is None else weights
        filled = counts > 0
        centres = centres.copy()
        centres[filled] = (shares @ rows)[filled] / counts[filled, None]
        before, labels = labels, nearest_centre(rows, centres)
        if np.array_equal(before, labels):
            break
    squared = (rows - centres[labels]) ** 2
    return LloydResult(centres, labels, float(squared.sum() if weights is None else weights @ squared.sum(axis=1)))


def representatives(sample: Sample, rng: np.random.Generator) -> tuple[Array, Array] | None:
    """Means of small parts of the sample, about 16 rows each, and what each part weighs; None for sparse rows.

    They are all that a group shows of its rows to others (`ParameterPlacement.starts_from_means`).
    """
    if isinstance(sample.features, Sparse):
        return None
    rows, own = weighted_rows(np.asarray(sample.features), sample.weights)
    rows, own = some_weighted(rows, own, active().starts.group_represented_rows, rng)
    count = max(min(active().starts.group_representatives, len(rows) // 16), 1)
    origin, unit, _ = standard_units(rows)
    scaled = (rows - origin) / unit
    centres, labels, _ = lloyd_from(scaled, scaled[rng.choice(len(scaled), count, replace=False)], 4, own)
    weights = np.bincount(labels, own, minlength=count).astype(np.float64)
    filled = weights > 0
    return centres[filled] * unit + origin, weights[filled] * (sample.mass / weights.sum())


def nearest_centre(rows: Array, centres: Array, chunk: int = 8192) -> Array:
    """The number of the nearest centre of each row."""
    half = 0.5 * (centres**2).sum(axis=1)
    parts = [(half - rows[i : i + chunk] @ centres.T).argmin(axis=1) for i in range(0, len(rows), chunk)]
    return np.concatenate(parts)


def seed_rows(rows: Array, k: int, how: str, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """k rows of the sample: `first` ones, `random` ones without repetition, or spread out by `k-means++`."""
    if how == "first":
        return np.array(rows[:k], dtype=np.float64)
    if how == "random":
        chances = None if weights is None else weights / weights.sum()
        return np.array(rows[rng.choice(len(rows), k, replace=False, p=chances)], dtype=np.float64)
    return plus_plus(rows, k, rng, weights)


def given_rows(given: str | Array, k: int, columns: int, owner: str) -> Array:
    """Centroids from an array or a .npy file, checked against k and the width of the data."""
    name = "init"
    if isinstance(given, str):
        name = given
        try:
            given = read_array(given, f"{owner}: init={name!r}")
        except FileNotFoundError:
            raise UsageError(
                f"{owner}: init={name!r} is neither k-means++, random or first nor a file that exists."
            ) from None
    start = np.array(given, dtype=np.float64)
    if start.ndim == 2 and start.shape[1] == columns and len(start) != k:
        raise UsageError(f"{owner}: {name} has {len(start)} rows, and k is {k}; give {setting('k', len(start))}.")
    if start.shape != (k, columns):
        raise UsageError(f"{owner}: {name} has shape {start.shape}; k and the data ask for {(k, columns)}.")
    if not np.isfinite(start).all():
        raise UsageError(f"{owner}: {name} holds numbers that are not finite.")
    return start


def plus_plus(rows: Array, k: int, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """Greedy k-means++ (Arthur & Vassilvitskii 2007): of a few candidates drawn by D², keep the best."""
    first = rng.integers(len(rows)) if weights is None else _drawn(weights, rng.random(1))[0]
    start = np.array(rows[first : first + 1], dtype=np.float64)
    return np.concatenate([start, more_rows(rows, start, k - 1, rng, weights)])


def _drawn(chances: Array, where: Array) -> Array:
    """Numbers drawn in proportion to `chances`, for numbers `where` between 0 and 1."""
    ends = chances.cumsum()
    return np.asarray(np.searchsorted(ends, where * ends[-1]).clip(max=len(chances) - 1))


def more_rows(rows: Array, centres: Array, count: int, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """`count` more rows, drawn as k-means++ would continue from these centres."""
    exact = rows
    middle = rows.mean(axis=0, dtype=np.float64)  # products below must not lose digits to a large mean
    rows, centres = rows - middle, centres - middle
    norms = squared_lengths(rows)
    trials = 2 + int(np.log(count + 1))
    chosen = np.empty(count, np.intp)
    nearest = ((rows - centres[nearest_centre(rows, centres)]) ** 2).sum(axis=1)
    for j in range(count):
        total = nearest.sum()
        if total > 0 and weights is not None:
            candidates = _drawn(nearest * weights, rng.random(trials))
        elif total > 0:
            candidates = np.searchsorted(nearest.cumsum(), rng.random(trials) * total).clip(max=len(rows) - 1)
        else:  # fewer distinct points than clusters: any point is as good as another
            candidates = rng.integers(len(rows), size=1)
        shrunk = np.minimum(nearest, _distances(rows, norms, candidates))
        best = (shrunk.sum(axis=1) if weights is None else shrunk @ weights).argmin()
        chosen[j], nearest = candidates[best], shrunk[best]
    return np.array(exact[chosen], dtype=np.float64)


def squared_lengths(rows: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _distances(rows: Array, norms: Array, centres: Any) -> Array:
    """Squared distances, (centres, rows), not below zero, exactly zero from a row to itself."""
    squared = norms - 2.0 * (rows[centres] @ rows.T) + norms[centres, None]
    squared[np.arange(len(centres)), centres] = 0.0
    return np.asarray(np.maximum(squared, 0.0))


ALSO_CALLED_K = {"n_clusters": "k", "n_components": "k", "clusters": "k", "components": "k"}
"""Other names of the number of clusters or components."""


def coverage(points: float, sampled: float, trained: bool = False) -> Array:
    """What θ remembers of the first pass: the number of points (or what they weigh), the same of the sample that the
    start rests on, 1 once every point has been visited, and 1 where the start was trained on every point."""
    return np.array([points, sampled, 0.0, 1.0 if trained and sampled >= points else 0.0])


def covered(about: Array, seen: float) -> Array:
    """`coverage` after so many points were seen. It stays complete if a worker and its points are lost later."""
    return np.array([about[0], about[1], 1.0 if about[2] or seen >= about[0] else 0.0, about[3]])


def holds(about: Array, seen: float) -> bool:
    """A start that was trained on every point waits until every point has been visited: a part of them knows less."""
    return bool(about[3] and not about[2] and seen < about[0])


def unseen_weight(about: Array, seen: float) -> float:
    """How many points the sample stands for in an update before every point has been visited.

    The start is as good as a pass over the sample. Without this weight the first updates of `fsp`, `ssp` and `asp` rest
    on the few points seen so far: a cluster whose points come later goes to the wrong place, and on tables with heavy
    tails the job ends in an optimum that is up to 60 % worse.
    """
    return 0.0 if about[2] or seen >= about[0] else float(about[1] * (1.0 - seen / about[0]))
