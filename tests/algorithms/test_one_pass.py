"""Statistics that do not depend on θ: one pass counts every point once, whatever happens, and the job is over.

PCA and truncated SVD beside scikit-learn: offsets, weights, sparse rows, every synchronization model.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import scipy.sparse
from sklearn import decomposition

import flegel
from flegel import Algorithm, Statistics, UsageError, check_algorithm
from flegel.algorithms.moments import MOST_COLUMNS
from flegel.algorithms.pca import PCA, SVD
from flegel.core.counting_kernel import counting_kernel
from flegel.core.row_windows import RowWindow, RowWindows
from flegel.core.shard import Sparse, make_shard
from flegel.core.stop_flag import new_flag

RNG = np.random.default_rng(5)
X = RNG.normal(size=(400, 6)) @ RNG.normal(size=(6, 6)) + 10.0
WEIGHTS = RNG.integers(1, 4, size=400).astype(float)


class Sums(NamedTuple):
    mass: float
    sums: np.ndarray


class Mean(Algorithm):
    """By one point; a second visit would double the sums if it counted."""

    statistics: ClassVar[Statistics] = Statistics(constant=True)

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(sample.columns)

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return Sums(1.0, dataPoint.features)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator.sums / max(aggregator.mass, 1e-300)


class MeanOfBlocks(Mean):
    """By arrays of points."""

    def contributions(self, features: Any, labels: Any, weights: Any, parameter: Any) -> Any:
        each = np.ones(len(features)) if weights is None else weights
        return Sums(each.sum(), each @ features)


@pytest.mark.parametrize("sync", ["bsp", "fsp", "ssp", "asp"])
@pytest.mark.parametrize("cls", [Mean, MeanOfBlocks])
def test_a_job_ends_when_every_point_is_counted(cls: type[Algorithm], sync: str) -> None:
    result = flegel.run(cls(), X, workers=2, sync=sync, processes="no", progress=False)
    assert result.converged and result.outcome == "converged" and "every point is counted" in result.reason
    np.testing.assert_allclose(result.parameter, X.mean(axis=0))


@pytest.mark.parametrize("cls", [Mean, MeanOfBlocks])
def test_engine_keeps_a_mark_and_counts_weights(cls: type[Algorithm]) -> None:
    check_algorithm(cls())
    rows = flegel.run(cls(), (X, None, WEIGHTS), processes="no", progress=False).parameter
    np.testing.assert_allclose(rows, np.average(X, axis=0, weights=WEIGHTS))
    algorithm = cls()
    from flegel.algorithm import Sample, keep_contributions

    keep_contributions(algorithm, Sample(X, None, 400, 6), np.zeros(6))
    assert algorithm.initState(3, 6, RNG).shape == (3, 1)


class Products(MeanOfBlocks):
    """The second moments of the columns, written without a word of precision."""

    def initParameter(self, sample: Any, rng: np.random.Generator) -> Any:
        return np.zeros((sample.columns, sample.columns))

    def contributions(self, features: Any, labels: Any, weights: Any, parameter: Any) -> Any:
        assert weights is None or weights.dtype == np.float64
        return Sums(float(len(features)), features.T @ features)

    def initAggregator(self, sample: Any, parameter: Any) -> Any:
        return Sums(0.0, np.zeros_like(parameter))


def test_products_of_float32_rows_lose_no_digits() -> None:
    rows = (np.random.default_rng(31).normal(size=(20_000, 4)) + 300.0).astype(np.float32)
    exact = rows.astype(np.float64).T @ rows.astype(np.float64) / len(rows)
    found = flegel.run(Products(), rows, processes="no", progress=False).parameter
    np.testing.assert_allclose(found, exact, rtol=1e-13)
    matrix = scipy.sparse.csr_matrix(rows)
    seen: list[Any] = []

    def contributions(features: Any, labels: Any, weights: Any, theta: Any) -> Any:
        seen.append(features.values.dtype)
        return np.zeros(1)

    shard = make_shard(Sparse(matrix.indptr, matrix.indices, matrix.data, 4), None, np.zeros((20_000, 1), np.int64))
    counting_kernel(contributions)(shard, np.zeros(1), np.zeros(1), 0, 20_000, 0, new_flag())
    assert set(seen) == {np.dtype(np.float64)}


def test_contributions_need_constant_statistics() -> None:
    with pytest.raises(UsageError, match=r"declare `statistics = Statistics\(constant=True\)`"):
        type("Wrong", (Algorithm,), {"contributions": lambda self, *given: None})
    with pytest.raises(UsageError, match="define contribution or contributions"):
        body = {"statistics": Statistics(constant=True), "updateDataPoint": lambda self, d, p, i: None}
        type("Wrong", (Algorithm,), body)


def test_a_block_with_some_counted_points_gives_the_others() -> None:
    seen: list[Any] = []

    def contributions(features: Any, labels: Any, weights: Any, theta: Any) -> Any:
        seen.append(features)
        return np.array([float(len(labels))])

    matrix = scipy.sparse.random(9, 5, 0.5, format="csr", random_state=0)
    sparse = Sparse(matrix.indptr, matrix.indices, matrix.data, 5)
    for rows in (X[:9], sparse):
        seen.clear()
        shard = make_shard(rows, None, np.zeros((9, 1), np.int64))
        shard.state[[1, 4, 5]] = 1
        total = np.zeros(1)
        assert counting_kernel(contributions)(shard, np.zeros(1), total, 0, 9, 0, new_flag()) == 9
        assert total[0] == 6 and shard.state.all()
        if isinstance(rows, Sparse):
            found = scipy.sparse.csr_matrix((seen[0].values, seen[0].indices, seen[0].indptr), (6, 5))
            np.testing.assert_array_equal(found.toarray(), matrix.toarray()[[0, 2, 3, 6, 7, 8]])
        else:
            np.testing.assert_array_equal(seen[0], rows[[0, 2, 3, 6, 7, 8]])


def test_rows_that_lie_side_by_side_are_not_copied() -> None:
    rows = RowWindows((5, 6), X.dtype, lambda: iter([RowWindow(X, np.arange(2, 7))]))
    found = make_shard(rows, None, np.zeros((5, 1))).features
    assert isinstance(found, np.ndarray) and np.shares_memory(found, X)
    np.testing.assert_array_equal(found, X[2:7])
    mixed = RowWindows((5, 6), X.dtype, lambda: iter([RowWindow(X, np.array([3, 2, 4, 5, 6]))]))
    other = make_shard(mixed, None, np.zeros((5, 1))).features
    assert isinstance(other, np.ndarray) and not np.shares_memory(other, X)

    def complain() -> None:
        raise ValueError("not finite")

    wrong = np.full((2, 3), np.nan)
    with pytest.raises(ValueError, match="not finite"):
        RowWindows((2, 3), wrong.dtype, lambda: iter([RowWindow(wrong, np.arange(2))]), complain).in_place()


@pytest.mark.parametrize("algorithm", [PCA(k=2), SVD(k=2)], ids=lambda a: type(a).__name__)
def test_components_keep_every_promise(algorithm: Algorithm) -> None:
    assert "statistics conserve (float64)" in check_algorithm(algorithm)


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_components_are_those_of_an_exact_decomposition(offset: float) -> None:
    rows = X + offset
    result = flegel.run(PCA(k=3), rows, processes="no", progress=False)
    shifted = rows - rows[0]
    peer = decomposition.PCA(3, svd_solver="full").fit(shifted)
    np.testing.assert_allclose(result.parameter.components, peer.components_, atol=1e-7)
    np.testing.assert_allclose(result.parameter.variances, peer.explained_variance_, rtol=1e-7)
    found = PCA(k=3).evaluate(rows, None, result.parameter)
    assert result.objective == pytest.approx(found.objective, rel=1e-6)
    assert result.metrics["explained"] == pytest.approx(peer.explained_variance_ratio_.sum())
    np.testing.assert_allclose(result.predict(rows), peer.transform(shifted), atol=1e-6 * max(offset / 1e7, 1))


def test_sparse_rows_weights_and_the_other_direction() -> None:
    matrix = scipy.sparse.random(500, 40, 0.1, format="csr", random_state=1)
    weights = RNG.integers(1, 3, size=500).astype(float)
    result = flegel.run(SVD(k=4), (matrix, None, weights), processes="no", progress=False)
    repeated = scipy.sparse.csr_matrix(np.repeat(matrix.toarray(), weights.astype(int), axis=0))
    peer = decomposition.TruncatedSVD(4, algorithm="arpack").fit(repeated)
    np.testing.assert_allclose(result.parameter.components, peer.components_, atol=1e-8)
    theirs = result.to_sklearn()
    np.testing.assert_allclose(theirs.explained_variance_ratio_, peer.explained_variance_ratio_)
    np.testing.assert_allclose(theirs.singular_values_, peer.singular_values_)
    np.testing.assert_allclose(theirs.transform(matrix), result.predict(matrix))
    genuine = flegel.run(PCA(k=2), X, processes="no", progress=False).to_sklearn()
    peer = decomposition.PCA(2).fit(X)
    for name in ("mean_", "explained_variance_ratio_", "noise_variance_", "singular_values_"):
        np.testing.assert_allclose(getattr(genuine, name), getattr(peer, name), rtol=1e-9)


def test_too_many_columns_or_components_are_refused_in_a_sentence() -> None:
    wide = scipy.sparse.csr_matrix((3, MOST_COLUMNS + 1))
    with pytest.raises(UsageError, match="a number for each pair of columns"):
        flegel.run(SVD(k=1), wide, progress=False)
    with pytest.raises(UsageError, match="k=7 is more than the 6 columns"):
        flegel.run(PCA(k=7), X, progress=False)
