"""All that scikit-learn asks of an estimator: no failure, no expected failure; weights, sparse rows, partial_fit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import check_estimator

from flegel.sklearn import NMF, FuzzyCMeans, GaussianMixture, KMeans, LogisticRegression

ESTIMATORS = [
    KMeans(n_clusters=3), KMeans(n_clusters=3, metric="cosine"), GaussianMixture(n_components=2),
    FuzzyCMeans(n_clusters=3), LogisticRegression(), NMF(n_components=2),
]  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_every_check_passes(estimator: Any) -> None:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {c["check_name"]: c["exception"] for c in found if c["status"] not in ("passed", "skipped")}
    assert not failed
    names = {c["check_name"] for c in found if c["status"] == "passed"}
    assert "check_sample_weight_equivalence_on_dense_data" in names
    sparse = estimator.__sklearn_tags__().input_tags.sparse
    assert ("check_sample_weight_equivalence_on_sparse_data" in names) == sparse
