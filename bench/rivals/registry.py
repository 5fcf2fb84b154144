"""Who competes in what: by the name of a field, all rivals that there are."""

from __future__ import annotations

from bench.rivals import accelerated, gpu, nmf, trainers
from bench.rivals.trainers import Rival

FIELDS: dict[str, dict[str, type[Rival]]] = {
    "kmeans": {
        "scikit-learn Lloyd": trainers.SklearnLloyd,
        "scikit-learn MiniBatchKMeans": trainers.SklearnMiniBatch,
        "scikit-learn MiniBatchKMeans, batch 1024": trainers.SklearnMiniBatchDefault,
        "scikit-learn Elkan": trainers.SklearnElkan,
        "faiss": accelerated.FaissLloyd,
        "scikit-learn-intelex Lloyd": accelerated.IntelLloyd,
        "PyTorch Lloyd": trainers.TorchLloyd,
        "Dask Lloyd": trainers.DaskLloyd,
        "Ray parameter server": trainers.RayServer,
    },
    "gmm": {"scikit-learn GaussianMixture": trainers.SklearnMixture},
    "lr": {
        "scikit-learn LogisticRegression, lbfgs": trainers.SklearnNewton,
        "scikit-learn-intelex LogisticRegression, lbfgs": accelerated.IntelNewton,
        "scikit-learn SGDClassifier": trainers.SklearnSGD,
        "scikit-learn LogisticRegression, saga": trainers.SklearnSaga,
    },
    "nmf": {
        "scikit-learn NMF, coordinate descent": nmf.SklearnFactors,
        "scikit-learn NMF, multiplicative": nmf.SklearnMultiplicative,
    },
    "gpu": {"PyTorch Lloyd, GPU": gpu.TorchGpu, "CuPy Lloyd, GPU": gpu.CupyGpu},
}
