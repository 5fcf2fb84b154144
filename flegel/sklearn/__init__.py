"""Estimators with the interface of scikit-learn, trained by Flegel (`pip install 'flegel[sklearn]'`).

Names, parameters, attributes and defaults are scikit-learn's where they mean the same. Never imported by the engine.
Each is imported when it is first used: some need the compiler, which takes a second, in every process of a search.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.sklearn.bernoulli import BernoulliMixture
    from flegel.sklearn.categories import KModes, KPrototypes
    from flegel.sklearn.components import PCA, TruncatedSVD
    from flegel.sklearn.covariance import OAS, EmpiricalCovariance, LedoitWolf, ShrunkCovariance
    from flegel.sklearn.factorization import NMF
    from flegel.sklearn.fuzzy import FuzzyCMeans
    from flegel.sklearn.generalized import GammaRegressor, HuberRegressor, LinearSVC, PoissonRegressor
    from flegel.sklearn.kmeans import KMeans
    from flegel.sklearn.least_squares import ElasticNet, Lasso, LinearRegression, Ridge, enet_path, lasso_path
    from flegel.sklearn.linear import LogisticRegression
    from flegel.sklearn.mixture import GaussianMixture
    from flegel.sklearn.more_kmeans import BisectingKMeans, MiniBatchKMeans
    from flegel.sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
    from flegel.sklearn.recommender import ImplicitALS
    from flegel.sklearn.sized import KMeansConstrained
    from flegel.sklearn.topics import LatentDirichletAllocation

__all__ = [
    "NMF",
    "OAS",
    "PCA",
    "BernoulliMixture",
    "BernoulliNB",
    "BisectingKMeans",
    "ElasticNet",
    "EmpiricalCovariance",
    "FuzzyCMeans",
    "GammaRegressor",
    "GaussianMixture",
    "GaussianNB",
    "HuberRegressor",
    "ImplicitALS",
    "KMeans",
    "KMeansConstrained",
    "KModes",
    "KPrototypes",
    "Lasso",
    "LatentDirichletAllocation",
    "LedoitWolf",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "MiniBatchKMeans",
    "MultinomialNB",
    "PoissonRegressor",
    "Ridge",
    "ShrunkCovariance",
    "TruncatedSVD",
    "enet_path",
    "lasso_path",
]
_HOMES = {
    "PoissonRegressor": "generalized",
    "LinearSVC": "generalized",
    "HuberRegressor": "generalized",
    "GammaRegressor": "generalized",
    "lasso_path": "least_squares",
    "enet_path": "least_squares",
    "Ridge": "least_squares",
    "LinearRegression": "least_squares",
    "Lasso": "least_squares",
    "ElasticNet": "least_squares",
    "ShrunkCovariance": "covariance",
    "OAS": "covariance",
    "LedoitWolf": "covariance",
    "EmpiricalCovariance": "covariance",
    "MultinomialNB": "naive_bayes",
    "GaussianNB": "naive_bayes",
    "BernoulliNB": "naive_bayes",
    "NMF": "factorization",
    "PCA": "components",
    "FuzzyCMeans": "fuzzy",
    "GaussianMixture": "mixture",
    "KMeans": "kmeans",
    "KMeansConstrained": "sized",
    "BisectingKMeans": "more_kmeans",
    "MiniBatchKMeans": "more_kmeans",
    "BernoulliMixture": "bernoulli",
    "ImplicitALS": "recommender",
    "KModes": "categories",
    "KPrototypes": "categories",
    "LatentDirichletAllocation": "topics",
    "LogisticRegression": "linear",
    "TruncatedSVD": "components",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
