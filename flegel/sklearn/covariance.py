"""Covariance estimators with the interface of `sklearn.covariance`. One pass of the engine's algorithm gives the
moments; distances, scores and precisions are scikit-learn's own.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn import covariance

from flegel.algorithms.covariance import Covariance, FittedCovariance
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters


class _FromMoments(EngineEstimator):  # type: ignore[misc]
    _shrink = "none"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        self._validate_params()
        X = self._rows(X, reset=True)
        if X.shape[0] == 1:
            warnings.warn("Only one sample available. You may want to reshape your data array", stacklevel=2)
        part = float(self.shrinkage) if self._shrink == "fixed" else 0.0
        algorithm = Covariance(shrink=self._shrink, shrinkage=part, centred=bool(self.assume_centered))
        found: FittedCovariance = self._train(algorithm, X, None, self._weights(sample_weight, X)).parameter
        self.location_ = np.asarray(found.location, X.dtype)
        if self._shrink in ("ledoit-wolf", "oas"):
            self.shrinkage_ = float(found.shrinkage)
        self._set_covariance(np.asarray(found.covariance, X.dtype))
        return self


@with_engine_parameters
class EmpiricalCovariance(_FromMoments, covariance.EmpiricalCovariance):  # type: ignore[misc]
    """The covariance matrix. As in scikit-learn; besides, `fit` takes sample weights, here and below."""


@with_engine_parameters
class ShrunkCovariance(_FromMoments, covariance.ShrunkCovariance):  # type: ignore[misc]
    """Shrunk towards a multiple of the identity by a given part."""

    _shrink = "fixed"


@with_engine_parameters
class LedoitWolf(_FromMoments, covariance.LedoitWolf):  # type: ignore[misc]
    """Shrunk by the part that Ledoit and Wolf estimate; `block_size` changes nothing."""

    _shrink = "ledoit-wolf"


@with_engine_parameters
class OAS(_FromMoments, covariance.OAS):  # type: ignore[misc]
    """Shrunk by the oracle approximating part."""

    _shrink = "oas"
