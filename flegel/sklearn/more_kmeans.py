"""Mini-batch and bisecting k-means with the interface of scikit-learn's. Never computes what the engine computes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances

from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans as BisectingAlgorithm
from flegel.algorithms.seeding import squared_lengths
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.kmeans import KMeans, finitely_squared

STRATEGIES = {"biggest_inertia": "inertia", "largest_cluster": "size"}


class MiniBatchKMeans(KMeans):
    """K-means whose centres are made anew after each `batch_size` rows. Parameters as in scikit-learn.

    Unlike scikit-learn's, the means are those of all rows so far, each counted once with its present cluster, so that
    the fit ends at the clusters of `KMeans`. `tol=0`: the algorithm's own. `max_iter`: passes over the rows.
    `n_steps_`: batches. `compute_labels`, `max_no_improvement`, `init_size` and `reassignment_ratio` change nothing:
    labels are always there, and starts and empty clusters are those of `KMeans`. Further parameters as in `KMeans`.
    """

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        init: Any = "k-means++",
        max_iter: int = 100,
        batch_size: int = 1024,
        verbose: int = 0,
        compute_labels: bool = True,
        random_state: Any = None,
        tol: float | None = 0.0,
        max_no_improvement: int | None = 10,
        init_size: int | None = None,
        n_init: Any = "auto",
        reassignment_ratio: float = 0.01,
        metric: str = "euclidean",
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            verbose=verbose,
            random_state=random_state,
            metric=metric,
            workers=workers,
            sync=sync,
            cluster=cluster,
            target=target,
        )
        self.batch_size = batch_size
        self.compute_labels = compute_labels
        self.max_no_improvement = max_no_improvement
        self.init_size = init_size
        self.reassignment_ratio = reassignment_ratio

    _drawn_starts = 3  # as in scikit-learn

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MiniBatchKMeans:
        """Train on all rows, batch by batch."""
        self._check_number("batch_size", 1)
        super().fit(X, y, sample_weight)
        return self

    def _sync(self, partial: bool = False) -> str:
        return super()._sync(partial) if partial or self.sync is not None else "bsp-mini"

    def _train(self, algorithm: Any, X: Any, *given: Any, **options: Any) -> Any:
        if options.get("tolerance") is None and not self.tol:
            options["tolerance"] = algorithm.learning.tolerance
        self._batches = -(-X.shape[0] // self.batch_size) if self._sync("passes" in options) == "bsp-mini" else None
        result = super()._train(algorithm, X, *given, **options)
        self.n_steps_ = result.iterations
        return result

    def _job_options(self) -> dict[str, Any]:
        options = super()._job_options()
        return options if self._batches is None else {**options, "batches": self._batches}


class BisectingKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, EngineEstimator):  # type: ignore[misc]
    """Clusters by splits in two. Parameters as in scikit-learn; `init`, `copy_x` and `algorithm` change nothing: each
    split begins with the best of `n_init` starts by k-means++ on a sample, which decides which cluster is split; then
    all rows are trained. `tol`: the fit ends when a pass over the rows changes the inertia by less, relatively.
    `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this inertia.
    """

    _warns = False

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "random",
        n_init: int = 1,
        random_state: Any = None,
        max_iter: int = 300,
        verbose: int = 0,
        tol: float | None = 1e-4,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        bisecting_strategy: str = "biggest_inertia",
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.tol = tol
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.bisecting_strategy = bisecting_strategy
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> BisectingKMeans:
        """Train on all rows."""
        X = self._rows(X, reset=True)
        weights = self._weights(sample_weight, X)
        k = self._check_number("n_clusters", 1, X.shape[0])
        if self.bisecting_strategy not in [*STRATEGIES]:
            raise ValueError(f"bisecting_strategy must be one of {list(STRATEGIES)}, not {self.bisecting_strategy!r}.")
        algorithm = BisectingAlgorithm(
            k=k, split=STRATEGIES[self.bisecting_strategy], n_init=self._check_number("n_init", 1)
        )
        self._set_from(self._train(algorithm, X, None, weights).parameter, algorithm, X.dtype)
        self.labels_ = self._walked(X)
        self.inertia_ = self._inertia(X, self.labels_, weights)
        if (found := len(np.unique(self.labels_))) < k:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters ({k}). Possibly due to duplicate "
                "points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self._theta = parameter
        self.cluster_centers_ = np.ascontiguousarray(parameter.centroids, dtype=dtype)
        return True

    def _walked(self, X: Any) -> Array:
        return BisectingAlgorithm(k=len(self.cluster_centers_)).predict(X, self._theta)

    def _inertia(self, X: Any, labels: Array, weights: Array | None) -> float:
        X, centres = finitely_squared(X, self.cluster_centers_)
        each = squared_lengths(X - centres[labels])
        return float(each.sum(dtype=np.float64) if weights is None else weights @ each)

    def predict(self, X: Any) -> Array:
        """The cluster of each row, by the splits from the first to the last."""
        return self._walked(self._new_rows(X))

    def transform(self, X: Any) -> Array:
        """The distance of each row to every centre."""
        X = self._new_rows(X)
        return np.asarray(euclidean_distances(*finitely_squared(X, self.cluster_centers_)), dtype=X.dtype)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the inertia of these rows."""
        X = self._new_rows(X)
        return -self._inertia(X, self._walked(X), self._weights(sample_weight, X))

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)
