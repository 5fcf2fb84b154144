"""Ranks that step by themselves between barriers; started as processes of their own by `test_local_steps.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler, LocalStepsDDP
from flegel.torch.flexible import iteration
from tests.extras.networks.flexible_ranks import CASES, COLUMNS, PATIENCE, flat, gather, main, network, rows

STEPS = 4  # local ones between two barriers


def batches(rank: int, many: int, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = rows(2 * many * size)
    for at in range(rank * many * size, (rank + 1) * many * size, size):
        yield x[at : at + size], y[at : at + size]


def inner(model: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def diloco(rank: int, kind: str, outer: tuple[float, float]) -> dict[str, Any]:
    """Beside the same training written by hand, without any class of ours."""
    model = LocalStepsDDP(
        network(), local_steps=STEPS, outer_rate=outer[0], outer_momentum=outer[1], endless=True, timeout=PATIENCE
    )
    optimizer = model.optimizer(inner(model, kind))
    stepped = []
    for x, y in batches(rank, 5 * STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        stepped.append(model.stepped)

    plain = network()
    weights = list(plain.parameters())
    shared = [w.detach().clone() for w in weights]
    outside = torch.optim.SGD(shared, lr=outer[0], momentum=outer[1], nesterov=outer[1] > 0)
    inside = inner(plain, kind)
    for number, (x, y) in enumerate(batches(rank, 5 * STEPS), 1):
        inside.zero_grad()
        torch.nn.functional.mse_loss(plain(x), y).backward()
        inside.step()
        if number % STEPS == 0:
            for w, s in zip(weights, shared, strict=True):
                s.grad = s - w.detach()
                dist.all_reduce(s.grad)
                s.grad /= dist.get_world_size()
            outside.step()
            with torch.no_grad():
                for w, s in zip(weights, shared, strict=True):
                    w.copy_(s)
    worst = max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))
    return {"worst": max(gather(worst)), "parameters": gather(flat(model)), "stepped": gather(stepped)}


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes of all values that are given to collectives."""
    sizes: list[int] = []
    names = {"all_reduce": 0, "all_to_all_single": 1, "all_gather_into_tensor": 1}
    real = {name: getattr(dist, name) for name in names}

    def counting(name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            sizes.append(given[names[name]].nbytes)
            return real[name](*given, **named)

        return call

    for name in names:
        setattr(dist, name, counting(name))
    try:
        yield sizes
    finally:
        for name, one in real.items():
            setattr(dist, name, one)


def sent_bytes(rank: int) -> dict[str, Any]:
    """Of plain barriers after every batch, of local steps, and of local steps with 8 bits; the loss of each."""
    found: dict[str, Any] = {}
    for kind in ("plain", "local", "int8"):
        iteration.running.clear()  # each is a training of its own
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 512), torch.nn.Tanh(), torch.nn.Linear(512, 32))
        net.append(torch.nn.Linear(32, 1))
        options: dict[str, Any] = {
            "endless": True,
            "timeout": PATIENCE,
            "compress": "int8" if kind == "int8" else "none",
        }
        model: FlexibleDDP
        if kind == "plain":
            model = FlexibleDDP(net, interval=1e-9, **options)
        else:
            model = LocalStepsDDP(net, local_steps=STEPS, outer_rate=1.0, outer_momentum=0.0, **options)
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.02))
        with counted() as sizes:
            for x, y in batches(rank, 10 * STEPS):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
        x, y = rows(500)
        found[kind] = {
            "bytes": sum(sizes), "barriers": model.barriers,
            "loss": float(torch.nn.functional.mse_loss(net(x), y)), "parameters": gather(flat(model)),
        }  # fmt: skip
    found["values"] = sum(p.numel() for p in model.parameters())
    return found


def epochs_of_local_steps(rank: int, workers: int = 0, group: int = 1, **options: Any) -> dict[str, Any]:
    """Epochs with a slow rank, a scaler that leaves a step out, accumulated gradients and running statistics."""
    x, y = rows(1003)
    data = TensorDataset(x, y, torch.arange(len(x)))
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = LocalStepsDDP(net, timeout=PATIENCE, **options)
    halves = [list(net[0].parameters()), [*net[1].parameters(), *net[2].parameters()]]
    optimizers = [model.optimizer(torch.optim.AdamW(half, lr=0.01)) for half in halves]
    scheduler = model.scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.999), samples=16)
    scaler = model.scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
    seen: list[list[int]] = []
    ended: list[list[float]] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([])
        for made, (features, target, index) in enumerate(loader, 1):
            time.sleep(0.004 if rank == 0 else 0.0005)
            loss = torch.nn.functional.mse_loss(model(features), target)
            scaler.scale(loss * (float("inf") if made == 5 else 1.0 / group)).backward()
            seen[-1] += index.tolist()
            if made % group:
                continue
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        ended.append([*flat(model), *net[1].running_mean.tolist()])
    return {
        "seen": gather(seen), "ended": gather(ended), "barriers": gather(model.barriers),
        "rate": gather(scheduler.get_last_lr()[0]), "samples": model.samples_seen,
        "loss": float(torch.nn.functional.mse_loss(net(x), y)),
    }  # fmt: skip


def resumed(rank: int) -> dict[str, Any]:
    """A training that is interrupted at a barrier goes on from its checkpoint as if nothing had been."""
    ends = []
    for cut in (False, True):
        kept: dict[str, Any] = {}
        for life in range(2 if cut else 1):
            iteration.running.clear()
            model = LocalStepsDDP(network(), local_steps=STEPS, endless=True, timeout=PATIENCE)
            optimizer = model.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
            if life:
                model.module.load_state_dict(kept["model"])
                optimizer.load_state_dict(kept["optimizer"])
                model.outer.load_state_dict(kept["outer"])
            for number, (x, y) in enumerate(batches(rank, 4 * STEPS)):
                if cut and (number >= 2 * STEPS) != bool(life):
                    continue
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            states = {"model": model.module, "optimizer": optimizer, "outer": model.outer}
            kept = {name: {**one.state_dict()} for name, one in states.items()}
        ends.append(flat(model))
    return {"ends": gather(ends)}


CASES.update(diloco=diloco, bytes=sent_bytes, local_epochs=epochs_of_local_steps, resumed=resumed)

if __name__ == "__main__":
    main()
