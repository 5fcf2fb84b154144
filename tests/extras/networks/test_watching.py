"""What a rank spends on each section, by a clock that only the sections themselves move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-extras installs it")

import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from flegel.report.rank_sections import read_watch  # noqa: E402
from flegel.torch import FlexibleDDP, watch  # noqa: E402


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
    _, found = read_watch(tmp_path)
    (one,) = found[0]
    assert one.iterations == 3
    assert one.seconds == {"data": 6.0, "forward": 6.0, "backward": 9.0, "exchange": 0.0, "step": 12.0, "host": 15.0}
