"""Every built-in network, found by the registry of names, trains under every synchronization model and by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests import needs

needs.library("torch")

import flegel
from flegel import algorithms
from flegel.algorithms import BUILTINS
from flegel.cli.main import app
from flegel.sync import models

NAMES = [name for name, place in BUILTINS.items() if place.startswith("flegel.torch.")]
SMALL: dict[str, dict[str, Any]] = {"vgg11": {"width": 2}, "mlp": {"hidden": [8]}}
RNG = np.random.default_rng(5)
LABELS = np.arange(96) % 2
IMAGES = (RNG.normal(size=(96, 32 * 32)) + LABELS[:, None]).astype(np.float32)


@pytest.mark.parametrize("sync", models())
@pytest.mark.parametrize("name", NAMES)
def test_every_network_trains_under_every_model(name: str, sync: str) -> None:
    network = getattr(algorithms, BUILTINS[name].partition(":")[2])(epochs=2, **SMALL.get(name, {}))
    result = flegel.run(
        network, (IMAGES, LABELS.astype(float)), sync=sync, workers=2, processes=False, seed=0, max_iterations=3,
        max_seconds=600, progress=False,
    )  # fmt: skip
    assert result.iterations >= 1 and np.isfinite(result.objective), result.reason


@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_submitted_by_its_name(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", X=IMAGES, y=LABELS)
    hyper = {"epochs": 1, **SMALL.get(name, {})}
    words = ["submit", name, "--data", str(tmp_path / "images.npz"), "--processes", "no", "--no-save", "--seed", "0"]
    words += [word for key, value in hyper.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    outcome = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "out.json")], catch_exceptions=False)
    assert outcome.exit_code in (0, 3), outcome.output
    assert np.isfinite(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["objective"])
