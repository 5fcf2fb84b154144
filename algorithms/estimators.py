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


def fitted_factorization(factors: Array, alphas: tuple[float, float], l1_ratio: float) -> Any:
    """`sklearn.decomposition.NMF`; `factors` has a row a column of the data, `alphas` are the penalties on W and H."""
    NMF = _imported("sklearn.decomposition").NMF
    penalty = {"alpha_W": alphas[0], "alpha_H": alphas[1], "l1_ratio": l1_ratio}
    model = NMF(n_components=factors.shape[1], init="random", solver="cd", **penalty, max_iter=1000, tol=1e-6)
    model.components_ = np.ascontiguousarray(factors.T, dtype=np.float64)
    model.n_components_ = model._n_components = factors.shape[1]
    model.n_features_in_, model.n_iter_, model._beta_loss = len(factors), 1, 2
    return model


def fitted_components(plane: Any, is_centred: bool) -> Any:
    """`sklearn.decomposition.PCA`, or `TruncatedSVD` where rows were not centred."""
    module, (k, columns) = _imported("sklearn.decomposition"), plane.components.shape
    model = module.PCA(n_components=k) if is_centred else module.TruncatedSVD(n_components=k)
    mass, total = float(plane.mass), float(np.trace(plane.scatter))
    model.components_, model.n_features_in_ = np.array(plane.components), columns
    if is_centred:
        model.mean_, model.explained_variance_ = np.array(plane.centre), np.array(plane.variances)
        total /= max(mass - 1.0, 1.0)
        left = max(total - float(plane.variances.sum()), 0.0)
        model.n_components_, model.n_samples_, model.noise_variance_ = k, round(mass), left / max(columns - k, 1)
        model.singular_values_ = np.sqrt(plane.variances * max(mass - 1.0, 0.0))
    else:
        spread = np.einsum("kt,tu,ku->k", plane.components, plane.scatter, plane.components, optimize=True)
        model.explained_variance_, total = spread / max(mass, 1.0), total / max(mass, 1.0)
        model.singular_values_ = np.sqrt(plane.variances * mass)
    model.explained_variance_ratio_ = model.explained_variance_ / (total or 1.0)
    return model


def fitted_covariance(spread: Any, shrink: str) -> Any:
    """An estimator of `sklearn.covariance`: by how the matrix is shrunk."""
    names = {"none": "EmpiricalCovariance", "fixed": "ShrunkCovariance", "ledoit-wolf": "LedoitWolf", "oas": "OAS"}
    cls = getattr(_imported("sklearn.covariance"), names[shrink])
    model = cls(shrinkage=float(spread.shrinkage)) if shrink == "fixed" else cls()
    model.location_, model.n_features_in_ = np.array(spread.location), len(spread.location)
    model.shrinkage_ = float(spread.shrinkage)
    model._set_covariance(np.array(spread.covariance))
    return model


def fitted_naive_bayes(name: str, likelihoods: Any, hyper: dict[str, Any], classes: Any) -> Any:
    """An estimator of `sklearn.naive_bayes`."""
    model = getattr(_imported("sklearn.naive_bayes"), name)(**hyper)
    model.classes_, model.n_features_in_ = classes, likelihoods.first.shape[1]
    model.class_count_ = np.array(likelihoods.counts)
    if name == "GaussianNB":
        model.theta_, model.var_ = np.array(likelihoods.first), np.array(likelihoods.second)
        model.class_prior_, model.epsilon_ = np.exp(likelihoods.log_prior), 0.0
    else:
        model.feature_log_prob_, model.feature_count_ = np.array(likelihoods.first), np.array(likelihoods.second)
        model.class_log_prior_ = np.array(likelihoods.log_prior)
    return model


def fitted_linear(name: str, hyper: dict[str, Any], weights: Array, bias: Array) -> Any:
    """A least-squares estimator of `sklearn.linear_model`."""
    known = {"alpha", "l1_ratio", "positive"} - ({"l1_ratio"} if name == "Lasso" else set())
    given = {key: value for key, value in hyper.items() if key in known}
    model = getattr(_imported("sklearn.linear_model"), name)(fit_intercept=hyper["intercept"], **given)
    one = len(weights) == 1
    model.coef_, model.n_features_in_ = np.array(weights[0] if one else weights), weights.shape[1]
    model.intercept_ = float(bias[0]) if one else np.array(bias)
    return model


def fitted_glm(name: str, hyper: dict[str, Any], fit: Any) -> Any:
    """A regressor of `sklearn.linear_model` with weights and bias of a generalized linear model."""
    model = getattr(_imported("sklearn.linear_model"), name)(**hyper)
    model.coef_, model.intercept_, model.n_features_in_ = np.array(fit.weights), float(fit.bias), len(fit.weights)
    if hasattr(model, "_get_loss"):
        model._base_loss = model._get_loss()
    model.n_iter_ = 1
    return model


def fitted_planes(fit: Any, points: float, l2: float) -> Any:
    """`sklearn.svm.LinearSVC` of the classes 0 and 1."""
    model = _imported("sklearn.svm").LinearSVC(C=1.0 / (l2 * points) if l2 > 0 and points > 0 else np.inf)
    model.coef_, model.intercept_ = np.array(fit.weights)[None], np.array([float(fit.bias)])
    model.classes_, model.n_features_in_, model.n_iter_ = np.array([0, 1]), len(fit.weights), 1
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
