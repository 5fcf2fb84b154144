"""Gaussian mixtures with the interface of `sklearn.mixture.GaussianMixture`. The engine's algorithm computes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from flegel.algorithm import Sample
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

COLLAPSED = 1e-11
"""Of a column's variance: ten times what the algorithm raises all to, so that sums of squares can tell them from 0."""
ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data."
)
INIT_PARAMS = ("kmeans", "k-means++", "random", "random_from_data")


class GaussianMixture(DensityMixin, EngineEstimator):  # type: ignore[misc]
    """A mixture of Gaussians. Parameters as in scikit-learn; besides:

    `reg_covar`: the least variance; scikit-learn adds it to all, here only smaller ones are raised, so the likelihood
    is at least as high. `regularization`: the same as a fraction of a column's variance without its outliers; None:
    1e-6, but with `reg_covar=0` none is raised, and a component without variance is refused, as in scikit-learn.
    `n_init`: starts from clusters of k-means that are tried on a sample; the best is trained on all rows.
    `init_params`: kmeans, or the means alone: k-means++, random_from_data, random (of random responsibilities). `tol`:
    the fit ends when a pass over the rows changes the log-likelihood by less, relatively. `max_iter`: passes; with 0
    the start is the model. `verbose_interval` changes nothing. `workers`, `sync`, `cluster`: see `flegel.run`.
    `target`: the fit ends at this log-likelihood. `fit` takes sample weights.
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        tol: float | None = 1e-6,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 4,
        init_params: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        verbose_interval: int = 10,
        regularization: float | None = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.regularization = regularization
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    # -- training ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GaussianMixture:
        """Fit the mixture; `y` is ignored. With `warm_start` it begins with the components of the last fit."""
        X = self._rows(X, reset=True, ensure_min_samples=2)
        self._check_number("n_components", 1, X.shape[0])
        weights = self._weights(sample_weight, X)
        algorithm = self._algorithm(X, weights)
        known = self._known(X) if self.warm_start and hasattr(self, "means_") else None
        start = known if known is not None else self._given_start(algorithm, X, weights)
        self._mass = float(len(X) if weights is None else weights.sum())
        if self._check_number("max_iter", 0) == 0:
            self._take_start(algorithm, start, X, weights)
            return self
        before = self.lower_bound_ if known is not None else None
        result = self._train(algorithm, X, None, weights, start=start)
        if result.converged:  # a fit that was cut short says so in a warning
            self._refuse_collapsed(X, result.parameter)
        self._take(result, X, weights)
        if before is not None and self.tol is not None:  # one pass alone cannot tell that nothing changes any more
            self.converged_ |= abs(self.lower_bound_ - before) <= float(self.tol) * abs(self.lower_bound_)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GaussianMixture:
        """Goes on from the present mixture: one step of EM on these rows, whose moments are added to those of all rows
        before."""
        if not hasattr(self, "means_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        weights = self._weights(sample_weight, X)
        mass = float(len(X) if weights is None else weights.sum())
        algorithm, before = self._algorithm(X, weights), self._known(X)
        batch = self._train(algorithm, X, None, weights, start=before, passes=1)
        merged = _merged(before, self._mass, batch.parameter, mass)
        self._set(algorithm.mixture(*merged), X.dtype)
        self._mass += mass
        self.lower_bound_ = self._bound(X, weights)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        return self.fit(X, y, sample_weight).predict(X)

    def _algorithm(self, X: Any, weights: Array | None) -> GMM:
        """The engine's algorithm with this estimator's parameters; raises `ValueError` for wrong ones, as scikit-learn
        does."""
        if self.covariance_type not in TYPES:
            raise ValueError(f"covariance_type must be one of {list(TYPES)}, not {self.covariance_type!r}.")
        for name in ("reg_covar",) if self.regularization is None else ("regularization", "reg_covar"):
            self._check_real(name, 0)
        return GMM(
            k=int(self.n_components),
            covariance=self.covariance_type,
            regularization=self._least_part(),
            least_variance=float(self.reg_covar),
            init=self._first_means(X, weights),
            n_init=self._check_number("n_init", 1),
        )

    def _least_part(self) -> float:
        """The least variance, as a fraction of a column's."""
        if self.regularization is not None:
            return float(self.regularization)
        return 1e-6 if self.reg_covar > 0 else 0.0

    def _refuse_collapsed(self, X: Any, theta: Mixture) -> None:
        """Where no variance is raised, the likelihood of a component that has none in some direction has no maximum."""
        if self.reg_covar > 0 or self._least_part() > 0:
            return
        spread = np.asarray(X, np.float64).std(axis=0)
        unit = np.where(spread > 0, spread, 1.0)
        shared = covariances_of(
            theta.covariances, "full" if self.covariance_type in ("full", "tied") else "diag", len(unit)
        )
        if shared.ndim == 3:
            variances = np.linalg.eigvalsh(shared / np.outer(unit, unit))
        else:
            variances = shared / (unit**2 if self.covariance_type == "diag" else unit.max() ** 2)
        if not (variances > COLLAPSED).all():
            raise ValueError(ILL_DEFINED)

    def _first_means(self, X: Any, weights: Array | None) -> Any:
        """`init` of the engine's algorithm: a word, or means."""
        k = int(self.n_components)
        if self.means_init is not None:
            return _of_shape("means", self.means_init, (k, X.shape[1]))
        if self.init_params == "kmeans":
            return "k-means++"
        if self.init_params == "random_from_data":
            return "random"
        if self.init_params == "k-means++":
            return kmeans_plusplus(X, k, sample_weight=weights, random_state=self._seed())[0].astype(np.float64)
        if self.init_params == "random":
            shares = np.random.default_rng(self._seed()).random((X.shape[0], k))
            shares *= 1.0 if weights is None else weights[:, None]
            return shares.T @ np.asarray(X, np.float64) / shares.sum(axis=0)[:, None]
        raise ValueError(f"init_params must be one of {list(INIT_PARAMS)}, not {self.init_params!r}.")

    def _given_start(self, algorithm: GMM, X: Any, weights: Array | None) -> Mixture | None:
        """The mixture that `weights_init` and `precisions_init` ask for, the rest as without them; None: neither is
        given."""
        if self.weights_init is None and self.precisions_init is None:
            return None
        columns, k = X.shape[1], int(self.n_components)
        given = None if self.weights_init is None else _checked_weights(self.weights_init, k)
        packed = None
        if self.precisions_init is not None:
            precisions = _checked_precisions(self.precisions_init, self.covariance_type, k, columns)
            packed = packed_covariances(inverted(precisions, self.covariance_type), self.covariance_type, k, columns)
        means = algorithm.init
        if isinstance(means, str) or given is None or packed is None:
            mixture = self._start_of(algorithm, X, weights)
            means, given = mixture.means, mixture.weights if given is None else given
            packed = mixture.covariances if packed is None else packed
        return algorithm.mixture(given, means, packed)

    def _start_of(self, algorithm: GMM, X: Any, weights: Array | None) -> Mixture:
        """The mixture that a job would begin with."""
        sample = Sample(np.asarray(X), None, X.shape[0], X.shape[1], weights=weights)
        return algorithm.initParameter(sample, np.random.default_rng(self._seed()))

    def _not_converged(self, reason: str) -> str:
        """With scikit-learn's words: programs look for them."""
        return (
            "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
            f"tol, or check for degenerate data. ({reason}.)"
        )

    def _take_start(self, algorithm: GMM, start: Mixture | None, X: Any, weights: Array | None) -> None:
        """`max_iter=0`: the model is the start."""
        self._set(self._start_of(algorithm, X, weights) if start is None else start, X.dtype)
        self.converged_, self.n_iter_ = False, 0
        self.lower_bound_ = self._bound(X, weights)
        self.lower_bounds_: list[float] = []
        warnings.warn(self._not_converged("max_iter=0 makes no pass"), ConvergenceWarning, stacklevel=3)

    def _take(self, result: Any, X: Any, weights: Array | None) -> None:
        self._set(result.parameter, X.dtype)
        self.converged_ = bool(result.converged)
        self.lower_bound_ = self._bound(X, weights)
        told = (row["objective"] for row in result.rows)
        self.lower_bounds_ = [value / self._mass for value in told if value is not None]

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self._set(parameter, dtype)
        return True

    def _set(self, theta: Mixture, dtype: Any) -> None:
        self.weights_ = np.asarray(theta.weights / theta.weights.sum(), dtype=dtype)
        self.means_ = np.asarray(theta.means, dtype=dtype)
        self._type = self.covariance_type
        self.covariances_ = covariances_of(theta.covariances, self.covariance_type, theta.means.shape[1]).astype(dtype)
        self.precisions_cholesky_ = precision_factors(self.covariances_, self.covariance_type)
        self.precisions_ = inverted(self.covariances_, self.covariance_type)

    @property
    def _fitted_type(self) -> str:
        """That of `covariances_`: `covariance_type` may have been set since."""
        k, d = self.means_.shape
        shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
        likely = getattr(self, "_type", self.covariance_type), self.covariance_type, *shapes
        return next((kind for kind in likely if shapes.get(kind) == np.shape(self.covariances_)), likely[0])

    def _known(self, X: Any) -> Mixture:
        """The last mixture, to go on from with these rows."""
        last = (len(self.means_), self._fitted_type, self.means_.shape[1])
        now = (int(self.n_components), self.covariance_type, X.shape[1])
        if last != now:
            words = "{} components with covariance_type={!r} in {} columns"
            raise ValueError(
                f"The last fit found {words.format(*last)}, and {words.format(*now)} are asked for now: these cannot "
                "begin with it. Use fit with warm_start=False."
            )
        return self._theta()

    def _theta(self) -> Mixture:
        k, d = self.means_.shape
        packed = packed_covariances(self.covariances_.astype(np.float64), self._fitted_type, k, d)
        algorithm = GMM(k=k, covariance=self._fitted_type)
        return algorithm.mixture(self.weights_.astype(np.float64), self.means_.astype(np.float64), packed)

    def _bound(self, X: Any, weights: Array | None) -> float:
        densities = self._expected(X)[1]
        return float(np.average(densities, weights=weights))

    # -- use -----------------------------------------------------------------------------------------------

    def _expected(self, X: Any) -> tuple[Array, Array]:
        """Responsibilities and logarithms of densities, in float64."""
        return GMM(k=len(self.means_), covariance=self._fitted_type).transform(X, self._theta())

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
        if n_samples < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples} . The sampling requires at least one sample.")
        rng = check_random_state(self.random_state)
        kind, (k, columns) = self._fitted_type, self.means_.shape
        counts = rng.multinomial(n_samples, self.weights_.astype(np.float64))
        rows = []
        for j, count in enumerate(counts):
            if kind in ("full", "tied"):
                covariance = self.covariances_ if kind == "tied" else self.covariances_[j]
                rows.append(rng.multivariate_normal(self.means_[j], covariance, count))
            else:
                deviations = np.sqrt(np.broadcast_to(self.covariances_[j], columns))
                rows.append(self.means_[j] + rng.standard_normal((count, columns)) * deviations)
        return np.concatenate(rows), np.repeat(np.arange(k), counts)

    def bic(self, X: Any) -> float:
        X = self._new_rows(X)
        return float(-2.0 * self.score(X) * X.shape[0] + self._n_parameters() * np.log(X.shape[0]))

    def aic(self, X: Any) -> float:
        X = self._new_rows(X)
        return float(-2.0 * self.score(X) * X.shape[0] + 2.0 * self._n_parameters())

    def _n_parameters(self) -> int:
        """Free numbers of the model."""
        k, d = self.means_.shape
        return int(free_numbers(self._fitted_type, k, d) + k * d + k - 1)


def _of_shape(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """A given start as float64, or `ValueError` with scikit-learn's words."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"The parameter '{name}' should have the shape of {shape}, but got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"The parameter '{name}' contains NaN or infinity.")
    return array


def _checked_weights(values: Any, k: int) -> Array:
    weights = _of_shape("weights", values, (k,))
    if (weights < 0).any() or (weights > 1).any():
        raise ValueError(
            "The parameter 'weights' should be in the range [0, 1], but got max value "
            f"{weights.min():.5f}, min value {weights.max():.5f}"
        )
    if not abs(1.0 - weights.sum()) < 1e-6:
        raise ValueError(f"The parameter 'weights' should be normalized, but got sum(weights) = {weights.sum():.5f}")
    return weights


def _checked_precisions(values: Any, kind: str, k: int, columns: int) -> Array:
    shapes = {"full": (k, columns, columns), "tied": (columns, columns), "diag": (k, columns), "spherical": (k,)}
    name = f"{kind} precision"
    precisions = _of_shape(name, values, shapes[kind])
    if kind in ("diag", "spherical"):
        if not (precisions > 0).all():
            raise ValueError(f"'{name}' should be positive")
        return precisions
    matrices = precisions[None] if kind == "tied" else precisions
    symmetric = np.allclose(matrices, np.transpose(matrices, (0, 2, 1)))
    if not symmetric or not (np.linalg.eigvalsh(matrices) > 0).all():
        raise ValueError(f"'{name}' should be symmetric, positive-definite")
    return precisions


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
