"""The second job of the Natural scenario: it trains while the block runs, and is gone after it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.common import second_job as scenario
from bench.common import suite
from bench.common.program import ROOT
from bench.figures import runtime_even


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Second jobs, from their start on."""
    jobs: list[subprocess.Popen[str]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            jobs.append(self)

    monkeypatch.setattr(scenario.subprocess, "Popen", Watched)
    return jobs


@pytest.mark.processes
def test_a_second_job_trains_until_the_block_is_left(started: list[subprocess.Popen[str]]) -> None:
    with scenario.second_job(1):
        (job,) = started
        assert job.poll() is None
    assert job.poll() is not None


def test_a_second_job_that_does_not_train_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "JOB", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended with 3 before it trained: it wrote nothing"), scenario.second_job(1):
        pass


def test_a_second_job_finds_the_checkout_where_it_is_not_installed_and_its_last_lines_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder of the second job is not that of this process, so a relative path does not lead there."""
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setattr(scenario, "JOB", "import os, sys\nsys.exit('\\n'.join('abcde') + os.environ['PYTHONPATH'])")
    with pytest.raises(RuntimeError) as raised, scenario.second_job(1):
        pass
    found = str(raised.value)
    assert found.startswith("The second job ended with 1 before it trained: a\nb\nc\nd\ne")
    assert found.endswith(os.pathsep.join([f"e{ROOT}", "."]))


def test_a_second_job_that_ends_before_the_measured_one_is_said(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setattr(scenario, "JOB", "print('trains', flush=True)\nraise SystemExit('no memory')")
    with pytest.raises(RuntimeError, match=r"before the measured one.*no memory"), scenario.second_job(1):
        assert started[0].wait(600) == 1


def test_the_larger_and_smaller_sets_are_those_of_the_paper() -> None:
    larger = {case.algorithm: case.data for case in suite.LARGER}
    smaller = {case.algorithm: case.data for case in suite.SMALLER}
    assert larger == {
        "gmm": "puf", "kmeans": "higgs", "fcm": "higgs", "lr": "nbaiot", "nmf": "ml25m", "cnn": "mnist"
    }  # fmt: skip
    assert smaller == {
        "gmm": "susy", "kmeans": "hepmass", "fcm": "hepmass", "lr": "higgs", "nmf": "ml10m", "cnn": "syn"
    }  # fmt: skip


def test_fig_8_is_raced_alone_and_beside_a_job_of_as_many_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Natural without stragglers: with fewer workers the second job would slow some of ours and not others."""
    beside: list[int] = []
    raced: list[tuple[str, tuple[int, ...], int]] = []

    @contextmanager
    def job(workers: int) -> Iterator[None]:
        beside.append(workers)
        yield
        beside.remove(workers)

    def race(bench: suite.Suite, cases: list[suite.Case], straggler: str, scenario: str) -> None:
        assert not straggler
        raced.append((scenario, tuple(beside), len(cases)))

    monkeypatch.setattr(runtime_even, "second_job", job)
    monkeypatch.setattr(runtime_even, "compare_runtimes", race)
    monkeypatch.setattr("sys.argv", ["runtime_even", "--scale", "small", "--workers", "5", "--out", str(tmp_path)])
    runtime_even.main()
    assert raced == [("no stragglers", (), 6), ("natural, no stragglers", (5,), 6)]
