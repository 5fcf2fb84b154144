"""Estimators with the interface of scikit-learn, trained by Flegel (`pip install 'flegel[sklearn]'`).

Names, parameters, attributes and defaults are scikit-learn's where they mean the same. Never imported by the engine.
Each is imported when it is first used: some need the compiler, which takes a second, in every process of a search.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.sklearn.factorization import NMF
    from flegel.sklearn.fuzzy import FuzzyCMeans
    from flegel.sklearn.kmeans import KMeans
    from flegel.sklearn.linear import LogisticRegression
    from flegel.sklearn.mixture import GaussianMixture

__all__ = ["NMF", "FuzzyCMeans", "GaussianMixture", "KMeans", "LogisticRegression"]
_HOMES = {
    "NMF": "factorization",
    "FuzzyCMeans": "fuzzy",
    "GaussianMixture": "mixture",
    "KMeans": "kmeans",
    "LogisticRegression": "linear",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
