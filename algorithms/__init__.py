"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name and imported when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.algorithms.clusters.auto_kmeans import AutoKMeans as AutoKMeans
    from flegel.algorithms.clusters.bernoulli_mixture import BernoulliMixture as BernoulliMixture
    from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans as BisectingKMeans
    from flegel.algorithms.clusters.gap_kmeans import GapKMeans as GapKMeans
    from flegel.algorithms.clusters.gap_mixture import GapGMM as GapGMM
    from flegel.algorithms.clusters.kprototypes import KModes as KModes
    from flegel.algorithms.clusters.kprototypes import KPrototypes as KPrototypes
    from flegel.algorithms.clusters.sized_kmeans import SizedKMeans as SizedKMeans
    from flegel.algorithms.covariance import Covariance as Covariance
    from flegel.algorithms.fcm.fcm import FCM as FCM
    from flegel.algorithms.gap_pca import GapPCA as GapPCA
    from flegel.algorithms.glm.losses import Gamma as Gamma
    from flegel.algorithms.glm.losses import Huber as Huber
    from flegel.algorithms.glm.losses import LinearSVM as LinearSVM
    from flegel.algorithms.glm.losses import Poisson as Poisson
    from flegel.algorithms.gmm.gmm import GMM as GMM
    from flegel.algorithms.implicit_als import ImplicitALS as ImplicitALS
    from flegel.algorithms.kmeans.kmeans import KMeans as KMeans
    from flegel.algorithms.lda import LDA as LDA
    from flegel.algorithms.least_squares import ElasticNet as ElasticNet
    from flegel.algorithms.least_squares import Lasso as Lasso
    from flegel.algorithms.least_squares import LinearRegression as LinearRegression
    from flegel.algorithms.least_squares import Ridge as Ridge
    from flegel.algorithms.local_models import LocalLR as LocalLR
    from flegel.algorithms.local_models import LocalNMF as LocalNMF
    from flegel.algorithms.lr.lr import LR as LR
    from flegel.algorithms.naive_bayes import BernoulliNB as BernoulliNB
    from flegel.algorithms.naive_bayes import GaussianNB as GaussianNB
    from flegel.algorithms.naive_bayes import MultinomialNB as MultinomialNB
    from flegel.algorithms.nmf.kullback import KLNMF as KLNMF
    from flegel.algorithms.nmf.nmf import NMF as NMF
    from flegel.algorithms.pca import PCA as PCA
    from flegel.algorithms.pca import SVD as SVD
    from flegel.algorithms.plain_gradient import PlainLR as PlainLR
    from flegel.algorithms.plain_gradient import PlainNMF as PlainNMF

BUILTINS = {
    "kmeans": "flegel.algorithms.kmeans.kmeans:KMeans",
    "gmm": "flegel.algorithms.gmm.gmm:GMM",
    "fcm": "flegel.algorithms.fcm.fcm:FCM",
    "lr": "flegel.algorithms.lr.lr:LR",
    "nmf": "flegel.algorithms.nmf.nmf:NMF",
    "klnmf": "flegel.algorithms.nmf.kullback:KLNMF",
    "implicitals": "flegel.algorithms.implicit_als:ImplicitALS",
    "pca": "flegel.algorithms.pca:PCA",
    "svd": "flegel.algorithms.pca:SVD",
    "covariance": "flegel.algorithms.covariance:Covariance",
    "gaussiannb": "flegel.algorithms.naive_bayes:GaussianNB",
    "multinomialnb": "flegel.algorithms.naive_bayes:MultinomialNB",
    "bernoullinb": "flegel.algorithms.naive_bayes:BernoulliNB",
    "lda": "flegel.algorithms.lda:LDA",
    "linear": "flegel.algorithms.least_squares:LinearRegression",
    "ridge": "flegel.algorithms.least_squares:Ridge",
    "lasso": "flegel.algorithms.least_squares:Lasso",
    "elasticnet": "flegel.algorithms.least_squares:ElasticNet",
    "poisson": "flegel.algorithms.glm.losses:Poisson",
    "gamma": "flegel.algorithms.glm.losses:Gamma",
    "huber": "flegel.algorithms.glm.losses:Huber",
    "linearsvm": "flegel.algorithms.glm.losses:LinearSVM",
    "autokmeans": "flegel.algorithms.clusters.auto_kmeans:AutoKMeans",
    "bernoullimixture": "flegel.algorithms.clusters.bernoulli_mixture:BernoulliMixture",
    "bisectingkmeans": "flegel.algorithms.clusters.bisecting_kmeans:BisectingKMeans",
    "gapkmeans": "flegel.algorithms.clusters.gap_kmeans:GapKMeans",
    "gapgmm": "flegel.algorithms.clusters.gap_mixture:GapGMM",
    "gappca": "flegel.algorithms.gap_pca:GapPCA",
    "kmodes": "flegel.algorithms.clusters.kprototypes:KModes",
    "kprototypes": "flegel.algorithms.clusters.kprototypes:KPrototypes",
    "sizedkmeans": "flegel.algorithms.clusters.sized_kmeans:SizedKMeans",
    "lr-local": "flegel.algorithms.local_models:LocalLR",
    "nmf-local": "flegel.algorithms.local_models:LocalNMF",
    "lr-gradient": "flegel.algorithms.plain_gradient:PlainLR",
    "nmf-gradient": "flegel.algorithms.plain_gradient:PlainNMF",
    "cnn": "flegel.torch.builtin:CNN",
    "lenet": "flegel.torch.builtin:LeNet",
    "vgg11": "flegel.torch.builtin:VGG11",
    "mlp": "flegel.torch.builtin:MLP",
}
"""Name on the command line to module and class. A new algorithm is a file and a line here. The last four are networks,
which need the extra `torch`."""


def __getattr__(name: str) -> Any:
    """`from flegel.algorithms import KMeans`: a class by its name, imported when it is asked for."""
    import importlib

    for place in BUILTINS.values():
        module, _, found = place.partition(":")
        if found == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
