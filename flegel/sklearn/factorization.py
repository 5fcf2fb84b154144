"""Non-negative factorization with the interface of `sklearn.decomposition.NMF`. The engine's algorithm computes."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from flegel.algorithms.nmf.nmf import NMF as Algorithm
from flegel.algorithms.nmf.nmf import Factors
from flegel.algorithms.nmf.rows import errors, fold_in
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator, share, sparse_rows

MAX_COMPONENTS = 512
SOLVERS = {"cd": "coordinate", "mu": "multiplicative"}


class NMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, EngineEstimator):  # type: ignore[misc]
    """X ≈ W·H without negative numbers; H is `components_`, W what `transform` returns. As in scikit-learn; besides:

    `solver`: cd or mu; both take the whole matrix (entries that a sparse matrix does not store are 0). `alpha_W`: the
    squared penalty on W, and on H too. `tol`: the fit ends when a pass over the rows changes the objective by less,
    relatively. `max_iter`: passes. `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this sum
    of squared errors. `fit` takes sample weights.
    """

    _accepts_sparse = True
    _positive = True

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        solver: str = "cd",
        tol: float | None = 1e-5,
        max_iter: int = 200,
        random_state: Any = None,
        alpha_W: float = 0.0,
        verbose: int = 0,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.verbose = verbose
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    # -- training ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> NMF:
        self.fit_transform(X, y, sample_weight)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        X = self._rows(X, reset=True)
        weights = self._weights(sample_weight, X)
        self.n_components_ = self._wanted(X.shape[1])
        self.components_ = self._components(X, weights).astype(X.dtype)
        self._mass = float(X.shape[0] if weights is None else weights.sum())
        return self._finish(X)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> NMF:
        """Goes on from the present components: one step on these rows, and the mean of both, each counted with the rows
        that it has seen."""
        if not hasattr(self, "components_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        weights = self._weights(sample_weight, X)
        mass = float(X.shape[0] if weights is None else weights.sum())
        before = self.components_.astype(np.float64)
        none, factors = np.zeros(0), np.ascontiguousarray(before.T)
        start = Factors(factors, none, np.ones(1), np.zeros(5), np.zeros(1), factors, np.ones(2))
        batch = self._components(X, weights, start=start, passes=1)
        batch *= np.sqrt((before**2).sum() / max((batch**2).sum(), 1e-300))  # only W·H has a scale
        self.components_ = (before + share(self._mass, mass) * (batch - before)).astype(X.dtype)
        self._mass += mass
        self._finish(X)
        return self

    def _wanted(self, columns: int) -> int:
        wanted: Any = self.n_components
        if wanted is None or (isinstance(wanted, str) and wanted == "auto"):
            return min(columns, MAX_COMPONENTS)
        if not isinstance(wanted, numbers.Integral) or not 1 <= int(wanted) <= MAX_COMPONENTS:
            raise ValueError(f"n_components must be 'auto' or 1 to {MAX_COMPONENTS}, not {wanted!r}.")
        return int(wanted)

    def _components(self, X: Any, weights: Array | None, **options: Any) -> Array:
        """H of a job on these rows. The engine's penalty is in units of the mean entry, scikit-learn's is not."""
        if not self.alpha_W >= 0:
            raise ValueError(f"alpha_W must not be negative, but is {self.alpha_W!r}.")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver must be one of {list(SOLVERS)}, not {self.solver!r}.")
        mass = np.ones(X.shape[0]) if weights is None else weights
        mean = float(mass @ np.asarray(X.sum(axis=1), dtype=np.float64).reshape(-1) / (mass.sum() * X.shape[1]))
        mean = mean if mean > 0 else 1.0
        algorithm = Algorithm(
            rank=self.n_components_,
            solver=SOLVERS[self.solver],
            regularization=float(self.alpha_W) / mean,
            precision="float64" if X.dtype == np.float64 else "float32",
        )
        factors = self._train(algorithm, X, None, weights, **options).parameter.factors
        return np.asarray(factors.T) * math.sqrt(mean)

    def _finish(self, X: Any) -> Array:
        W = self._solved(X)
        rows = sparse_rows(X) if scipy.sparse.issparse(X) else X
        squares, _, _ = errors(rows, W, np.ascontiguousarray(self.components_.T, dtype=np.float64), 1.0, False)
        self.reconstruction_err_ = math.sqrt(max(squares, 0.0))
        return W.astype(X.dtype)

    def _solved(self, X: Any) -> Array:
        """W of these rows, to convergence."""
        rows = sparse_rows(X) if scipy.sparse.issparse(X) else X
        return fold_in(rows, np.asarray(self.components_.T, dtype=np.float64), 1.0, float(self.alpha_W), False)

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """W of these rows."""
        X = self._new_rows(X)
        return self._solved(X).astype(X.dtype)

    def inverse_transform(self, X: Any) -> Array:
        """W·H."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return np.asarray(X @ self.components_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
