"""The second job of the Natural scenario: it trains while the block runs, and is gone after it."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from bench.common import second_job as scenario
from bench.common import suite


@pytest.mark.processes
def test_a_second_job_trains_until_the_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(scenario.subprocess, "Popen", Watched)
    with scenario.second_job(1):
        (job,) = started
        assert job.poll() is None
    assert job.poll() is not None


def test_a_second_job_that_does_not_train_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "JOB", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended with 3 before it trained"), scenario.second_job(1):
        pass


def test_the_larger_and_smaller_sets_are_those_of_the_paper() -> None:
    larger = {case.algorithm: case.data for case in suite.LARGER}
    smaller = {case.algorithm: case.data for case in suite.SMALLER}
    assert larger == {
        "gmm": "puf", "kmeans": "higgs", "fcm": "higgs", "lr": "nbaiot", "nmf": "ml25m", "cnn": "mnist"
    }  # fmt: skip
    assert smaller == {
        "gmm": "susy", "kmeans": "hepmass", "fcm": "hepmass", "lr": "higgs", "nmf": "ml10m", "cnn": "syn"
    }  # fmt: skip
