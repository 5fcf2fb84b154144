"""Flexible barriers inside PyTorch's data-parallel training, with real ranks over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-extras installs it")

RANKS = Path(__file__).with_name("flexible_ranks.py")
ROOT = Path(__file__).resolve().parents[3]


def start(case: str, folder: Path, ranks: int, options: dict[str, Any], kind: str = "") -> list[subprocess.Popen[str]]:
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return [
        subprocess.Popen(
            [sys.executable, str(RANKS), case, str(folder), json.dumps(options), kind],
            env={**os.environ, **paths, "RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def play(case: str, folder: Path, ranks: int = 2, **options: Any) -> dict[str, Any]:
    started = start(case, folder, ranks, options)
    told = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, told
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_every_index_once_and_the_same_parameters_everywhere(tmp_path: Path, workers: int) -> None:
    found = play("epochs", tmp_path, 3, workers=workers)
    for epoch in range(2):
        assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(1003))
    assert all(parameters == found["parameters"][0] for parameters in found["parameters"]), "bit for bit"
    assert found["samples"] == 2 * 1003
    assert found["barriers"] < 2 * 1003 // 8, "not every micro-batch was a barrier"
    assert found["rate"] == pytest.approx(0.05 * 0.999 ** found["barriers"]), "the schedule stepped at barriers"


def test_the_gradient_is_the_mean_over_the_samples_of_all_ranks(tmp_path: Path) -> None:
    found = play("mean", tmp_path)
    assert found["worst"] < 1e-6
    assert found["counts"][0] > found["counts"][1], "the faster rank contributed more"


def test_without_a_flexible_sampler_it_is_plain_data_parallel_training_and_says_so(tmp_path: Path) -> None:
    found = play("static", tmp_path)
    assert found["barriers"] == 5 and len(found["said"]) == 1 and "FlexibleSampler" in found["said"][0]
    assert found["mine"] == pytest.approx(found["plain"], abs=1e-6)


def test_running_statistics_a_scaler_and_groups(tmp_path: Path) -> None:
    found = play("buffers", tmp_path)
    assert found["statistics"][0] == found["statistics"][1]
    assert found["parameters"][0] == found["parameters"][1]


@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_a_lost_rank_ends_the_others_with_a_sentence(tmp_path: Path, kind: str) -> None:
    started = start("lost", tmp_path, 3, {}, kind)
    try:
        told = [process.communicate(timeout=120)[1] for process in started[:2]]
    finally:
        started[2].kill()
        started[2].communicate()
    assert all(process.returncode not in (0, None) for process in started)
    assert all("rank 2" in text or "Connection" in text for text in told), told
    assert any("rank 2" in text for text in told), told


def test_the_example_of_the_documentation_runs_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "docs/examples/flexible_ddp.py"]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "EPOCHS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert "epoch 0: loss" in ended.stdout
