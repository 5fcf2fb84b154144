"""K-modes and k-prototypes with the interface of the library kmodes. Never computes what the engine computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from flegel.algorithms.clusters.kprototypes import KModes as ModesAlgorithm
from flegel.algorithms.clusters.kprototypes import KPrototypes as PrototypesAlgorithm
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator

UNKNOWN = -1.0  # the code of a category that was not in the rows of the training


class KPrototypes(ClusterMixin, EngineEstimator):  # type: ignore[misc]
    """Clusters of rows with numbers and categories: means, and the most frequent category of each column.

    `categorical`: the columns of categories, from 0 (text, or any values); the others are numbers. `gamma`: what a
    category that differs costs beside squared differences; None: half the mean deviation of the columns of numbers.
    `n_init`: starts that are tried on a sample. `tol`: the fit ends when a pass over the rows changes the cost by less,
    relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this cost.
    """

    _warns = False

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        categorical: Any = None,
        gamma: float | None = None,
        n_init: int = 5,
        max_iter: int = 100,
        tol: float | None = 1e-6,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.categorical = categorical
        self.gamma = gamma
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KPrototypes:
        """Train on all rows."""
        X = self._table(X, reset=True)
        k = self._check_number("n_clusters", 1, X.shape[0])
        weights = self._weights(sample_weight, X)
        chosen = self._columns(X.shape[1])
        counted = X if weights is None else X[weights > 0]
        self.categories_ = {t: _distinct(counted[:, t], t) for t in chosen}
        codes = self._codes(X)
        algorithm = self._algorithm(k, chosen)
        self._set_from(self._train(algorithm, codes, None, weights).parameter, algorithm, None)
        costs = algorithm.distances(codes, self._theta)
        self.labels_ = costs.argmin(axis=1).astype(np.int32)
        each = costs.min(axis=1)
        self.cost_ = float(each.sum() if weights is None else weights @ each)
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self._theta, self.gamma_ = parameter, float(parameter.gamma[0])
        self.cluster_centroids_ = self._as_given(parameter.centroids)
        return True

    def _columns(self, columns: int) -> list[int]:
        """The columns of categories, by number; those of a frame may be given by name."""
        given = [] if self.categorical is None else np.atleast_1d(np.asarray(self.categorical, object)).tolist()
        places = {name: t for t, name in enumerate(getattr(self, "feature_names_in_", []))} | {
            t: t for t in range(columns)
        }
        if any(name not in places for name in given):
            raise ValueError(f"categorical={self.categorical!r} names columns that X, with {columns}, does not have.")
        return [places[name] for name in given]

    def _algorithm(self, k: int, chosen: list[int]) -> PrototypesAlgorithm:
        gamma, starts = self.gamma, self._check_number("n_init", 1)
        if gamma is not None:
            self._check_real("gamma", 0, "None")
        return PrototypesAlgorithm(k=k, categorical=chosen, gamma=gamma, n_init=starts)

    def _table(self, X: Any, *, reset: bool) -> Array:
        """Checked rows of anything that is no gap."""
        rows = np.asarray(validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=True))
        if rows.dtype == object and (rows == None).any():  # noqa: E711 - by element
            raise ValueError("Input X contains None, which is a gap; fill it in, such as by the text 'none'.")
        return rows

    def _codes(self, X: Array) -> Array:
        """Rows of numbers: the place of a category among those of its column."""
        found = np.empty(X.shape, np.float64)
        for t in range(X.shape[1]):
            if t not in self.categories_:
                found[:, t] = _numbers(X[:, t], t)
                continue
            known = {value: place for place, value in enumerate(self.categories_[t].tolist())}
            found[:, t] = [known.get(value, UNKNOWN) for value in X[:, t].tolist()]
        return found

    def _as_given(self, centroids: Array) -> Array:
        """Prototypes with categories as they are in the rows."""
        if not self.categories_:
            return np.array(centroids)
        found = centroids.astype(object)
        for t, known in self.categories_.items():
            found[:, t] = known[centroids[:, t].astype(int)]
        return np.asarray(found)

    def predict(self, X: Any) -> Array:
        """The cluster of each row; a category that was not in the rows of the training differs from all."""
        check_is_fitted(self)
        codes = self._codes(self._table(X, reset=False))
        return self._algorithm(len(self._theta.centroids), list(self.categories_)).predict(codes, self._theta)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def _distinct(values: Array, column: int) -> Array:
    try:
        return np.unique(values)
    except TypeError:
        raise ValueError(
            f"Column {column} of X mixes text with other values, which have no order; make all of them text."
        ) from None


def _numbers(values: Array, column: int) -> Array:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Column {column} of X is not one of numbers ({error}); name it in categorical if it holds categories."
        ) from None


class KModes(KPrototypes):
    """Clusters of rows of categories around the most frequent ones; `cost_` is the number of categories that differ.

    Every column holds categories (text, or any values). Parameters as those of `KPrototypes`.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 5,
        max_iter: int = 100,
        tol: float | None = 1e-6,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            verbose=verbose,
            random_state=random_state,
            workers=workers,
            sync=sync,
            cluster=cluster,
            target=target,
        )

    def _columns(self, columns: int) -> list[int]:
        return list(range(columns))

    def _algorithm(self, k: int, chosen: list[int]) -> PrototypesAlgorithm:
        return ModesAlgorithm(k=k, n_init=self._check_number("n_init", 1))
