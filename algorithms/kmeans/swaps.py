"""Centroids that would be of more use elsewhere, found from the sums of clusters alone. Sees no point.

Lloyd's algorithm often ends with two centroids in one dense group of points and one centroid for two groups. Which
clusters these are is in the statistics: a pair costs little to merge, and the scatter of a cluster is far above the
usual. To let the centroid travel there takes tens of passes; a swap takes it there at once. Whether it was right is for
the caller to find out: a wide group looks like two.
"""

from __future__ import annotations

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array


def swapped(centroids: Array, sums: Array, counts: Array, squares: Array) -> Array | None:
    """The centroids with one of a close pair moved into a wide cluster, by the most promising swap. None where no swap
    promises to lower the objective. All about the origin of the sums."""
    products = len(counts) ** 2 * centroids.shape[1]
    if len(counts) < 3 or products > active().training.swap_products or not (counts > 0).all():
        return None
    means = sums / counts[:, None]
    scatter = np.maximum(squares - counts * (means**2).sum(axis=1), 0.0)
    excess = scatter - counts * float(np.median(scatter / counts))
    found = _most_promising(excess, *_close_pairs(means, counts))
    if found is None:
        return None
    wide, first, second = found
    moved = np.array(centroids, dtype=np.float64)
    moved[first] = (counts[first] * means[first] + counts[second] * means[second]) / (counts[first] + counts[second])
    direction = np.random.default_rng(0).normal(size=moved.shape[1:])  # a few visits turn it to the groups
    step = direction * np.sqrt(excess[wide] / counts[wide] / (direction @ direction))
    moved[second], moved[wide] = centroids[wide] + step, centroids[wide] - step
    return moved


def _close_pairs(means: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Pairs of clusters that cost the least to merge, and that cost (Ward): C_a C_b / (C_a + C_b) · ‖m_a − m_b‖². Of
    each cluster only the nearest one behind it is looked at."""
    norms, clusters = (means**2).sum(axis=1), np.arange(len(counts))
    second, costs = np.zeros(len(counts), np.intp), np.full(len(counts), np.inf)
    for at in range(0, len(counts) - 1, active().kmeans.swap_clusters_at_once):
        own = clusters[at : at + active().kmeans.swap_clusters_at_once]
        apart = np.maximum(norms[own, None] + norms - 2.0 * (means[own] @ means.T), 0.0)
        merged = counts[own, None] * counts / (counts[own, None] + counts) * apart
        merged[own[:, None] >= clusters] = np.inf
        second[own] = merged.argmin(axis=1)
        costs[own] = merged[np.arange(len(own)), second[own]]
    best = np.argsort(costs, kind="stable")[: active().training.swap_candidates]
    best = best[np.isfinite(costs[best])]
    return best, second[best], costs[best]


def _most_promising(excess: Array, first: Array, second: Array, costs: Array) -> tuple[int, int, int] | None:
    """The wide cluster and the close pair by which the objective would fall most."""
    found = [
        (float(excess[wide] - cost), int(wide), int(a), int(b))
        for wide in np.argsort(-excess, kind="stable")[: active().training.swap_candidates]
        for a, b, cost in zip(first, second, costs, strict=True)
        if wide not in (a, b) and excess[wide] > cost
    ]
    return max(found)[1:] if found else None
