"""Poisson, gamma, Huber and linear support vectors: algorithms and estimators beside scikit-learn's minima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import minimize
from sklearn import linear_model, svm
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score

import flegel
from flegel import UsageError, check_algorithm, sklearn
from flegel.algorithm import Sample
from flegel.algorithms import Ridge
from flegel.algorithms.glm import losses
from flegel.algorithms.glm.glm import FULL_COLUMNS

RNG = np.random.default_rng(9)
X = RNG.normal(size=(300, 4)) * np.array([1.0, 10.0, 0.1, 1.0]) + 3.0
SCORE = 0.4 * (X - 3.0) @ (RNG.normal(size=4) / np.array([1.0, 10.0, 0.1, 1.0]))
LABELS: dict[str, Any] = {
    "Poisson": RNG.poisson(np.exp(SCORE)).astype(float),
    "Gamma": RNG.gamma(2.0, np.exp(SCORE)),
    "Huber": SCORE + RNG.standard_t(2, size=300),
    "LinearSVM": (SCORE + 0.3 * RNG.normal(size=300) > 0).astype(float),
}
WEIGHTS = RNG.integers(1, 4, size=300).astype(float)
NAMES = list(LABELS)


def numeric(algorithm: Any, labels: Any, shape: Any) -> None:
    """First and second derivatives against differences."""
    scores, step = RNG.normal(size=len(labels)), 1e-6
    here = algorithm.derivatives(scores, labels, shape)
    up, down = (algorithm.derivatives(scores + d, labels, shape) for d in (step, -step))
    np.testing.assert_allclose((up.loss - down.loss) / (2 * step), here.slope, atol=1e-3)
    if len(shape):
        up, down = (algorithm.derivatives(scores, labels, shape + d) for d in (step, -step))
        np.testing.assert_allclose((up.loss - down.loss) / (2 * step), here.shape_slope, atol=1e-3)
        np.testing.assert_allclose((up.slope - down.slope) / (2 * step), here.mixed, atol=1e-3)
        np.testing.assert_allclose((up.shape_slope - down.shape_slope) / (2 * step), here.shape_bend, atol=1e-3)
    else:
        np.testing.assert_allclose((up.slope - down.slope) / (2 * step), here.bend, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_has_the_derivatives_that_it_says_and_keeps_every_promise(name: str) -> None:
    algorithm = getattr(losses, name)(l2=0.1)
    numeric(algorithm, LABELS[name], np.array([0.7]) if name == "Huber" else np.zeros(0))
    assert "statistics conserve (float64)" in check_algorithm(algorithm, X, LABELS[name])


@pytest.mark.parametrize("name", ["Poisson", "Gamma"])
def test_promises_are_kept_where_steps_change_second_derivatives_little(name: str) -> None:
    """These are counted again only where they have changed by some part: sums of them depend on earlier visits."""
    rng = np.random.default_rng(0)
    rows = rng.normal(scale=3.0, size=(5, 13))[rng.integers(5, size=90)] + rng.normal(size=(90, 13))
    labels = rng.poisson(2.0, size=90) + 1.0
    assert "statistics conserve (float64)" in check_algorithm(getattr(losses, name)(l2=0.05), rows, labels)


@pytest.mark.parametrize("name", NAMES)
def test_every_synchronization_model_and_sparse_rows_reach_one_minimum(name: str) -> None:
    algorithm = getattr(losses, name)(l2=0.05)
    data = (X, LABELS[name], WEIGHTS)
    found = [
        flegel.run(algorithm, data, workers=2, sync=sync, processes="no", progress=False)
        for sync in ("bsp", "fsp", "ssp", "asp")
    ]
    found.append(flegel.run(algorithm, (scipy.sparse.csr_matrix(X), *data[1:]), processes="no", progress=False))
    assert all(result.converged for result in found)
    values = [result.objective for result in found]
    np.testing.assert_allclose(values, values[0], rtol=1e-7)
    repeated = np.repeat(X, WEIGHTS.astype(int), axis=0), np.repeat(LABELS[name], WEIGHTS.astype(int))
    evaluated = algorithm.evaluate(*repeated, found[0].parameter)
    assert evaluated is not None and evaluated.objective == pytest.approx(values[0], rel=1e-9)


PEERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("PoissonRegressor", "Poisson", {"alpha": 0.1}, {"solver": "newton-cholesky", "tol": 1e-10}),
    ("GammaRegressor", "Gamma", {"alpha": 0.1}, {"solver": "newton-cholesky", "tol": 1e-10}),
    ("HuberRegressor", "Huber", {}, {"tol": 1e-9, "max_iter": 10_000}),
    ("LinearSVC", "LinearSVM", {"C": 0.5}, {"tol": 1e-10, "max_iter": 100_000, "dual": False}),
]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("name", "kind", "hyper", "fine"), PEERS, ids=str)
def test_estimators_have_scikit_learns_coefficients(
    name: str, kind: str, hyper: Any, fine: Any, intercept: bool
) -> None:
    rows = (X - 3.0) / np.array([1.0, 10.0, 0.1, 1.0])
    theirs = getattr(svm if name == "LinearSVC" else linear_model, name)(fit_intercept=intercept, **hyper, **fine)
    ours = getattr(sklearn, name)(fit_intercept=intercept, **hyper)
    for each in (ours, theirs):
        each.fit(rows, LABELS[kind], sample_weight=WEIGHTS)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-5)
    assert ours.score(rows, LABELS[kind]) == pytest.approx(theirs.score(rows, LABELS[kind]), rel=1e-5)
    if name == "HuberRegressor":
        assert ours.scale_ == pytest.approx(theirs.scale_, rel=1e-4)


def test_an_offset_is_the_logarithm_of_what_counts_are_in_proportion_to() -> None:
    hours = RNG.uniform(1.0, 9.0, size=300)
    rows, counts = X - 3.0, RNG.poisson(hours * np.exp(SCORE)).astype(float)
    weighted = linear_model.PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=1e-10)
    weighted.fit(rows, counts / hours, sample_weight=hours)  # the same likelihood
    for given in (rows, scipy.sparse.csr_matrix(rows)):
        ours = sklearn.PoissonRegressor(alpha=0.0).fit(given, counts, offset=np.log(hours))
        np.testing.assert_allclose(ours.coef_, weighted.coef_, rtol=1e-4)
        assert ours.intercept_ == pytest.approx(weighted.intercept_, rel=1e-4, abs=1e-4)
    with pytest.raises(ValueError, match="give one for each"):
        sklearn.PoissonRegressor().fit(rows, counts, offset=[1.0])
    with pytest.raises(ValueError, match="give one for each"):
        ours.predict(rows, offset=[1.0])
    np.testing.assert_allclose(ours.predict(rows, offset=np.log(hours)), hours * ours.predict(rows))
    assert ours.score(rows, counts, offset=np.log(hours)) == pytest.approx(
        d2_tweedie_score(counts / hours, ours.predict(rows), sample_weight=hours, power=1)
    )
    ones, twice = np.zeros(300), np.where(hours > 5, 2.0, 1.0)
    assert ours.score(rows, counts, twice, offset=ones) == pytest.approx(ours.score(rows, counts, twice))


def test_gamma_explains_deviance_beyond_its_offset() -> None:
    sizes, rows = RNG.uniform(1.0, 9.0, size=300), X - 3.0
    amounts = sizes * RNG.gamma(2.0, np.exp(SCORE) / 2.0)
    model = sklearn.GammaRegressor(alpha=0.0).fit(rows, amounts, offset=np.log(sizes))
    found = model.score(rows, amounts, offset=np.log(sizes))
    assert found == pytest.approx(model.score(rows, amounts / sizes), rel=1e-6), "a gamma deviance has no scale"


def test_many_columns_are_solved_by_pairs_of_steps() -> None:
    wide = scipy.sparse.random(200, FULL_COLUMNS + 6, 0.01, format="csr", random_state=0)
    counts = RNG.poisson(np.exp(np.asarray(wide[:, :5].sum(axis=1)).ravel())).astype(float)
    result = flegel.run(losses.Poisson(l2=0.01), (wide, counts), processes="no", progress=False)
    theirs = linear_model.PoissonRegressor(alpha=0.01, tol=1e-9, max_iter=5000).fit(wide, counts)
    peer = result.parameter._replace(weights=theirs.coef_, bias=theirs.intercept_)
    values = [losses.Poisson(l2=0.01).evaluate(wide.toarray(), counts, each) for each in (result.parameter, peer)]
    assert values[0] is not None and values[1] is not None
    assert values[0].objective == pytest.approx(values[1].objective, rel=1e-4)


def test_going_on_and_wrong_use() -> None:
    options: dict[str, Any] = {"sync": "bsp", "processes": "no", "progress": False}
    result = flegel.run(losses.Gamma(l2=0.1), (X, LABELS["Gamma"]), **options)
    again = flegel.run(losses.Gamma(l2=0.1), (X, LABELS["Gamma"]), start=result, **options)
    assert again.iterations < result.iterations and again.objective == pytest.approx(result.objective)
    np.testing.assert_allclose(result.to_sklearn().predict(X), result.predict(X))
    with pytest.raises(UsageError, match="counts are not"):
        flegel.run(losses.Poisson(), (X, -LABELS["Gamma"]), progress=False)
    with pytest.raises(UsageError, match="not above 0"):
        flegel.run(losses.Gamma(), (X, LABELS["Poisson"]), progress=False)
    with pytest.raises(ValueError, match=r"use sklearn\.svm\.LinearSVC"):
        sklearn.LinearSVC(loss="hinge").fit(X, LABELS["LinearSVM"])
    with pytest.raises(ValueError, match="valid range of the loss"):
        sklearn.GammaRegressor().fit(X, LABELS["Poisson"])


@pytest.mark.parametrize("name", ["Poisson", "Gamma"])
def test_a_label_that_does_not_fit_is_refused_where_the_sample_lacks_it(name: str) -> None:
    algorithm, labels = getattr(losses, name)(), LABELS[name] + 0.0
    sample = Sample(X, labels, len(X), X.shape[1])
    theta = algorithm.initParameter(sample, RNG)
    labels[17] = -1.0
    change = algorithm.change(X, labels, None, algorithm.initState(len(X), X.shape[1], RNG), theta)
    with pytest.raises(UsageError, match=r"a label is .*\(1 rows at least\)"):
        algorithm.updateParameter(change, theta)


def test_labels_that_are_words_or_on_one_side_are_refused() -> None:
    words = np.array(["a", "b", "c"])[np.arange(300) % 3]
    for algorithm in (losses.Huber(), losses.Poisson(), Ridge(), losses.LinearSVM()):
        with pytest.raises(UsageError, match=r"words \('a', 'b', 'c'\)"):
            flegel.run(algorithm, (X, words), progress=False)
    with pytest.raises(UsageError, match=r"all labels \(1, 2\) are on one side of boundary=0\.5; .*1\.5"):
        flegel.run(losses.LinearSVM(), (X, LABELS["LinearSVM"] + 1.0), progress=False)
    with pytest.raises(UsageError, match=r"all labels \(0\) .* another label column"):
        flegel.run(losses.LinearSVM(), (X, np.zeros(300)), progress=False)


def test_a_class_whose_rows_weigh_nothing_is_none() -> None:
    labels = np.arange(300) % 3
    found = sklearn.LinearSVC().fit(X, labels, sample_weight=(labels < 2).astype(float))
    without = sklearn.LinearSVC().fit(X[labels < 2], labels[labels < 2])
    assert found.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(found.coef_, without.coef_, rtol=1e-6)


@pytest.mark.parametrize("offset", [-30.0, -3.0, 14.0])
@pytest.mark.parametrize("kind", ["PoissonRegressor", "GammaRegressor"])
def test_an_offset_of_all_rows_moves_the_intercept_alone(kind: str, offset: float) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(300, 3))
    labels = rng.poisson(np.exp(rows @ [0.5, -0.3, 0.2])) + (kind == "GammaRegressor") * 0.5
    plain = getattr(sklearn, kind)(alpha=0.01).fit(rows, labels)
    moved = getattr(sklearn, kind)(alpha=0.01).fit(rows, labels, offset=np.full(300, offset))
    np.testing.assert_allclose(moved.coef_, plain.coef_, atol=1e-3)
    assert moved.intercept_ == pytest.approx(plain.intercept_ - offset, abs=1e-4)


def test_a_scale_that_vanishes_is_told() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(45, 40))
    with pytest.warns(ConvergenceWarning, match="The scale went to 0"):
        sklearn.HuberRegressor().fit(rows, rows[:, 0] + rng.normal(size=45))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_scale_that_vanishes_ends_no_higher_than_scikit_learns_minimum(seed: int) -> None:
    """More columns than rows: outliers have no second derivative, and steps along it would lead anywhere."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 60))
    labels = rows @ rng.normal(size=60) + rng.normal(size=40)

    def objective(model: Any) -> float:
        away = np.abs(labels - model.predict(rows))
        outer = away > 1.35 * model.scale_
        linear = (2 * 1.35 * away[outer] - 1.35**2 * model.scale_).sum()
        return float(
            40 * model.scale_ + (away[~outer] ** 2).sum() / model.scale_ + linear + 1e-4 * model.coef_ @ model.coef_
        )

    theirs = linear_model.HuberRegressor(max_iter=10_000, tol=1e-10).fit(rows, labels)
    for given in (rows, scipy.sparse.csr_matrix(rows)):
        ours = sklearn.HuberRegressor(max_iter=1000).fit(given, labels)
        assert objective(ours) <= objective(theirs) * 1.001


def test_a_trial_far_away_costs_the_sums_no_digits() -> None:
    """A first Newton step of Poisson regression over rows with long tails leads to losses of many thousands."""
    rng = np.random.default_rng(3)
    rows = np.clip(rng.standard_t(1.2, size=(400, 12)), -60, 60)
    counts = rng.poisson(np.exp(np.clip(0.05 * rows @ rng.normal(size=12), -4, 4))).astype(float)
    model = losses.Poisson(l2=1e-3)
    for given in (rows, scipy.sparse.csr_matrix(rows)):
        result = flegel.run(model, (given, counts), sync="bsp", workers=1, processes="no", progress=False)
        found = model.evaluate(rows, counts, result.parameter)
        assert found is not None and result.outcome == "converged"
        assert result.objective == pytest.approx(found.objective, rel=2e-13)


def test_offsets_that_are_no_numbers_are_refused() -> None:
    for wrong in ([np.nan] * 300, [np.inf] * 300):
        with pytest.raises(ValueError, match="offset has numbers that are missing or infinite"):
            sklearn.PoissonRegressor().fit(X, LABELS["Poisson"], offset=wrong)
    with pytest.raises(ValueError, match="offset has values that are no numbers"):
        sklearn.PoissonRegressor().fit(X, LABELS["Poisson"], offset=["a"] * 300)


@pytest.mark.parametrize(("rows", "columns", "seed"), [(20, 5, 0), (44, 1, 1), (49, 6, 2), (26, 24, 11)])
def test_huber_regression_finds_a_plane_on_which_all_rows_lie(rows: int, columns: int, seed: int) -> None:
    """Neither a scale that goes to 0 nor rows without curvature are a minimum."""
    rng = np.random.default_rng(seed)
    X, plane = rng.normal(size=(rows, columns)), rng.normal(size=columns)
    model = sklearn.HuberRegressor(alpha=0.0, max_iter=1000).fit(X, X @ plane + 1.5)
    np.testing.assert_allclose(model.coef_, plane, atol=1e-3)
    assert model.scale_ < 1e-2


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_an_absolute_penalty_leaves_the_weights_that_liblinear_leaves(strength: float, sparse: bool) -> None:
    rows = np.hstack([(X - 3.0) / np.array([1.0, 10.0, 0.1, 1.0]), RNG.normal(size=(300, 12))])
    fine: dict[str, Any] = {"tol": 1e-10, "max_iter": 100_000, "random_state": 0}
    theirs = svm.LinearSVC(penalty="l1", C=strength, dual=False, **fine).fit(rows, LABELS["LinearSVM"])
    ours = sklearn.LinearSVC(penalty="l1", C=strength, dual=False)
    ours.fit(scipy.sparse.csr_matrix(rows) if sparse else rows, LABELS["LinearSVM"])
    np.testing.assert_array_equal(ours.coef_ == 0.0, theirs.coef_ == 0.0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-6)
    assert strength == 1.0 or (ours.coef_ == 0.0).any()


@pytest.mark.parametrize("name", ["Poisson", "Gamma", "LinearSVM"])
@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_with_an_absolute_penalty_no_weight_can_be_improved(name: str, sync: str) -> None:
    """The slope of the loss is that of the penalty where a weight is not 0, and at most as large where it is."""
    rows = np.hstack([X, RNG.normal(size=(300, 6)) * 1e-3])
    algorithm = getattr(losses, name)(l1=0.02, l2=0.01)
    options: dict[str, Any] = {"workers": 2, "processes": "no", "progress": False, "tolerance": 1e-12}
    found = flegel.run(algorithm, (rows, LABELS[name]), sync=sync, **options)
    weights = found.parameters["weights"]
    each = algorithm.derivatives(rows @ weights + found.parameters["bias"], LABELS[name], np.zeros(0))
    slope = rows.T @ each.slope / len(rows) + 0.01 * weights
    assert found.converged and (weights == 0.0).any() and (weights != 0.0).any()
    sizes = np.abs(rows).mean(axis=0)
    np.testing.assert_allclose(slope[weights != 0.0] / sizes[weights != 0.0], _pull(weights, sizes), atol=1e-5)
    assert (np.abs(slope[weights == 0.0]) <= 0.02 + 1e-5 * sizes[weights == 0.0]).all()
    assert found.objective == pytest.approx(algorithm.evaluate(rows, LABELS[name], found.parameter).objective)


def _pull(weights: Any, sizes: Any) -> Any:
    """What balances the penalty 0.02 at the weights that are not 0, in units of their columns."""
    return -0.02 * np.sign(weights[weights != 0.0]) / sizes[weights != 0.0]


def test_what_has_no_absolute_penalty_says_so() -> None:
    wide = scipy.sparse.random(50, FULL_COLUMNS + 6, 0.05, format="csr", random_state=0)
    with pytest.raises(UsageError, match="l1 takes at most 1,024 columns"):
        flegel.run(losses.Poisson(l1=0.1), (wide, np.ones(50)), progress=False)
    for given in (
        {"penalty": "l1", "dual": True},
        {"loss": "hinge", "dual": False},
        {"penalty": "l1", "loss": "hinge"},
    ):
        with pytest.raises(ValueError, match="Unsupported set of arguments"):
            sklearn.LinearSVC(**given).fit(X, LABELS["LinearSVM"])
        with pytest.raises(ValueError, match="Unsupported set of arguments"):
            svm.LinearSVC(**given).fit(X, LABELS["LinearSVM"])


def test_a_warning_says_each_reason_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses.Poisson, "_vanished", lambda *_: False)  # then no step lowers an objective of 0
    with pytest.warns(ConvergenceWarning) as told:
        sklearn.PoissonRegressor().fit(np.random.default_rng(0).normal(size=(300, 3)), np.zeros(300))
    assert str(told[0].message).count("no step improves") == 1


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weights", [None, np.repeat([0.0, 1.0], [50, 150])], ids=["unweighted", "weighted"])
def test_counts_that_are_all_0_are_answered_with_0_and_a_sentence(weights: Any, sparse: bool) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 3))
    given, counts = scipy.sparse.csr_matrix(rows) if sparse else rows, np.zeros(200)
    if weights is not None:
        counts[:50] = 1.0  # rows that weigh nothing
    with pytest.warns(ConvergenceWarning, match="Every count is 0") as caught:
        found = sklearn.PoissonRegressor().fit(given, counts, sample_weight=weights)
    assert len(caught) == 1 and found.n_iter_ <= 2
    assert (found.predict(given) < 1e-100).all() and not found.coef_.any() and np.isfinite(found.intercept_)
    data = (rows, counts) if weights is None else (rows, counts, weights)
    result = flegel.run(losses.Poisson(), data)
    assert result.converged and result.warnings == [losses.ALL_ZERO]


def test_counts_that_are_all_alike_but_not_0_are_answered_without_a_sentence() -> None:
    rows = np.random.default_rng(0).standard_normal((200, 3))
    result = flegel.run(losses.Poisson(), (rows, np.full(200, 3.0)))
    assert result.converged and not result.warnings
    assert result.parameter.bias == pytest.approx(np.log(3.0))


@pytest.mark.parametrize("form", ["dense", "sparse", "float32", "weighted"])
@pytest.mark.parametrize("length", [1e3, 1e6])
@pytest.mark.parametrize("name", ["Poisson", "Gamma"])
def test_a_row_far_longer_than_the_others_costs_few_passes(name: str, length: float, form: str) -> None:
    """Steps were bounded in units that follow such a row: a million times as long, it took 19,000 of them."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((1000, 6)) * (rng.random((1000, 6)) < (0.5 if form == "sparse" else 1.0))
    mean = np.exp(0.5 * rows @ rng.standard_normal(6))
    labels = rng.poisson(mean).astype(float) if name == "Poisson" else mean * rng.gamma(2.0, 0.5, 1000) + 1e-6
    rows[37] *= length
    weights = rng.uniform(0.5, 2.0, 1000) if form == "weighted" else None
    rows = rows.astype(np.float32 if form == "float32" else np.float64)
    given, rows = scipy.sparse.csr_matrix(rows) if form == "sparse" else rows, rows.astype(np.float64)
    data = (given, labels) if weights is None else (given, labels, weights)
    result = flegel.run(getattr(losses, name)(l2=1e-3), data, sync="bsp", max_passes=60)
    assert result.converged and not result.warnings
    share = np.ones(1000) if weights is None else weights

    def objective(theta: Any) -> tuple[float, Any]:
        score = rows @ theta[:-1] + theta[-1]
        ratio = np.exp(np.minimum(score if name == "Poisson" else -score, 300.0))
        loss = ratio - labels * score if name == "Poisson" else labels * ratio + score
        slope = share * (ratio - labels if name == "Poisson" else 1.0 - labels * ratio) / share.sum()
        penalty, free = 0.5e-3 * float(theta[:-1] @ theta[:-1]), np.append(1e-3 * theta[:-1], 0.0)
        return float(share @ loss / share.sum()) + penalty, np.append(slope @ rows, slope.sum()) + free

    at = np.append(result.parameter.weights, result.parameter.bias)
    here, further = objective(at)[0], minimize(objective, at, jac=True, method="L-BFGS-B", options={"ftol": 1e-15})
    assert further.fun > here - 1e-7 * abs(here), "SciPy finds no lower place from there"
