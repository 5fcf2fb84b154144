"""Saved models as ONNX files: onnxruntime answers as the model does; what cannot be exported says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests import needs

needs.library("skl2onnx")
onnxruntime = needs.library("onnxruntime")

import flegel
from flegel.algorithms.covariance import Covariance
from flegel.algorithms.fcm import FCM
from flegel.algorithms.glm.losses import Gamma, Huber, LinearSVM, Poisson
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.least_squares import ElasticNet, Lasso, LinearRegression, Ridge
from flegel.algorithms.lr import LR
from flegel.algorithms.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from flegel.algorithms.nmf import NMF
from flegel.algorithms.pca import PCA, SVD
from flegel.cli.main import app

RNG = np.random.default_rng(0)
ROWS = np.abs(RNG.normal(size=(400, 4)) + 5 * RNG.integers(3, size=(400, 1)))
AMOUNTS = 1.0 + ROWS @ [1.0, 0.5, 0.2, 0.1] + 0.1 * RNG.random(400)
LABELS = (ROWS[:, 0] > 4).astype(int) + (ROWS[:, 1] > 9)


@pytest.mark.parametrize(
    ("algorithm", "scale"),
    [
        (KMeans(k=3), "none"),
        (KMeans(k=3), "standard"),
        (KMeans(k=3, metric="cosine"), "none"),
        (KMeans(k=3, metric="cosine"), "standard"),
        (GMM(k=3, covariance="full"), "none"),
        (LR(l2=1e-3), "none"),
        (GaussianNB(), "none"),
        (GaussianNB(), "standard"),
        (MultinomialNB(), "none"),
        (BernoulliNB(binarize=3.0), "none"),
        (LinearSVM(l2=1e-3), "none"),
        (LinearSVM(l2=1e-3), "standard"),
    ],
)
def test_a_saved_model_runs_in_onnxruntime(algorithm: Any, scale: str, tmp_path: Path) -> None:
    result = flegel.run(algorithm, (ROWS, LABELS), sync="bsp", scale=scale, out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 0, done.output
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    answers = np.asarray(session.run(None, {"X": ROWS.astype(np.float32)})[0]).reshape(-1)
    assert (answers == result.predict(ROWS)).mean() > 0.995


@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize(
    "algorithm",
    [
        *(LinearRegression(), Ridge(alpha=2.0), Lasso(alpha=0.1), ElasticNet(alpha=0.1)),
        *(Huber(), Poisson(l2=1e-3), Gamma(l2=1e-3), PCA(k=2), SVD(k=3)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_numbers_of_onnxruntime_are_those_of_the_model(algorithm: Any, scale: str, tmp_path: Path) -> None:
    result = flegel.run(algorithm, (ROWS, AMOUNTS), sync="bsp", scale=scale, out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 0 and "agree on 256 of 256 rows" in done.output, done.output
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    wanted = result.predict(ROWS)
    answers = np.asarray(session.run(None, {"X": ROWS.astype(np.float32)})[0]).reshape(wanted.shape)
    np.testing.assert_allclose(answers, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", [Poisson(), Gamma()])
def test_exponents_beyond_float32_of_rows_about_0_do_not_matter(algorithm: Any, tmp_path: Path) -> None:
    amounts = np.exp(300.0 * (ROWS[:, 0] / 100 - 1) + 290)
    flegel.run(algorithm, (ROWS[:, :1] / 100 - 1, amounts), sync="bsp", out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 0 and "agree on 256 of 256 rows" in done.output, done.output


def test_means_that_float32_does_not_hold_are_refused(tmp_path: Path) -> None:
    flegel.run(PCA(k=2), ROWS + 1e7 / 3, sync="bsp", out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code != 0 and "subtract these" in " ".join(done.output.split()), done.output
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("algorithm", [FCM(k=2), Covariance()], ids=lambda one: type(one).__name__)
def test_other_classes_are_refused_with_what_can_be_exported(algorithm: Any, tmp_path: Path) -> None:
    flegel.run(algorithm, (ROWS, LABELS > 0), sync="bsp", out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and f"{type(algorithm).__name__} cannot be exported: " in said, said
    assert "naive Bayes; use `flegel predict`" in said


def test_a_factorization_says_why_not(tmp_path: Path) -> None:
    flegel.run(NMF(rank=2, solver="multiplicative"), ROWS, sync="bsp", max_iterations=5, out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 2 and "ONNX has no" in done.output
