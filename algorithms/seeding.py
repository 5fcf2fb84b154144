"""Starting centroids and standard units for the clustering algorithms, from a sample. Never sees the whole data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

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
DISTANCES_AT_ONCE = 2**17  # 1 MB: they stay in the cache of a core


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
    rules = active().starts
    most = max(
        min(rules.quantile_rows, rules.quantile_numbers // max(rows.shape[1], 1)),
        rules.fewest_quantile_rows,
    )
    few = rows[:: max(1, len(rows) // most)]
    ordered = np.sort(few.T, axis=1)  # column by column: half the time of `numpy.quantile`
    low, high = (ordered[:, at] for at in _nearest_ranks(len(few), (0.05, 0.95)))
    middle = np.clip(few, low, high).mean(axis=0, dtype=np.float64).astype(rows.dtype)
    return np.asarray(np.where(low == high, low, middle), dtype=np.float64)


@cache
def _nearest_ranks(count: int, parts: tuple[float, ...]) -> tuple[int, ...]:
    """The places of these quantiles among so many numbers in order, by the rule of `numpy.quantile`."""
    return tuple(int(at) for at in np.quantile(np.arange(count), parts, method="nearest"))


def _quantiles(ordered: Array, parts: Array) -> Array:
    """Quantiles (parts, columns) of columns (columns, rows) in order, interpolated as `numpy.quantile` does, to the
    last bit."""
    place = parts * (ordered.shape[1] - 1)
    before = np.floor(place).astype(np.intp)
    after, share = np.minimum(before + 1, ordered.shape[1] - 1), (place - before)[:, None]
    low, high = ordered[:, before].T, ordered[:, after].T
    return np.asarray(np.where(share >= 0.5, high - (high - low) * (1.0 - share), low + (high - low) * share))


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
    few = rows[:: max(1, len(rows) // active().starts.quantile_rows)]
    cuts = _quantiles(np.sort(few.T.astype(np.float64), axis=1), np.array([0.01, 0.05, 0.25, 0.75, 0.95, 0.99]))
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


def as_often_as_they_weigh(rows: Array, weights: Array | None, most: int, rng: np.random.Generator) -> Array:
    """At most `most` rows, each as often as it weighs in proportion, rounded up or down; exactly where weights are
    whole numbers and so many rows are enough."""
    if weights is None:
        return some_rows(rows, most, rng)
    mass, order = float(weights.sum()), rng.permutation(len(rows))
    count = int(mass) if mass <= most and (weights == np.floor(weights)).all() else most
    ends = weights[order].cumsum()
    places = (np.arange(count) + rng.random()) * (ends[-1] / count)
    return np.asarray(rows[order[np.minimum(ends.searchsorted(places, side="right"), len(rows) - 1)]])


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
    squared_distances: float
    """Weighted sum over all rows."""


class PreparedRows(NamedTuple):
    """Rows of a start and what products with them need, made once for all trials: the squared distance of a row and a
    centre is a product of the centre's factors and the row's column."""

    rows: Array
    factors: Array
    """(rows, columns + 2): −2 times the row, 1, its squared length."""
    columns: Array
    """(columns + 2, rows), contiguous: the row, its squared length, 1."""


def prepared(rows: Array) -> PreparedRows:
    factors = _factors(rows)
    columns = np.empty((rows.shape[1] + 2, len(rows)))
    columns[:-2], columns[-2], columns[-1] = rows.T, factors[:, -1], 1.0
    return PreparedRows(rows, factors, columns)


def squared_distances(of: PreparedRows, centres: Array) -> Array:
    """(centres, rows), by one product; below zero by rounding where a row is a centre."""
    return np.asarray(_factors(centres) @ of.columns)


def _factors(centres: Array) -> Array:
    factors = np.empty((len(centres), centres.shape[1] + 2))
    np.multiply(centres, -2.0, out=factors[:, :-2])
    factors[:, -2], factors[:, -1] = 1.0, squared_lengths(centres)
    return factors


def several_lloyd(
    of: PreparedRows,
    k: int,
    rngs: Sequence[np.random.Generator],
    weights: Array | None = None,
    passes: int | None = None,
) -> list[LloydResult]:
    """k-means from several starts by k-means++, one for each generator: passes of Lloyd's algorithm, those of a start
    where nothing is said.

    Starts are made side by side where their distances fit the cache: with few rows a call of numpy takes longer than
    its work.
    """
    at_once = max(DISTANCES_AT_ONCE // (len(of.rows) * max(k, candidates_of(k - 1))), 1)
    found: list[LloydResult] = []
    while len(found) < len(rngs):
        begun = several_plus_plus(of, k, rngs[len(found) : len(found) + at_once], weights)
        found += lloyd_side_by_side(of, begun, passes, weights)
    return found


def lloyd_from(rows: Array, centres: Array, passes: int | None = None, weights: Array | None = None) -> LloydResult:
    """A few passes of Lloyd's algorithm, those of a start where nothing is said. A cluster that loses its rows keeps
    its centre."""
    return lloyd_side_by_side(prepared(rows), centres[None], passes, weights)[0]


def lloyd_side_by_side(
    of: PreparedRows, begun: Array, passes: int | None = None, weights: Array | None = None
) -> list[LloydResult]:
    """`lloyd_from` for each of several starts (starts, k, columns), by the same products."""
    centres = begun
    for _ in range(active().starts.lloyd_passes if passes is None else passes):
        sums, counts = _sums_of_clusters(of, centres, weights)
        before, centres = centres, np.where(counts > 0, sums / np.where(counts > 0, counts, 1.0), centres)
        if np.array_equal(before, centres):
            break
    return [LloydResult(own, value) for own, value in zip(centres, _costs(of, centres, weights), strict=True)]


def _distances(of: PreparedRows, centres: Array) -> Iterator[tuple[slice, Array]]:
    """Some rows after the other, and their squared distances to centres (starts, k, columns) less their own squared
    lengths, to which digits would be lost; (starts, k, rows)."""
    starts, k, width = centres.shape
    factors = _factors(centres.reshape(-1, width))
    factors[:, -2] = 0.0
    step = max(DISTANCES_AT_ONCE // len(factors), 1)
    for part in (slice(at, at + step) for at in range(0, len(of.rows), step)):
        yield part, (factors @ of.columns[:, part]).reshape(starts, k, -1)


def _sums_of_clusters(of: PreparedRows, centres: Array, weights: Array | None) -> tuple[Array, Array]:
    """Of the rows that are nearest to each centre (starts, k, columns): their sums, and their number or weight."""
    found = np.zeros((*centres.shape[:2], len(of.columns)))
    for part, distances in _distances(of, centres):
        mine = nearest_marked(distances)
        found += (mine if weights is None else mine * weights[part]) @ of.columns[:, part].T
    return found[..., :-2], found[..., -1:]


def _costs(of: PreparedRows, centres: Array, weights: Array | None) -> Array:
    """The sum of all squared distances for each start: exact enough to compare starts."""
    costs = np.zeros(len(centres))
    for part, distances in _distances(of, centres):
        least = distances.min(axis=1) + of.columns[-2, part]
        costs += least.sum(axis=1) if weights is None else least @ weights[part]
    return costs


def nearest_marked(distances: Array) -> Array:
    """1 for the nearest centre of each row, the first one of several, else 0; (…, centres, rows)."""
    nearest = distances == distances.min(axis=-2, keepdims=True)
    if np.count_nonzero(nearest) != distances.size // distances.shape[-2]:  # some are as near as others
        nearest[:] = False
        np.put_along_axis(nearest, distances.argmin(axis=-2, keepdims=True), True, axis=-2)
    return np.asarray(nearest, dtype=np.float64)


def representatives(sample: Sample, rng: np.random.Generator, least_rows: int = 1) -> tuple[Array, Array] | None:
    """Means of small parts of the sample, about 16 rows each, and what each part weighs; None for sparse rows. Parts of
    fewer than `least_rows` rows are left out.

    They are all that a group shows of its rows to others (`ParameterPlacement.starts_from_means`).
    """
    rules = active().starts
    if isinstance(sample.features, Sparse):
        return None
    rows, own = weighted_rows(np.asarray(sample.features), sample.weights)
    rows, own = some_weighted(rows, own, rules.group_represented_rows, rng)
    count = max(min(rules.group_representatives, len(rows) // max(16, 2 * least_rows)), 1)
    origin, unit, _ = standard_units(rows)
    scaled = (rows - origin) / unit
    centres = lloyd_from(scaled, scaled[rng.choice(len(scaled), count, replace=False)], 4, own).centres
    nearest = nearest_centre(scaled, centres)
    weights = np.bincount(nearest, own, minlength=count).astype(np.float64)
    filled = (weights > 0) & (np.bincount(nearest, minlength=count) >= least_rows)
    return centres[filled] * unit + origin, weights[filled] * (sample.mass / weights.sum())


def nearest_centre(rows: Array, centres: Array, chunk: int = 8192) -> Array:
    """The number of the nearest centre of each row."""
    half = 0.5 * (centres**2).sum(axis=1)
    parts = [(half - rows[i : i + chunk] @ centres.T).argmin(axis=1) for i in range(0, len(rows), chunk)]
    return np.concatenate(parts)


def different_clusters(starts: Iterable[Array]) -> Iterator[int]:
    """Which of these starts, each the cluster of every row, divide the rows as none before them does, whatever numbers
    the clusters have. From the same clusters training goes the same way: it need not be tried twice."""
    seen: set[bytes] = set()
    for number, labels in enumerate(starts):
        first = np.empty(int(labels.max(initial=0)) + 1, np.intp)
        first[labels[::-1]] = np.arange(len(labels))[::-1]  # of several rows the one that is written last stays
        name = first[labels].tobytes()  # each cluster is called by its first row
        if name not in seen:
            seen.add(name)
            yield number


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
    return np.asarray(several_plus_plus(prepared(rows), k, [rng], weights)[0])


def several_plus_plus(
    of: PreparedRows, k: int, rngs: Sequence[np.random.Generator], weights: Array | None = None
) -> Array:
    """`plus_plus` with each of several generators, (starts, k, columns)."""
    count, starts = len(of.rows), len(rngs)
    if weights is None:
        first = np.array([rng.integers(count) for rng in rngs])
    else:
        first = _drawn(weights.cumsum(), np.array([rng.random() for rng in rngs]))
    nearest = of.factors[first] @ of.columns
    nearest[np.arange(starts), first] = 0.0
    more = _continued(of, np.maximum(nearest, 0.0), k - 1, rngs, weights)
    return np.asarray(of.rows[np.concatenate([first[:, None], more], axis=1)], dtype=np.float64)


def _drawn(ends: Array, where: Array) -> Array:
    """Numbers drawn in proportion to chances whose sums are `ends`, for numbers `where` between 0 and 1."""
    return np.asarray(np.minimum(ends.searchsorted(where * ends[-1]), len(ends) - 1))


def more_rows(rows: Array, centres: Array, count: int, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """`count` more rows, drawn as k-means++ would continue from these centres."""
    middle = rows.mean(axis=0, dtype=np.float64)  # products must not lose digits to a large mean
    about, centres = rows - middle, centres - middle
    nearest = squared_lengths(about - centres[nearest_centre(about, centres)])
    return np.array(rows[_continued(prepared(about), nearest[None], count, [rng], weights)[0]], dtype=np.float64)


def candidates_of(count: int) -> int:
    """Rows drawn for each of so many more centres."""
    return 2 + int(np.log(count + 1))


def _continued(
    of: PreparedRows, nearest: Array, count: int, rngs: Sequence[np.random.Generator], weights: Array | None
) -> Array:
    """Numbers of `count` more rows for each of several starts, whose rows are `nearest` (starts, rows) to their centres
    in squared distances: of some candidates drawn by these the one that leaves the least."""
    starts, trials = len(nearest), candidates_of(count)
    each, chosen = np.arange(starts), np.empty((starts, count), np.intp)
    place, candidates = np.arange(starts * trials), np.empty((starts, trials), np.intp)
    for j in range(count):
        ends = (nearest if weights is None else nearest * weights).cumsum(axis=1)
        for start, own in enumerate(ends):
            if own[-1] > 0:
                candidates[start] = _drawn(own, rngs[start].random(trials))
            else:  # fewer distinct points than clusters: any point is as good as another
                candidates[start] = rngs[start].integers(len(of.rows))
        drawn = candidates.reshape(-1)
        left = of.factors[drawn] @ of.columns
        left[place, drawn] = 0.0
        left = left.reshape(starts, trials, -1)
        np.minimum(left, nearest[:, None], out=left)
        best = (left.sum(axis=2) if weights is None else left @ weights).argmin(axis=1)
        chosen[:, j] = candidates[each, best]
        nearest = np.maximum(left[each, best], 0.0)
    return chosen


def squared_lengths(rows: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


ALSO_CALLED_K = {"n_clusters": "k", "n_components": "k", "clusters": "k", "components": "k"}
"""Other names of the number of clusters or components."""


def coverage(points: float, sampled: float, trained: bool = False) -> Array:
    """What θ remembers of the first pass: the number of points (or what they weigh), the same of the sample that the
    start rests on, 1 once every point has been visited, and 1 where the start was trained on every point."""
    return np.array([points, sampled, 0.0, 1.0 if trained and sampled >= points else 0.0])


def _all_seen(about: Array, seen: float) -> bool:
    """Whether every point has been visited. Where points have shares in several clusters, `seen` is a rounded sum of
    them, which may end a little below the number of points whichever of them were visited."""
    return bool(about[2]) or seen >= about[0] * (1.0 - 1e-6)


def covered(about: Array, seen: float) -> Array:
    """`coverage` after so many points were seen. It stays complete if a worker and its points are lost later."""
    if about[2] or not _all_seen(about, seen):
        return about
    return np.array([about[0], about[1], 1.0, about[3]])


def holds(about: Array, seen: float) -> bool:
    """A start that was trained on every point waits until every point has been visited: a part of them knows less."""
    return bool(about[3]) and not _all_seen(about, seen)


def unseen_weight(about: Array, seen: float) -> float:
    """How many points the sample stands for in an update before every point has been visited.

    The start is as good as a pass over the sample. Without this weight the first updates of `fsp`, `ssp` and `asp` rest
    on the few points seen so far: a cluster whose points come later goes to the wrong place, and on tables with heavy
    tails the job ends in an optimum that is up to 60 % worse.
    """
    return 0.0 if _all_seen(about, seen) else float(about[1] * (1.0 - seen / about[0]))
