"""K-means with limits on the sizes of clusters, with the interface of `k_means_constrained.KMeansConstrained`.

Never computes what the engine's algorithm computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from flegel.algorithms.clusters.sized_kmeans import PricedCentroids, SizedKMeans
from flegel.configuration.sources import settings_outside
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator


class KMeansConstrained(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, EngineEstimator):  # type: ignore[misc]
    """Clusters around means, each with at least `size_min` and at most `size_max` rows (None: no such limit).

    The sizes of `labels_` hold exactly: they are the best assignment to `cluster_centers_` within the limits. `predict`
    knows nothing of other rows, so it goes by distance and price (`prices_`): a row belongs to the cluster where the
    squared distance plus the price is least. `init`: k-means++, random, or an array of centres. `n_init`: starts that
    are tried on a sample ("auto": 3). `tol`: the fit ends when a pass over the rows changes the objective by less,
    relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this
    objective.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        size_min: int | None = None,
        size_max: int | None = None,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float | None = 1e-5,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.size_min = size_min
        self.size_max = size_max
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None) -> KMeansConstrained:
        """Train; rows count once each."""
        X = self._rows(X, reset=True)
        k = self._check_number("n_clusters", 1, X.shape[0])
        low = 0 if self.size_min is None else self._check_number("size_min", 0)
        high = X.shape[0] if self.size_max is None else self._check_number("size_max", 1)
        if not k * low <= X.shape[0] <= k * high:
            raise ValueError(
                f"n_samples={X.shape[0]} rows do not fit into {k} clusters of {low} to {high}; change n_clusters, "
                "size_min or size_max."
            )
        init = self.init if isinstance(self.init, str) else np.asarray(self.init, dtype=np.float64)
        starts = (
            settings_outside().starts.estimator_starts if self.n_init == "auto" else self._check_number("n_init", 1)
        )
        algorithm = SizedKMeans(k=k, size_min=self.size_min, size_max=self.size_max, init=init, n_init=starts)
        found = algorithm.settled(X, self._train(algorithm, X).parameter)
        self._set_from(found.parameter, algorithm, X.dtype)
        self.labels_, self.inertia_ = found.labels, found.inertia
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.cluster_centers_ = np.ascontiguousarray(parameter.centroids, dtype=dtype)
        self.prices_ = np.array(parameter.prices)
        return True

    def _model(self) -> tuple[SizedKMeans, PricedCentroids]:
        centres = self.cluster_centers_.astype(np.float64)
        columns, none = centres.shape[1], np.zeros(0)
        theta = PricedCentroids(
            centres, self.prices_, np.zeros(columns), none, np.zeros((0, columns)), none, none, none
        )
        return SizedKMeans(k=len(centres)), theta

    def predict(self, X: Any) -> Array:
        """The cluster of each row by squared distance and price."""
        X = self._new_rows(X)
        algorithm, theta = self._model()
        return algorithm.predict(X, theta)

    def fit_predict(self, X: Any, y: Any = None) -> Array:
        """`labels_`, whose sizes hold."""
        return np.asarray(self.fit(X, y).labels_)

    def transform(self, X: Any) -> Array:
        """The Euclidean distance of each row to every centre."""
        X = self._new_rows(X)
        algorithm, theta = self._model()
        return algorithm.distances(X, theta).astype(X.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sum of squared distances of these rows to the centres of their clusters."""
        X = self._new_rows(X)
        algorithm, theta = self._model()
        return -float(algorithm.assigned(X, theta)[1].sum())

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)
