"""Figures that people read beside the objective: the log-loss and accuracy of LR, BIC and AIC of mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.cli.display import summary
from flegel.errors import AlgorithmError

RNG = np.random.default_rng(5)
ROWS = np.concatenate([RNG.normal(size=(300, 3)), RNG.normal(size=(300, 3)) + 2.0])
LABELS = np.repeat([0.0, 1.0], 300)


@pytest.mark.parametrize("sparse", [False, True])
def test_logistic_regression_shows_log_loss_and_accuracy(sparse: bool) -> None:
    rows: Any = csr_matrix(ROWS) if sparse else ROWS
    result = flegel.run(LR(l2=1e-3), (rows, LABELS), workers=1, sync="bsp")
    likely = result.probabilities(rows)
    assert result.metrics["log_loss"] == pytest.approx(log_loss(LABELS, likely), rel=1e-4)
    assert result.metrics["accuracy"] == np.mean(result.predict(rows) == LABELS)
    assert result.objective is not None and result.metrics["log_loss"] < result.objective  # without the penalty


@pytest.mark.parametrize("covariance", ["diagonal", "full", "tied", "spherical"])
def test_mixtures_show_the_information_criteria_of_scikit_learn(covariance: str) -> None:
    result = flegel.run(GMM(k=2, covariance=covariance), ROWS, workers=1)
    peer = result.to_sklearn()
    assert result.metrics["bic"] == pytest.approx(peer.bic(ROWS), rel=1e-6)
    assert result.metrics["aic"] == pytest.approx(peer.aic(ROWS), rel=1e-6)


def test_figures_are_in_every_form_of_a_result() -> None:
    result = flegel.run(LR(l2=1e-3), (ROWS, LABELS), workers=1, sync="bsp")
    right = f"accuracy {result.metrics['accuracy']:.4g}"
    assert right in repr(result) and right in result.summary() and right in "\n".join(summary(result))
    assert result.to_json()["metrics"] == result.metrics


class Talkative(KMeans):
    def metrics(self, aggregator: Any, parameter: Any) -> Any:
        return {"quality": "good"}


def test_a_figure_that_is_no_number_is_named() -> None:
    with pytest.raises(AlgorithmError, match="metrics, 'quality': returned 'good'"):
        flegel.run(Talkative(k=2), ROWS, workers=1, processes=False)
