"""On tables that nobody prepared: as good as scikit-learn from the same start, or a warning says why not; and law 1.

Law 1: after a pass under θ the reported objective is that of θ evaluated from scratch, to 1e-6 with float64 data and
to 1e-4 with float32 data (`EPSILON`).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hard_cases import EPSILON, REAL, SYNTHETIC, clouds
from local_training import sparse_of
from local_training import start as start_run
from passes import by_kernel, start
from sklearn.cluster import KMeans as Lloyd
from sklearn.decomposition import non_negative_factorization
from sklearn.mixture import GaussianMixture

import flegel
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf import NMF

CASES = {**SYNTHETIC, **REAL}
QUICK = ("rare", "heavy", "offset", "one_row", "all_equal")
"""Tables for every run of the tests; the others, and all of `bench.gauntlet`, are for the night."""
MARKS = {name: [pytest.mark.data] * (name in REAL) + [pytest.mark.slow] * (name not in QUICK) for name in CASES}
EVERY = pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in CASES])
BOTH = pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])


def some(*names: str) -> list[Any]:
    """The first for every run, the others for the night."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


SKLEARN_SHAPE = {"diagonal": "diag", "full": "full", "tied": "tied", "spherical": "spherical"}


def trained(algorithm: Algorithm, rows: np.ndarray, passes: int, within: float = 0.0) -> tuple[Any, Any, Any, float]:
    """θ(0), θ, statistics and the objective after a pass under θ; over when a pass changes no more than `within`."""
    share, parameter, statistics = start(algorithm, rows)
    first, before = parameter, np.inf
    for _ in range(passes):
        by_kernel(algorithm, share, parameter, statistics)
        value = algorithm.objective(statistics, parameter)
        assert value is not None
        if abs(value - before) <= within * abs(value):
            break
        before, parameter = value, algorithm.updateParameter(statistics, parameter)
    else:
        by_kernel(algorithm, share, parameter, statistics)
        value = algorithm.objective(statistics, parameter)
    return first, parameter, statistics, float(value)  # type: ignore[arg-type]


def obeys_law(value: float, algorithm: Algorithm, rows: np.ndarray, parameter: Any) -> bool:
    scratch = algorithm.evaluate(rows, None, parameter)
    assert scratch is not None
    return abs(value - scratch.objective) <= EPSILON[rows.dtype] * abs(scratch.objective)


# -- mixtures -----------------------------------------------------------------------------------------------


@EVERY
@BOTH
def test_gmm_reports_the_likelihood_of_what_it_returns(name: str, dtype: Any) -> None:
    rows, k = CASES[name]()
    algorithm = GMM(k=k, n_init=2)
    _, parameter, _, value = trained(algorithm, rows.astype(dtype), 10)
    assert obeys_law(value, algorithm, rows.astype(dtype), parameter)


@EVERY
def test_gmm_is_as_good_as_scikit_learn_from_the_same_start(name: str) -> None:
    if name == "one_row":
        pytest.skip("scikit-learn wants two rows")
    compare_mixture(name, "diagonal")


@pytest.mark.parametrize("shape", ["full", "tied", "spherical"])
@pytest.mark.parametrize("name", some("rare", "collinear", "heavy", "cauchy", "unequal_scales", "offset", "outlier"))
def test_other_shapes_are_as_good_as_scikit_learns(name: str, shape: str) -> None:
    compare_mixture(name, shape)


def compare_mixture(name: str, shape: str) -> None:
    rows, k = CASES[name]()
    algorithm = GMM(k=k, covariance=shape, n_init=2)
    first, parameter, statistics, value = trained(algorithm, rows, 50, 1e-7)
    assert obeys_law(value, algorithm, rows, parameter)
    theirs = scikit_learn_mixture(algorithm, rows, first)
    close = value >= theirs - 1e-3 * abs(theirs)
    assert close or any("float64 sums" in remark for remark in algorithm.warnings(statistics, parameter))


def scikit_learn_mixture(algorithm: GMM, rows: np.ndarray, first: Any) -> float:
    """Log-likelihood after as many passes from θ(0), in units where one floor serves all columns, as theirs does."""
    unit = first.unit * np.sqrt(first.floor / first.floor.min())
    z = (rows - first.origin) / unit
    matrices = algorithm.covariance_matrices(first) / np.outer(unit, unit)
    peer = GaussianMixture(
        algorithm.k, covariance_type=SKLEARN_SHAPE[algorithm.covariance], reg_covar=float(first.floor.min()),
        tol=1e-7, max_iter=50, weights_init=first.weights / first.weights.sum(),
        means_init=(first.means - first.origin) / unit,
        precisions_init={
            "diagonal": lambda: 1 / np.einsum("jtt->jt", matrices), "spherical": lambda: 1 / matrices[:, 0, 0],
            "full": lambda: np.linalg.inv(matrices), "tied": lambda: np.linalg.inv(matrices[0]),
        }[algorithm.covariance](),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(z)
    return float(peer.score(z) * len(rows) - len(rows) * np.log(unit).sum())


@pytest.mark.parametrize("name", some("rare", "one_hot", "heavy", "cauchy", "outlier", "by_label", "many_clusters"))
def test_gmm_starts_no_worse_than_scikit_learn(name: str) -> None:
    """The best of theirs from three seeds, by their own k-means, in units where one floor serves all columns."""
    rows, k = CASES[name]()
    algorithm = GMM(k=k)
    first, _, _, value = trained(algorithm, rows, 50, 1e-7)
    unit = first.unit * np.sqrt(first.floor / first.floor.min())
    z = (rows - first.origin) / unit
    best = -np.inf
    for seed in range(3):
        peer = GaussianMixture(k, covariance_type="diag", reg_covar=float(first.floor.min()), random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            best = max(best, peer.fit(z).score(z) * len(rows) - len(rows) * np.log(unit).sum())
    assert value >= best - 1e-3 * abs(best)


def test_a_row_that_leaves_a_component_leaves_no_trace_in_float32() -> None:
    """700 deviations squared, less themselves, used to leave 0.03 in a sum that should be 1e-6."""
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=(640, 2)), np.zeros(640)].astype(np.float32)
    rows[::64, 2] = 700.0
    algorithm = GMM(k=2, init=np.array([[0.0, 0.0, 0.0], [0.5, 0.0, 600.0]]))
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(12):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    by_kernel(algorithm, share, parameter, statistics)
    state = share.state_rows().astype(np.float64)
    y = (rows.astype(np.float64) - parameter.origin) / parameter.unit
    np.testing.assert_allclose(statistics.squares[:, 2], state[:, :2].T @ y[:, 2] ** 2, rtol=1e-12, atol=1e-12)
    assert parameter.covariances[0, 2] == pytest.approx(parameter.floor[2] * parameter.unit[2] ** 2)


def test_one_outlier_hardly_moves_the_floor() -> None:
    rows = clouds(2000)
    plain = GMM(k=4).initParameter(start_run(GMM(k=4), rows).sample, np.random.default_rng(0))
    rows[5] = 1e12
    moved = GMM(k=4).initParameter(start_run(GMM(k=4), rows).sample, np.random.default_rng(0))
    lifted = (moved.floor * moved.unit**2) / (plain.floor * plain.unit**2)  # 1e21 by the columns' variances
    assert (lifted >= 1).all() and (lifted < 10).all()


# -- k-means ------------------------------------------------------------------------------------------------


@EVERY
@BOTH
def test_kmeans_ends_where_lloyd_ends_from_the_same_start(name: str, dtype: Any) -> None:
    rows, k = CASES[name]()
    rows = rows.astype(dtype)
    algorithm = KMeans(k=k)
    first, parameter, statistics, value = trained(algorithm, rows, 300)
    assert obeys_law(value, algorithm, rows, parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shifted = rows.astype(np.float64) - first.origin
        peer = Lloyd(k, init=first.centroids - first.origin, n_init=1, tol=0, max_iter=300).fit(shifted)
    assert value <= peer.inertia_ * 1.001
    if (statistics.counts <= 0).any():
        assert any("are empty" in remark for remark in algorithm.warnings(statistics, parameter))


@pytest.mark.slow
def test_kmeans_with_half_its_starts_twice_ends_like_scikit_learn() -> None:
    """25 distinct starts of 50; each ends in an optimum of its own, so the mean over starts is compared."""
    rows = np.r_[clouds(1500, 6, 8, seed=1), clouds(500, 6, 3, seed=2) * 0.3]
    ours, theirs = [], []
    for seed in range(5):
        chosen = np.random.default_rng(seed).choice(len(rows), 25, replace=False)
        given = np.repeat(rows[chosen], 2, axis=0)
        _, _, statistics, value = trained(KMeans(k=50, init=given), rows, 300)
        assert (statistics.counts > 0).all()
        ours.append(value)
        theirs.append(Lloyd(50, init=given, n_init=1, tol=0, max_iter=300).fit(rows).inertia_)
    assert np.mean(ours) <= 1.01 * np.mean(theirs)


def test_kmeans_says_where_sums_cannot_hold_the_objective() -> None:
    rows = clouds(600)
    rows[:2] = [[1e12, 0, 0, 0], [1e12, 1e6, 0, 0]]
    algorithm = KMeans(k=2)
    _, parameter, statistics, _ = trained(algorithm, rows, 20)
    assert any("float64 sums" in remark for remark in algorithm.warnings(statistics, parameter))


# -- fuzzy c-means ------------------------------------------------------------------------------------------


@EVERY
@BOTH
def test_fcm_ends_where_the_textbook_ends(name: str, dtype: Any) -> None:
    rows, k = CASES[name]()
    rows = rows.astype(dtype)
    algorithm = FCM(k=k)
    first, parameter, _, value = trained(algorithm, rows, 40)
    assert obeys_law(value, algorithm, rows, parameter)
    y = (rows.astype(np.float64) - first.origin) / first.unit
    theirs = textbook(y, (first.centroids - first.origin) / first.unit, 41) * first.unit[0] ** 2
    assert value <= theirs * 1.001 + 1e-25 * first.unit[0] ** 2


def textbook(y: np.ndarray, centroids: np.ndarray, passes: int) -> float:
    """Bezdek's alternation with m = 2, on whole matrices in float64."""
    value = 0.0
    for _ in range(passes):
        squared = np.maximum(((y[:, None, :] - centroids) ** 2).sum(axis=2), 1e-30)
        shares = squared.min(axis=1, keepdims=True) / squared
        weights = (shares / shares.sum(axis=1, keepdims=True)) ** 2
        value = float((weights * squared).sum())
        centroids = weights.T @ y / weights.sum(axis=0)[:, None]
    return value


def test_fcm_says_where_centroids_coincide() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 30))
    algorithm = FCM(k=4)
    _, parameter, statistics, _ = trained(algorithm, rows, 60)
    assert any("coincide" in remark for remark in algorithm.warnings(statistics, parameter))


# -- factorizations -----------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_nmf_ends_where_scikit_learn_ends_from_the_same_start(name: str, kind: str) -> None:
    whole = np.abs(CASES[name]()[0])
    rank = min(3, whole.shape[1])
    algorithm = NMF(rank=rank, solver="multiplicative", precision="float64")
    run = start_run(algorithm, sparse_of(whole) if kind == "sparse" else whole)
    scale, h = run.parameter.scale[0], run.parameter.factors.copy()
    w = np.random.default_rng(1).random((len(whole), rank)) + 0.5
    run.shares[0].state[:, :rank] = w
    passes = 40
    for _ in range(passes):
        run.barrier(len(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs_w, theirs_h, _ = non_negative_factorization(
            whole / scale, W=w, H=h.T.copy(), n_components=rank, init="custom", solver="mu", max_iter=passes, tol=0
        )
    size = float(((whole / scale) ** 2).sum()) * scale**2
    theirs = float(((whole / scale - theirs_w @ theirs_h) ** 2).sum()) * scale**2
    assert run.objectives[-1] <= 1.001 * theirs + 1e-12 * size
    mine = whole / scale - run.shares[0].state[:, :rank] @ run.parameter.factors.T
    assert run.objectives[-1] == pytest.approx(float((mine**2).sum()) * scale**2, rel=1e-6, abs=1e-12 * size)


@pytest.mark.parametrize("solver", ["sgd", "multiplicative"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("scale", [1e-4, *(pytest.param(s, marks=pytest.mark.slow) for s in (1e-12, 1e-2, 1e6, 1e12))])
def test_nmf_is_equivariant_under_scaling(kind: str, solver: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    whole = rng.gamma(1.0, size=(120, 4)) @ rng.gamma(1.0, size=(4, 20))
    whole[rng.random(whole.shape) < 0.3] = 0.0
    errors = []
    for factor in (1.0, scale):
        data = sparse_of(whole * factor) if kind == "sparse" else whole * factor
        run = start_run(NMF(rank=4, solver=solver), data).passes(10)
        predicted = run.algorithm.predict(data, run.parameter) / factor
        errors.append(np.linalg.norm(np.where(whole > 0, predicted - whole, 0.0)) / np.linalg.norm(whole))
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_nmf_of_a_whole_matrix_is_as_good_as_coordinate_descent() -> None:
    """On entries from 0 to 1 the old penalty, in units of the data, left 0.305 where 0.136 is possible."""
    rng = np.random.default_rng(2)
    whole = rng.gamma(1.0, size=(300, 5)) @ rng.gamma(1.0, size=(5, 30)) * rng.uniform(0.9, 1.1, (300, 30))
    whole /= whole.max()
    run = start_run(NMF(rank=5), whole).passes(40)
    w, h, _ = non_negative_factorization(whole, n_components=5, init="nndsvda", max_iter=400, tol=1e-6)
    least = np.linalg.norm(whole - w @ h)
    assert np.linalg.norm(run.algorithm.predict(whole, run.parameter) - whole) <= 1.03 * least


@pytest.mark.parametrize("scale", [1e153, 1e200, 1e300])
def test_rows_whose_squares_are_beyond_float64_are_refused_in_a_sentence(scale: float) -> None:
    rows = scale * np.random.default_rng(0).normal(size=(200, 4))
    with pytest.raises(flegel.UsageError, match=r"as large as .* beyond float64.*divide the rows"):
        flegel.run(KMeans(k=3), rows)


def test_rows_just_below_that_are_clustered() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    usual, large = (flegel.run(KMeans(k=3), factor * rows, sync="bsp") for factor in (1.0, 2.0**498))
    assert large.objective == pytest.approx(usual.objective * 2.0**996, rel=1e-9)


def test_too_few_rows_that_count_are_told_with_the_reason() -> None:
    rows, weights = np.random.default_rng(0).normal(size=(50, 3)), np.zeros(50)
    weights[3] = 1.0
    for cls, name in ((KMeans, "KMeans"), (GMM, "GMM"), (FCM, "FCM")):
        sample = Sample(rows, None, 50, 3, weights)
        with pytest.raises(flegel.UsageError, match=f"{name}: k=2, and only 1 row .* have the weight 0; lower k"):
            cls(k=2).initParameter(sample, np.random.default_rng(0))
    nearly_zero = np.where(np.arange(50)[:, None] < 1, rows, 0.0)
    with pytest.raises(flegel.UsageError, match=r"only 1 row .* are zero or have the weight 0"):
        flegel.run(KMeans(k=2, metric="cosine"), nearly_zero)


def test_the_bound_of_rounding_that_is_told_holds_for_many_rows() -> None:
    rng = np.random.default_rng(5)
    near, far = rng.normal(size=(20_000, 2)), 1e8 + rng.normal(size=(20_000, 2))
    rows, algorithm = np.concatenate([near, far]), KMeans(k=2)
    result = flegel.run(algorithm, rows, sync="bsp", audit="off")
    told = next(text for text in result.warnings if "float64 sums" in text)
    bound = float(told.split("±")[1].split(" ")[0])
    assert abs(result.objective + algorithm.scores(rows, result.parameter).sum()) <= bound
