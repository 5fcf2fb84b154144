"""All that scikit-learn asks of an estimator: few failures are expected; weights, sparse rows, partial_fit."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

needs.library("sklearn")

from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter

from flegel import sklearn as ours
from flegel.sklearn import NMF, PCA, FuzzyCMeans, GaussianMixture, KMeans, LogisticRegression, TruncatedSVD

ESTIMATORS = [
    KMeans(n_clusters=3), KMeans(n_clusters=3, metric="cosine"), GaussianMixture(n_components=2),
    FuzzyCMeans(n_clusters=3), LogisticRegression(), NMF(n_components=2),
    PCA(), PCA(n_components=2, whiten=True), TruncatedSVD(),
    ours.EmpiricalCovariance(), ours.ShrunkCovariance(), ours.LedoitWolf(), ours.OAS(),
    ours.LinearRegression(), ours.Ridge(), ours.Lasso(), ours.ElasticNet(),
    ours.PoissonRegressor(), ours.GammaRegressor(), ours.HuberRegressor(), ours.LinearSVC(),
    ours.GaussianNB(), ours.MultinomialNB(), ours.BernoulliNB(),
    ours.KMeansConstrained(n_clusters=3, size_min=2),
    ours.MiniBatchKMeans(n_clusters=3), ours.BisectingKMeans(n_clusters=3),
    ours.LatentDirichletAllocation(n_components=3),
    ours.BernoulliMixture(n_components=2), ours.ImplicitALS(n_components=2),
    ours.KModes(n_clusters=2), ours.KPrototypes(n_clusters=2, categorical=[0]),
]  # fmt: skip

CLASSES_ASKED = "asks whoever has predict_proba and takes sparse rows how many classes it knows"
EXPECTED_FAILURES = {
    "KModes": {"check_clustering": "rows of continuous numbers have no category in common"},
    "BernoulliMixture": {"check_estimator_sparse_array": CLASSES_ASKED, "check_estimator_sparse_matrix": CLASSES_ASKED},
}


def test_no_estimator_is_forgotten() -> None:
    named = [getattr(ours, name) for name in ours.__all__]
    assert {cls for cls in named if isinstance(cls, type)} == {type(estimator) for estimator in ESTIMATORS}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_every_check_passes(estimator: Any) -> None:
    expected = EXPECTED_FAILURES.get(type(estimator).__name__, {})
    found = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=expected)
    fine = ("passed", "skipped", "xfail")
    failed = {c["check_name"]: c["exception"] for c in found if c["status"] not in fine}
    assert not failed
    names = {c["check_name"] for c in found if c["status"] == "passed"}
    weighted = has_fit_parameter(estimator, "sample_weight")
    assert ("check_sample_weight_equivalence_on_dense_data" in names) == weighted
    sparse = weighted and estimator.__sklearn_tags__().input_tags.sparse
    assert ("check_sample_weight_equivalence_on_sparse_data" in names) == sparse
