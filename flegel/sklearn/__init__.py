"""Estimators with the interface of scikit-learn, trained by Flegel (`pip install 'flegel[sklearn]'`).

Names, parameters, attributes and defaults are scikit-learn's where they mean the same. Never imported by the engine.
"""

from flegel.sklearn.factorization import NMF
from flegel.sklearn.fuzzy import FuzzyCMeans
from flegel.sklearn.kmeans import KMeans
from flegel.sklearn.linear import LogisticRegression
from flegel.sklearn.mixture import GaussianMixture

__all__ = ["NMF", "FuzzyCMeans", "GaussianMixture", "KMeans", "LogisticRegression"]
