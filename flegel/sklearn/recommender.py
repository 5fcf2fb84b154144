"""Implicit-feedback factors with the interface of scikit-learn, which has none. Never computes what the engine
computes."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from flegel.algorithms.implicit_als import ImplicitALS as Algorithm
from flegel.algorithms.implicit_als import ItemFactors
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator, for_engine


class ImplicitALS(ClassNamePrefixFeaturesOutMixin, TransformerMixin, EngineEstimator):  # type: ignore[misc]
    """Factors of users (rows) and items (columns) from counts of use, by alternating least squares.

    `alpha`: a count r has the confidence 1 + alpha·r. `regularization`: the penalty on squared factors. `transform`
    gives the factors of users, `components_` has those of items, `recommend` the best items of users. `tol`: the fit
    ends when a pass over the rows changes the objective (`objective_`) by less, relatively. `max_iter`: passes.
    `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this objective.
    """

    _accepts_sparse = True
    _positive = True

    def __init__(
        self,
        n_components: int = 20,
        *,
        alpha: float = 40.0,
        regularization: float = 0.1,
        max_iter: int = 100,
        tol: float | None = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.regularization = regularization
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ImplicitALS:
        """Train on all rows."""
        X = self._rows(X, reset=True)
        self._check_number("n_components", 1)
        for name in ("alpha", "regularization"):
            if not self._check_real(name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)!r}.")
        result = self._train(self._algorithm(), X, None, self._weights(sample_weight, X))
        self._set_from(result.parameter, None, X.dtype)
        self.objective_ = result.objective
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.components_ = np.ascontiguousarray(np.asarray(parameter.factors).T, dtype=dtype)
        return True

    def _algorithm(self) -> Algorithm:
        return Algorithm(rank=int(self.n_components), alpha=float(self.alpha), l2=float(self.regularization))

    def transform(self, X: Any) -> Array:
        """Factors of users."""
        X = self._new_rows(X)
        factors = np.ascontiguousarray(self.components_.T, np.float64)
        theta = ItemFactors(factors, factors.T @ factors, np.ones(1))
        return self._algorithm().transform(for_engine(X), theta).astype(X.dtype)

    def recommend(self, X: Any, n_items: int = 10, *, known: bool = False) -> tuple[Array, Array]:
        """Columns and scores of the best items of each row, the best first; `known`: also those that the row has. Where
        fewer items are left for a row, the last places have column -1 and score -inf."""
        if not isinstance(n_items, Integral) or n_items < 1:
            raise ValueError(f"n_items={n_items!r} must be a whole number, at least 1.")
        scores = self.transform(X) @ self.components_
        if not known:
            rows = self._new_rows(X)
            scores[rows.nonzero() if scipy.sparse.issparse(rows) else rows > 0] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :n_items]
        value = np.take_along_axis(scores, best, axis=1)
        return np.where(value > -np.inf, best, -1), value

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
