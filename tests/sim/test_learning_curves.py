"""Progress without data: the curve agrees with the training that it was fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.sim.learning_curve import CurveLearner, FittedProgress, curve, fit


def decay(rate: float, passes: np.ndarray) -> list[tuple[float, float]]:
    return [(float(p), 10.0 + 90.0 * float(np.exp(-rate * p))) for p in passes]


@pytest.mark.parametrize("maximize", [False, True])
def test_the_loss_comes_from_how_much_quicker_fresh_parameters_are(maximize: bool) -> None:
    sign = -1.0 if maximize else 1.0
    fine = [(p, sign * f) for p, f in decay(1.0, np.arange(1, 161) / 8)]
    coarse = [(p, sign * f) for p, f in decay(0.5, np.arange(1.0, 41.0))]
    found = fit(fine, coarse, 1 / 8, maximize)
    assert (1 - found.loss / 8) / (1 - found.loss) == pytest.approx(2.0, rel=0.1)
    assert found.maximize is maximize


def test_equal_courses_mean_no_loss() -> None:
    assert fit(decay(0.5, np.arange(1, 161) / 8), decay(0.5, np.arange(1.0, 21.0)), 1 / 8, False).loss < 0.05


PROGRESS = FittedProgress((0.0, 1.0, 2.0, 10.0), (100.0, 50.0, 40.0, 20.0), 0.5)


def test_one_update_a_pass_follows_the_curve_itself() -> None:
    job, theta = curve(PROGRESS, 1000), np.zeros(2)
    for passes, value in ((1, 50.0), (2, 40.0)):
        theta = job.updateParameter(np.array([1000.0, 1000.0 * theta[1]]), theta)
        assert theta[0] == pytest.approx(passes)
        assert job.objective(None, theta) == pytest.approx(value)


def test_fresher_parameters_are_worth_more_and_stale_ones_less() -> None:
    def after(batches: int, behind: int) -> float:
        job, theta, seen = curve(PROGRESS, 1000), np.zeros(2), [0.0]
        for i in range(batches):
            known = seen[max(i - behind, 0)]
            theta = job.updateParameter(np.array([1000 / batches, 1000 / batches * known]), theta)
            seen.append(float(theta[1]))
        return float(theta[0])

    assert after(8, 0) > after(2, 0) > after(1, 0) == pytest.approx(1.0)
    assert after(8, 4) < after(8, 0)


def test_a_learner_tells_what_its_parameters_knew() -> None:
    learner = CurveLearner(100)
    learner.train(np.array([0.0, 7.0]), 0, 10, 0)
    learner.train(np.array([0.0, 9.0]), 10, 20, 0)
    np.testing.assert_array_equal(learner.changes()[0], [20.0, 160.0])
    learner.clear()
    np.testing.assert_array_equal(learner.changes()[0], [0.0, 0.0])
