"""Trivial models, from the statistics alone, beside the same computed from the rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag

ROWS = np.abs(np.random.default_rng(3).normal(5.0, 1.0, (128, 3)))
LABELS = (np.arange(128) % 4 == 0).astype(np.float64)


def one_gaussian(shape: str) -> float:
    return float(GaussianMixture(1, covariance_type=shape, reg_covar=1e-9).fit(ROWS).score(ROWS) * len(ROWS))


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        (KMeans(k=4, init="first"), float(((ROWS - ROWS.mean(axis=0)) ** 2).sum())),
        (GMM(k=3, init="first"), one_gaussian("diag")),
        (GMM(k=3, init="first", covariance="full"), one_gaussian("full")),
        (LR(), float(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))),
        (LR(intercept=False), float(np.log(2.0))),
        (NMF(rank=2, solver="multiplicative", precision="float64"), float((ROWS**2).sum())),
    ],
    ids=lambda case: repr(case) if isinstance(case, Algorithm) else "",
)
def test_the_statistics_of_one_pass_tell_the_objective_of_a_trivial_model(algorithm: Algorithm, wanted: float) -> None:
    sample, rng = Sample(ROWS, LABELS, len(ROWS), ROWS.shape[1]), np.random.default_rng(0)
    algorithm.validate(sample)
    theta = pytree.read_only(algorithm.initParameter(sample, rng))
    share = make_shard(ROWS, LABELS, algorithm.initState(len(ROWS), ROWS.shape[1], rng), algorithm.kernels.layout)
    sums, kernel = algorithm.initAggregator(sample, theta), algorithm.kernel(share)
    assert kernel is not None
    kernel(share, theta, sums, 0, len(ROWS), 0, new_flag())
    assert algorithm.baseline(sums, theta) == pytest.approx(wanted, rel=1e-6)
