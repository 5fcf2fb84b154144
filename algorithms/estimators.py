"""Trained models as estimators of scikit-learn, with their fitted attributes filled in. Never trains.

scikit-learn is imported when one is asked for (`pip install 'flegel[sklearn]'`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UsageError


def fitted_kmeans(centroids: Array) -> Any:
    """`sklearn.cluster.KMeans`; `labels_` and `inertia_` belong to the rows of the training, which are not known
    here."""
    KMeans = _imported("sklearn.cluster").KMeans
    model = KMeans(n_clusters=len(centroids), n_init=1)
    model.cluster_centers_ = np.ascontiguousarray(centroids, dtype=np.float64)
    model.n_features_in_, model.n_iter_ = centroids.shape[1], 1
    model._n_threads, model._n_features_out = 1, len(centroids)
    return model


def unit_before(model: Any) -> Any:
    """A pipeline that divides rows by their length before the model: cosine in place of squared distances."""
    normalizer = _imported("sklearn.preprocessing").Normalizer()
    return _imported("sklearn.pipeline").make_pipeline(normalizer, model)


def fitted_mixture(kind: str, weights: Array, means: Array, covariances: Array, factors: Array) -> Any:
    """`sklearn.mixture.GaussianMixture`; `factors` are those of the precisions, as scikit-learn has them."""
    GaussianMixture = _imported("sklearn.mixture").GaussianMixture
    model = GaussianMixture(len(means), covariance_type=kind)
    model.weights_, model.means_ = weights / weights.sum(), np.array(means)
    model.covariances_, model.precisions_cholesky_ = covariances, factors
    whole = kind in ("full", "tied")
    model.precisions_ = factors @ np.swapaxes(factors, -1, -2) if whole else factors**2
    model.n_features_in_, model.converged_, model.n_iter_ = means.shape[1], True, 1
    return model


def fitted_classifier(weights: Array, bias: Array, classes: Array, l2: float, points: float) -> Any:
    """`sklearn.linear_model.LogisticRegression`, with the C that stands for the penalty `l2` on so many points."""
    LogisticRegression = _imported("sklearn.linear_model").LogisticRegression
    model = LogisticRegression(C=1.0 / (l2 * points) if l2 > 0 and points > 0 else np.inf)
    model.coef_, model.intercept_ = np.array(weights), np.array(bias)
    model.classes_, model.n_features_in_, model.n_iter_ = classes, weights.shape[1], np.array([1], np.int32)
    return model


def fitted_factorization(factors: Array, alpha: float) -> Any:
    """`sklearn.decomposition.NMF`; `factors` has a row a column of the data."""
    NMF = _imported("sklearn.decomposition").NMF
    model = NMF(n_components=factors.shape[1], init="random", solver="cd", alpha_W=alpha, max_iter=1000, tol=1e-6)
    model.components_ = np.ascontiguousarray(factors.T, dtype=np.float64)
    model.n_components_ = model._n_components = factors.shape[1]
    model.n_features_in_, model.n_iter_, model._beta_loss = len(factors), 1, 2
    return model


def scaled_before(model: Any, scaling: tuple[Array, Array]) -> Any:
    """A pipeline that shifts and scales the columns as the job did, before the model."""
    scaler = _imported("sklearn.preprocessing").StandardScaler()
    scaler.mean_, scaler.scale_ = np.array(scaling[0]), 1.0 / np.asarray(scaling[1])
    scaler.var_, scaler.n_features_in_, scaler.n_samples_seen_ = scaler.scale_**2, len(scaling[0]), 1
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    return _imported("sklearn.pipeline").make_pipeline(scaler, *steps)


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError("This needs scikit-learn; install it with: pip install 'flegel[sklearn]'") from None
