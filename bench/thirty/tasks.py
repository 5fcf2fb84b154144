"""The thirty tasks: a table and an algorithm each, the estimators of both sides with default settings, and what a
trained model is worth. One function computes that for both sides, from the attributes that both have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.thirty import tables
from bench.thirty.tables import Rows

CHUNK = 8192  # rows evaluated at a time
SWEEPS = 60  # of coordinate descent, by which the weights of a factorization are found
WITHIN = {"kmeans": 1e-3, "gmm": 1e-3, "nmf": 1e-3, "lr": 1e-4}
"""By how much, relatively, the median of ours may be above the peer's; less where the problem is convex."""


class Task(NamedTuple):
    """One line of the table."""

    algorithm: str
    table: Callable[[], Rows | None]
    settings: dict[str, Any]
    """What nobody can leave out: the number of clusters, components or factors, and the shape of covariances."""

    @property
    def name(self) -> str:
        shape = self.settings.get("covariance_type", "")
        return "-".join(filter(None, [self.algorithm, shape, self.table.__name__]))


def _clusters(table: Callable[[], Rows | None], k: int) -> Task:
    return Task("kmeans", table, {"n_clusters": k})


def _mixture(table: Callable[[], Rows | None], k: int, shape: str) -> Task:
    return Task("gmm", table, {"n_components": k, "covariance_type": shape})


def _classes(table: Callable[[], Rows | None]) -> Task:
    return Task("lr", table, {})


def _factors(table: Callable[[], Rows | None], rank: int) -> Task:
    return Task("nmf", table, {"n_components": rank})


TASKS = {
    task.name: task
    for task in (
        _clusters(tables.htru2, 8),
        _clusters(tables.kdd99, 23),
        _clusters(tables.skin, 10),
        _clusters(tables.higgs, 10),
        _clusters(tables.flights, 10),
        _clusters(tables.diamonds, 8),
        _clusters(tables.weather, 8),
        _clusters(tables.fashion, 10),
        _clusters(tables.text, 20),
        _clusters(tables.embeddings, 40),
        _mixture(tables.htru2, 5, "full"),
        _mixture(tables.htru2, 5, "diag"),
        _mixture(tables.higgs, 5, "full"),
        _mixture(tables.higgs, 8, "diag"),
        _mixture(tables.skin, 6, "full"),
        _mixture(tables.weather_smooth, 6, "diag"),
        _mixture(tables.diamond_sizes, 5, "full"),
        _mixture(tables.penguin_sizes, 3, "full"),
        _classes(tables.htru2),
        _classes(tables.kdd99),
        _classes(tables.adult),
        _classes(tables.fashion),
        _classes(tables.text),
        _classes(tables.diamonds),
        _classes(tables.embeddings),
        _classes(tables.botnet),
        _factors(tables.ml100k, 10),
        _factors(tables.movielens, 10),
        _factors(tables.fashion, 10),
        _factors(tables.jester, 5),
    )
}
SMALL = {task.name: task for task in (_clusters(tables.tiny, 3), _mixture(tables.tiny, 3, "full"))}
"""Tasks that tests run."""
MORE = {
    task.name: task
    for task in (
        _clusters(tables.planes, 8),
        _clusters(tables.penguins, 3),
        _clusters(tables.seattle, 5),
        _clusters(tables.botnet, 8),
        _clusters(tables.digits, 10),
        _clusters(tables.tumours, 5),
        _clusters(tables.weather_smooth, 12),
        _clusters(tables.diamond_sizes, 12),
        _clusters(tables.jester, 10),
        _clusters(tables.adult, 10),
        _mixture(tables.seattle, 4, "full"),
        _mixture(tables.tumours, 3, "diag"),
        _mixture(tables.tumours, 2, "full"),
        _mixture(tables.weather_smooth, 6, "full"),
        _mixture(tables.diamond_sizes, 8, "diag"),
        _mixture(tables.penguin_sizes, 3, "diag"),
        _mixture(tables.skin, 8, "diag"),
        _mixture(tables.jester, 4, "diag"),
    )
}
"""Further tables, for starts: named on the command line, not part of the thirty."""


def known(name: str) -> Task:
    return {**TASKS, **SMALL, **MORE}[name]


def estimators(task: Task, seed: int) -> tuple[Any, Any]:
    """Ours and the peer's, untrained."""
    from sklearn.cluster import KMeans as PeerKMeans
    from sklearn.decomposition import NMF as PeerNMF
    from sklearn.linear_model import LogisticRegression as PeerLogisticRegression
    from sklearn.mixture import GaussianMixture as PeerMixture

    from flegel.sklearn import NMF, GaussianMixture, KMeans, LogisticRegression

    pairs: dict[str, tuple[Any, Any]] = {
        "kmeans": (KMeans, PeerKMeans),
        "gmm": (GaussianMixture, PeerMixture),
        "lr": (LogisticRegression, PeerLogisticRegression),
        "nmf": (NMF, PeerNMF),
    }
    ours, theirs = pairs[task.algorithm]
    return ours(random_state=seed, **task.settings), theirs(random_state=seed, **task.settings)


def value(task: Task, rows: Rows, model: Any) -> float:
    """What training minimizes, over all rows, in float64."""
    measures = {"kmeans": _inertia, "gmm": _surprise, "lr": _loss, "nmf": _misfit}
    return measures[task.algorithm](rows, model)


def gap(task: Task, ours: float, theirs: float) -> float:
    """How much worse ours is, relatively. Of a log-likelihood, whose zero means nothing: at least of 1 nat a row."""
    least = 1.0 if task.algorithm == "gmm" else 1e-300
    return (ours - theirs) / max(abs(theirs), least)


def _parts(rows: Any) -> Any:
    count = rows.shape[0]
    for at in range(0, count, CHUNK):
        part = rows[at : at + CHUNK]
        yield slice(at, at + CHUNK), part.astype(np.float64)


def _dense(product: Any) -> Any:
    return np.asarray(product)


def _squares(part: Any) -> Any:
    return np.asarray(part.multiply(part).sum(axis=1)).ravel() if hasattr(part, "multiply") else (part**2).sum(axis=1)


def _inertia(rows: Rows, model: Any) -> float:
    """Σ ‖x − nearest centre‖²."""
    centres, total = np.asarray(model.cluster_centers_, np.float64), 0.0
    middle = 0.0 if hasattr(rows.features, "multiply") else centres.mean(axis=0)
    for _, part in _parts(rows.features):
        near, at = (part, centres) if hasattr(part, "multiply") else (part - middle, centres - middle)
        squared = _squares(near)[:, None] - 2.0 * _dense(near @ at.T) + (at**2).sum(axis=1)
        total += float(np.maximum(squared.min(axis=1), 0.0).sum())
    return total


def _surprise(rows: Rows, model: Any) -> float:
    """− mean log-likelihood of a row."""
    weights, means = np.asarray(model.weights_, np.float64), np.asarray(model.means_, np.float64)
    covariances, total = np.asarray(model.covariances_, np.float64), 0.0
    matrices = covariances if covariances.ndim == 3 else np.stack([np.diag(c) for c in covariances])
    factors = np.linalg.cholesky(matrices)
    inverse = np.linalg.inv(factors)
    level = np.log(np.maximum(weights, 1e-300)) - 0.5 * means.shape[1] * np.log(2 * np.pi)
    level -= np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    for _, part in _parts(rows.features):
        each = [level[j] - 0.5 * (((part - means[j]) @ inverse[j].T) ** 2).sum(axis=1) for j in range(len(weights))]
        total += float(np.logaddexp.reduce(np.stack(each), axis=0).sum())
    return -total / rows.features.shape[0]


def _loss(rows: Rows, model: Any) -> float:
    """Mean log loss and ‖w‖² / (2 C n), with C = 1."""
    weights, bias, total = np.asarray(model.coef_, np.float64), np.asarray(model.intercept_, np.float64), 0.0
    for place, part in _parts(rows.features):
        scores = _dense(part @ weights.T) + bias
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        own = scores[np.arange(len(scores)), rows.labels[place]]
        total += float((np.logaddexp.reduce(scores, axis=1) - own).sum())
    return (total + 0.5 * float((weights**2).sum())) / rows.features.shape[0]


def _misfit(rows: Rows, model: Any) -> float:
    """½ ‖X − W·H‖² over all entries, with the W that fits H best."""
    H, total = np.asarray(model.components_, np.float64), 0.0
    gram = H @ H.T
    for _, part in _parts(rows.features):
        ends = _dense(part @ H.T)
        W = np.maximum(np.linalg.lstsq(gram, ends.T, rcond=None)[0].T, 0.0)
        for _ in range(SWEEPS):
            for f in np.flatnonzero(np.diagonal(gram) > 0):
                W[:, f] = np.maximum(W[:, f] + (ends[:, f] - W @ gram[:, f]) / gram[f, f], 0.0)
        total += float(_squares(part).sum() - 2.0 * (W * ends).sum() + ((W @ gram) * W).sum())
    return 0.5 * total
