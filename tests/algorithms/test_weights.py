"""A point of weight 3 counts as three equal points, in the hooks and in the kernels of all five algorithms."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.clusters.auto_kmeans import AutoKMeans
from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans
from flegel.algorithms.clusters.gap_kmeans import GapKMeans
from flegel.algorithms.clusters.gap_mixture import GapGMM
from flegel.algorithms.clusters.kprototypes import KPrototypes
from flegel.algorithms.clusters.sized_kmeans import SizedKMeans
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gap_pca import GapPCA
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lda import LDA
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.algorithms.seeding import lloyd_from, more_rows, weighted_rows
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.numba.kernels import build_kernel

POINTS, COLUMNS = 331, 6
RNG = np.random.default_rng(0)
ROWS = np.abs(RNG.normal(size=(POINTS, COLUMNS)) + 3 * RNG.integers(3, size=(POINTS, 1))) + 0.1
LABELS = (RNG.random(POINTS) < 0.5).astype(float)
WEIGHTS = RNG.integers(4, size=POINTS).astype(float)
TWICE = np.repeat(np.arange(POINTS), WEIGHTS.astype(int))
VISITS = ("seen", "stamps", "visits")
"""Statistics of LR that count visits, whatever a point weighs."""


def sparse(rows: Array) -> Sparse:
    kept = rows > 1.0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return Sparse(indptr, np.nonzero(kept)[1].astype(np.int32), rows[kept], rows.shape[1])


class Job:
    """θ(0) and empty statistics of an algorithm on the weighted rows."""

    def __init__(self, algorithm: Algorithm, dtype: str, as_sparse: bool = False) -> None:
        self.algorithm, self.dtype, self.sparse = algorithm, dtype, as_sparse
        sample = Sample(self.rows(ROWS), LABELS, POINTS, COLUMNS, WEIGHTS)
        algorithm.validate(sample)
        made = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(1)))
        self.parameter: Tree = pytree.read_only(made)
        self.zero: Tree = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(self.parameter)))

    def rows(self, rows: Array) -> Array | Sparse:
        return sparse(rows.astype(self.dtype)) if self.sparse else rows.astype(self.dtype)

    def shard(self, which: Array, layout: str, weights: Array | None) -> Shard:
        state = self.algorithm.initState(len(which), COLUMNS, np.random.default_rng(5))
        labels = LABELS[which] if self.algorithm.accepts.supervised else None
        return make_shard(self.rows(ROWS[which]), labels, state, layout, weights=weights)

    def train(self, shard: Shard, by_hooks: bool) -> dict[str, Array]:
        """Two visits to every point."""
        total, algorithm = pytree.copy(self.zero), self.algorithm
        kernel = interpreted(algorithm) if by_hooks else build_kernel(algorithm, shard, self.parameter, total).kernel
        for iteration in range(2):
            pytree.clear(total, algorithm.statistics.spent)
            if not by_hooks:
                kernel(shard, self.parameter, total, 0, shard.points, iteration, new_flag())
                continue
            for i in range(shard.points):
                local = hook(algorithm, KernelHooks.localParameter)(self.parameter, total)
                kernel(shard, local, total, i, i + 1, iteration, new_flag())
        return dict(zip(pytree.names(total), pytree.flatten(total), strict=True))


def assert_same(one: dict[str, Array], other: dict[str, Array], relative: float) -> None:
    for name, value in other.items():
        if name not in VISITS:
            np.testing.assert_allclose(
                one[name], value, rtol=0, atol=relative * max(np.abs(value).max(initial=0), 1e-9)
            )


def check(algorithm: Algorithm, dtype: str, as_sparse: bool = False) -> None:
    job, relative = Job(algorithm, dtype, as_sparse), 1e-4 if dtype == "float32" else 1e-8
    if isinstance(algorithm, LR):
        relative = max(relative, 1e-6)  # its state is kept in float32
    everyone, layout = np.arange(POINTS), algorithm.kernels.layout
    weighted = job.train(job.shard(everyone, layout, WEIGHTS), by_hooks=False)
    assert_same(job.train(job.shard(everyone, "rows", WEIGHTS), by_hooks=True), weighted, relative)
    if not isinstance(algorithm, NMF) or algorithm.solver != "sgd":  # its steps depend on each other
        assert_same(weighted, job.train(job.shard(TWICE, layout, None), by_hooks=False), relative)


def test_kmeans_counts_a_point_as_often_as_it_weighs() -> None:
    check(KMeans(k=3), "float64")


CASES = [
    (KMeans(k=3), "float32", False),
    (GMM(k=3), "float32", False),
    (GMM(k=2, covariance="full"), "float64", False),
    (FCM(k=3), "float32", False),
    (FCM(k=3, m=2.5), "float64", False),
    (LR(), "float32", False),
    (LR(class_weight="balanced"), "float64", True),
    (NMF(rank=3, precision="float64"), "float64", False),
    (NMF(rank=3, precision="float64"), "float64", True),
    (NMF(rank=3, solver="coordinate", precision="float64"), "float64", False),
    (NMF(rank=3, solver="multiplicative", precision="float64"), "float64", False),
    (KMeans(k=3), "float64", True),
    (SizedKMeans(k=3, size_min=100), "float64", False),
    (KPrototypes(k=3, categorical=[]), "float64", False),
    (AutoKMeans(k_max=4), "float64", False),
    (BisectingKMeans(k=4), "float64", False),
    (GapKMeans(k=3), "float64", False),
    (GapGMM(k=3), "float64", False),
    (GapPCA(k=2), "float64", False),
    (LDA(k=3), "float64", True),
    (NMF(rank=3, solver="multiplicative", precision="float64"), "float64", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "dtype", "as_sparse"), CASES)
def test_kernels_and_hooks_count_a_point_as_often_as_it_weighs(
    algorithm: Algorithm, dtype: str, as_sparse: bool
) -> None:
    check(algorithm, dtype, as_sparse)


def test_seeding_never_takes_rows_without_weight_and_prefers_heavy_ones() -> None:
    rows, weights = weighted_rows(ROWS, np.where(np.arange(POINTS) < 10, 5.0, 0.0))
    assert len(rows) == 10 and weights is not None and (weights == 5.0).all()
    line = np.array([[0.0], [1.0], [10.0]])
    heavy = np.array([1.0, 1e9, 1.0])
    assert more_rows(line, np.array([[10.0]]), 1, np.random.default_rng(0), heavy).tolist() == [[1.0]]
    centres, spread = lloyd_from(line, np.array([[0.0], [9.0]]), weights=np.array([1.0, 3.0, 1.0]))
    assert centres.tolist() == [[0.75], [10.0]] and spread == 0.75


def test_the_mass_of_the_data_is_exact_where_the_sample_holds_all() -> None:
    whole = Sample(ROWS, None, POINTS, COLUMNS, WEIGHTS)
    assert whole.mass == pytest.approx(WEIGHTS.sum(), rel=1e-5) and whole.mass <= WEIGHTS.sum()
    part = Sample(ROWS[:100], None, POINTS, COLUMNS, np.full(100, 2.0))
    assert part.mass == pytest.approx(0.95 * 2 * POINTS)
    assert Sample(ROWS, None, POINTS, COLUMNS).mass == POINTS
