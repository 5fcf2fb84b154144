"""Gaussian mixtures with the interface of `sklearn.mixture.GaussianMixture`. The engine's algorithm computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from flegel.algorithms.gmm.covariances import (
    TYPES,
    covariances_of,
    free_numbers,
    inverted,
    packed_covariances,
    precision_factors,
)
from flegel.algorithms.gmm.gmm import GMM
from flegel.algorithms.gmm.moments import Mixture
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator


class GaussianMixture(DensityMixin, EngineEstimator):  # type: ignore[misc]
    """A mixture of Gaussians. Parameters as in scikit-learn; besides:

    `regularization`: least variance, as a fraction of a column's variance without its outliers. `n_init`: starts that
    are tried on a sample; the best is trained on all rows. `tol`: the fit ends when a pass over the rows changes the
    log-likelihood by less, relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`:
    the fit ends at this log-likelihood. `fit` takes sample weights.
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        tol: float | None = 1e-6,
        regularization: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 4,
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.regularization = regularization
        self.max_iter = max_iter
        self.n_init = n_init
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    # -- training ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GaussianMixture:
        start = self._theta() if self.warm_start and hasattr(self, "means_") else None
        X = self._rows(X, reset=True, ensure_min_samples=2)
        self._check_number("n_components", 1, X.shape[0])
        weights = self._weights(sample_weight, X)
        algorithm = self._algorithm(X.shape[1])
        if start is None and self.precisions_init is not None:
            start = self._given_start(X.shape[1])
        self._take(algorithm, self._train(algorithm, X, None, weights, start=start), X, weights)
        self._mass = float(len(X) if weights is None else weights.sum())
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GaussianMixture:
        """Goes on from the present mixture: one step of EM on these rows, whose moments are added to those of all rows
        before."""
        if not hasattr(self, "means_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        weights = self._weights(sample_weight, X)
        mass = float(len(X) if weights is None else weights.sum())
        algorithm, before = self._algorithm(X.shape[1]), self._theta()
        batch = self._train(algorithm, X, None, weights, start=before, passes=1)
        merged = _merged(before, self._mass, batch.parameter, mass)
        self._set(algorithm.mixture(*merged), X.dtype)
        self._mass += mass
        self.lower_bound_ = self._bound(X, weights)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        return self.fit(X, y, sample_weight).predict(X)

    def _algorithm(self, columns: int) -> GMM:
        """The engine's algorithm with this estimator's parameters; raises `ValueError` for wrong ones, as scikit-learn
        does."""
        if self.covariance_type not in TYPES:
            raise ValueError(f"covariance_type must be one of {list(TYPES)}, not {self.covariance_type!r}.")
        if not self.regularization >= 0:
            raise ValueError(f"regularization must not be negative, but is {self.regularization!r}.")
        init: Any = "k-means++"
        if self.means_init is not None:
            init = np.asarray(self.means_init, dtype=np.float64)
            if init.shape != (self.n_components, columns):
                wanted = (self.n_components, columns)
                raise ValueError(f"The parameter 'means' should have the shape of {wanted}, but got {init.shape}")
        return GMM(
            k=int(self.n_components),
            covariance=self.covariance_type,
            regularization=float(self.regularization),
            init=init,
            n_init=self._check_number("n_init", 1),
        )

    def _given_start(self, columns: int) -> Mixture:
        """θ from the given precisions, means and weights."""
        if self.means_init is None:
            raise ValueError("precisions_init needs means_init: matrices belong to means.")
        k = int(self.n_components)
        weights = np.full(k, 1.0 / k) if self.weights_init is None else np.asarray(self.weights_init, np.float64)
        covariances = inverted(np.asarray(self.precisions_init, np.float64), self.covariance_type)
        packed = packed_covariances(covariances, self.covariance_type, k, columns)
        return self._algorithm(columns).mixture(weights, np.asarray(self.means_init, np.float64), packed)

    def _take(self, algorithm: GMM, result: Any, X: Any, weights: Array | None) -> None:
        self._set(result.parameter, X.dtype)
        self.converged_ = bool(result.converged)
        self.lower_bound_ = self._bound(X, weights)

    def _set(self, theta: Mixture, dtype: Any) -> None:
        self.weights_ = np.asarray(theta.weights / theta.weights.sum(), dtype=dtype)
        self.means_ = np.asarray(theta.means, dtype=dtype)
        self.covariances_ = covariances_of(theta.covariances, self.covariance_type, theta.means.shape[1]).astype(dtype)
        self.precisions_cholesky_ = precision_factors(self.covariances_, self.covariance_type)
        self.precisions_ = inverted(self.covariances_, self.covariance_type)

    def _theta(self) -> Mixture:
        k, d = self.means_.shape
        packed = packed_covariances(self.covariances_.astype(np.float64), self.covariance_type, k, d)
        algorithm = GMM(k=k, covariance=self.covariance_type)
        return algorithm.mixture(self.weights_.astype(np.float64), self.means_.astype(np.float64), packed)

    def _bound(self, X: Any, weights: Array | None) -> float:
        densities = self._expected(X)[1]
        return float(np.average(densities, weights=weights))

    # -- use -----------------------------------------------------------------------------------------------

    def _expected(self, X: Any) -> tuple[Array, Array]:
        """Responsibilities and logarithms of densities, in float64."""
        return GMM(k=len(self.means_), covariance=self.covariance_type).transform(X, self._theta())

    def predict(self, X: Any) -> Array:
        """The most responsible component of each row."""
        return np.asarray(self._expected(self._new_rows(X))[0].argmax(axis=1))

    def predict_proba(self, X: Any) -> Array:
        X = self._new_rows(X)
        return np.asarray(self._expected(X)[0], dtype=X.dtype)

    def score_samples(self, X: Any) -> Array:
        """The logarithm of each row's density."""
        X = self._new_rows(X)
        return np.asarray(self._expected(X)[1], dtype=X.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean logarithm of the rows' densities."""
        return float(self._expected(self._new_rows(X))[1].mean())

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Rows drawn from the mixture, and their components."""
        check_is_fitted(self)
        genuine = GMM(k=len(self.means_), covariance=self.covariance_type).to_sklearn(self._theta(), None)
        found: tuple[Array, Array] = genuine.set_params(random_state=self.random_state).sample(n_samples)
        return found

    def bic(self, X: Any) -> float:
        X = self._new_rows(X)
        return float(-2.0 * self.score(X) * X.shape[0] + self._free() * np.log(X.shape[0]))

    def aic(self, X: Any) -> float:
        X = self._new_rows(X)
        return float(-2.0 * self.score(X) * X.shape[0] + 2.0 * self._free())

    def _free(self) -> int:
        k, d = self.means_.shape
        return int(free_numbers(self.covariance_type, k, d) + k * d + k - 1)


def _merged(old: Mixture, old_mass: float, new: Mixture, new_mass: float) -> tuple[Array, Array, Array]:
    """Weights, means and packed covariances of both moments together, component by component."""
    before, added = old_mass * old.weights, new_mass * new.weights
    total = np.maximum(before + added, 1e-300)
    part = (added / total)[:, None]
    means = old.means + part * (new.means - old.means)
    width, d = old.covariances.shape[1], old.means.shape[1]
    apart = new.means - old.means
    if width == d:
        between = apart * apart
    else:
        rows, columns = np.tril_indices(d)
        between = apart[:, rows] * apart[:, columns]
    inside = old.covariances + part * (new.covariances - old.covariances)
    return (before + added) / (old_mass + new_mass), means, inside + part * (1.0 - part) * between
