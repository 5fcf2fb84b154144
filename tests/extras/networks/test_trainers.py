"""Accelerate, the Trainer of Hugging Face and Lightning under flexible barriers; Slurm and Ray Train; as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.ports import free_port

torch = needs.library("torch")

from torch.utils.data import DataLoader, TensorDataset

from flegel.errors import UsageError
from flegel.torch.flexible.deal import Deal, RankProgress
from flegel.torch.flexible.interval_loader import IntervalLoader, samples_of_tree

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"accelerate": "accelerate", "trainer": "transformers", "lightning": "lightning"}
SAMPLES = 403  # of an epoch of trainer_ranks.py


def run(command: list[str], cwd: Path = ROOT, **more: str) -> str:
    """What a command prints. The repository is not on the path of modules: its folder `datasets` would be found in
    place of the package of that name, which Accelerate imports."""
    paths = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths |= {"OMP_NUM_THREADS": "1", "EPOCHS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    paths |= {"FLEGEL_SETTINGS": "liveness.rank_silence_seconds=60", **more}
    ended = subprocess.run(command, cwd=cwd, env=paths, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def under_torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]


@pytest.mark.parametrize("kind", PACKAGES)
def test_every_index_once_equal_weights_and_the_trainers_own_numbers(kind: str, tmp_path: Path) -> None:
    needs.installed(PACKAGES[kind])
    run(under_torchrun(str(Path(__file__).with_name("trainer_ranks.py")), kind, str(tmp_path)), cwd=tmp_path)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    assert first["barriers"] == second["barriers"] >= 2
    for epochs in zip(first["seen"], second["seen"], strict=True):
        assert sorted(index for rank in epochs for index in rank) == list(range(SAMPLES))
    assert len(first["seen"]) == 2
    if kind == "accelerate":
        assert first["steps"] == 2 * SAMPLES // 8, "its schedules step once for each process"
        assert first["judged"] == 2 * -(-SAMPLES // 16), "loaders that are not shuffled are Accelerate's own"
        return
    assert first["judged"] == 2, "after each epoch, on all ranks at the same step"
    if kind == "trainer":
        assert first["steps"] == first["barriers"], "a step of the trainer is a barrier, also after a checkpoint"
        assert first["rate"] == pytest.approx(0.01 * (1 - 2 * (SAMPLES // 16) / 52)), "as many steps as with DDP"
    else:
        assert first["steps"] == 2 * SAMPLES // 16, "schedules go by samples"


@pytest.mark.parametrize("kind", PACKAGES)
def test_examples_of_trainers_run_as_documented(kind: str) -> None:
    needs.installed(PACKAGES[kind])
    assert "loss " in run(under_torchrun(f"docs/examples/flexible_{kind}.py"))


@pytest.mark.processes
def test_the_example_of_slurm_runs_with_the_variables_of_srun(tmp_path: Path) -> None:
    for name, text in {
        "scontrol": "echo 127.0.0.1",
        "srun": 'export SLURM_NTASKS=2 SLURM_LOCALID=0\nSLURM_PROCID=1 "$@" &\nSLURM_PROCID=0 "$@" && wait %1',
    }.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MASTER_PORT": str(free_port()), "SLURM_JOB_NODELIST": "n[1-2]"}
    assert "epoch 0: loss" in run(["bash", "docs/examples/flexible_slurm.sh"], PYTHON=sys.executable, **told)


@pytest.mark.processes
def test_the_example_of_ray_train_runs(tmp_path: Path) -> None:
    needs.library("ray")
    told = run([sys.executable, "docs/examples/flexible_ray.py"], RAY_STORAGE=str(tmp_path), RAY_ADDRESS="local")
    assert "epoch 0: loss" in told


def test_a_deal_knows_its_last_barrier_when_that_interval_begins() -> None:
    """Checked against what `done` says after it, for many sizes."""
    for positions in range(2, 90, 3):
        deal = Deal(positions, 2, 4)
        deal.begin((), 0.0, 0)
        for _ in range(200):
            told = deal.ends_with_next_barrier(4)
            taken = [0, 0]
            for rank in range(2):
                while True:
                    taken[rank] += min(4, deal.outstanding(rank) - taken[rank])
                    unread = deal.outstanding(rank) - taken[rank]
                    if deal.is_last(rank, taken[rank], unread, 4, in_time=True) or not unread:
                        break
            deal.advance([RankProgress(count, 100.0 * (1 + rank), 0) for rank, count in enumerate(taken)], 0.05, 4, 0)
            assert told == deal.done, positions
            if told:
                break
        assert deal.done and sum(deal.trained) == positions


def test_loaders_and_batches_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = TensorDataset(torch.ones(4, 1))
    with pytest.raises(UsageError, match="batch_size"):
        IntervalLoader(DataLoader(rows, batch_size=None))
    with pytest.raises(UsageError, match="samples=lambda"):
        samples_of_tree(("a word",), {})
    assert samples_of_tree(({"x": [torch.ones(3, 2)]}, 0), {}) == 3
