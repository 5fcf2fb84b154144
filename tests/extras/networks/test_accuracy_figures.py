"""The figures of training to an accuracy: which trainings their options ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import suite
from bench.figures import psp
from tests.needs import library

library("torch")


def test_vgg_with_all_kernels_is_trained_alone_on_a_gpu_by_chosen_workers_and_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[tuple[int, str, int, str]] = []

    def train(
        _: suite.Suite, aim: psp.Aim, workers: int, model: str, limit: float
    ) -> tuple[psp.AccuracyReached, float]:
        assert limit > 0
        trained.append((workers, model, aim.case.settings["width"], aim.device))
        return psp.AccuracyReached(aim.accuracy), 0.5

    def no_races(_: suite.Suite) -> None:
        raise AssertionError("races to a loss")

    monkeypatch.setattr(suite.Suite, "first_of_process", False)  # else the age of the tests counts as time used
    monkeypatch.setattr(psp, "lacking", lambda need: "")
    monkeypatch.setattr(psp, "_to_accuracy", train)
    monkeypatch.setattr(psp, "races", no_races)
    words = "psp --scale small --budget 100000 --parts vgg --all-kernels --clients 3,12 --models psp,bsp --out"
    monkeypatch.setattr("sys.argv", [*words.split(), str(tmp_path)])
    psp.main()
    assert trained == [(workers, model, 64, "cuda:0") for workers in (3, 12) for model in ("psp", "bsp")]
