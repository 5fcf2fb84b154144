"""Plain gradient descent: each barrier is one step of the FSP paper's Eq. 1, by hand."""

from __future__ import annotations

import numpy as np

import flegel
from flegel.algorithms.plain_gradient import PlainLR, PlainNMF
from flegel.checks.conformance import check_algorithm


def test_plain_gradient_steps_are_those_of_equation_1() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 3))
    labels = (rows[:, 0] > 0.2).astype(float)
    result = flegel.run(
        PlainLR(rate=0.5), (rows, labels), workers=2, sync="bsp", processes=False, max_iterations=3, tolerance=0
    )
    theta, padded = np.zeros((2, 4)), np.column_stack([rows, np.ones(400)])
    for _ in range(3):
        outputs = np.exp(padded @ theta.T)
        residuals = outputs / outputs.sum(axis=1, keepdims=True) - np.eye(2)[labels.astype(int)]
        theta = theta - 0.5 * residuals.T @ padded / 400
    np.testing.assert_allclose(result.parameter, theta, rtol=1e-6, atol=1e-9)


class NMFFromOnes(PlainNMF):
    """Every w begins as ones, so that the steps can be made by hand."""

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        return np.concatenate([np.ones((points, self.rank)), np.zeros((points, 2))], axis=1)


def test_plain_factorization_steps_are_those_of_equation_1() -> None:
    rng = np.random.default_rng(5)
    matrix, start = rng.random((200, 2)) @ rng.random((2, 4)), 0.2 + rng.random((4, 2))
    result = flegel.run(
        NMFFromOnes(rank=2, rate=0.5), matrix, workers=2, sync="bsp", processes=False, max_iterations=3, tolerance=0,
        start=start,
    )  # fmt: skip
    factors, weights = start, np.ones((200, 2))
    for _ in range(3):
        error = weights @ factors.T - matrix
        step = error.T @ weights / 200
        weights = np.maximum(weights - error @ factors / (factors**2).sum(), 0.0)
        factors = np.maximum(factors - 0.5 * step, 0.0)
    np.testing.assert_allclose(result.parameter, factors, rtol=1e-6, atol=1e-9)


def test_plain_factors_stay_positive_and_come_near_the_matrix() -> None:
    rng = np.random.default_rng(4)
    matrix = rng.random((600, 3)) @ rng.random((3, 8))
    result = flegel.run(
        PlainNMF(rank=3, rate=0.5), matrix, workers=2, sync="bsp", processes=False, max_iterations=200, tolerance=0
    )
    assert result.parameter.min() >= 0.0
    assert result.objective is not None and result.objective < 0.02 * matrix.var()


def test_both_keep_what_classes_promise() -> None:
    for example in (PlainLR, PlainNMF):
        check_algorithm(example)
