"""Slices of θ: the law of sharding holds for every class that declares it, and others are refused in one sentence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from flegel import ParameterPlacement
from flegel.algorithm import Algorithm
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.algorithms.plain_gradient import PlainNMF
from flegel.checks.conformance import Trial, _shards
from flegel.core.sharding import Sharding, even_slices, make_cuts
from flegel.errors import ConformanceError, UsageError
from flegel.params.sharded import sharding_of

ROWS = np.abs(np.random.default_rng(4).normal(size=(40, 5))) + np.arange(40)[:, None] % 4


@pytest.mark.parametrize(
    "algorithm",
    [
        KMeans(k=9),
        KMeans(k=30, init="random"),
        GMM(k=5),
        GMM(k=4, covariance="full"),
        GMM(k=4, covariance="spherical"),
        GMM(k=4, covariance="tied"),
        PlainNMF(rank=3),
        FCM(k=6),
        NMF(rank=3),
    ],
    ids=repr,
)
def test_slices_of_an_update_are_updates_of_slices(algorithm: Algorithm) -> None:
    assert _shards(Trial(algorithm, ROWS, None, np.dtype(np.float64)))


def test_an_empty_cluster_moves_to_the_same_place_on_slices() -> None:
    """Relocation looks at all centroids, which no slice has."""
    rows = np.repeat(np.array([[0.0, 0.0], [9.0, 9.0], [50.0, 0.0]]), 10, axis=0)
    start = np.array([[0.0, 0.0], [9.0, 9.0], [1000.0, 1000.0], [2000.0, 0.0]])
    assert _shards(Trial(KMeans(k=4, init=start), rows, None, np.dtype(np.float64)))


class Scaled(KMeans):
    """Overrides the update, and forgets to say whether slices of it work."""

    def updateParameter(self, aggregator, oldParameter):  # type: ignore[no-untyped-def]
        return super().updateParameter(aggregator, oldParameter)


class Sums(NamedTuple):
    sums: np.ndarray  # type: ignore[type-arg]


class Normalized(Algorithm):
    """Divides by the sum over all units, which a slice does not have."""

    placement = ParameterPlacement(sharding=Sharding({"sums": 0}, {"sums": 0}))

    def initParameter(self, sample, rng):  # type: ignore[no-untyped-def]
        return Sums(np.ones(sample.columns))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):  # type: ignore[no-untyped-def]
        return Sums(np.array(dataPoint.features, dtype=np.float64))

    def updateParameter(self, aggregator, oldParameter):  # type: ignore[no-untyped-def]
        return Sums(aggregator.sums / aggregator.sums.sum())


def test_a_class_whose_slices_differ_is_found() -> None:
    with pytest.raises(ConformanceError, match="updateSlice of 0 to 2 gives another sums"):
        _shards(Trial(Normalized(), ROWS, None, np.dtype(np.float64)))


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (LR(), "the length of each step is found along all of θ at once .lr-gradient takes plain steps, and can"),
        (NMF(solver="multiplicative"), "objective of all of H"),
        (NMF(solver="coordinate"), "objective of all of H"),
        (Scaled(), "it overrides updateParameter and says nothing of its `placement`"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_sentence(algorithm: Algorithm, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        sharding_of(algorithm)
    assert str(refused.value).endswith("use servers=0.")
    assert str(refused.value).count(". ") == 0


def test_slices_are_even_and_end_between_granules() -> None:
    assert even_slices(10, 1, 4) == ((0, 2), (2, 5), (5, 7), (7, 10))
    assert even_slices(10_000, 4096, 8) == ((0, 4096), (4096, 8192), (8192, 10_000))
    assert even_slices(3, 1, 8) == ((0, 1), (1, 2), (2, 3))


def test_fields_of_different_extents_are_refused() -> None:
    theta, sums = Sums(np.zeros(4)), Sums(np.zeros(5))
    with pytest.raises(UsageError, match=r"one and the same extent; these have \[4, 5\]"):
        make_cuts(Normalized.placement.sharding, theta, sums, 2)
