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
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.cli.main import app

RNG = np.random.default_rng(0)
ROWS = np.abs(RNG.normal(size=(400, 4)) + 5 * RNG.integers(3, size=(400, 1)))
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
    ],
)
def test_a_saved_model_runs_in_onnxruntime(algorithm: Any, scale: str, tmp_path: Path) -> None:
    result = flegel.run(algorithm, (ROWS, LABELS), sync="bsp", scale=scale, out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 0, done.output
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    answers = np.asarray(session.run(None, {"X": ROWS.astype(np.float32)})[0]).reshape(-1)
    assert (answers == result.predict(ROWS)).mean() > 0.995


def test_a_factorization_says_why_not(tmp_path: Path) -> None:
    flegel.run(NMF(rank=2, solver="multiplicative"), ROWS, sync="bsp", max_iterations=5, out=tmp_path / "model")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), str(tmp_path / "m.onnx")])
    assert done.exit_code == 2 and "ONNX has no" in done.output
