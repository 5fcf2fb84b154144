"""Starts of k-means on a sample: rows that stand for all of it, k-means++, passes of Lloyd's algorithm, and swaps.

Rows far from the others decide where the best centroids are: a single one may be a tenth of the objective. Rows drawn
evenly miss it, so rows are drawn by their part of the scatter too. Swaps leave the optimum of a start for a better one.
Never sees the whole data.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.seeding import (
    PreparedRows,
    lloyd_side_by_side,
    nearest_marked,
    prepared,
    several_lloyd,
    squared_distances,
    squared_lengths,
)
from flegel.configuration.active import active
from flegel.core.pytree import Array


def rows_by_scatter(
    rows: Array, weights: Array | None, most: int, rng: np.random.Generator
) -> tuple[Array, Array | None]:
    """Draw at most `most` different rows about their origin, with weights by which they stand for all rows.

    A row is taken with a chance between 0 and 1, half of which is its part of all weight and half its part of the
    scatter about the origin (Bachem, Lucic and Krause 2018), and weighs what it did divided by that chance. So sums
    over the rows that are taken have the right mean, and one that is a good part of the scatter is taken for certain.
    One row is taken in each stretch of 1 of the cumulated chances. Together they weigh as much as so many rows drawn
    evenly.
    """
    if len(rows) <= most:
        return rows, weights
    chosen, own = drawn_by_scatter(squared_lengths(rows), weights, most, rng)
    return rows[chosen], own


def drawn_by_scatter(
    squared: Array, weights: Array | None, most: int, rng: np.random.Generator
) -> tuple[Array, Array | None]:
    """The same for rows of these squared distances to what they are compared with: their numbers, and weights."""
    count = len(squared)
    if count <= most:
        return np.arange(count), weights
    mass = np.ones(count) if weights is None else weights
    scatter = squared * mass
    total = float(scatter.sum())
    even = mass / mass.sum()
    evenly = active().starts.drawn_evenly
    chances = evenly * even + (1.0 - evenly) * scatter / total if 0 < total < np.inf else even
    chances = _at_most_one(most * chances, most)
    ends = chances.cumsum()
    chosen = np.searchsorted(ends, np.arange(rng.random(), ends[-1]), side="right").clip(max=count - 1)
    own = mass[chosen] / chances[chosen]
    return chosen, own * (mass.mean() * len(chosen) / own.sum())


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
    on, with swaps. Whoever asks for many starts wants the best end: then all go on, for longer."""
    rules, of = active().starts, prepared(rows)
    begun = several_lloyd(of, k, [rng] * starts, weights, rules.trial_passes)
    many = starts > rules.estimator_starts
    going_on = begun if many else [min(begun, key=lambda trial: trial.squared_distances)]
    swapped = np.stack([with_swaps(of, trial.centres, rng, weights) for trial in going_on])
    passes = rules.lloyd_passes_of_many if many else rules.lloyd_passes
    ended = lloyd_side_by_side(of, swapped, passes - rules.trial_passes, weights)
    return min(ended, key=lambda trial: trial.squared_distances).centres


def with_swaps(of: PreparedRows, centres: Array, rng: np.random.Generator, weights: Array | None = None) -> Array:
    """Centroids of which some have moved to other places where they lower the objective.

    In each round rows are drawn as k-means++ would. Each is moved to the mean of the rows that it would take from
    others, and tried in the place of every centroid (Lattanzi and Sohler 2019); the best exchange is made.
    """
    k, rows, rules = len(centres), of.rows, active().starts
    if k < 2 or len(rows) * k > rules.swap_distances:
        return centres
    centres = np.array(centres)
    squared = np.maximum(squared_distances(of, centres), 0.0)
    nearest, first, second = _two_nearest(squared)
    fruitless = 0
    for _ in range(rules.swap_rounds):
        ends = (first if weights is None else first * weights).cumsum()
        if not 0 < ends[-1] < np.inf:
            break
        drawn = np.minimum(ends.searchsorted(rng.random(rules.swap_candidates) * ends[-1]), len(rows) - 1)
        candidates = _moved(of, drawn, first, weights)
        tried = np.maximum(squared_distances(of, candidates), 0.0)
        kept = np.minimum(tried, first)
        lost = np.minimum(tried, second) - kept  # of the rows of a centroid, if it were gone
        if weights is None:
            without = kept.sum(axis=1)[:, None] + lost @ nearest.T
        else:
            without = (kept @ weights)[:, None] + lost @ (nearest * weights).T
        c, gone = divmod(int(without.argmin()), k)
        if without[c, gone] < (1.0 - rules.least_swap_gain) * ends[-1]:
            centres[gone], squared[gone] = candidates[c], tried[c]
            nearest, first, second = _two_nearest(squared)
            fruitless = 0
        elif (fruitless := fruitless + 1) == rules.fruitless_swap_rounds:
            break
    return centres


def _two_nearest(squared: Array) -> tuple[Array, Array, Array]:
    """For each row: the nearest centroid, marked (centroids, rows), the squared distance to it, and that to the second
    nearest."""
    nearest = nearest_marked(squared)
    return nearest, squared.min(axis=0), np.where(nearest > 0, np.inf, squared).min(axis=0)


def _moved(of: PreparedRows, drawn: Array, first: Array, weights: Array | None) -> Array:
    """Each row that was drawn, moved to the mean of the rows that are nearer to it than to any centroid."""
    nearer = (of.factors[drawn] @ of.columns < first).astype(np.float64)
    sums = (nearer if weights is None else nearer * weights) @ of.columns.T
    mass = sums[:, -1:]
    return np.where(mass > 0, sums[:, :-2] / np.where(mass > 0, mass, 1.0), of.rows[drawn])
