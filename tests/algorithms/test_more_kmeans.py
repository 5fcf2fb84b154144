"""K-means with a number of clusters that is found, by splits in two, and of rows with gaps: beside scikit-learn's and
plain arithmetic."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import BisectingKMeans as Theirs
from sklearn.cluster import KMeans as TheirKMeans
from sklearn.datasets import make_blobs
from typer.testing import CliRunner

import flegel
from flegel.algorithms.clusters.auto_kmeans import AutoKMeans
from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans
from flegel.algorithms.clusters.gap_kmeans import GapKMeans
from flegel.algorithms.kmeans import KMeans
from flegel.cli.main import app
from flegel.core.gaps import GAP, observed, with_marks
from flegel.errors import UsageError
from tests.models import MODELS

X, WHICH = make_blobs(1500, 4, centers=6, random_state=4)
GAPS = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


@cache
def their_inertia() -> float:
    return float(TheirKMeans(6, n_init=5, random_state=0).fit(X).inertia_)


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_finds_the_number_of_clusters(sync: str, cluster) -> None:
    result = flegel.run(
        AutoKMeans(), X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1
    )
    assert result.outcome == "converged", result.reason
    assert int(result.parameter.number[0]) == 6
    found = AutoKMeans().evaluate(X, None, result.parameter)
    assert result.objective == pytest.approx(found.objective, rel=1e-9)
    assert found.metrics["inertia"] <= their_inertia() * 1.0001


def test_clusters_that_are_too_many_are_merged() -> None:
    algorithm = AutoKMeans(k_max=12)
    begun = flegel.run(algorithm, X[:, :2] * 0.001, sync="bsp", workers=1, seed=0, progress=False)
    start = begun.parameter._replace(centroids=np.vstack([X[:12, :2] * 0.001]), number=np.array([12.0]))
    again = start._replace(phase=np.zeros(1), least=np.array([np.finfo(float).max]), last=np.array([1e300]))
    result = flegel.run(algorithm, X[:, :2] * 0.001, sync="bsp", workers=1, seed=0, progress=False, start=again)
    assert int(result.parameter.number[0]) < 12
    assert result.objective <= begun.objective + 1e-6 * abs(begun.objective)


@pytest.mark.parametrize("rows", [np.zeros((50, 3)), np.ones((50, 2)) * 1e9, X[:1]], ids=["zeros", "equal", "one"])
def test_rows_without_scatter_are_one_cluster(rows: np.ndarray) -> None:
    result = flegel.run(AutoKMeans(), rows, sync="bsp", workers=1, seed=0, progress=False)
    assert int(result.parameter.number[0]) == 1 and np.isfinite(result.objective)


def test_a_weight_counts_as_so_many_rows() -> None:
    weights = np.random.default_rng(0).integers(1, 4, size=len(X)).astype(float)
    twice = np.repeat(X, weights.astype(int), axis=0)
    one = flegel.run(AutoKMeans(), (X, None, weights), sync="bsp", workers=1, seed=0, progress=False)
    other = flegel.run(AutoKMeans(), twice, sync="bsp", workers=1, seed=0, progress=False)
    assert int(one.parameter.number[0]) == int(other.parameter.number[0]) == 6
    assert one.objective == pytest.approx(other.objective, rel=1e-6)


@pytest.mark.parametrize("split", ["inertia", "size"])
def test_splits_are_as_good_as_those_of_scikit_learn(split: str) -> None:
    strategy = {"inertia": "biggest_inertia", "size": "largest_cluster"}[split]
    algorithm = BisectingKMeans(k=6, split=split)
    result = flegel.run(algorithm, X, sync="bsp", workers=1, seed=0, progress=False)
    theirs = [Theirs(6, bisecting_strategy=strategy, n_init=3, random_state=s).fit(X).inertia_ for s in range(3)]
    assert result.objective <= np.median(theirs) * 1.01
    assert result.objective == pytest.approx(algorithm.evaluate(X, None, result.parameter).objective, rel=1e-9)


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_split_divides_the_rows_that_come_to_it_at_their_means(sync: str, cluster) -> None:
    algorithm = BisectingKMeans(k=5)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    theta, leaf = result.parameter, np.zeros(len(X), int)
    for s, parent in enumerate(theta.parents.astype(int)):
        mine = np.flatnonzero(leaf == parent)
        squared = ((X[mine, None] - theta.ways[s]) ** 2).sum(axis=2)
        for side in (0, 1):
            mean = X[mine[squared.argmin(axis=1) == side]].mean(axis=0)
            np.testing.assert_allclose(theta.ways[s, side], mean, atol=0.02 * X.std())
        leaf[mine[squared.argmin(axis=1) == 1]] = s + 1
    np.testing.assert_array_equal(leaf, algorithm.predict(X, theta))


def test_fewer_different_rows_than_clusters_leave_clusters_empty() -> None:
    rows = np.repeat(np.eye(3), 10, axis=0)
    algorithm = BisectingKMeans(k=5)
    result = flegel.run(algorithm, rows, sync="bsp", workers=1, seed=0, progress=False)
    assert (
        result.objective == pytest.approx(0.0, abs=1e-20)
        and len(np.unique(algorithm.predict(rows, result.parameter))) == 3
    )


def test_gaps_are_written_as_the_largest_float32_and_seen_again() -> None:
    for kind in (np.float32, np.float64):
        marked = with_marks(GAPS.astype(kind))
        assert np.isfinite(marked).all() and marked.dtype == kind
        np.testing.assert_array_equal(observed(marked), ~np.isnan(GAPS))
        np.testing.assert_array_equal(observed(GAPS.astype(kind)), ~np.isnan(GAPS))
        assert float(np.asarray(GAP, kind)) == GAP


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_ends_where_no_step_over_observed_numbers_improves(sync: str, cluster) -> None:
    algorithm = GapKMeans(k=6)
    marked = with_marks(GAPS)
    result = flegel.run(
        algorithm, marked, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1
    )
    assert result.outcome == "converged", result.reason

    def costs(centroids: np.ndarray) -> np.ndarray:
        return np.asarray(np.nansum((GAPS[:, None] - centroids) ** 2, axis=2))

    squared = costs(result.parameter.centroids)
    assert result.objective == pytest.approx(squared.min(axis=1).sum(), rel=1e-9)
    labels = squared.argmin(axis=1)
    better = np.stack([np.nanmean(GAPS[labels == j], axis=0) for j in range(6)])
    assert costs(better).min(axis=1).sum() >= result.objective * (1 - 1e-4)


def test_without_gaps_it_is_k_means() -> None:
    ours = flegel.run(GapKMeans(k=5), X, sync="bsp", workers=1, seed=0, progress=False)
    plain = flegel.run(KMeans(k=5), X, sync="bsp", workers=1, seed=0, progress=False)
    assert ours.objective == pytest.approx(plain.objective, rel=1e-6)


def test_gaps_of_tables_are_kept_for_who_knows_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "a,b\n" + "\n".join(f"{x:.6f},{'' if i % 4 == 0 else f'{y:.6f}'}" for i, (x, y) in enumerate(X[:, :2]))
    )
    result = flegel.run(GapKMeans(k=3), str(file), missing="keep", sync="bsp", workers=1, seed=0, progress=False)
    table = np.where((np.arange(len(X)) % 4 == 0)[:, None] & [False, True], np.nan, X[:, :2])
    assert result.objective == pytest.approx(GapKMeans(k=3).evaluate(table, None, result.parameter).objective, rel=1e-5)
    with pytest.raises(UsageError, match="KMeans does not know gaps; use missing="):
        flegel.run(KMeans(k=3), str(file), missing="keep", progress=False)
    with pytest.raises(UsageError, match="cannot be scaled"):
        flegel.run(GapKMeans(k=3), str(file), missing="keep", scale="standard", progress=False)
    refused = CliRunner().invoke(app, ["submit", "kmeans", "--data", str(file), "--missing", "keep"])
    assert refused.exit_code == 2 and "does not know gaps" in refused.output


@pytest.mark.parametrize(("clusters", "columns", "apart"), [(10, 2, 1000.0), (45, 6, 100.0), (1, 3, 1.0)])
def test_many_clusters_far_apart_are_found_though_one_split_alone_does_not_pay(
    clusters: int, columns: int, apart: float
) -> None:
    rng = np.random.default_rng(3)
    rows = np.repeat(rng.normal(size=(clusters, columns)) * apart, 50, axis=0) + rng.normal(
        size=(50 * clusters, columns)
    )
    result = flegel.run(AutoKMeans(), rows, workers=1, processes=False, sync="bsp", progress=False)
    assert len(result.parameters["centroids"]) == clusters


@pytest.mark.parametrize(("most", "told"), [(4, True), (6, False), (7, False)])
def test_a_limit_that_binds_is_told_with_what_to_set(most: int, told: bool) -> None:
    result = flegel.run(AutoKMeans(k_max=most), X, workers=1, processes=False, sync="bsp", seed=0, progress=False)
    assert any("limit of 4 clusters binds" in text and "k_max=8" in text for text in result.warnings) == told


def test_columns_without_a_number_are_named() -> None:
    blank = with_marks(np.column_stack([X[:, :2], np.full(len(X), np.nan)]))
    with pytest.raises(UsageError, match=r"column 2 \(counted from 0\) has no observed number"):
        flegel.run(GapKMeans(k=2), blank, progress=False)


def test_a_tree_with_fewer_clusters_than_asked_says_so() -> None:
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], 5, axis=0)
    result = flegel.run(BisectingKMeans(k=5), rows, processes="no", progress=False)
    assert any("3 have points" in told for told in result.warnings)
