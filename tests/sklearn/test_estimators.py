"""Estimators beside scikit-learn's: weights, continuation, copies, pipelines; and what `check_estimator` asks, in part.

The whole of `check_estimator` is in tests/extras/estimators. Rows here are few, so that every fit runs in this process.
"""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn import decomposition, linear_model
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import flegel
from flegel import Accepts
from flegel import sklearn as ours
from flegel.algorithm import Algorithm, DataPoint, Sample
from flegel.algorithms import KLNMF
from flegel.algorithms.estimators import fitted_classifier, fitted_factorization
from flegel.algorithms.gmm import GMM
from flegel.algorithms.gmm.covariances import packed_covariances
from flegel.algorithms.kmeans import KMeans as KMeansAlgorithm
from flegel.errors import UsageError
from flegel.sklearn import NMF, FuzzyCMeans, GaussianMixture, KMeans, KPrototypes, LogisticRegression
from flegel.sklearn.base import surely_finite
from flegel.sklearn.rows import distinct_rows, prepared

RNG = np.random.default_rng(3)
CENTRES = np.array([[0.0, 0, 0], [6, 0, 0], [0, 6, 6]])
LABELS = RNG.integers(3, size=240)
X = CENTRES[LABELS] + RNG.normal(size=(240, 3)) + 10.0

QUICK = [
    "check_fit_score_takes_y",
    "check_sample_weight_equivalence_on_dense_data",
    "check_estimators_partial_fit_n_features",
    "check_fit_idempotent",
]


@pytest.mark.parametrize("name", QUICK)
def test_kmeans_keeps_some_promises_of_an_estimator(name: str) -> None:
    getattr(estimator_checks, name)("KMeans", KMeans(n_clusters=2))


def test_kmeans_finds_what_scikit_learn_finds() -> None:
    from sklearn.cluster import KMeans as Theirs

    ours, theirs = KMeans(3, random_state=0).fit(X), Theirs(3, n_init=3, random_state=0).fit(X)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-9)
    order = ours.predict(theirs.cluster_centers_)
    np.testing.assert_allclose(ours.cluster_centers_[order], theirs.cluster_centers_)
    np.testing.assert_array_equal(ours.labels_, ours.predict(X))
    assert ours.sync_ == "bsp" and KMeans(3).fit(X).sync_ == "fsp"


def test_the_same_random_state_gives_the_same_bits() -> None:
    one, other = (KMeans(3, random_state=7).fit(X) for _ in range(2))
    assert one.cluster_centers_.tobytes() == other.cluster_centers_.tobytes()
    copy = pickle.loads(pickle.dumps(clone(one).set_params(cluster=None).fit(X)))
    assert copy.cluster_centers_.tobytes() == one.cluster_centers_.tobytes()


def test_partial_fit_keeps_the_mean_of_all_rows_that_a_cluster_ever_had() -> None:
    model = KMeans(3, random_state=0).fit(X[:80])
    before, counts = model.cluster_centers_.copy(), np.bincount(model.labels_, minlength=3)
    labels = model.predict(X[80:160])
    model.partial_fit(X[80:160])
    for j in range(3):
        mine = X[80:160][labels == j]
        expected = (counts[j] * before[j] + mine.sum(axis=0)) / (counts[j] + len(mine))
        np.testing.assert_allclose(model.cluster_centers_[j], expected)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("weights", [None, [0.0, 2.0, 1.0]])
def test_partial_fit_takes_fewer_rows_than_clusters(metric: str, weights: list[float] | None) -> None:
    one, other = (KMeans(6, metric=metric, random_state=0).fit(X - 10.0) for _ in range(2))
    labels, before = one.predict(X[:3] - 10.0), one.cluster_centers_.copy()
    one.partial_fit(X[:3] - 10.0, sample_weight=weights)
    other.partial_fit(np.repeat(X[:3] - 10.0, 6, axis=0), sample_weight=np.repeat(weights or [1.0] * 3, 6) / 6)
    np.testing.assert_allclose(one.cluster_centers_, other.cluster_centers_, rtol=1e-9)
    counted = labels if weights is None else labels[1:]
    moved = (one.cluster_centers_ != before).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), np.unique(counted))
    with pytest.raises(ValueError, match="n_samples=3 should be >= n_clusters=6"):
        KMeans(6, metric=metric).partial_fit(X[:3])


@pytest.mark.parametrize("sparse", [False, True])
def test_cosine_is_kmeans_on_rows_that_were_normalized_by_hand(sparse: bool) -> None:
    import scipy.sparse
    from sklearn.metrics.pairwise import cosine_distances
    from sklearn.preprocessing import normalize

    rows = (X - 10.0) * np.exp(RNG.normal(size=(240, 1)))
    weights = RNG.integers(1, 4, size=240).astype(float)
    given = scipy.sparse.csr_matrix(rows) if sparse else rows
    one = KMeans(3, metric="cosine", random_state=0).fit(given, sample_weight=weights)
    other = KMeans(3, metric="cosine", random_state=0).fit(normalize(given), sample_weight=weights)
    np.testing.assert_allclose(np.linalg.norm(one.cluster_centers_, axis=1), 1.0)
    assert one.inertia_ == pytest.approx(other.inertia_, rel=1e-9)
    distances = cosine_distances(rows, one.cluster_centers_)
    np.testing.assert_allclose(one.transform(given), distances, atol=1e-12)
    np.testing.assert_array_equal(one.labels_, distances.argmin(axis=1))
    np.testing.assert_array_equal(one.predict(given), one.predict(given * 5.0))
    assert one.inertia_ == pytest.approx(weights @ distances.min(axis=1), rel=1e-9)
    assert one.score(given, sample_weight=weights) == pytest.approx(-one.inertia_)


def test_partial_fit_by_cosine_keeps_the_mean_direction_of_all_rows_that_a_cluster_ever_had() -> None:
    rows = X - 10.0
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    model = KMeans(3, metric="cosine", random_state=0, tol=1e-12).fit(rows[:80])
    sums = np.stack([units[:80][model.labels_ == j].sum(axis=0) for j in range(3)])
    for low, high in ((80, 160), (160, 240)):
        labels = model.predict(rows[low:high])
        model.partial_fit(rows[low:high])
        sums += np.stack([units[low:high][labels == j].sum(axis=0) for j in range(3)])
        wanted = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        np.testing.assert_allclose(model.cluster_centers_, wanted, atol=1e-9)
    with pytest.raises(ValueError, match="metric must be 'euclidean' or 'cosine'"):
        KMeans(3, metric="l1").fit(rows)


def test_a_grid_search_in_a_pipeline() -> None:
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KMeans(random_state=0)), {"kmeans__n_clusters": [2, 3]}, cv=2, n_jobs=None
    )
    assert search.fit(X).best_params_["kmeans__n_clusters"] == 3


def test_inside_workers_of_joblib_a_fit_has_one_thread() -> None:
    import joblib

    model = KMeans(2, workers=4)
    assert model._job_options() == {"workers": 4}
    with joblib.parallel_config(backend="threading"):
        inside = joblib.Parallel(n_jobs=2)(joblib.delayed(model._job_options)() for _ in range(2))
    assert inside == [{"threads": 1, "processes": "no"}] * 2


def test_a_cluster_stays_behind_when_an_estimator_travels() -> None:
    held = object()
    model = KMeans(2, cluster=held)
    assert model.get_params()["cluster"] is held
    assert pickle.loads(pickle.dumps(model)).cluster is None


def test_small_sets_are_trained_in_an_order_of_their_own() -> None:
    rows, weights = np.repeat(X[:50], 2, axis=0), np.ones(100)
    one = prepared(rows, None, None, 1)
    other = prepared(rows[::-1], None, weights, 1)
    assert np.array_equal(one.features, other.features) and (one.weights == 2).all() and (other.weights == 2).all()
    kept = prepared(X, None, np.where(np.arange(240) < 7, 1.0, 0.0), 1)
    assert len(kept.features) == 7 and kept.weights is None
    assert len(prepared(rows, None, None, 80).features) == 100, "fewer different rows than clusters: left as they are"


@pytest.mark.parametrize(
    ("model", "rows", "sentence"),
    [
        (KMeans(9), X[:4], "should be >= n_clusters=9"),
        (KMeans(2, init="no"), X, "init must be"),
        (GaussianMixture(2, covariance_type="round"), X, "covariance_type must be one of"),
        (FuzzyCMeans(2, m=1.0), X, "m must be above 1"),
        (NMF(0), X, "n_components must be"),
        (NMF(2), -X, "Negative values in data"),
        (NMF(2, init="svd"), X, "init must be one of"),
        (NMF(4, init="nndsvd"), X, "can only be used when n_components <= min"),
        (NMF(2, init="custom"), X, "init='custom' needs H"),
        (NMF(2, alpha_H="none"), X, "alpha_H must be 'same' or"),
        (NMF(2, l1_ratio=2.0), X, "l1_ratio must be from 0 to 1"),
        (NMF(2, beta_loss="kullback-leibler"), X, "solver 'cd' does not handle"),
        (NMF(2, beta_loss="kullback-leibler", solver="mu", alpha_W=0.1), X, "has no penalties here"),
        (NMF(2, beta_loss="itakura-saito", solver="mu"), X, "is not available; use 'frobenius' or"),
        (KMeans(2, max_iter=0), X, "max_iter must be"),
        (KMeans(2, n_init="some"), X, "n_init must be a whole number"),
        (KMeans(2, tol="small"), X, "tol must be None or a finite number of 0 or more, not 'small'"),
        (KMeans(2, tol=-1.0), X, "tol must be None or a finite number of 0 or more"),
        (KMeans(2, target=[1]), X, "target must be None or a finite number, not"),
        (KMeans(2, workers=1.5), X, "workers=1.5 must be a whole number"),
        (KMeans(2, workers=np.inf), X, "workers=inf must be a whole number"),
        (ours.KMeansConstrained(2, n_init="some"), X, "n_init must be a whole number"),
        (ours.BisectingKMeans(2, bisecting_strategy=[1]), X, "bisecting_strategy must be one of"),
        (GaussianMixture(2, reg_covar="x"), X, "reg_covar must be a finite number of 0 or more, not 'x'"),
        (GaussianMixture(2, reg_covar=None), X, "reg_covar must be a finite number"),
        (FuzzyCMeans(2, m="x"), X, "m must be a finite number, not 'x'"),
        (FuzzyCMeans(2, m=np.inf), X, "m must be a finite number, not inf"),
        (NMF(2, alpha_W="x"), X, "alpha_W must be a finite number of 0 or more, not 'x'"),
        (NMF(2, alpha_H=np.nan), X, "alpha_H must be 'same' or a finite number of 0 or more, not nan"),
        (ours.BernoulliMixture(2, smoothing="x"), X, "smoothing must be a finite number, not 'x'"),
        (ours.ImplicitALS(2, alpha=np.inf), X, "alpha must be a finite number, not inf"),
    ],
)
def test_wrong_parameters_are_told_as_value_errors(model: Any, rows: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model.fit(rows)


@pytest.mark.parametrize("sparse", [False, True])
def test_counts_are_factorized_by_divergence_as_scikit_learn_does(sparse: bool) -> None:
    from sklearn.decomposition import NMF as Theirs

    rng = np.random.default_rng(3)
    rows = rng.poisson(rng.gamma(0.5, size=(120, 3)) @ rng.gamma(0.5, size=(3, 12)) * 4).astype(float)
    given = scipy.sparse.csr_matrix(rows) if sparse else rows
    options: dict[str, Any] = {"solver": "mu", "beta_loss": "kullback-leibler", "max_iter": 1000, "random_state": 0}
    model = NMF(3, tol=1e-7, **options)
    weights = model.fit_transform(given)
    theirs = min(Theirs(3, init="random", tol=1e-6, **{**options, "random_state": s}).fit(rows).reconstruction_err_
                 for s in range(3))  # fmt: skip
    assert model.reconstruction_err_ <= theirs * 1.002
    about = np.maximum(weights @ model.components_, 1e-300)
    divergence = (about - rows + rows * np.log(np.where(rows > 0, rows / about, 1.0))).sum()
    assert model.reconstruction_err_ == pytest.approx(np.sqrt(2 * divergence), rel=1e-6)
    counted = rng.integers(0, 3, len(rows))
    few = {**options, "max_iter": 20}
    by_weight = NMF(3, **few).fit(given, sample_weight=counted).components_
    repeated = NMF(3, **few).fit(np.repeat(rows, counted, axis=0)).components_
    np.testing.assert_allclose(by_weight, repeated, rtol=1e-9)


def test_factors_by_divergence_go_on_with_other_rows() -> None:
    rows = np.random.default_rng(4).poisson(3.0, size=(90, 8)).astype(float)
    first = flegel.run(KLNMF(rank=2), rows[:60], sync="bsp", seed=0, progress=False)
    more = flegel.run(KLNMF(rank=2), rows, sync="bsp", seed=0, start=first, progress=False)
    assert more.outcome == "converged" and not np.array_equal(first.parameter.factors, more.parameter.factors)
    unused = np.where(np.arange(8) < 6, rows, 0.0)[:60]  # two columns are seen later
    first = flegel.run(KLNMF(rank=2), unused, sync="bsp", seed=0, progress=False)
    more = flegel.run(KLNMF(rank=2), rows, sync="bsp", seed=0, start=first, progress=False)
    fresh = flegel.run(KLNMF(rank=2), rows, sync="bsp", seed=0, progress=False)
    assert more.objective is not None and more.objective < 1.05 * float(fresh.objective or 0.0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scaling", [1.0, 7.0])
def test_liblinear_counts_the_intercept_in_the_penalty(sparse: bool, scaling: float) -> None:
    """The one solver of scikit-learn that minimizes something else; ours minimizes the same."""
    rng = np.random.default_rng(12)
    rows = rng.normal(size=(200, 3)) + 2.0
    labels = rows @ [1.0, -2.0, 0.5] + rng.normal(size=200) > 1.0
    given = scipy.sparse.csr_matrix(rows) if sparse else rows
    options: dict[str, Any] = {"solver": "liblinear", "intercept_scaling": scaling, "C": 0.3, "tol": 1e-10}
    ours = LogisticRegression(max_iter=1000, random_state=0, **options).fit(given, labels)
    theirs = linear_model.LogisticRegression(max_iter=10000, random_state=0, **options).fit(given, labels)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-5)
    assert ours.predict_proba(given) == pytest.approx(theirs.predict_proba(given), abs=1e-5)
    again = ours.set_params(warm_start=True).fit(given, labels)
    np.testing.assert_allclose(again.coef_, theirs.coef_, rtol=1e-4, atol=1e-5)


def test_a_fine_tolerance_gives_scikit_learns_weights() -> None:
    rng = np.random.default_rng(5)
    rows, labels = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    theirs = linear_model.LogisticRegression(tol=1e-12, max_iter=10_000).fit(rows, labels)
    np.testing.assert_allclose(LogisticRegression(tol=1e-8).fit(rows, labels).coef_, theirs.coef_, atol=1e-6)


def test_words_of_scikit_learn_for_the_same_model_are_taken() -> None:
    rng = np.random.default_rng(5)
    rows, labels = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    plain = LogisticRegression(random_state=0, tol=1e-9).fit(rows, labels)
    assert plain.n_iter_.shape == (1,)
    for options in (
        {"solver": "newton-cholesky"},
        {"solver": "saga", "n_jobs": 1},
        {"solver": "sag", "l1_ratio": None},
    ):
        other = LogisticRegression(random_state=0, tol=1e-9, **options).fit(rows, labels)
        np.testing.assert_allclose(other.coef_, plain.coef_, atol=1e-4)
    with pytest.warns(FutureWarning, match="l1_ratio"):
        none = LogisticRegression(penalty=None, random_state=0).fit(rows, labels)
    free = LogisticRegression(C=np.inf, random_state=0).fit(rows, labels)
    np.testing.assert_allclose(none.coef_, free.coef_)
    assert not LogisticRegression(max_iter=0).fit(rows, labels).coef_.any()
    with pytest.warns(ConvergenceWarning, match="lbfgs failed to converge"):
        LogisticRegression(max_iter=1, tol=1e-14).fit(rows, labels)
    for wrong, sentence in (({"solver": "best"}, "all give the same model"), ({"solver": "liblinear"}, "multiclass")):
        with pytest.raises(ValueError, match=sentence):
            LogisticRegression(**wrong).fit(rows, labels)


def penalized(rows: np.ndarray, model: Any, w: np.ndarray, alphas: tuple[float, float]) -> float:
    """What scikit-learn's documentation of NMF says is minimized."""
    h, ratio = model.components_, model.l1_ratio
    value = 0.5 * ((rows - w @ h) ** 2).sum()
    for factors, alpha, count in ((w, alphas[0], rows.shape[1]), (h, alphas[1], rows.shape[0])):
        value += alpha * count * (ratio * factors.sum() + 0.5 * (1 - ratio) * (factors**2).sum())
    return float(value)


@pytest.mark.parametrize("solver", ["cd", "mu"])
@pytest.mark.parametrize(
    ("alpha_W", "alpha_H", "l1_ratio"), [(0.02, "same", 0.0), (0.02, 0.005, 0.3), (0.01, 0.02, 1.0)]
)
def test_penalties_of_a_factorization_are_those_of_scikit_learn(
    solver: str, alpha_W: float, alpha_H: Any, l1_ratio: float
) -> None:
    rng = np.random.default_rng(8)
    rows = 5.0 * rng.random((60, 4)) @ rng.random((4, 10)) + rng.random((60, 10))
    options: dict[str, Any] = {"alpha_W": alpha_W, "alpha_H": alpha_H, "l1_ratio": l1_ratio, "tol": 1e-9}
    alphas = alpha_W, alpha_W if alpha_H == "same" else alpha_H
    theirs = decomposition.NMF(3, random_state=0, max_iter=3000, **options)
    ours = NMF(3, random_state=0, solver=solver, max_iter=500, **options)
    peer = penalized(rows, theirs, theirs.fit_transform(rows), alphas)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = penalized(rows, ours, ours.fit_transform(rows), alphas)
    assert found <= peer * (1.0001 if solver == "cd" else 1.02)


@pytest.mark.parametrize("l1_ratio", [0.3, 1.0])
def test_unequal_penalties_from_singular_vectors_need_no_thousand_passes(l1_ratio: float) -> None:
    """The scales of W and H are found at once, and penalties do not end components that were not formed yet."""
    rng = np.random.default_rng(11)
    rows = rng.random((120, 4)) @ rng.random((4, 60)) + 0.05 * rng.random((120, 60))
    options: dict[str, Any] = {"alpha_W": 0.001, "alpha_H": 0.02, "l1_ratio": l1_ratio, "init": "nndsvda", "tol": 1e-6}
    theirs, ours = decomposition.NMF(8, max_iter=500, **options), NMF(8, random_state=0, max_iter=150, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer = penalized(rows, theirs, theirs.fit_transform(rows), (0.001, 0.02))
        assert penalized(rows, ours, ours.fit_transform(rows), (0.001, 0.02)) <= 1.005 * peer


@pytest.mark.parametrize("init", ["nndsvd", "nndsvda", "nndsvdar", "random", "custom"])
def test_a_factorization_begins_where_it_is_told_and_ends_as_well(init: str) -> None:
    rng = np.random.default_rng(8)
    rows = 5.0 * rng.random((40, 3)) @ rng.random((3, 8)) + 0.1 * rng.random((40, 8))
    given = {"W": rng.random((40, 3)), "H": rng.random((3, 8))} if init == "custom" else {}
    model = NMF(3, init=init, random_state=0, shuffle=True)
    weights = model.fit_transform(rows, **given)
    plain = NMF(3, random_state=0).fit(rows)
    assert model.reconstruction_err_ <= 1.05 * plain.reconstruction_err_
    same = clone(model).fit_transform(scipy.sparse.csc_matrix(rows), **given)
    assert np.array_equal(weights, same), "sparse rows that are few are trained as dense ones"


def test_starts_that_do_not_fit_the_rows_are_refused() -> None:
    rows, model = X[:20], NMF(2, init="custom")
    good = {"W": np.ones((20, 2)), "H": np.ones((2, 3))}
    assert NMF(init="custom").fit(rows, **good).n_components_ == 2
    for name, wrong, sentence in (
        ("H", np.ones((3, 3)), "wrong first dimension passed to NMF .input H."),
        ("W", np.ones((20, 3)), "wrong second dimension passed to NMF .input W."),
        ("H", -np.ones((2, 3)), "Negative values in data passed to NMF .input H."),
        ("W", np.zeros((20, 2)), "full of zeros"),
    ):
        with pytest.raises(ValueError, match=sentence):
            model.fit(rows, **{**good, name: wrong})
    with pytest.raises(TypeError, match="should have the same dtype as X"):
        model.fit(rows, W=good["W"], H=good["H"].astype(np.float32))
    with pytest.warns(RuntimeWarning, match="provided W or H are ignored"):
        NMF(2, random_state=0).fit(rows, **good)
    with pytest.warns(UserWarning, match="cannot update zeros"):
        NMF(2, init="nndsvd", solver="mu", random_state=0, tol=1e-3).fit(rows)
    with pytest.warns(ConvergenceWarning, match="Maximum number of iterations 1 reached"):
        NMF(2, max_iter=1).fit(rows)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1 / 240, 1e-12])
def test_weights_that_sum_to_little_scale_the_objective_and_nothing_else(scale: float) -> None:
    """A cluster that weighs 1 or less may hold many points."""
    options: dict[str, Any] = {"sync": "bsp", "seed": 0, "processes": False}
    plain = flegel.run(KMeansAlgorithm(k=5), (X, None, np.ones(len(X))), **options)
    light = flegel.run(KMeansAlgorithm(k=5), (X, None, np.full(len(X), scale)), **options)
    assert plain.objective is not None and plain.objective > 0
    assert light.objective == pytest.approx(scale * plain.objective, rel=1e-3)
    inertia = light.algorithm.evaluate(X, None, light.parameter).objective
    assert light.objective == pytest.approx(scale * inertia, rel=1e-6)
    assert not light.warnings


def test_a_logistic_regression_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 classes"):
        LogisticRegression().fit(X, np.zeros(len(X)))


def test_a_result_becomes_a_genuine_estimator() -> None:
    result = flegel.run(KMeansAlgorithm(k=3), X, sync="bsp", scale="standard")
    genuine = result.to_sklearn()
    np.testing.assert_array_equal(genuine.predict(X), result.predict(X))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_mixture_becomes_a_genuine_one(kind: str) -> None:
    rng = np.random.default_rng(5)
    roots = rng.normal(size=(2, 3, 3))
    whole = {"full": roots @ np.swapaxes(roots, 1, 2) + np.eye(3), "tied": roots[0] @ roots[0].T + np.eye(3)}
    covariances = whole.get(kind, rng.random((2, 3) if kind == "diag" else 2) + 0.5)
    algorithm = GMM(k=2, covariance=kind)
    theta = algorithm.mixture(np.array([0.3, 0.7]), CENTRES[:2] + 10, packed_covariances(covariances, kind, 2, 3))
    genuine = algorithm.to_sklearn(theta, None)
    np.testing.assert_allclose(genuine.predict_proba(X), algorithm.transform(X, theta)[0], atol=1e-12)
    np.testing.assert_allclose(genuine.score_samples(X), algorithm.transform(X, theta)[1])
    np.testing.assert_allclose(genuine.covariances_, covariances)


def test_a_classifier_and_a_factorization_become_genuine_ones() -> None:
    rng = np.random.default_rng(6)
    weights, bias = rng.normal(size=(3, 3)), rng.normal(size=3)
    model = fitted_classifier(weights, bias, np.array(["a", "b", "c"]), 1e-3, 240)
    scores = X @ weights.T + bias
    np.testing.assert_allclose(model.decision_function(X), scores)
    assert set(model.predict(X)) <= {"a", "b", "c"} and pytest.approx(1 / 0.24) == model.C
    factors, w = rng.random((6, 2)), rng.random((20, 2))
    found = fitted_factorization(factors, (0.0, 0.0), 0.0).transform(w @ factors.T)
    np.testing.assert_allclose(found @ factors.T, w @ factors.T, rtol=1e-2, atol=1e-2)


# -- weights and continuation through whole jobs -------------------------------------------------------------


class WeightedMean(Algorithm):
    """θ is the mean of all rows."""

    accepts = Accepts(weighted=True)

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> np.ndarray:
        change = np.zeros(parameter.shape[0] + 1)
        if dataPoint.state[0] == 0:
            dataPoint.state[0] = 1
            change[:-1] = dataPoint.features
            change[-1] = 1.0
        return change * dataPoint.weight

    def updateParameter(self, aggregator: np.ndarray, oldParameter: np.ndarray) -> np.ndarray:
        return aggregator[:-1] / aggregator[-1]


def test_a_class_of_a_user_counts_weights() -> None:
    weights = RNG.integers(4, size=240)
    result = flegel.run(WeightedMean(), (X, None, weights), sync="bsp", max_iterations=2, workers=2, processes="no")
    np.testing.assert_allclose(result.parameter, np.average(X, axis=0, weights=weights))
    assert result.kernel == "compiled"


class Unweighted(WeightedMean):
    accepts = Accepts()


def test_a_class_that_ignores_weights_gets_none() -> None:
    with pytest.raises(UsageError, match=r"declare `accepts = Accepts\(weighted=True\)`"):
        flegel.run(Unweighted(), (X, None, np.ones(240)), sync="bsp", max_iterations=1)


def test_weighted_points_move_between_workers_and_training_goes_on_from_a_result() -> None:
    weights = RNG.integers(4, size=240).astype(float)
    twice = np.repeat(X, weights.astype(int), axis=0)
    plain = flegel.run(KMeansAlgorithm(k=3, init=CENTRES + 10), twice, sync="bsp")
    moved = flegel.run(
        KMeansAlgorithm(k=3, init=CENTRES + 10), (X, None, weights), sync="fsp", workers=2, processes="no"
    )
    assert moved.objective == pytest.approx(plain.objective, rel=1e-9)
    again = flegel.run(KMeansAlgorithm(k=3), (X, None, weights), sync="bsp", start=moved)
    assert again.objective == pytest.approx(plain.objective, rel=1e-9) and again.iterations <= 2
    with pytest.raises(UsageError, match="not of WeightedMean"):
        flegel.run(WeightedMean(), X, start=moved, max_iterations=1)


@pytest.mark.parametrize("shape", [(500, 3), (400, 7), (60, 40), (1, 2), (0, 3)])
@pytest.mark.parametrize("scale", [None, 2.0, 0.4])
def test_distinct_rows_are_those_of_numpy_in_an_order_of_their_content(
    shape: tuple[int, int], scale: float | None
) -> None:
    rng = np.random.default_rng(13)
    drawn = rng.normal(size=shape)
    rows = drawn if scale is None else np.round(drawn * scale)  # with equal rows, and zeros of both signs
    first, which = distinct_rows(rows)
    assert len(first) == len(np.unique(rows + 0.0, axis=0)) and (rows[first][which] == rows).all()
    shuffled = rows[rng.permutation(len(rows))]
    assert (shuffled[distinct_rows(shuffled)[0]] == rows[first]).all()


def test_rows_that_share_a_hash_are_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.sklearn.rows._hashes", lambda rows: np.zeros(len(rows), np.uint64))
    rows = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])
    first, which = distinct_rows(rows)
    assert len(first) == 2 and (rows[first][which] == rows).all()


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data", "random"])
def test_a_mixture_starts_as_init_params_says(init_params: str) -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=0"):
        start = GaussianMixture(3, init_params=init_params, max_iter=0, random_state=1).fit(X)
    assert len(np.unique(start.means_, axis=0)) == 3
    assert (start.n_iter_, start.converged_, start.lower_bounds_) == (0, False, [])
    fitted = GaussianMixture(3, init_params=init_params, random_state=1).fit(X)
    assert fitted.lower_bound_ >= start.lower_bound_
    assert fitted.lower_bounds_[-1] == pytest.approx(fitted.lower_bound_, rel=1e-4)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_mixture_takes_each_part_of_its_start_alone(kind: str) -> None:
    """What is not given is as without it."""
    shapes = {"full": np.stack([np.eye(3)] * 3), "tied": np.eye(3), "diag": np.ones((3, 3)), "spherical": np.ones(3)}
    plain = {"covariance_type": kind, "random_state": 1, "max_iter": 0}
    with pytest.warns(ConvergenceWarning):
        start = GaussianMixture(3, **plain).fit(X)
        weighted = GaussianMixture(3, weights_init=[0.2, 0.3, 0.5], **plain).fit(X)
        shaped = GaussianMixture(3, precisions_init=4.0 * shapes[kind], **plain).fit(X)
    np.testing.assert_allclose(weighted.weights_, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(weighted.means_, start.means_)
    np.testing.assert_allclose(weighted.covariances_, start.covariances_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(shaped.covariances_, 0.25 * shapes[kind], atol=1e-9)
    np.testing.assert_allclose(shaped.means_, start.means_)
    rows, parts = shaped.sample(50)
    assert rows.shape == (50, 3)
    assert set(parts) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights_init": [0.5, 0.5]}, "'weights' should have the shape of"),
        ({"weights_init": [2.0, 0.5, 0.5]}, "in the range"),
        ({"weights_init": [0.2, 0.2, 0.2]}, "normalized"),
        ({"precisions_init": -np.ones((3, 3)), "covariance_type": "diag"}, "should be positive"),
        ({"precisions_init": -np.stack([np.eye(3)] * 3)}, "positive-definite"),
        ({"reg_covar": -1.0}, "reg_covar must be a finite number of 0 or more"),
        ({"init_params": "guess"}, "init_params must be one of"),
    ],
)
def test_a_wrong_start_of_a_mixture_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GaussianMixture(3, **given).fit(X)


def test_reg_covar_is_the_least_variance() -> None:
    fitted = GaussianMixture(3, covariance_type="diag", reg_covar=2.5, random_state=0).fit(X)
    assert fitted.covariances_.min() == pytest.approx(2.5)


def test_no_passes_leave_a_warm_model_as_it_is() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 3)), rng.integers(2, size=60)
    model = LogisticRegression(warm_start=True).fit(rows, labels)
    before = model.coef_.copy()
    np.testing.assert_array_equal(model.set_params(max_iter=0).fit(rows, labels).coef_, before)


def test_an_elastic_net_is_the_minimum_of_its_own_objective() -> None:
    from sklearn.datasets import make_classification

    rows, labels = make_classification(200, 20, n_classes=2, n_informative=10, n_redundant=0, random_state=0)

    def objective(weights: Any, ratio: float, strength: float) -> float:
        side = 2 * labels - 1
        penalty = ratio * np.abs(weights).sum() + (1 - ratio) * 0.5 * (weights**2).sum()
        return float(strength * np.logaddexp(0, -side * (rows @ weights)).sum() + penalty)

    for ratio in (0.1, 0.9):
        models = [
            LogisticRegression(C=100.0, l1_ratio=own, fit_intercept=False, random_state=0).fit(rows, labels)
            for own in (ratio, 0.0)
        ]
        values = [objective(model.coef_[0], ratio, 100.0) for model in models]
        assert values[0] < values[1]


@pytest.mark.parametrize("estimator", ["NMF", "ImplicitALS"])
def test_three_columns_of_counts_are_no_list_of_ratings(estimator: str) -> None:
    X = np.unique(np.random.default_rng(0).integers(0, 12, size=(20, 3)).astype(float), axis=0)
    assert getattr(flegel.sklearn, estimator)(2, random_state=0, max_iter=3).fit(X).components_.shape == (2, 3)


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "Lasso", "ElasticNet"])
def test_one_target_in_a_column_has_the_shapes_of_scikit_learn(name: str) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(60, 4))
    target = rows @ [[1.0], [2.0], [0.0], [-1.0]]
    peer, found = getattr(linear_model, name)().fit(rows, target), getattr(ours, name)().fit(rows, target)
    assert np.shape(found.intercept_) == np.shape(peer.intercept_)
    assert found.coef_.shape == peer.coef_.shape and found.predict(rows).shape == peer.predict(rows).shape


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_mixture_without_a_least_variance_refuses_components_that_collapse(kind: str) -> None:
    two = np.repeat([[1.0, 1.0, 5.0], [0.0, 2.0, 3.0]], 5, axis=0)
    with pytest.raises(ValueError, match="ill-defined empirical covariance"):
        GaussianMixture(4, reg_covar=0, covariance_type=kind, random_state=0).fit(two)
    spread = np.random.default_rng(0).normal(size=(200, 3)) * [1e-5, 1.0, 1e5]
    assert GaussianMixture(2, reg_covar=0, covariance_type=kind, random_state=0).fit(spread).converged_
    options: list[dict[str, Any]] = [{}, {"reg_covar": 0, "regularization": 1e-6}]
    for least in options:
        assert np.isfinite(GaussianMixture(4, covariance_type=kind, random_state=0, **least).fit(two).score(two))


def test_a_category_of_another_type_differs_from_all_others() -> None:
    rows = np.array([[0.0, "x"], [0.1, "x"], [9.0, "y"], [9.1, "y"]], object)
    model = KPrototypes(n_clusters=2, categorical=[1], random_state=0).fit(rows)
    strange = np.array([[0.0, 3], [9.0, "x"]], object)
    assert list(model.predict(strange)) == [model.labels_[0], model.labels_[2]]


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.csr_array])
def test_places_of_64_bits_are_taken_and_left_as_they_are(form: Any) -> None:
    short = scipy.sparse.random(80, 12, 0.4, format="csr", random_state=3)
    long = form(short)
    long.indices, long.indptr = long.indices.astype(np.int64), long.indptr.astype(np.int64)
    classes = np.arange(80) % 3
    model = LogisticRegression(random_state=0).fit(long, classes)
    np.testing.assert_array_equal(model.coef_, LogisticRegression(random_state=0).fit(short, classes).coef_)
    np.testing.assert_array_equal(model.predict(long), model.predict(short))
    assert long.indices.dtype == np.int64


@pytest.mark.parametrize(("size", "sentence"), [(1e300, "divide all of them"), (1e-320, "multiply all of them")])
def test_weights_that_have_no_squares_are_refused(size: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GaussianMixture(3, random_state=0).fit(X, sample_weight=np.full(len(X), size))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_answers_of_a_mixture_go_by_the_covariances_that_were_fitted(kind: str) -> None:
    model = GaussianMixture(3, covariance_type=kind, random_state=0).fit(X)
    likely, criterion = model.predict_proba(X), model.bic(X)
    for other in {"full", "tied", "diag", "spherical"} - {kind}:
        model.set_params(covariance_type=other)
        np.testing.assert_array_equal(model.predict_proba(X), likely)
        assert model.bic(X) == criterion
        assert np.isfinite(model.sample(5)[0]).all()
        with pytest.raises(ValueError, match=f"found 3 components with covariance_type='{kind}' in 3 columns, and 3"):
            model.set_params(warm_start=True).fit(X)
        with pytest.raises(ValueError, match=f"covariance_type='{kind}'.*cannot begin with it"):
            model.partial_fit(X)
    assert model.set_params(warm_start=False).fit(X).covariances_.shape == np.shape(model.precisions_cholesky_)


@pytest.mark.parametrize("model", [GaussianMixture(2, warm_start=True), LogisticRegression(warm_start=True)], ids=str)
def test_a_warm_start_from_other_columns_is_refused_in_words_of_the_estimator(model: Any) -> None:
    model.fit(X, LABELS)
    with pytest.raises(ValueError, match=r"The last fit .* 3 .*columns.*Use (fit with )?warm_start=False"):
        model.fit(X[:, :2], LABELS)


@pytest.mark.parametrize(
    "model", [KMeans(3, random_state=0), ours.ImplicitALS(3, random_state=0, max_iter=3, tol=0.1)], ids=str
)
def test_entries_that_are_given_twice_count_as_their_sum(model: Any) -> None:
    once = scipy.sparse.random(90, 8, 0.4, format="csr", random_state=3)
    twice = scipy.sparse.csr_matrix(
        (np.repeat(once.data / 2, 2), np.repeat(once.indices, 2), 2 * once.indptr), shape=once.shape
    )
    stored = twice.nnz
    fitted = model.fit(once)
    np.testing.assert_allclose(fitted.transform(twice), fitted.transform(once), rtol=1e-12)
    assert twice.nnz == stored, "the matrix that was given is left as it is"


@pytest.mark.parametrize("made", [KMeans, ours.MiniBatchKMeans, ours.BisectingKMeans])
@pytest.mark.parametrize("size", [1e18, 1e30])
def test_squares_beyond_float32_are_summed_in_float64(made: Any, size: float) -> None:
    rows = (np.random.default_rng(0).normal(size=(300, 3)) * size).astype(np.float32)
    model = made(n_clusters=3, random_state=0).fit(rows)
    centres = model.cluster_centers_.astype(np.float64)
    expected = ((rows - centres[model.labels_]) ** 2).sum()
    assert model.inertia_ == pytest.approx(expected, rel=1e-5)
    assert -model.score(rows) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(model.transform(rows)).all() and model.transform(rows).dtype == np.float32


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_found_in_large_tables(strange: float) -> None:
    rows = np.ones((200_000, 4))
    rows[123_456, 2] = strange
    with pytest.raises(ValueError, match=r"contains NaN|contains infinity"):
        ours.PCA(n_components=2).fit(rows)
    rows[123_456, 2] = 1e308
    assert surely_finite(rows)
    rows[123_457, 2] = 1e308
    assert not surely_finite(rows), "scikit-learn has still to look"
