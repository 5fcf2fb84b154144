"""Starts of k-means for many centroids of wide rows: on a sample, along its leading directions, by matrix products.

k-means++ and a few passes of Lloyd's algorithm over short rows (`directions`), in float32; centroids are then the means
of whole rows. Distances along 64 directions choose as well as those along 768 columns, at a twelfth of the work. For
very many clusters (`starts.wide_two_levels_from_clusters`) in two levels: groups first, then the clusters of each
group, so that a row is compared with 2·√k centroids in place of k. Never sees the whole data.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.algorithms.kmeans.spread_out import places_of_useless, spread_out, squared_distances_of
from flegel.algorithms.seeding import squared_lengths
from flegel.configuration.active import active
from flegel.core.parallel_parts import in_parts
from flegel.core.pytree import Array

FEWEST_ROWS_AT_ONCE = 64  # in such a product: fewer cost as much, because centroids are read again for each
SAFE_NUMBER = 1e9  # sums of squares of such rows are numbers of float32
MEANS_AT_ONCE = 128  # clusters whose rows are gathered and summed


class WideStart(NamedTuple):
    """Centroids, the cluster of each row of the sample, and rows far from all centroids."""

    centres: Array
    labels: Array
    spare: Array


def start_of(rows: Array, k: int, spare: int, rng: np.random.Generator, weights: Array | None = None) -> WideStart:
    """k centroids for rows about their origin, and `spare` rows far from all of them, to which clusters that become
    empty may go."""
    rules = active().starts
    unit = _unit(rows)
    if unit != 1.0:
        found = start_of(rows * rows.dtype.type(1.0 / unit), k, spare, rng, weights)
        return WideStart(found.centres * unit, found.labels, found.spare * unit)
    short = np.asarray(rows @ _directions(rows), dtype=np.float32)
    own = None if weights is None else weights.astype(np.float32)
    if k < rules.wide_two_levels_from_clusters:
        chosen = _spread_out(short, k, rng, own)
        centres, labels = _lloyd(short, short[chosen], own, rules.wide_passes)
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
    rules = active().starts
    groups = max(round(np.sqrt(k)), 1)
    middles, group_of = _lloyd(rows, rows[_spread_out(rows, groups, rng, weights)], weights, rules.wide_passes)
    squared = ((rows - middles[group_of]) ** 2).sum(axis=1, dtype=np.float64)
    scatter = np.bincount(group_of, squared if weights is None else squared * weights, minlength=groups)
    wanted = _divided(scatter, np.bincount(group_of, minlength=groups), k)
    order = np.argsort(group_of, kind="stable")
    edges = np.concatenate([[0], np.cumsum(np.bincount(group_of, minlength=groups))])
    members = [order[low:high] for low, high in pairwise(edges)]
    generators = rng.spawn(groups)

    def divide(some: slice) -> tuple[Array, Array]:
        """Rows that the centroids of a group began as, and these centroids."""
        ids, count = members[some.start], int(wanted[some.start])
        inside, own = rows[ids], None if weights is None else weights[ids]
        first = _spread_out(inside, count, generators[some.start], own) if count else np.empty(0, np.intp)
        return ids[first], _lloyd(inside, inside[first], own, rules.wide_passes)[0] if count else inside[:0]

    chosen, centres = zip(*in_parts(groups, 1, divide), strict=True)
    found = np.concatenate(centres)
    near = _neighbours(middles, wanted)
    labels = _nearest_of_some(rows, found, members, near)
    group_of_centre = np.repeat(np.arange(groups), wanted)
    for _ in range(rules.wide_refining_passes):
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
    places = np.unique(
        _spread_out(rows, max(int(active().starts.wide_relocated_part * len(centres)), 1), rng, weights, squared)
    )
    moved = squared_distances_of(rows, squared_lengths(rows), places)
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
    most = min(active().starts.wide_neighbouring_groups, int((wanted > 0).sum()))
    nearest = np.argpartition(apart, most - 1, axis=1)[:, :most]
    return [np.concatenate([np.arange(ends[j] - wanted[j], ends[j]) for j in np.sort(some)]) for some in nearest]


def _nearest_of_some(rows: Array, centres: Array, members: list[Array], near: list[Array]) -> Array:
    """The nearest centroid of each row among those of the groups near its own."""
    labels = np.empty(len(rows), np.intp)

    def fill(group: slice) -> None:
        ids, some = members[group.start], near[group.start]
        if len(ids):
            labels[ids] = some[_nearest(rows[ids], centres[some])]

    in_parts(len(members), 1, fill)
    return labels


def follow(rows: Array, centres: Array, spare: int, rng: np.random.Generator, weights: Array | None) -> WideStart:
    """The same for centroids that are given, and a spare row for each of them that is nearest to no row.

    Products are along the directions of the rows, lengths are those of all columns: a centroid may be far from every
    row across these directions.
    """
    unit = _unit(rows)
    if unit != 1.0:
        smaller = rows.dtype.type(1.0 / unit)
        found = follow(rows * smaller, centres * (1.0 / unit), spare, rng, weights)
        return WideStart(centres, found.labels, found.spare * unit)
    directions = _directions(rows)
    short, near = (np.asarray(a @ directions, dtype=np.float32) for a in (rows, centres))
    own = None if weights is None else weights.astype(np.float32)
    labels = _nearest(short, near, squared_lengths(centres).astype(np.float32))
    far = _far(short, near, labels, spare, rng, own)
    squared, lengths = squared_lengths(rows - centres[labels]), squared_lengths(rows)

    def distances(some: Array, chosen: Array) -> Array:
        return squared_distances_of(short[some], lengths[some], chosen)

    places = places_of_useless(labels, squared, len(centres), distances, rng, own)
    return WideStart(centres, labels, rows[np.concatenate([far, places])])


def means(rows: Array, labels: Array, otherwise: Array, weights: Array | None) -> Array:
    """The mean of the rows of each cluster; `otherwise` where it has none. Rows are summed in the order of clusters."""
    order = np.argsort(labels, kind="stable")
    filled, begin = np.unique(labels[order], return_index=True)
    mass = np.bincount(labels, weights, minlength=len(otherwise))[filled]
    found, edges = np.array(otherwise), np.append(begin, len(order))

    def fill(some: slice) -> None:
        own = order[edges[some.start] : edges[some.stop]]
        part = rows[own] if weights is None else rows[own] * weights[own, None]
        sums = np.add.reduceat(part, edges[some] - edges[some.start], axis=0)
        found[filled[some]] = sums / mass[some, None]

    in_parts(len(filled), MEANS_AT_ONCE, fill)
    return found


def _unit(rows: Array) -> float:
    """A power of two by which rows are divided, so that products and squares of them are numbers of float32; 1 where
    they are without it."""
    largest = float(np.abs(rows).max(initial=0.0))
    if not 0 < largest < np.inf or 1 / SAFE_NUMBER < largest < SAFE_NUMBER:
        return 1.0
    return float(2.0 ** np.floor(np.log2(largest)))


def _directions(rows: Array) -> Array:
    rules = active().starts
    return leading_directions(rows[:: max(len(rows) // rules.wide_basis_rows, 1)], rules.wide_directions).astype(
        rows.dtype
    )


def _nearest(rows: Array, centres: Array, lengths: Array | None = None) -> Array:
    """The nearest centroid of each row; `lengths` are the squared ones of centroids where these are shortened."""
    half = 0.5 * (squared_lengths(centres) if lengths is None else lengths)

    def nearest(some: slice) -> Array:
        products = np.asarray(rows[some] @ centres.T)
        np.subtract(half, products, out=products)
        return np.asarray(products.argmin(axis=1))

    size = max(active().starts.wide_products_at_once // len(centres), FEWEST_ROWS_AT_ONCE)
    return np.concatenate(in_parts(len(rows), size, nearest))


def _far(
    rows: Array, centres: Array, labels: Array, count: int, rng: np.random.Generator, weights: Array | None
) -> Array:
    """Numbers of rows that k-means++ would take next."""
    return _spread_out(rows, count, rng, weights, squared_lengths(rows - centres[labels]))


def _spread_out(
    rows: Array, count: int, rng: np.random.Generator, weights: Array | None, least: Array | None = None
) -> Array:
    """Numbers of `count` rows by k-means++, several at a time; `least` are squared distances to what there is."""
    norms = squared_lengths(rows)
    return spread_out(len(rows), count, lambda chosen: squared_distances_of(rows, norms, chosen), rng, weights, least)
