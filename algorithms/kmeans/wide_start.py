"""Starts of k-means for many centroids of wide rows: on a sample, along its leading directions, by matrix products.

k-means++ and a few passes of Lloyd's algorithm over short rows (`directions`), in float32; centroids are then the means
of whole rows. Distances along 64 directions choose as well as those along 768 columns, at a twelfth of the work.
Never sees the whole data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.core.pytree import Array

DIRECTIONS = 64
BASIS_ROWS = 4096  # rows of the sample from which directions are found
PASSES = 6  # of Lloyd's algorithm over the sample; training goes on from there
CANDIDATES = 3
"""Rows drawn for each centroid, of which the best third is kept: with one the objective after training was 0.6 to 1.5 %
higher, with the 2 + log k of greedy k-means++ no lower."""
BATCH = 256  # candidates whose distances are computed at once, at most
CHUNK = 4096  # rows in a product


class WideStart(NamedTuple):
    """Centroids, the cluster of each row of the sample, and rows far from all centroids."""

    centres: Array
    labels: Array
    spare: Array


def start_of(rows: Array, k: int, spare: int, rng: np.random.Generator, weights: Array | None = None) -> WideStart:
    """k centroids for rows about their origin."""
    short = np.asarray(rows @ _directions(rows), dtype=np.float32)
    own = None if weights is None else weights.astype(np.float32)
    chosen = _spread_out(short, k, rng, own)
    centres, labels = short[chosen], _nearest(short, short[chosen])
    for _ in range(PASSES):
        centres, before = means(short, labels, centres, own), labels
        labels = _nearest(short, centres)
        if np.array_equal(before, labels):
            break
    whole = means(rows, labels, rows[chosen], weights)
    return WideStart(whole, labels, rows[_far(short, centres, labels, spare, rng, own)])


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
