"""Rows with gaps: mixtures, components and factors of the observed numbers alone, and jobs that go on from others."""

from __future__ import annotations

import numpy as np
import pytest

import flegel
from flegel.algorithms import GMM, NMF, PCA, GapGMM, GapKMeans, GapPCA, ImplicitALS
from flegel.core.gaps import with_marks
from flegel.errors import DataError, UsageError

rng = np.random.default_rng(5)
CLUSTER = rng.integers(0, 3, 600)
MEANS = np.array([[0.0, 0, 0, 0], [6, 6, 0, 3], [0, 6, 6, -4]]) + 1e4
ROWS = MEANS[CLUSTER] + rng.normal(size=(600, 4)) * np.array([[1.0], [0.5], [1.5]])[CLUSTER]
HOLES = rng.random(ROWS.shape) < 0.3
GAPS = np.where(HOLES, np.nan, ROWS)
PLANE = rng.normal(size=(400, 2)) @ (rng.normal(size=(2, 8)) * [[3.0], [2.0]]) + 0.1 * rng.normal(size=(400, 8)) + 1e3
PLANE_HOLES = rng.random(PLANE.shape) < 0.3
PLANE_GAPS = np.where(PLANE_HOLES, np.nan, PLANE)


def train(algorithm: flegel.Algorithm, rows: np.ndarray, **options) -> flegel.Result:
    given = {"sync": "bsp", "workers": 1, "seed": 0, "processes": False, "progress": False, **options}
    return flegel.run(algorithm, rows, **given)


@pytest.mark.parametrize("kind", ["diagonal", "spherical"])
def test_a_mixture_of_rows_without_gaps_is_that_of_gmm(kind: str) -> None:
    ours, plain = train(GapGMM(k=3, covariance=kind), ROWS), train(GMM(k=3, covariance=kind), ROWS)
    assert ours.objective == pytest.approx(plain.objective, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mixture_finds_the_means_of_what_is_observed(dtype: str) -> None:
    rows = GAPS.astype(dtype)
    result = train(GapGMM(k=3), rows, missing="keep", sync="fsp", workers=2)
    model = GapGMM(k=3)
    assert result.objective == pytest.approx(model.evaluate(rows, None, result.parameter).objective, rel=1e-5)
    found = np.asarray(result.parameters["means"])
    order = [int(((found - mean) ** 2).sum(axis=1).argmin()) for mean in MEANS]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found[order], MEANS, atol=0.5)
    agree = np.array(order)[CLUSTER] == model.predict(rows, result.parameter)
    assert agree.mean() > 0.9


def test_no_step_of_em_over_observed_numbers_improves_a_mixture() -> None:
    result = train(GapGMM(k=3), GAPS, missing="keep")
    theta, model = result.parameter, GapGMM(k=3)
    shares, _ = model.transform(GAPS, theta)
    known = ~np.isnan(GAPS)
    means = shares.T @ np.where(known, GAPS, 0.0) / (shares.T @ known)
    np.testing.assert_allclose(means, result.parameters["means"], atol=1e-2)


def test_components_of_rows_without_gaps_are_those_of_pca() -> None:
    ours, plain = train(GapPCA(k=2), PLANE), train(PCA(k=2), PLANE)
    np.testing.assert_allclose(ours.parameters["components"], plain.parameters["components"], atol=1e-6)
    variances = ours.parameters["explained_variance"] * 400 / 399
    np.testing.assert_allclose(variances, plain.parameters["explained_variance"], rtol=1e-6)
    np.testing.assert_allclose(
        GapPCA(k=2).predict(PLANE, ours.parameter), PCA(k=2).predict(PLANE, plain.parameter), atol=1e-5
    )


@pytest.mark.parametrize("sync", ["bsp", "fsp", "asp"])
def test_components_explain_what_is_not_observed(sync: str) -> None:
    result = train(GapPCA(k=2), PLANE_GAPS, missing="keep", sync=sync, workers=2)
    model = GapPCA(k=2)
    assert result.objective == pytest.approx(model.evaluate(PLANE_GAPS, None, result.parameter).objective, rel=1e-6)
    filled = model.filled(PLANE_GAPS, result.parameter)
    np.testing.assert_array_equal(filled[~PLANE_HOLES], PLANE[~PLANE_HOLES])
    by_means = np.where(PLANE_HOLES, np.nanmean(PLANE_GAPS, axis=0), PLANE)
    apart = np.abs(filled - PLANE)[PLANE_HOLES].mean()
    assert apart < 0.2 * np.abs(by_means - PLANE)[PLANE_HOLES].mean()


def test_more_components_than_columns_are_refused() -> None:
    with pytest.raises(UsageError, match="k=8 components need 9 to"):
        train(GapPCA(k=8), PLANE)
    with pytest.raises(UsageError, match="has no observed number"):
        train(GapPCA(k=2), with_marks(np.where(np.arange(8) == 3, np.nan, PLANE)))
    with pytest.raises(UsageError, match="has no observed number"):
        train(GapGMM(k=2), with_marks(np.where(np.arange(8) == 3, np.nan, PLANE)))


def test_rows_that_do_not_vary_have_no_components() -> None:
    with pytest.raises(UsageError, match="does not vary"):
        train(GapPCA(k=1), np.ones((20, 4)))
    with pytest.raises(UsageError, match="does not vary"):  # the mean of equal numbers is not that number, but nearly
        train(GapPCA(k=1), np.repeat([[0.1, 1 / 3, 1e7 / 3]], 101, axis=0))


def test_factors_of_a_dense_matrix_with_gaps_are_those_of_its_observed_entries() -> None:
    whole = rng.random((200, 3)) @ rng.random((3, 15))
    holes = rng.random(whole.shape) < 0.3
    gaps = np.where(holes, np.nan, whole)
    result = train(NMF(rank=3, regularization=1e-4), gaps, missing="keep", tolerance=1e-6)
    expected = NMF(rank=3, regularization=1e-4).predict(gaps, result.parameter)
    by_means = np.abs(np.nanmean(gaps, axis=0) - whole)[holes].mean()
    assert np.abs(expected - whole)[holes].mean() < 0.3 * by_means
    with pytest.raises(UsageError, match="needs every entry; use solver=sgd"):
        train(NMF(rank=3, solver="coordinate"), gaps, missing="keep")


@pytest.mark.parametrize("algorithm", [GapKMeans(k=3), GapGMM(k=3), GapPCA(k=2)], ids=lambda a: type(a).__name__)
def test_a_job_that_goes_on_with_fewer_rows_trains_on_them(algorithm: flegel.Algorithm) -> None:
    """What all points weigh is counted anew; before, θ waited for rows that this job does not have."""
    first = train(algorithm, GAPS, missing="keep")
    part = (GAPS[:200] - 1e4) * 1.5 + 1e4 + 0.25
    second = train(algorithm, part, missing="keep", start=first)
    fresh = algorithm.evaluate(part, None, first.parameter).objective
    assert abs(second.objective - fresh) > 1e-3 * abs(fresh)
    assert second.objective == pytest.approx(algorithm.evaluate(part, None, second.parameter).objective, rel=1e-6)


def test_recommendations_go_on_with_fewer_users() -> None:
    counts = rng.poisson(0.4, (120, 20)).astype(float)
    first = train(ImplicitALS(rank=3), counts)
    second = train(ImplicitALS(rank=3), counts[:40, ::-1].copy(), start=first)
    assert not np.allclose(second.parameters["factors"], first.parameters["factors"])


@pytest.mark.parametrize("number", [np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("algorithm", [GapGMM(k=2), GapPCA(k=1), GapKMeans(k=2)], ids=lambda a: type(a).__name__)
def test_numbers_beyond_the_mark_of_a_gap_are_refused(algorithm: flegel.Algorithm, number: float) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    rows[3, 1] = np.nan
    result = flegel.run(algorithm, rows, missing="keep", workers=1, processes=False, max_iterations=2)
    rows[5, 2] = number
    with pytest.raises((UsageError, DataError), match=r"infinite|3\.4e38|-?inf"):
        result.predict(rows)
    with pytest.raises((UsageError, DataError)):
        flegel.run(algorithm, rows, missing="keep", workers=1, processes=False, max_iterations=2)
