"""`PCA` and `TruncatedSVD` with the interface of scikit-learn. One pass of the engine's algorithm sums second moments;
components, variances and answers are made of those.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from sklearn import decomposition
from sklearn.decomposition._pca import _infer_dimension

from flegel.algorithms.pca import PCA as Algorithm
from flegel.algorithms.pca import SVD, Plane, principal
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters

SPARSE_SOLVERS = ("auto", "arpack", "covariance_eigh")
LEAST_ROWS = 2.0  # of which a variance can be told


class _FromMoments(EngineEstimator):  # type: ignore[misc]
    """Keeps mass, mean and scatter of all rows so far (`_seen`), of which the model is made anew."""

    _accepts_sparse = True
    _seen: tuple[float, Array, Array]

    def _summed(self, algorithm: Algorithm, X: Any, sample_weight: Any) -> tuple[float, Array, Array]:
        plane: Plane = self._train(algorithm, X, None, self._weights(sample_weight, X)).parameter
        return float(plane.mass), np.array(plane.mean), np.array(plane.scatter)


@with_engine_parameters
class PCA(_FromMoments, decomposition.PCA):  # type: ignore[misc]
    """Principal components. Parameters as in scikit-learn; `svd_solver`, `tol`, `iterated_power`, `n_oversamples`,
    `power_iteration_normalizer` and `copy` change nothing: all components are found exactly from the covariance matrix.
    Besides: `fit` takes sample weights, and `partial_fit` more rows."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> PCA:
        rows = self._checked(X, reset=True)
        self._seen = self._summed(Algorithm(), rows, sample_weight)
        self._take(rows.dtype)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> PCA:
        """Components of these rows and of all before, exactly."""
        if not hasattr(self, "components_"):
            return self.fit(X, y, sample_weight)
        rows = self._checked(X, reset=False)
        self._seen = joined(self._seen, self._summed(Algorithm(), rows, sample_weight))
        self._take(rows.dtype)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        return np.asarray(self.fit(X, y, sample_weight).transform(X))

    def _weights(self, sample_weight: Any, X: Any) -> Array | None:
        """Refuses weights that are parts of one row: variances are divided by the number of rows less one."""
        weights = super()._weights(sample_weight, X)
        if weights is not None and len(weights) > 1 and weights.sum() < LEAST_ROWS:
            raise ValueError(
                f"A row counts as often as its sample_weight, and all weights together are {weights.sum():.6g} rows, "
                "too few for variances; multiply the weights, for instance until their mean is 1."
            )
        return weights

    def _checked(self, X: Any, *, reset: bool) -> Any:
        self._validate_params()
        if scipy.sparse.issparse(X) and self.svd_solver not in SPARSE_SOLVERS:
            raise TypeError(
                'PCA only support sparse inputs with the "arpack" and "covariance_eigh" solvers, while '
                f'"{self.svd_solver}" was passed. See TruncatedSVD for a possible alternative.'
            )
        return self._rows(X, reset=reset)

    def _take(self, dtype: Any) -> None:
        """Attributes of the moments of all rows so far. A row counts as often as its weight says."""
        mass, mean, scatter = self._seen
        rows = max(round(mass), 1)
        most = min(rows, len(mean))
        self._fit_svd_solver = "covariance_eigh" if self.svd_solver == "auto" else self.svd_solver
        wanted = self._wanted(rows, len(mean))
        values, vectors = principal(scatter / max(mass - 1.0, 1e-300), most)
        with np.errstate(invalid="ignore", divide="ignore"):  # constant rows explain nothing, as in scikit-learn
            ratios = values / values.sum()
        if wanted == "mle":
            wanted = _infer_dimension(values, rows)
        elif 0 < wanted < 1:
            wanted = int(np.searchsorted(np.cumsum(ratios), wanted, side="right")) + 1
        k = int(wanted)
        self.n_samples_, self.n_components_ = rows, k
        self.noise_variance_ = values.dtype.type(values[k:].mean() if k < most else 0.0).astype(dtype)
        self.mean_, self.components_ = mean.astype(dtype), vectors[:k].astype(dtype)
        self.explained_variance_, self.explained_variance_ratio_ = values[:k].astype(dtype), ratios[:k].astype(dtype)
        self.singular_values_ = np.sqrt(values[:k] * max(mass - 1.0, 0.0)).astype(dtype)

    def _wanted(self, rows: int, columns: int) -> Any:
        most, some = min(rows, columns), self.svd_solver in ("arpack", "randomized")
        wanted = self.n_components
        if wanted is None:
            return most - 1 if self.svd_solver == "arpack" else most
        if wanted == "mle" and not some:
            if rows < columns:
                raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
            return wanted
        if isinstance(wanted, str):
            raise ValueError(f"n_components={wanted!r} cannot be a string with svd_solver={self._fit_svd_solver!r}")
        if not int(some) <= wanted <= most:
            raise ValueError(
                f"n_components={wanted!r} must be between {int(some)} and min(n_samples, n_features)={most} "
                f"with svd_solver={self._fit_svd_solver!r}"
            )
        if self.svd_solver == "arpack" and wanted == most:
            raise ValueError(
                f"n_components={wanted!r} must be strictly less than min(n_samples, n_features)={most} with "
                f"svd_solver={self._fit_svd_solver!r}"
            )
        return wanted


@with_engine_parameters
class TruncatedSVD(_FromMoments, decomposition.TruncatedSVD):  # type: ignore[misc]
    """Singular vectors of the rows as they are. Parameters as in scikit-learn; `algorithm`, `n_iter`, `n_oversamples`,
    `power_iteration_normalizer` and `tol` change nothing: the vectors are exact. At most 8,192 columns."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TruncatedSVD:
        self._validate_params()
        rows = self._rows(X, reset=True, ensure_min_features=2)
        if self.n_components > rows.shape[1]:
            raise ValueError(f"n_components({self.n_components}) must be <= n_features({rows.shape[1]}).")
        self._seen = self._summed(SVD(), rows, sample_weight)
        self._take(rows.dtype)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TruncatedSVD:
        """Vectors of these rows and of all before, exactly."""
        if not hasattr(self, "components_"):
            return self.fit(X, y, sample_weight)
        rows = self._rows(X, reset=False)
        self._seen = joined(self._seen, self._summed(SVD(), rows, sample_weight))
        self._take(rows.dtype)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        return np.asarray(self.fit(X, y, sample_weight).transform(X))

    def _take(self, dtype: Any) -> None:
        mass, mean, scatter = self._seen
        squares, components = principal(scatter + mass * np.outer(mean, mean), int(self.n_components))
        along = np.einsum("kt,tu,ku->k", components, scatter, components, optimize=True) / mass
        self.components_, self.singular_values_ = components.astype(dtype), np.sqrt(squares).astype(dtype)
        self.explained_variance_ = np.maximum(along, 0.0).astype(dtype)
        self.explained_variance_ratio_ = (self.explained_variance_ / (np.trace(scatter) / mass)).astype(dtype)


def joined(one: tuple[float, Array, Array], other: tuple[float, Array, Array]) -> tuple[float, Array, Array]:
    """Mass, mean and scatter of two sets of rows together."""
    mass = one[0] + other[0]
    apart, part = other[1] - one[1], other[0] / mass
    return mass, one[1] + part * apart, one[2] + other[2] + one[0] * part * np.outer(apart, apart)
