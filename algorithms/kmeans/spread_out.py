"""Rows that are far from each other and from given centroids: k-means++ by batches, over dense or sparse rows.

Starts of many centroids begin with such rows, and clusters that are empty go to them. Never sees the whole data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from flegel.algorithms.kmeans.trial_start import drawn_by_scatter
from flegel.algorithms.seeding import DISTANCES_AT_ONCE
from flegel.configuration.active import active
from flegel.core.parallel_parts import in_parts
from flegel.core.pytree import Array

GAINS_AT_ONCE = 16  # candidates, each of which is a loop over all rows
Distances = Callable[[Array], Array]
"""Squared distances (chosen, rows) of all rows to those whose numbers are given; exactly 0 from a row to itself."""


def spread_out(
    rows: int,
    count: int,
    distances: Distances,
    rng: np.random.Generator,
    weights: Array | None,
    least: Array | None = None,
    at_once: int | None = None,
    also_farthest: bool = False,
) -> Array:
    """Numbers of `count` of the rows by k-means++, several at a time; `at_once`: candidates compared together, at most.

    A batch of candidates is drawn by D², the squared distance to what is chosen so far (`least`). One after the other
    is taken, those first that lower Σ D² most, as long as a candidate still does half of what it did when the batch was
    drawn: then it is as if it had been drawn after the others. `also_farthest`: the rows of the greatest D² are
    candidates too, for which a centroid of their own may be the best that is left.
    """
    rules = active().starts
    most = max((at_once or rules.wide_candidates_at_once) // rules.wide_candidates, 1)
    found: list[int] = []
    if least is None:
        chances = None if weights is None else weights.astype(np.float64) / weights.sum(dtype=np.float64)
        first = int(rng.choice(rows, p=chances))
        found.append(first)
        least = distances(np.array([first]))[0]
    while len(found) < count:
        wanted = min(max(len(found) // 2, 1), most, count - len(found))
        mass = least if weights is None else least * weights
        ends = mass.cumsum(dtype=np.float64)
        if not ends[-1] > 0:  # fewer distinct rows than centroids
            found += [int(i) for i in rng.integers(rows, size=count - len(found))]
            break
        where = rng.random(wanted * rules.wide_candidates) * ends[-1]
        drawn = np.unique(np.searchsorted(ends, where).clip(max=rows - 1))
        if also_farthest:
            drawn = np.union1d(drawn, np.argpartition(mass, rows - wanted)[rows - wanted :])
        squared = distances(drawn)
        gains = np.concatenate(in_parts(len(squared), GAINS_AT_ONCE, partial(_gains, least, squared, weights)))
        taken = 0
        for c in np.argsort(-gains, kind="stable"):
            if taken and _gain(least, squared[c], weights) < 0.5 * gains[c]:
                continue
            least = np.minimum(least, squared[c])
            found.append(int(drawn[c]))
            taken += 1
            if taken == wanted:
                break
    return np.array(found[:count], dtype=np.intp)


def _gains(least: Array, squared: Array, weights: Array | None, some: slice) -> Array:
    return np.array([_gain(least, row, weights) for row in squared[some]])


def _gain(least: Array, squared: Array, weights: Array | None) -> float:
    """By how much Σ D² is lowered; in the precision of distances, which is enough to compare candidates."""
    lowered = least - squared
    np.maximum(lowered, 0, out=lowered)
    return float(lowered.sum() if weights is None else lowered @ weights)


def squared_distances_of(rows: Array, norms: Array, chosen: Array) -> Array:
    """Squared distances (chosen, rows) by products, not below zero; `norms` are the rows' squared lengths."""
    found = np.empty((len(chosen), len(rows)), rows.dtype)
    factors, own = -2 * rows[chosen], norms[chosen, None]

    def fill(some: slice) -> None:
        part = np.asarray(factors @ rows[some].T)  # small enough for the cache, whatever is done with it next
        part += norms[some]
        part += own
        np.maximum(part, 0, out=found[:, some])

    in_parts(len(rows), max(DISTANCES_AT_ONCE // max(len(chosen), 1), 1), fill)
    found[np.arange(len(chosen)), chosen] = 0
    return found


def places_of_useless(
    labels: Array,
    squared: Array,
    k: int,
    distances: Callable[[Array, Array], Array],
    rng: np.random.Generator,
    weights: Array | None,
    at_once: int | None = None,
) -> Array:
    """Numbers of rows for the centroids that are nearest to none of them: all of them may be far from the data.

    Each is the row that lowers the sum of squared distances most, of the farthest and some that are drawn. Candidates
    are compared on rows that stand for all: half of them drawn evenly, half by their squared distance, so that those
    which are a good part of the sum are among them. `distances(some, chosen)`: as `Distances` of the rows `some`.
    """
    rules = active().starts
    by_chance = k * np.exp(-len(labels) / k)  # of clusters of equal size
    useless = int(np.ceil(k - np.count_nonzero(np.bincount(labels, minlength=k)) - by_chance))
    if useless <= 0 or not squared.any():
        return np.empty(0, np.intp)
    most = max(rules.kmeans_fewest_trial_rows, rules.kmeans_rows_per_cluster * useless)
    some, own = drawn_by_scatter(squared, weights, most, rng)
    left, count = squared[some], min(useless, len(some))
    found = spread_out(len(some), count, lambda chosen: distances(some, chosen), rng, own, left, at_once, True)
    return np.unique(some[found])
