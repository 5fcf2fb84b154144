"""K-means with the interface of `sklearn.cluster.KMeans`. Never computes what the engine's algorithm computes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.metrics.pairwise import euclidean_distances

from flegel.algorithms.clusters.gap_kmeans import GapCentroids
from flegel.algorithms.clusters.gap_kmeans import GapKMeans as GapAlgorithm
from flegel.algorithms.kmeans.kmeans import Centroids
from flegel.algorithms.kmeans.kmeans import KMeans as Algorithm
from flegel.algorithms.seeding import lloyd_side_by_side, some_weighted
from flegel.algorithms.seeding import prepared as rows_for_products
from flegel.configuration.sources import settings_outside
from flegel.core.gaps import unobserved, with_marks
from flegel.core.pytree import Array
from flegel.core.shard import Sparse, unit_rows
from flegel.sklearn.base import EngineEstimator, for_engine
from flegel.sklearn.rows import prepared

DRAWN_STARTS = 10  # of n_init="auto" where init draws rows, or is a function: as many as in scikit-learn
PASSES_OF_STARTS = 50  # over the sample for each of these, at most, before the best is chosen
MOST_FOUND_CLUSTERS = 50  # of n_clusters="auto"
ROWS_COMPARED_AT_ONCE = 1 << 13  # with their centres
LARGEST_SQUARED = 1e17  # in float32, whose largest number is 3e38: sums of 10,000 such squares are finite


def finitely_squared(*tables: Any) -> list[Any]:
    """The same rows, in float64 where their squares have no numbers in float32."""
    numbers = [table.data if scipy.sparse.issparse(table) else table for table in tables]
    large = any(
        each.dtype == np.float32 and each.size and max(each.max(), -each.min()) > LARGEST_SQUARED for each in numbers
    )
    return [table.astype(np.float64) for table in tables] if large else list(tables)


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, EngineEstimator):  # type: ignore[misc]
    """Clusters around means. Parameters as in scikit-learn; besides:

    `metric`: "cosine" compares angles in place of squared distances (spherical k-means): centres have length 1,
    `inertia_` is Σ (1 − cos), `transform` gives 1 − cos, and the lengths of rows do not count; a row of zeros is as far
    from every centre (½).
    `n_init`: starts that are tried on a sample ("auto": 3); the best is trained on all rows. `tol`: the fit ends when a
    pass over the rows changes the inertia by less, relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see
    `flegel.run`. `target`: the fit ends at this inertia. `algorithm` and `copy_x` are there so that an import is all
    that changes: lloyd and elkan are two ways to the same clusters, ours is a third, and rows are never written to.
    `n_clusters="auto"` finds the number of clusters, up to 50, by the Bayesian information criterion (`n_clusters_`).
    Rows may have gaps (NaN): distances and means are then those of the observed numbers.
    """

    _accepts_sparse = True
    _warns = False
    _drawn_starts = DRAWN_STARTS

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float | None = 1e-6,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        metric: str = "euclidean",
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.metric = metric
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Train; warns as scikit-learn does where there are fewer distinct rows than clusters."""
        X = self._rows(X, reset=True)
        weights = self._weights(sample_weight, X)
        k = 0 if self.n_clusters == "auto" else self._check_number("n_clusters", 1, X.shape[0])
        if self.algorithm not in ("lloyd", "elkan"):
            raise ValueError(f"algorithm must be 'lloyd' or 'elkan', not {self.algorithm!r}.")
        if self.metric not in ("euclidean", "cosine"):
            raise ValueError(f"metric must be 'euclidean' or 'cosine', not {self.metric!r}.")
        if self.algorithm == "elkan" and k == 1:
            warnings.warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._n_init = self._starts()
        starts = (
            self._n_init if self.n_init != "auto" else max(self._n_init, settings_outside().starts.estimator_starts)
        )
        if scipy.sparse.issparse(X) and X.shape[0] * X.shape[1] <= settings_outside().starts.canonical_order_numbers:
            X = X.toarray()  # the bits of dense rows
        if not k:
            centres = self._grown(X, weights)
            k = len(centres)
        elif has_gaps(X):
            if blank := unobserved((~np.isnan(X)).sum(axis=0)):
                raise ValueError(f"Input X contains NaN only in a column: {blank}; leave it out.")
            known = GapAlgorithm(k=k, init=self._start(X, weights), n_init=starts)
            centres = self._train(known, with_marks(X), None, weights).parameter.centroids
        else:
            algorithm = Algorithm(k=k, init=self._start(X, weights), n_init=starts, metric=self.metric)
            centres = self._fitted_centres(algorithm, X, weights)
        self.n_clusters_ = k
        self._finish(X, weights, centres)
        self._counts = self._masses(X, self.labels_, weights, self.cluster_centers_)
        if (found := len(np.unique(self.labels_))) < k:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters ({k}). Possibly due to duplicate "
                "points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Goes on from the present centres: rows are assigned to them, and each centre becomes the mean, or the mean
        direction, of all rows that were ever assigned to it."""
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        if has_gaps(X):
            raise ValueError("Input X contains NaN, which partial_fit does not take; use fit.")
        weights = self._weights(sample_weight, X)
        before = self.cluster_centers_
        labels = self._assigned(X)[0]
        batch = self._passed(X, weights, labels)
        added = self._masses(X, labels, weights, batch)
        self._counts = self._counts + added
        part = np.where(added > 0, added / np.maximum(self._counts, 1e-300), 0.0)[:, None]
        centres = before + part * (batch - before)
        if self.metric == "cosine":
            lengths = np.linalg.norm(centres, axis=1, keepdims=True)
            self._counts = self._counts * lengths[:, 0]
            centres = np.where(lengths > 0, centres / np.where(lengths > 0, lengths, 1.0), before)
        self._finish(X, weights, centres)
        return self

    def _passed(self, X: Any, weights: Array | None, labels: Array) -> Array:
        """Centres after one pass over rows with these labels. The engine takes no fewer rows than centres: with few it
        gets the centres that have some, which are nearest to their rows among these too."""
        present, counted = self._parameter(), slice(None) if weights is None else weights > 0
        own = np.unique(labels[counted])
        if len(labels[counted]) >= len(present.centroids):
            own = np.arange(len(present.centroids))
        start = present._replace(centroids=present.centroids[own])
        algorithm = Algorithm(k=len(own), metric=self.metric)
        passed = present.centroids.copy()
        passed[own] = self._fitted_centres(algorithm, X, weights, start=start, passes=1)
        return passed

    def _rows(self, X: Any, *, reset: bool, **options: Any) -> Any:
        """Checked rows; dense ones may have gaps (NaN), which only squared distances know."""
        rows = super()._rows(X, reset=reset, ensure_all_finite="allow-nan", **options)
        values = rows.data if scipy.sparse.issparse(rows) else rows
        if (values is not rows or self.metric != "euclidean") and np.isnan(values).any():
            raise ValueError(
                f"Input X contains NaN, which {type(self).__name__} knows as gaps only in dense rows with "
                "metric='euclidean'; fill the gaps in, for example with sklearn.impute.SimpleImputer."
            )
        return rows

    def _grown(self, X: Any, weights: Array | None) -> Array:
        """Centres whose number is found."""
        if self.metric != "euclidean" or has_gaps(X):
            raise ValueError("n_clusters='auto' takes rows without NaN, and metric='euclidean'; give a number.")
        from flegel.algorithms.clusters.auto_kmeans import AutoKMeans as AutoAlgorithm  # needs the compiler

        most = min(MOST_FOUND_CLUSTERS, X.shape[0])
        rows = X.toarray() if scipy.sparse.issparse(X) else X
        algorithm = AutoAlgorithm(k_max=most)
        found = self._train(algorithm, rows, None, weights).parameter
        if algorithm.limited(found):
            warnings.warn(
                f"The limit of {most} clusters of n_clusters='auto' binds: more would lower the criterion. Set "
                f"n_clusters to a number, or use flegel.run with AutoKMeans(k_max={2 * most}) or more.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return algorithm.centres(found)

    def _starts(self) -> int:
        """How many starts are tried, as scikit-learn has it; centres that are given are one. By k-means++ several are
        tried on a sample even so, because there they cost little."""
        if not (isinstance(self.init, str) or callable(self.init)):
            return 1
        if self.n_init != "auto":
            return self._check_number("n_init", 1)
        return 1 if self.init == "k-means++" else self._drawn_starts

    def _start(self, X: Any, weights: Array | None) -> Any:
        """The start as the algorithm takes it: a name, or centres: given, drawn, or from a function."""
        plain = self.metric == "euclidean" and not scipy.sparse.issparse(X) and not has_gaps(X)
        if callable(self.init):
            from sklearn.utils import check_random_state

            draws, tried = check_random_state(self.random_state), self._n_init if plain else 1
            drawn = [np.asarray(self.init(X, self.n_clusters, random_state=draws), float) for _ in range(tried)]
            return self._best_start(X, weights, [self._checked(start, X.shape[1]) for start in drawn])
        if isinstance(self.init, str):
            if self.init not in ("k-means++", "random"):
                raise ValueError(f"init must be 'k-means++', 'random', an array or a function, not {self.init!r}.")
            if self.init == "random" and self._n_init > 1 and plain:
                rows, rng = prepared(X, None, weights, self.n_clusters), np.random.default_rng(self._seed())
                chances = None if rows.weights is None else rows.weights / rows.weights.sum()
                places = [
                    rng.choice(len(rows.features), self.n_clusters, replace=False, p=chances)
                    for _ in range(self._n_init)
                ]
                return self._best_start(X, weights, [rows.features[chosen].astype(np.float64) for chosen in places])
            return self.init
        start = np.asarray(self.init, dtype=np.float64)
        return self._checked(start, X.shape[1])

    def _best_start(self, X: Any, weights: Array | None, starts: list[Array]) -> Array:
        """Of several centres those that lead to the least inertia in some passes over a sample."""
        if len(starts) == 1:
            return starts[0]
        rows, rules = prepared(X, None, weights, self.n_clusters), settings_outside().starts
        rng = np.random.default_rng(self._seed())
        some, own = some_weighted(rows.features.astype(np.float64), rows.weights, rules.kmeans_most_trial_rows, rng)
        middle = some.mean(axis=0)
        tried = lloyd_side_by_side(rows_for_products(some - middle), np.stack(starts) - middle, PASSES_OF_STARTS, own)
        return starts[int(np.argmin([each.squared_distances for each in tried]))]

    def _checked(self, start: Array, columns: int) -> Array:
        """Initial centres of the right shape; warns as scikit-learn does that several starts are not tried with
        them."""
        what = f"The shape of the initial centers {start.shape} does not match the number of"
        if start.shape[:1] != (self.n_clusters,):
            raise ValueError(f"{what} clusters {self.n_clusters}.")
        if start.shape[1:] != (columns,):
            raise ValueError(f"{what} features of the data {columns}.")
        if not isinstance(self.n_init, str) and self.n_init != 1 and not callable(self.init):
            warnings.warn(
                "Explicit initial center position passed: performing only one init in KMeans instead of "
                f"n_init={self.n_init}.",
                RuntimeWarning,
                stacklevel=4,
            )
        return start

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        centres = algorithm.centres(parameter) if hasattr(algorithm, "centres") else parameter.centroids
        self.cluster_centers_ = np.ascontiguousarray(centres, dtype=dtype)
        self.n_clusters_ = len(centres)
        return True

    def _fitted_centres(self, algorithm: Algorithm, X: Any, weights: Array | None, **options: Any) -> Array:
        if scipy.sparse.issparse(X) and not algorithm.accepts.sparse:
            X = X.toarray()
        result = self._train(algorithm, X, None, weights, **options)
        if self.verbose:
            self._tell(result)
        return np.asarray(result.parameter.centroids)

    def _tell(self, result: Any) -> None:
        """The lines of scikit-learn, one for each update."""
        print("Initialization complete")
        values = [row["objective"] for row in result.rows]
        for i, value in enumerate(values):
            print(f"Iteration {i}, inertia {value}.")
        if len(values) > 1 and values[-1] == values[-2]:
            print(f"Converged at iteration {len(values) - 1}: strict convergence.")

    def _finish(self, X: Any, weights: Array | None, centres: Array) -> None:
        self.cluster_centers_ = np.ascontiguousarray(centres, dtype=X.dtype)
        self.labels_, costs = self._assigned(X)
        self.inertia_ = float(costs.sum() if weights is None else weights @ costs)

    def _masses(self, X: Any, labels: Array, weights: Array | None, centres: Array) -> Array:
        """What each centre rests on: the weight of its rows, or the length of the sum of their directions, which is
        Σ cos with the centre."""
        mass = weights
        if self.metric == "cosine":
            along = cosines(X, labels, centres)
            mass = along if weights is None else weights * along
        return np.bincount(labels, mass, minlength=len(centres)).astype(np.float64)

    def _assigned(self, X: Any) -> tuple[Array, Array]:
        """Cluster of each row, and what it adds to the inertia where it weighs 1."""
        centres = self.cluster_centers_
        if self.metric == "cosine":
            return self._model().assigned(for_engine(X), self._parameter())
        if has_gaps(X):
            squared = self._with_gaps(X)
            return squared.argmin(axis=1).astype(np.int32), squared.min(axis=1)
        if not scipy.sparse.issparse(X):  # about the centres' mean, so that a large mean costs no digits
            middle = centres.mean(axis=0, dtype=np.float64).astype(X.dtype)
            X, centres = X - middle, centres - middle
        labels, distances = pairwise_distances_argmin_min(*finitely_squared(X, centres))
        return labels.astype(np.int32), distances.astype(np.float64) ** 2

    def _with_gaps(self, X: Array) -> Array:
        """Squared distances to all centres over the observed numbers."""
        centres = self.cluster_centers_.astype(np.float64)
        theta = GapCentroids(centres, centres.mean(axis=0), np.zeros(1))
        return GapAlgorithm(k=len(centres)).squared_distances(X, theta)

    def _model(self) -> Algorithm:
        return Algorithm(k=len(self.cluster_centers_), metric=self.metric)

    def _parameter(self) -> Centroids:
        centres = self.cluster_centers_.astype(np.float64)
        return Centroids(centres, np.zeros(centres.shape[1]))

    def predict(self, X: Any) -> Array:
        """The nearest cluster of each row."""
        return self._assigned(self._new_rows(X))[0]

    def transform(self, X: Any) -> Array:
        """The distance of each row to every centre: Euclidean, or 1 − cos."""
        X = self._new_rows(X)
        if self.metric == "cosine":
            return self._model().distances(for_engine(X), self._parameter()).astype(X.dtype)
        if has_gaps(X):
            return np.sqrt(self._with_gaps(X)).astype(X.dtype)
        return np.asarray(euclidean_distances(*finitely_squared(X, self.cluster_centers_)), dtype=X.dtype)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the inertia of these rows."""
        X = self._new_rows(X)
        costs = self._assigned(X)[1]
        weights = self._weights(sample_weight, X)
        return float(-(costs.sum() if weights is None else weights @ costs))

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.metric == "euclidean"
        return tags


def has_gaps(X: Any) -> bool:
    """Some number of dense rows is NaN; their sum tells of most tables that none is."""
    return not scipy.sparse.issparse(X) and bool(np.isnan(X.sum()) and np.isnan(X).any())


def cosines(X: Any, labels: Array, centres: Array) -> Array:
    """The cosine of each row with the centre of its label; 0 for a row of zeros. No copy of all rows is made."""
    found = np.empty(len(labels))
    for at in range(0, len(labels), ROWS_COMPARED_AT_ONCE):
        own = labels[at : at + ROWS_COMPARED_AT_ONCE]
        part = unit_rows(for_engine(X[at : at + len(own)]))
        if isinstance(part, Sparse):
            row = np.repeat(np.arange(len(own)), np.diff(part.indptr))
            values = part.values * centres[own[row], part.indices]
            found[at : at + len(own)] = np.bincount(row, values, minlength=len(own))
        else:
            found[at : at + len(own)] = np.einsum("ij,ij->i", part, centres[own])
    return found
