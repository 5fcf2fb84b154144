"""Starts of k-means for many centroids of wide rows: on a sample, along its leading directions, by matrix products.

k-means++ and a few passes of Lloyd's algorithm over short rows (`directions`), in float32; centroids are then the means
of whole rows. Distances along 64 directions choose as well as those along 768 columns, at a twelfth of the work. From
`TWO_LEVELS_FROM` clusters on in two levels: groups first, then the clusters of each group, so that a row is compared
with 2·√k centroids in place of k. Never sees the whole data.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.algorithms.seeding import squared_lengths
from flegel.core.pytree import Array

DIRECTIONS = 64
BASIS_ROWS = 4096  # rows of the sample from which directions are found
PASSES = 6  # of Lloyd's algorithm over the sample; training goes on from there
CANDIDATES = 6
"""Rows drawn for each centroid, of which the best sixth is kept. As many clumps as clusters, k = 1,000: with three the
objective after training was 6 to 14 % above scikit-learn's, with six 2 to 28 % below it; normal rows: 0.1 % above."""
BATCH = 256  # candidates whose distances are computed at once, at most
CHUNK = 4096  # rows in a product
TWO_LEVELS_FROM = 4096
"""Clusters. Two levels save at most half of the start's time, and their objective is worse where clumps lie across the
borders of groups: at k = 1,000 they saved 0.3 s, and it was 1 % (normal rows) to 12 % higher than scikit-learn's, seven
times as high where clumps were narrow."""
NEIGHBOURS = 8  # groups, nearest to its own, with whose centroids a row is compared
REFINING_PASSES = 3  # over centroids of neighbouring groups, after those inside the groups
RELOCATED_PART = 1 / 8
"""Of the centroids, at most, that go to another place before each of these passes. Without it a group that got one
centroid too few keeps two clumps in one cluster: where there are about as many clumps as clusters, the objective was
24 % higher than with one level."""


class WideStart(NamedTuple):
    """Centroids, the cluster of each row of the sample, and rows far from all centroids."""

    centres: Array
    labels: Array
    spare: Array


def start_of(rows: Array, k: int, spare: int, rng: np.random.Generator, weights: Array | None = None) -> WideStart:
    """k centroids for rows about their origin, and `spare` rows far from all of them, to which clusters that become
    empty may go."""
    short = np.asarray(rows @ _directions(rows), dtype=np.float32)
    own = None if weights is None else weights.astype(np.float32)
    if k < TWO_LEVELS_FROM:
        chosen = _spread_out(short, k, rng, own)
        centres, labels = _lloyd(short, short[chosen], own, PASSES)
    else:
        chosen, centres, labels = _in_two_levels(short, k, rng, own)
    whole = means(rows, labels, rows[chosen], weights)
    return WideStart(whole, labels, rows[_far(short, centres, labels, spare, rng, own)])


def _lloyd(rows: Array, centres: Array, weights: Array | None, passes: int) -> tuple[Array, Array]:
    """Centres after at most so many passes, and the cluster of each row."""
    labels = _nearest(rows, centres)
    for _ in range(passes):
        centres, before = means(rows, labels, centres, weights), labels
        labels = _nearest(rows, centres)
        if np.array_equal(before, labels):
            break
    return centres, labels


def _in_two_levels(rows: Array, k: int, rng: np.random.Generator, weights: Array | None) -> tuple[Array, Array, Array]:
    """Rows that centroids began as, centroids, and the cluster of each row: about √k groups, in each of them as many
    centroids as its part of the scatter asks for, then passes in which a row meets those of neighbouring groups too."""
    groups = max(round(np.sqrt(k)), 1)
    middles, group_of = _lloyd(rows, rows[_spread_out(rows, groups, rng, weights)], weights, PASSES)
    squared = ((rows - middles[group_of]) ** 2).sum(axis=1, dtype=np.float64)
    scatter = np.bincount(group_of, squared if weights is None else squared * weights, minlength=groups)
    wanted = _divided(scatter, np.bincount(group_of, minlength=groups), k)
    order = np.argsort(group_of, kind="stable")
    edges = np.concatenate([[0], np.cumsum(np.bincount(group_of, minlength=groups))])
    members = [order[low:high] for low, high in pairwise(edges)]
    chosen, centres = [], []
    for ids, count in zip(members, wanted, strict=True):
        if not count:
            continue
        inside, own = rows[ids], None if weights is None else weights[ids]
        first = _spread_out(inside, int(count), rng, own)
        chosen.append(ids[first])
        centres.append(_lloyd(inside, inside[first], own, PASSES)[0])
    found = np.concatenate(centres)
    near = _neighbours(middles, wanted)
    labels = _nearest_of_some(rows, found, members, near)
    group_of_centre = np.repeat(np.arange(groups), wanted)
    for _ in range(REFINING_PASSES):
        found = _relocated(rows, means(rows, labels, found, weights), labels, group_of_centre, near, rng, weights)
        labels = _nearest_of_some(rows, found, members, near)
    return np.concatenate(chosen), found, labels


def _relocated(
    rows: Array,
    centres: Array,
    labels: Array,
    group_of: Array,
    near: list[Array],
    rng: np.random.Generator,
    weights: Array | None,
) -> Array:
    """Centroids of which some have left a close pair, whose other one goes to the mean of both, for a row that
    k-means++ would take next. The pairs that cost least go to the rows that gain most, as long as that pays."""
    squared = ((rows - centres[labels]) ** 2).sum(axis=1)
    places = np.unique(_spread_out(rows, max(int(RELOCATED_PART * len(centres)), 1), rng, weights, squared))
    moved = _squared(rows, squared_lengths(rows), places)
    nearest = moved.argmin(axis=0)
    gained = np.maximum(squared - moved[nearest, np.arange(len(rows))], 0)
    gains = np.bincount(nearest, gained if weights is None else gained * weights, minlength=len(places))
    mass = np.bincount(labels, weights, minlength=len(centres))
    second, costs = _merging(centres, mass, group_of, near)
    found, free = np.array(centres), np.ones(len(centres), bool)
    best = iter(np.argsort(-gains, kind="stable"))
    place = next(best, None)
    for one in np.argsort(costs, kind="stable"):
        other = second[one]
        if place is None or not gains[place] > costs[one]:
            break
        if free[one] and free[other]:
            free[[one, other]] = False
            both = mass[one] + mass[other]
            if both > 0:
                found[other] = (mass[one] * centres[one] + mass[other] * centres[other]) / both
            found[one], place = rows[places[place]], next(best, None)
    return found


def _merging(centres: Array, mass: Array, group_of: Array, near: list[Array]) -> tuple[Array, Array]:
    """Of each centroid: the one near it with which it costs least to be merged, and that cost (Ward)."""
    lengths = squared_lengths(centres)
    second, costs = np.zeros(len(centres), np.intp), np.full(len(centres), np.inf)
    for group in np.unique(group_of):
        own, some = np.flatnonzero(group_of == group), near[group]
        apart = np.maximum(lengths[own, None] + lengths[some] - 2 * (centres[own] @ centres[some].T), 0)
        cost = mass[own, None] * mass[some] / np.maximum(mass[own, None] + mass[some], 1e-300) * apart
        cost[own[:, None] == some] = np.inf
        least = cost.argmin(axis=1)
        second[own], costs[own] = some[least], cost[np.arange(len(own)), least]
    return second, costs


def _divided(scatter: Array, rows: Array, k: int) -> Array:
    """How many of k centroids each group gets: by its part of the scatter, at least one where it has rows, and no more
    than it has rows. Small groups first: what they cannot take goes to the others."""
    wanted = np.zeros(len(rows), np.int64)
    filled = np.flatnonzero(rows > 0)
    left, weight, room = k, float(scatter.sum()), int(rows.sum())
    for at, j in enumerate(filled[np.argsort(rows[filled] / np.maximum(scatter[filled], 1e-300), kind="stable")]):
        others, room = len(filled) - at - 1, room - int(rows[j])
        share = left * (scatter[j] / weight) if weight > 0 else left / (others + 1)
        wanted[j] = min(max(round(share), 1, left - room), rows[j], left - others)
        left, weight = left - int(wanted[j]), weight - float(scatter[j])
    return wanted


def _neighbours(middles: Array, wanted: Array) -> list[Array]:
    """Of each group: the numbers of the centroids of the groups nearest to it, its own included."""
    lengths = np.einsum("ij,ij->i", middles, middles)
    apart = lengths[:, None] + lengths - 2 * (middles @ middles.T)
    apart[:, wanted == 0] = np.inf
    ends = np.cumsum(wanted)
    most = min(NEIGHBOURS, int((wanted > 0).sum()))
    nearest = np.argpartition(apart, most - 1, axis=1)[:, :most]
    return [np.concatenate([np.arange(ends[j] - wanted[j], ends[j]) for j in np.sort(some)]) for some in nearest]


def _nearest_of_some(rows: Array, centres: Array, members: list[Array], near: list[Array]) -> Array:
    """The nearest centroid of each row among those of the groups near its own."""
    labels = np.empty(len(rows), np.intp)
    for ids, some in zip(members, near, strict=True):
        if len(ids):
            labels[ids] = some[_nearest(rows[ids], centres[some])]
    return labels


def follow(rows: Array, centres: Array, spare: int, rng: np.random.Generator, weights: Array | None) -> WideStart:
    """The same for centroids that are given."""
    directions = _directions(rows)
    short, near = (np.asarray(a @ directions, dtype=np.float32) for a in (rows, centres))
    own = None if weights is None else weights.astype(np.float32)
    labels = _nearest(short, near)
    return WideStart(centres, labels, rows[_far(short, near, labels, spare, rng, own)])


def means(rows: Array, labels: Array, otherwise: Array, weights: Array | None) -> Array:
    """The mean of the rows of each cluster; `otherwise` where it has none. Rows are summed in the order of clusters."""
    order = np.argsort(labels, kind="stable")
    filled, begin = np.unique(labels[order], return_index=True)
    some = rows[order] if weights is None else rows[order] * weights[order, None]
    mass = np.bincount(labels, weights, minlength=len(otherwise))[filled]
    found = np.array(otherwise)
    found[filled] = np.add.reduceat(some, begin, axis=0) / mass[:, None]
    return found


def _directions(rows: Array) -> Array:
    return leading_directions(rows[:: max(len(rows) // BASIS_ROWS, 1)], DIRECTIONS).astype(rows.dtype)


def _nearest(rows: Array, centres: Array) -> Array:
    half = 0.5 * np.einsum("ij,ij->i", centres, centres)
    parts = [(half - rows[i : i + CHUNK] @ centres.T).argmin(axis=1) for i in range(0, len(rows), CHUNK)]
    return np.concatenate(parts)


def _far(
    rows: Array, centres: Array, labels: Array, count: int, rng: np.random.Generator, weights: Array | None
) -> Array:
    """Numbers of rows that k-means++ would take next."""
    squared = ((rows - centres[labels]) ** 2).sum(axis=1)
    return _spread_out(rows, count, rng, weights, squared)


def _spread_out(
    rows: Array, count: int, rng: np.random.Generator, weights: Array | None, least: Array | None = None
) -> Array:
    """Numbers of `count` rows by k-means++, several at a time.

    A batch of candidates is drawn by D², the squared distance to what is chosen so far (`least`). One after the other
    is taken, those first that lower Σ D² most, as long as a candidate still does half of what it did when the batch was
    drawn: then it is as if it had been drawn after the others.
    """
    norms = np.einsum("ij,ij->i", rows, rows)
    found: list[int] = []
    if least is None:
        chances = None if weights is None else weights.astype(np.float64) / weights.sum(dtype=np.float64)
        first = int(rng.choice(len(rows), p=chances))
        found.append(first)
        least = _squared(rows, norms, np.array([first]))[0]
    while len(found) < count:
        wanted = min(max(len(found) // 2, 1), BATCH // CANDIDATES, count - len(found))
        mass = least if weights is None else least * weights
        ends = mass.cumsum(dtype=np.float64)
        if not ends[-1] > 0:  # fewer distinct rows than centroids
            found += [int(i) for i in rng.integers(len(rows), size=count - len(found))]
            break
        drawn = np.unique(np.searchsorted(ends, rng.random(wanted * CANDIDATES) * ends[-1]).clip(max=len(rows) - 1))
        squared = _squared(rows, norms, drawn)
        gains = np.array([_gain(least, row, weights) for row in squared])
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


def _gain(least: Array, squared: Array, weights: Array | None) -> float:
    lowered = np.maximum(least - squared, 0)
    return float(lowered.sum(dtype=np.float64) if weights is None else lowered @ weights)


def _squared(rows: Array, norms: Array, chosen: Array) -> Array:
    """Squared distances, (chosen, rows), not below zero, exactly zero from a row to itself."""
    found = norms - 2 * (rows[chosen] @ rows.T) + norms[chosen, None]
    found[np.arange(len(chosen)), chosen] = 0
    return np.asarray(np.maximum(found, 0))
