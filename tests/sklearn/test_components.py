"""`PCA` and `TruncatedSVD` as estimators: more rows by `partial_fit`, weights, parameters, wrong use."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn import decomposition
from sklearn.base import clone

from flegel.sklearn import PCA, TruncatedSVD

RNG = np.random.default_rng(2)
X = RNG.normal(size=(300, 5)) @ RNG.normal(size=(5, 5)) + 3.0
NAMES = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")


@pytest.mark.parametrize("wanted", [None, 2, 0.9, "mle"])
@pytest.mark.parametrize("whiten", [False, True])
def test_components_variances_and_answers_are_scikit_learns(wanted: object, whiten: bool) -> None:
    ours, theirs = (cls(wanted, whiten=whiten).fit(X) for cls in (PCA, decomposition.PCA))
    assert ours.n_components_ == theirs.n_components_
    for name in (*NAMES, "noise_variance_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)))
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance())
    assert ours.score(X) == pytest.approx(theirs.score(X))


@pytest.mark.parametrize("cls", [PCA, TruncatedSVD])
def test_rows_in_parts_and_weights_give_the_model_of_all_rows(cls: type) -> None:
    whole = cls(2).fit(X)
    parts = cls(2).partial_fit(X[:100]).partial_fit(X[100:250]).partial_fit(X[250:])
    weights = RNG.integers(1, 4, size=len(X))
    weighted, repeated = cls(2).fit(X, sample_weight=weights), cls(2).fit(np.repeat(X, weights, axis=0))
    for name in NAMES[:4]:
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-9)
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-9)


def test_singular_vectors_of_sparse_rows_are_exact() -> None:
    matrix = scipy.sparse.random(200, 30, 0.2, format="csr", random_state=0)
    ours, theirs = TruncatedSVD(4).fit(matrix), decomposition.TruncatedSVD(4, algorithm="arpack").fit(matrix)
    for name in NAMES[:4]:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-7, atol=1e-9)
    single = PCA(2).fit(X.astype(np.float32))
    assert single.components_.dtype == single.transform(X.astype(np.float32)).dtype == np.float32


def test_parameters_are_theirs_and_the_engines() -> None:
    model = clone(PCA(3, whiten=True, workers=2, sync="fsp"))
    assert set(decomposition.PCA().get_params()) | {"workers", "sync", "cluster", "target"} == set(model.get_params())
    assert model.fit(X).sync_ == "fsp"
    assert repr(PCA(3, workers=2)) == "PCA(n_components=3, workers=2)"
    with pytest.raises(TypeError, match="unexpected keyword"):
        PCA(components=3)
    with pytest.raises(ValueError, match="must be between 0 and"):
        PCA(9).fit(X)
    with pytest.raises(ValueError, match="must be <="):
        TruncatedSVD(9).fit(X)


def test_attributes_of_float32_rows_are_float32() -> None:
    found = PCA(2).fit(X.astype(np.float32))
    theirs = decomposition.PCA(2).fit(X.astype(np.float32))
    for name in (*NAMES, "noise_variance_"):
        assert getattr(found, name).dtype == getattr(theirs, name).dtype == np.float32


def test_weights_that_are_parts_of_one_row_are_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    with pytest.raises(ValueError, match="all weights together are 1 rows"):
        PCA(2).fit(rows, sample_weight=np.full(40, 1 / 40))
    shares = TruncatedSVD(2).fit(rows, sample_weight=np.full(40, 1 / 40))
    np.testing.assert_allclose(np.abs(shares.components_), np.abs(TruncatedSVD(2).fit(rows).components_), rtol=1e-9)
