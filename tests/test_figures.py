"""Figures that people read beside the objective: the log-loss and accuracy of LR, BIC and AIC of mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss

import flegel
from flegel.algorithm import Algorithm
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.datasets.rows.kept_rows import held_out_ids
from flegel.errors import AlgorithmError, UsageError
from flegel.machine.coordinator.observation import FOLLOWED_AT, JobSnapshot
from flegel.terminal.display import figures, summary

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


# -- rows that are held out ------------------------------------------------------------------------------------------


def test_held_out_rows_are_followed_and_never_trained_on() -> None:
    outlier = np.concatenate([ROWS, [[1e6, 1e6, 1e6]]])
    wanted = next(seed for seed in range(200) if 600 in held_out_ids(601, 0.1, seed))
    result = flegel.run(KMeans(k=2), outlier, validate=0.1, seed=wanted, workers=1, sync="bsp")
    assert np.abs(result.parameters["centroids"]).max() < 10  # nothing of the outlier
    assert result.metrics["validation_mean_squared_distance"] > 1e9
    assert result.dataset["rows"] == 541 and result.dataset["held_out"] == result.validation["rows"] == 60
    assert len(result.labels) == 601  # of all rows of the data


def test_figures_of_held_out_rows_are_those_of_the_result_on_these_rows() -> None:
    seen: list[JobSnapshot] = []
    data = (ROWS, LABELS)
    options: dict[str, Any] = {"validate": 0.2, "seed": 4, "workers": 1, "sync": "bsp", "scale": "standard"}
    result = flegel.run(LR(l2=1e-3), data, watch=seen.append, **options)
    held = held_out_ids(600, 0.2, 4)
    assert result.metrics["validation_accuracy"] == np.mean(result.predict(ROWS[held]) == LABELS[held])
    likely = result.probabilities(ROWS[held])
    assert result.metrics["validation_log_loss"] == pytest.approx(log_loss(LABELS[held], likely), rel=1e-6)
    assert result.validation["course"][-1]["accuracy"] == result.metrics["validation_accuracy"]
    assert "validation_accuracy" in result.summary() and result.to_json()["validation"]["rows"] == 120
    again = flegel.run(LR(l2=1e-3), data, **options)
    assert again.metrics == result.metrics


def test_a_class_that_only_held_out_rows_have_counts_as_wrong() -> None:
    held = held_out_ids(600, 0.1, 0)
    labels = LABELS.copy()
    labels[held[0]] = 7.0
    result = flegel.run(LR(l2=1e-3), (ROWS, labels), validate=0.1, workers=1, sync="bsp")
    right = np.mean(result.predict(ROWS[held]) == labels[held])
    assert result.metrics["validation_accuracy"] == right < 1.0


class Unjudged(KMeans):
    evaluate = Algorithm.evaluate


def test_a_class_without_evaluate_has_nothing_to_follow() -> None:
    with pytest.raises(UsageError, match="Unjudged defines no evaluate"):
        flegel.run(Unjudged(k=2), ROWS, validate=0.1)


@pytest.mark.parametrize("part", [-0.1, 1.0, float("nan")])
def test_a_part_that_is_none_is_refused(part: float) -> None:
    with pytest.raises(UsageError, match="must be a part of the rows"):
        flegel.run(KMeans(k=2), ROWS, validate=part)


def test_a_class_that_is_never_predicted_is_told_with_what_to_type() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2))
    labels = np.where(np.arange(400) < 8, "rare", "common")
    result = flegel.run(LR(), rows, labels, workers=1, processes="no")
    (note,) = [text for text in result.warnings if "never predicted" in text]
    assert note.startswith("1 of 2 classes are never predicted for 400 rows of training, 8 of which have them: 'rare'")
    assert 'class_weight="balanced"' in note
    balanced = flegel.run(LR(class_weight="balanced"), rows, labels, workers=1, processes="no")
    assert not any("never predicted" in text for text in balanced.warnings)


def test_the_sizes_of_clusters_end_the_report_of_k_means() -> None:
    rows = np.concatenate([np.zeros((30, 2)), np.full((10, 2), 9.0)]) + np.random.default_rng(0).normal(size=(40, 2))
    result = flegel.run(KMeans(k=2), rows, workers=1, processes="no")
    sizes = result.description[0].removeprefix("rows in clusters 0 to 1: ")
    assert sizes.split(", ") == [str(size) for size in result.sizes]
    assert result.description[0] in result.summary() and result.description[0] in summary(result)
    many = flegel.run(KMeans(k=25), rows, workers=1, processes="no")
    assert many.description[0].startswith("25 clusters of ")


def test_figures_of_held_out_rows_are_told_with_the_barrier_that_they_are_of() -> None:
    """They are made anew once a pass at most: beside the figures of later barriers they looked like theirs."""
    seen: list[JobSnapshot] = []
    rows = np.random.default_rng(0).normal(size=(500, 3))
    result = flegel.run(KMeans(k=3), rows, validate=0.1, workers=1, processes="no", watch=seen.append)
    assert all(look.metrics[FOLLOWED_AT] <= look.iteration for look in seen if FOLLOWED_AT in look.metrics)
    assert FOLLOWED_AT not in result.metrics
    shown = figures({"rmse": 0.5, "validation_rmse": 0.75, FOLLOWED_AT: 7}, ", ")
    assert shown == "rmse 0.5, validation_rmse 0.75 (iteration 7), "
