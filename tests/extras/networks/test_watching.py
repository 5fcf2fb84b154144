"""What a rank spends on each section, by a clock that only the sections themselves move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from flegel.report.rank_page import verdict
from flegel.report.rank_sections import examine, read_watch
from flegel.torch import FlexibleDDP, LocalStepsDDP, watch
from flegel.torch.flexible import local_ddp
from tests.extras.networks.watched_script import BATCHES, COMPUTING, READING


class VirtualClock:
    now = 100.0

    @classmethod
    def spend(cls, seconds: float) -> None:
        cls.now += seconds


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        VirtualClock.spend(1.0)
        return torch.ones(2)


class Slow(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        VirtualClock.spend(2.0)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        VirtualClock.spend(3.0)
        return gradients[0]


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Slow.apply(self.layer(x))


class SlowSGD(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> Any:
        VirtualClock.spend(4.0)
        return super().step(closure)


@pytest.mark.parametrize("flexible", [False, True])
def test_sections_of_an_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flexible: bool) -> None:
    monkeypatch.setattr("flegel.runtime.clock.now", lambda: VirtualClock.now)
    monkeypatch.setattr("flegel.runtime.clock.microseconds", lambda: int(VirtualClock.now * 1e6))
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # from now on its own step is told too, inside the slow one
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        if flexible:
            model = FlexibleDDP(Net(), endless=True, interval=0.001, timeout=0)
        else:
            model = torch.nn.parallel.DistributedDataParallel(Net())
        optimizer = SlowSGD(model.parameters(), lr=0.1)
        optimizer = model.optimizer(optimizer) if flexible else optimizer
        watching = watch(model, tmp_path, every=1000.0)
        for batch in DataLoader(Rows(), batch_size=2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            VirtualClock.spend(5.0)
        with torch.no_grad():
            model(torch.ones(1, 2))
        watching.close()
    finally:
        dist.destroy_process_group()
    _, found, ranks = read_watch(tmp_path)
    assert ranks == 1
    (one,) = found[0]
    assert one.iterations == 3
    assert one.seconds == {"data": 6.0, "forward": 6.0, "backward": 9.0, "exchange": 0.0, "step": 12.0, "host": 15.0}


def test_the_exchange_of_local_steps_is_no_time_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.runtime.clock.now", lambda: VirtualClock.now)
    monkeypatch.setattr("flegel.runtime.clock.microseconds", lambda: int(VirtualClock.now * 1e6))
    monkeypatch.setattr(local_ddp.GroupMessages, "wait", lambda *_: VirtualClock.spend(7.0))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = LocalStepsDDP(torch.nn.Linear(2, 1), local_steps=2, endless=True, timeout=0)
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        watching = watch(model, tmp_path, every=1000.0)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        watching.close()
    finally:
        dist.destroy_process_group()
    (one,) = read_watch(tmp_path)[1][0]
    assert model.barriers == 3 and one.seconds["exchange"] == 21.0 and one.seconds["host"] == 0.0


@pytest.mark.processes
def test_three_ranks_of_plain_ddp_with_two_slow_ones(tmp_path: Path) -> None:
    """Rank 1 sleeps in reading, longest, rank 2 in its forward pass. Who else was slow depends on the machine; what
    follows from given times, test_rank_sections.py says."""
    root = Path(__file__).resolve().parents[3]
    paths = {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    script = Path(__file__).with_name("watched_script.py")
    ended = subprocess.run(
        [*command, str(script), str(tmp_path)], env={**os.environ, **paths}, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    every, found, ranks = read_watch(tmp_path)
    assert ranks == 3 and all(sum(one.iterations for one in found[rank]) == BATCHES for rank in range(3))
    assert sum(one.seconds["data"] for one in found[1]) >= 0.99 * (BATCHES - 1) * READING, (
        "the first may precede all windows"
    )
    assert sum(one.seconds["forward"] for one in found[2]) >= 0.99 * BATCHES * COMPUTING
    report = examine(every, found, ranks)
    assert sorted(report.ranks) == [0, 1, 2]
    shown = subprocess.run(
        [sys.executable, "-m", "flegel", "ddp-report", str(tmp_path), "--prometheus", str(tmp_path / "ddp.prom")],
        cwd=root, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert shown.returncode == 0 and verdict(report) in shown.stdout, shown.stderr
    assert 'flegel_ddp_score{rank="1",section="data"}' in (tmp_path / "ddp.prom").read_text()
    assert "<svg" in (tmp_path / "ddp-report.html").read_text()
