"""Rows, labels and weights in arrays of other libraries: their memory is shared, and answers are those of NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn

from flegel.core.pytree import Array
from flegel.sklearn import PCA, GaussianNB, LinearRegression
from flegel.sklearn.foreign_arrays import as_numpy

RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(np.float64)
WEIGHTS = RNG.integers(1, 4, size=40).astype(np.float64)


class ForeignArray:
    """As other libraries have them: by DLPack, with an attribute of the array API that leads scikit-learn to them."""

    device_type = 1

    def __init__(self, values: Array) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0

    def __dlpack__(self, **given: Any) -> Any:
        return self.values.__dlpack__(**given)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        raise AssertionError("scikit-learn is given NumPy arrays")


class OnDevice(ForeignArray):
    """Out of the processor's reach until it is fetched."""

    device_type = 2

    def __dlpack__(self, **given: Any) -> Any:
        raise BufferError("not in this memory")

    def get(self) -> Array:
        return self.values.copy()


class OutOfReach(OnDevice):
    get = property()  # type: ignore[assignment]


def test_memory_of_the_processor_is_shared_and_that_of_a_device_fetched() -> None:
    assert np.shares_memory(as_numpy(ForeignArray(X)), X)
    fetched = as_numpy(OnDevice(X))
    assert np.array_equal(fetched, X) and not np.shares_memory(fetched, X)
    assert as_numpy(X) is X and as_numpy("kmeans") == "kmeans"


@pytest.mark.parametrize("kind", [ForeignArray, OnDevice])
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("estimator", [GaussianNB(), PCA(2), LinearRegression()], ids=str)
def test_estimators_give_what_they_give_for_numpy(
    estimator: Any, dispatch: bool, kind: type[ForeignArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # scikit-learn looks for it where dispatch is asked for
    rows, labels = kind(X), kind(Y)
    plain = sklearn.base.clone(estimator).fit(X, Y)
    before = sklearn.get_config()["array_api_dispatch"]
    try:
        sklearn.set_config(array_api_dispatch=dispatch)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"this scikit-learn has no dispatch here: {error}")
    try:
        found = sklearn.base.clone(estimator).fit(rows, labels)
        ask = "transform" if hasattr(found, "transform") else "predict"
        answer = getattr(found, ask)(rows)
        assert type(answer) is np.ndarray and np.array_equal(answer, getattr(plain, ask)(X))
        assert found.score(rows, labels) == plain.score(X, Y)
    finally:
        sklearn.set_config(array_api_dispatch=before)


def test_weights_by_name_are_taken_too() -> None:
    found = LinearRegression().fit(ForeignArray(X), ForeignArray(Y), sample_weight=ForeignArray(WEIGHTS))
    assert np.array_equal(found.coef_, LinearRegression().fit(X, Y, sample_weight=WEIGHTS).coef_)


def test_an_array_that_cannot_be_fetched_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"OutOfReach cannot be read as a NumPy array .* give one of float32 or float64"
    ):
        LinearRegression().fit(OutOfReach(X), Y)
