"""Mixtures of Bernoulli distributions with the interface of `sklearn.mixture`. Never computes what the engine
computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin

from flegel.algorithms.clusters.bernoulli_mixture import BernoulliMixture as Algorithm
from flegel.algorithms.clusters.bernoulli_mixture import Chances
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator, for_engine


class BernoulliMixture(DensityMixin, EngineEstimator, BaseEstimator):  # type: ignore[misc]
    """Soft clusters of rows of zeros and ones; columns are independent in each. Attributes as in `GaussianMixture`:
    `weights_`, `means_` (chances of a 1), `lower_bound_`.

    `binarize`: values above it count as 1. `smoothing`: rows of either value that each column of a component gets
    besides. `n_init`: starts that are tried on a sample. `tol`: the fit ends when a pass over the rows changes the
    objective by less, relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit
    ends at this objective.
    """

    _accepts_sparse = True

    def __init__(
        self,
        n_components: int = 1,
        *,
        binarize: float = 0.0,
        smoothing: float = 1e-3,
        n_init: int = 3,
        max_iter: int = 300,
        tol: float | None = 1e-6,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.binarize = binarize
        self.smoothing = smoothing
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> BernoulliMixture:
        """Train on all rows."""
        X = self._rows(X, reset=True)
        k = self._check_number("n_components", 1, X.shape[0])
        if not self._check_real("smoothing") > 0 or not self._check_real("binarize") >= 0:
            raise ValueError(
                f"smoothing must be above 0 and binarize 0 or more, not {self.smoothing!r} and {self.binarize!r}."
            )
        algorithm = self._algorithm(k)
        algorithm.n_init = self._check_number("n_init", 1)
        weights = self._weights(sample_weight, X)
        result = self._train(algorithm, X, None, weights)
        self.converged_ = result.outcome == "converged"
        self._set_from(result.parameter, algorithm, X.dtype)
        each = self._densities(X)[1]
        self.lower_bound_ = float(np.average(each, weights=weights))
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.weights_, self.means_ = np.array(parameter.weights), np.array(parameter.chances)
        return True

    def _algorithm(self, k: int) -> Algorithm:
        return Algorithm(k=k, binarize=float(self.binarize), smoothing=float(self.smoothing))

    def _densities(self, X: Any) -> tuple[Array, Array]:
        algorithm = self._algorithm(len(self.weights_))
        theta: Chances = algorithm.mixture(self.weights_, self.means_)
        return algorithm.densities(for_engine(X), theta)

    def predict(self, X: Any) -> Array:
        """The component with the largest share of each row."""
        return np.asarray(self._densities(self._new_rows(X))[0].argmax(axis=1))

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        """Train, and the component of each row."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict_proba(self, X: Any) -> Array:
        """Shares of the components in each row."""
        X = self._new_rows(X)
        return self._densities(X)[0].astype(X.dtype)

    def score_samples(self, X: Any) -> Array:
        """The log-likelihood of each row."""
        return self._densities(self._new_rows(X))[1]

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of these rows."""
        return float(self.score_samples(X).mean())

    def _free_numbers(self) -> int:
        return int(self.means_.size + len(self.weights_) - 1)

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion; lower is better."""
        each = self.score_samples(X)
        return float(-2.0 * each.sum() + self._free_numbers() * np.log(len(each)))

    def aic(self, X: Any) -> float:
        """Akaike's information criterion; lower is better."""
        return float(-2.0 * self.score_samples(X).sum() + 2.0 * self._free_numbers())
