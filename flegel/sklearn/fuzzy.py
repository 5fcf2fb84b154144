"""Fuzzy c-means with the interface of scikit-learn, which has none. Never computes what the engine computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from flegel.algorithms.fcm.fcm import FCM, Prototypes
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator


class FuzzyCMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, EngineEstimator):  # type: ignore[misc]
    """Fuzzy clusters: every row belongs to each cluster to a degree (`predict_proba`, `transform`).

    `m`: the fuzzifier. `init`: k-means++, random, or an array of centres. `tol`: the fit ends when a pass over the rows
    changes the objective by less, relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`.
    `target`: the fit ends at this objective.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        m: float = 2.0,
        init: Any = "k-means++",
        max_iter: int = 300,
        tol: float | None = 1e-6,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.m = m
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FuzzyCMeans:
        X = self._rows(X, reset=True)
        k = self._check_number("n_clusters", 1, X.shape[0])
        init = self.init if isinstance(self.init, str) else np.asarray(self.init, dtype=np.float64)
        weights = self._weights(sample_weight, X)
        self._finish(X, weights, self._centres(self._algorithm(k, init), X, weights))
        self._counts = self._masses(X, weights)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FuzzyCMeans:
        """Goes on from the present centres: each becomes the mean of all rows so far, by their memberships."""
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        weights, before = self._weights(sample_weight, X), self.cluster_centers_
        added = self._masses(X, weights)
        none = np.zeros(0)
        start = Prototypes(before.astype(np.float64), np.zeros(before.shape[1]), np.ones(before.shape[1]), none, none)
        batch = self._centres(self._algorithm(len(before)), X, weights, start=start, passes=1)
        self._counts = self._counts + added
        part = (added / np.maximum(self._counts, 1e-300))[:, None]
        self._finish(X, weights, before + part * (batch - before))
        return self

    def _algorithm(self, k: int, init: Any = "k-means++") -> FCM:
        if not self._check_real("m") > 1:
            raise ValueError(f"m must be above 1, not {self.m!r}.")
        return FCM(k=k, m=float(self.m), init=init)

    def _centres(self, algorithm: FCM, X: Any, weights: Array | None, **options: Any) -> Array:
        return np.asarray(self._train(algorithm, X, None, weights, **options).parameter.centroids)

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.cluster_centers_ = np.ascontiguousarray(parameter.centroids, dtype=dtype)
        return True

    def _masses(self, X: Any, weights: Array | None) -> Array:
        """Σ u^m of every cluster."""
        powers = self._memberships(X)[0] ** self.m
        return np.asarray(powers.sum(axis=0) if weights is None else weights @ powers)

    def _finish(self, X: Any, weights: Array | None, centres: Array) -> None:
        self.cluster_centers_ = np.ascontiguousarray(centres, dtype=X.dtype)
        memberships, distances = self._memberships(X)
        self.labels_ = memberships.argmax(axis=1).astype(np.int32)
        each = (memberships**self.m * distances).sum(axis=1)
        self.inertia_ = float(each.sum() if weights is None else weights @ each)

    def _memberships(self, X: Any) -> tuple[Array, Array]:
        """Memberships and squared distances of each row, in float64."""
        centres = self.cluster_centers_.astype(np.float64)
        theta = Prototypes(centres, centres.mean(axis=0), np.ones(centres.shape[1]), np.zeros(0), np.zeros(3))
        return self._algorithm(len(centres)).transform(X, theta)

    def predict(self, X: Any) -> Array:
        """The cluster that each row belongs to most."""
        return np.asarray(self._memberships(self._new_rows(X))[0].argmax(axis=1), dtype=np.int32)

    def predict_proba(self, X: Any) -> Array:
        """The degree to which each row belongs to every cluster; rows sum to 1."""
        X = self._new_rows(X)
        return np.asarray(self._memberships(X)[0], dtype=X.dtype)

    def transform(self, X: Any) -> Array:
        """As `predict_proba`."""
        return self.predict_proba(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the objective of these rows."""
        memberships, distances = self._memberships(self._new_rows(X))
        return float(-(memberships**self.m * distances).sum())

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)
