"""Rows to clusters at the least total cost where the sizes of clusters are limited: a transport problem, exactly.

Each cluster has a price, and a row goes where its cost plus the price is least. At the best prices the sizes hold but
for a few rows that are indifferent. Newton's method finds such prices nearly; then shortest paths from clusters with
too many rows to those with too few move single rows, and the result is the optimum. Never knows what the costs are.

Reference: J. Kitagawa, Q. Mérigot, B. Thibert, Convergence of a Newton algorithm for semi-discrete optimal transport
(2019); R. Ahuja, T. Magnanti, J. Orlin, Network Flows (1993), section 9.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.code_cache import njit
from flegel.core.pytree import Array


class Sizes(NamedTuple):
    """The least and the greatest size of each cluster."""

    low: Array
    high: Array

    def targets(self, counts: Array, prices: Array) -> Array:
        """What each cluster should have: at a price above 0 all that it may, below 0 all that it must."""
        free = np.clip(counts, self.low, self.high)
        return np.asarray(np.where(prices > 0, self.high, np.where(prices < 0, self.low, free)))


class Assignment(NamedTuple):
    """The cluster of each row, and prices by which no row would rather be elsewhere."""

    labels: Array
    prices: Array


def assign(costs: Array, prices: Array, sizes: Sizes) -> Assignment:
    """The assignment of least total cost, `costs` (rows, clusters), within sizes that are whole numbers and can hold.

    `prices` are where the search begins; the nearer to the best ones, the sooner it ends.
    """
    rules = active().sizes
    labels, band = np.empty(len(costs), np.int32), rules.first_band * float(costs.mean()) + 1e-300
    found, fewest, fruitless, before = prices, np.inf, 0, np.inf
    for _ in range(rules.most_newton_steps):
        counts, near = _choose(costs, prices, band, labels)
        wrong = float(np.abs(counts - sizes.targets(counts, prices)).sum())
        fruitless = 0 if wrong < 0.9 * fewest else fruitless + 1
        if wrong < fewest:
            fewest, found = wrong, prices
        if wrong <= max(len(prices), rules.left_to_paths * len(costs)) or fruitless == rules.fruitless_newton_steps:
            break
        prices, band = _newton_step(prices, counts, near, band * (0.5 if wrong > before else 1.0), sizes)
        before = wrong
    counts, _ = _choose(costs, found, band, labels)
    return _repaired(costs, labels, found, counts, sizes)


def _newton_step(prices: Array, counts: Array, near: Array, band: float, sizes: Sizes) -> tuple[Array, float]:
    """Prices after one step on the dual problem, and the band for the next one.

    `near[a, b]`: rows of a whose second choice is b and whose costs differ by less than `band`: so many go from a to b
    if the price of a rises by as much. A step is no longer than the band, because nothing is known beyond it.
    """
    rest = counts - sizes.targets(counts, prices)
    active = (prices != 0) | (rest != 0)
    density = (near + near.T) / band
    slopes = np.diag(density.sum(axis=1) + 0.1 / band) - density  # never singular
    step = np.zeros(len(prices))
    step[active] = np.linalg.solve(slopes[np.ix_(active, active)], rest[active] - active.all() * rest.mean())
    longest = float(np.abs(step).max())
    moved = prices + np.clip(step, -band, band)
    moved[(moved * prices < 0) & (counts >= sizes.low) & (counts <= sizes.high)] = 0.0
    moved += _level(moved, float(counts.sum()), sizes)
    few = near.sum() < 8 * len(prices)
    return moved, band * 1.5 if longest > band or few else max(2.0 * longest, 0.5 * band)


def _level(prices: Array, total: float, sizes: Sizes) -> float:
    """What all prices change by together, which moves no row: the dual value is concave in it, and greatest where its
    slope changes sign. Then only clusters that are full have a price above 0."""
    for at in np.sort(-prices):
        if total - sizes.high[prices + at >= 0].sum() - sizes.low[prices + at < 0].sum() <= 0:
            return float(at)
    return 0.0


@njit(nogil=True, cache=True)
def _choose(costs, prices, band, labels):
    """Writes the cheapest cluster of each row; counts, and rows near the border to their second choice."""
    k = len(prices)
    counts, near = np.zeros(k), np.zeros((k, k))
    for i in range(len(costs)):
        best, second, least, next_least = 0, 0, np.inf, np.inf
        for j in range(k):
            cost = costs[i, j] + prices[j]
            if cost < least:
                best, second, least, next_least = j, best, cost, least
            elif cost < next_least:
                second, next_least = j, cost
        labels[i] = best
        counts[best] += 1
        if next_least - least < band:
            near[best, second] += 1
    return counts, near


def _repaired(costs: Array, labels: Array, prices: Array, counts: Array, sizes: Sizes) -> Assignment:
    """Rows moved until all sizes hold. Node k of the graph stands for the limits: a path through it lets one cluster
    have more and another fewer."""
    k = len(prices)
    sizes = Sizes(sizes.low, np.minimum(sizes.high, len(labels)))
    targets = sizes.targets(counts, prices).astype(np.int64)
    low, high = sizes.low.astype(np.int64), sizes.high.astype(np.int64)
    excess = np.append(counts.astype(np.int64) - targets, 0)
    excess[k] = -excess.sum()
    potentials = np.append(prices, 0.0)
    more_to_come = bool((excess != 0).any())
    while more_to_come:
        candidates, full = _candidates(
            costs, labels, int(max(active().sizes.least_candidates, 4 * np.abs(excess).sum() // k))
        )
        more_to_come = _move_rows(costs, labels, potentials, excess, targets, low, high, candidates, full)
    return Assignment(labels, _central(costs, labels, potentials, targets < high, targets > low))


def _central(costs: Array, labels: Array, potentials: Array, may_grow: Array, may_shrink: Array) -> Array:
    """Of all prices that belong to this assignment, some in the middle. Those that paths end with leave rows
    indifferent which the prices alone may put elsewhere; in the middle only equal rows of several clusters are.

    The prices of an assignment are those with p_a ≤ p_b + arc (a, b) for all clusters. Distances to one node are such
    prices, minus the distances from one node too, and so are means of both over all nodes, for which an arc is tight
    only where it is for all such prices. Arcs without a length get one, so that prices stay near those at hand.
    """
    k = len(potentials) - 1
    arcs = np.full((k + 1, k + 1), np.inf)
    _cheapest_moves(costs, labels, arcs)
    arcs[:k, k], arcs[k, :k] = np.where(may_grow, 0.0, np.inf), np.where(may_shrink, 0.0, np.inf)
    lengths = np.maximum(arcs - potentials[:, None] + potentials, 0.0)
    finite = lengths[np.isfinite(lengths)]
    lengths = np.minimum(lengths, finite.max() if finite.any() else 1.0)
    np.fill_diagonal(lengths, 0.0)
    for middle in range(k + 1):
        np.minimum(lengths, lengths[:, middle, None] + lengths[middle], out=lengths)
    moved = potentials + 0.5 * (lengths.mean(axis=1) - lengths.mean(axis=0))
    return np.asarray(moved[:k] - moved[k])


@njit(nogil=True, cache=True)
def _cheapest_moves(costs, labels, arcs):
    """Writes what the cheapest row of each cluster costs more in every other one."""
    for i in range(len(labels)):
        a = labels[i]
        for b in range(costs.shape[1]):
            more = costs[i, b] - costs[i, a]
            if b != a and more < arcs[a, b]:
                arcs[a, b] = more


def _candidates(costs: Array, labels: Array, kept: int) -> tuple[Array, Array]:
    """Of clusters a and b the rows of a that cost least more in b, cheapest first, -1 where there are no more; and
    which clusters have more rows than these."""
    k = costs.shape[1]
    found = np.full((k, k, kept), -1)
    for a in range(k):
        members = np.flatnonzero(labels == a)
        for b in range(k):
            more = costs[members, b] - costs[members, a]
            few = np.argpartition(more, kept)[:kept] if len(more) > kept else np.arange(len(more))
            found[a, b, : len(few)] = members[few[np.argsort(more[few], kind="stable")]]
    return found, np.bincount(labels, minlength=k) > kept


@njit(nogil=True, cache=True)
def _move_rows(costs, labels, potentials, excess, targets, low, high, candidates, full):
    """Successive shortest paths, as long as the candidates last; whether more are needed.

    `potentials` keep the lengths of all arcs at least 0. `candidates[a, b]`: rows of a, cheapest first by what they
    cost more in b; those that have moved since are skipped, and rows that have come since are in `moved`.
    """
    k = len(targets)
    first, moved, count = np.zeros((k, k), np.int64), np.empty(len(labels), np.int64), 0
    listed = np.zeros(len(labels), np.bool_)
    arcs, cheapest = np.full((k + 1, k + 1), np.inf), np.zeros((k, k), np.int64)
    changed = np.ones(k, np.bool_)
    while (excess != 0).any():
        if _renew_arcs(costs, labels, candidates, full, first, moved[:count], changed, arcs, cheapest):
            return True
        changed[:] = False
        arcs[:k, k], arcs[k, :k] = np.where(targets < high, 0.0, np.inf), np.where(targets > low, 0.0, np.inf)
        distance, before, end = _shortest_path(arcs, potentials, excess)
        if end < 0:
            return False  # no path: the limits cannot hold, which callers have checked
        potentials -= np.minimum(distance, distance[end])
        units, begin = -excess[end], end
        while before[begin] >= 0:  # as many rows as cost the same on every arc: equal rows move together
            a, b = before[begin], begin
            if b == k:
                units = min(units, high[a] - targets[a])
            elif a == k:
                units = min(units, targets[b] - low[b])
            else:
                units = min(units, _equal_rows(costs, labels, candidates[a, b], a, b, first[a, b], cheapest[a, b]))
            begin = a
        units = min(units, excess[begin])
        excess[begin] -= units
        excess[end] += units
        while before[end] >= 0:
            a, b = before[end], end
            if b == k:
                targets[a] += units
            elif a == k:
                targets[b] -= units
            else:
                changed[a] = changed[b] = True
                for _ in range(units):
                    i = cheapest[a, b]
                    if units > 1:
                        _skip_moved(labels, candidates[a, b], a, first[a, b : b + 1])
                        i = candidates[a, b, first[a, b]]
                    labels[i] = b
                    if not listed[i]:
                        listed[i], moved[count] = True, i
                        count += 1
            end = a
    return False


@njit(nogil=True, cache=True)
def _renew_arcs(costs, labels, candidates, full, first, moved, changed, arcs, cheapest):
    """Writes what the cheapest row of each changed cluster costs more in every other one; whether candidates are
    missing for that."""
    k, kept, used_up = len(changed), candidates.shape[2], False
    for a in range(k):
        for b in range(k):
            if changed[a] and b != a:
                _skip_moved(labels, candidates[a, b], a, first[a, b : b + 1])
                used_up |= first[a, b] == kept and full[a]
                i = candidates[a, b, first[a, b]] if first[a, b] < kept else -1
                arcs[a, b], cheapest[a, b] = (costs[i, b] - costs[i, a] if i >= 0 else np.inf), i
    for i in moved:
        a = labels[i]
        for b in range(k):
            more = costs[i, b] - costs[i, a]
            if changed[a] and b != a and more < arcs[a, b]:
                arcs[a, b], cheapest[a, b] = more, i
    return used_up


@njit(nogil=True, cache=True)
def _skip_moved(labels, rows, a, first):
    """Advances to the first candidate that is still in cluster a."""
    while first[0] < len(rows) and rows[first[0]] >= 0 and labels[rows[first[0]]] != a:
        first[0] += 1


@njit(nogil=True, cache=True)
def _equal_rows(costs, labels, rows, a, b, first, cheapest):
    """How many candidates cost as much more in b as the cheapest row; 1 where that is no candidate."""
    if first == len(rows) or rows[first] != cheapest:
        return 1
    found, more = 0, costs[cheapest, b] - costs[cheapest, a]
    for i in rows[first:]:
        if i < 0 or (labels[i] == a and costs[i, b] - costs[i, a] > more):
            break
        found += labels[i] == a
    return found


@njit(nogil=True, cache=True)
def _shortest_path(arcs, potentials, excess):
    """Distances from clusters with too many rows, the node before each, and the nearest with too few; -1: none."""
    nodes = len(excess)
    distance, before, done = np.where(excess > 0, 0.0, np.inf), np.full(nodes, -1), np.zeros(nodes, np.bool_)
    while True:
        a = -1
        for j in range(nodes):
            if not done[j] and distance[j] < np.inf and (a < 0 or distance[j] < distance[a]):
                a = j
        if a < 0 or excess[a] < 0:
            return distance, before, a
        done[a] = True
        for b in range(nodes):
            length = distance[a] + max(arcs[a, b] - potentials[a] + potentials[b], 0.0)
            if length < distance[b]:
                distance[b], before[b] = length, a
