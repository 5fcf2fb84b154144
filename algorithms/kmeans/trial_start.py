"""Starts of k-means on a sample: rows that stand for all of it, k-means++, passes of Lloyd's algorithm, and swaps.

Rows far from the others decide where the best centroids are: a single one may be a tenth of the objective. Rows drawn
evenly miss it, so rows are drawn by their part of the scatter too. Swaps leave the optimum of a start for a better one.
Never sees the whole data.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.seeding import lloyd_from, plus_plus, squared_lengths
from flegel.configuration.active import active
from flegel.core.pytree import Array


def rows_by_scatter(
    rows: Array, weights: Array | None, most: int, rng: np.random.Generator
) -> tuple[Array, Array | None]:
    """At most `most` different rows about their origin, and weights with which they stand for all.

    A row is taken with a chance between 0 and 1, half of which is its part of all weight and half its part of the
    scatter about the origin (Bachem, Lucic and Krause 2018), and weighs what it did divided by that chance. So sums
    over the rows that are taken have the right mean, and one that is a good part of the scatter is taken for certain.
    One row is taken in each stretch of 1 of the cumulated chances. Together they weigh as much as so many rows drawn
    evenly.
    """
    if len(rows) <= most:
        return rows, weights
    mass = np.ones(len(rows)) if weights is None else weights
    scatter = squared_lengths(rows) * mass
    total = float(scatter.sum())
    even = mass / mass.sum()
    evenly = active().starts.drawn_evenly
    chances = evenly * even + (1.0 - evenly) * scatter / total if 0 < total < np.inf else even
    chances = _at_most_one(most * chances, most)
    ends = chances.cumsum()
    chosen = np.searchsorted(ends, np.arange(rng.random(), ends[-1]), side="right").clip(max=len(rows) - 1)
    own = mass[chosen] / chances[chosen]
    return rows[chosen], own * (mass.mean() * len(chosen) / own.sum())


def _at_most_one(chances: Array, total: int) -> Array:
    """Chances of at most 1 whose sum is `total`, or nearly: what some have above 1 goes to the others."""
    for _ in range(active().starts.refills):
        certain = chances >= 1.0
        rest = float(chances[~certain].sum())
        if not certain.any() or not rest > 0:
            break
        chances = np.where(certain, 1.0, chances * ((total - certain.sum()) / rest))
    return np.minimum(chances, 1.0)


def best_start(rows: Array, k: int, starts: int, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """Centroids of the best of several starts by k-means++. They are compared after the first passes; the best one goes
    on, with swaps."""
    rules = active().starts
    begun = [lloyd_from(rows, plus_plus(rows, k, rng, weights), rules.trial_passes, weights) for _ in range(starts)]
    centres = with_swaps(rows, min(begun, key=lambda trial: trial[2])[0], rng, weights)
    return lloyd_from(rows, centres, rules.lloyd_passes - rules.trial_passes, weights)[0]


def with_swaps(rows: Array, centres: Array, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """Centroids of which some have moved to other places where they lower the objective.

    In each round rows are drawn as k-means++ would. Each is moved to the mean of the rows that it would take from
    others, and tried in the place of every centroid (Lattanzi and Sohler 2019); the best exchange is made.
    """
    k, rules = len(centres), active().starts
    if k < 2 or len(rows) * k > rules.swap_distances:
        return centres
    centres = np.array(centres)
    lengths, each = squared_lengths(rows), np.arange(len(rows))
    squared = _squared(rows, lengths, centres)
    nearest, first, second = _two_nearest(squared, each)
    for _ in range(rules.swap_rounds):
        costs = first if weights is None else first * weights
        ends = costs.cumsum()
        if not 0 < ends[-1] < np.inf:
            break
        drawn = np.searchsorted(ends, rng.random(rules.swap_candidates) * ends[-1]).clip(max=len(rows) - 1)
        nearer = first > _squared(rows, lengths, rows[drawn]).T
        candidates = _moved(rows, rows[drawn], nearer, weights)
        tried = _squared(rows, lengths, candidates).T
        best, place = (1.0 - rules.least_swap_gain) * ends[-1], None
        for c, distances in enumerate(tried):
            kept = np.minimum(distances, first)
            lost = np.minimum(distances, second) - kept  # of the rows of a centroid, if it were gone
            if weights is not None:
                kept, lost = kept * weights, lost * weights
            without = kept.sum() + np.bincount(nearest, lost, minlength=k)
            if without.min() < best:
                best, place = without.min(), (c, int(without.argmin()))
        if place is not None:
            c, gone = place
            centres[gone], squared[:, gone] = candidates[c], tried[c]
            nearest, first, second = _two_nearest(squared, each)
    return centres


def _squared(rows: Array, lengths: Array, centres: Array) -> Array:
    """Squared distances, (rows, centres), not below zero."""
    found = lengths[:, None] - 2 * (rows @ centres.T) + squared_lengths(centres)
    return np.asarray(np.maximum(found, 0))


def _two_nearest(squared: Array, each: Array) -> tuple[Array, Array, Array]:
    """Of each row: the nearest centroid, the squared distance to it, and that to the second nearest."""
    nearest = squared.argmin(axis=1)
    first = squared[each, nearest]
    squared[each, nearest] = np.inf
    second = squared.min(axis=1)
    squared[each, nearest] = first
    return nearest, first, second


def _moved(rows: Array, candidates: Array, nearer: Array, weights: Array | None) -> Array:
    """Each candidate at the mean of the rows that are nearer to it than to any centroid."""
    shares = nearer.astype(rows.dtype) if weights is None else nearer * weights
    mass = shares.sum(axis=1)
    means = (shares @ rows) / np.where(mass > 0, mass, 1)[:, None]
    return np.where(mass[:, None] > 0, means, candidates)
