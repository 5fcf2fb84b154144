"""Local models: every visit is a step of a worker's own model, and θ is the mean of the reported models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel import check_algorithm
from flegel.algorithms.local_models import LocalLR, LocalNMF, LocalSteps

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(400, 4))
LABELS = (ROWS @ [1.0, -2.0, 0.5, 0.0] > 0).astype(float)
MATRIX = RNG.random((300, 3)) @ RNG.random((3, 6))


def by_hand(rows: np.ndarray, labels: np.ndarray, theta: np.ndarray, rate: float) -> np.ndarray:
    """Stochastic gradient descent, one row after the other."""
    theta = theta.copy()
    for x, label in zip(rows, labels, strict=True):
        outputs = theta[:, :-1] @ x + theta[:, -1]
        residual = np.exp(outputs - outputs.max()) / np.exp(outputs - outputs.max()).sum()
        residual[int(label)] -= 1.0
        theta -= rate * np.outer(residual, np.append(x, 1.0))
    return theta


def test_theta_is_the_mean_of_the_models_that_workers_made_by_single_steps() -> None:
    result = flegel.run(
        LocalLR(rate=0.05),
        ROWS,
        LABELS,
        workers=2,
        sync="bsp",
        partition="contiguous",
        max_iterations=3,
        tolerance=0,
        audit="off",
        processes=False,
        progress=False,
    )
    theta = np.zeros((2, 5))
    for _ in range(3):
        halves = (slice(0, 200), slice(200, 400))
        theta = np.mean([by_hand(ROWS[half], LABELS[half], theta, 0.05) for half in halves], axis=0)
    assert result.kernel == "compiled"
    np.testing.assert_allclose(result.parameter, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sync", ["bsp", "psp", "psp:published", "fsp"])
@pytest.mark.parametrize(("chosen", "data"), [(LocalLR(rate=0.05), (ROWS, LABELS)), (LocalNMF(rank=3), (MATRIX, None))])
def test_local_models_learn_under_every_way_to_wait(chosen: Any, data: tuple[Any, Any], sync: str) -> None:
    def trained(passes: int, model: str) -> float:
        result = flegel.run(
            chosen, *data, workers=2, sync=model, max_passes=passes, tolerance=0, processes=False, progress=False
        )
        assert result.objective is not None
        return result.objective

    assert trained(40, sync) < 0.7 * trained(1, "bsp"), "without barriers by time, the first pass has one length"


def test_a_report_has_one_model_however_many_steps_it_took() -> None:
    algorithm, target = LocalLR(), LocalSteps(np.zeros((2, 3)), np.zeros(1), np.zeros(1), np.zeros(1))
    for _ in range(5):
        algorithm.aggregate(target, LocalSteps(np.ones((2, 3)), np.ones(1), np.ones(1), np.ones(1)))
    assert target.models[0] == 1.0 and target.moved[0, 0] == 5.0


@pytest.mark.parametrize("chosen", [LocalLR(), LocalNMF(rank=2)])
def test_local_models_keep_their_promises(chosen: Any) -> None:
    check_algorithm(chosen)
