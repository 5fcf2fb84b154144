"""What the ranks of the tests do; started as processes of their own by `test_flexible_ddp.py`."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it, and forked ranks would do so one by one
import torch.distributed as dist
import torch.utils.checkpoint
from torch.utils.data import DataLoader, TensorDataset

from flegel.errors import FlegelWarning, UsageError
from flegel.runtime import clock
from flegel.torch import FlexibleDDP, FlexibleSampler, LocalStepsDDP

COLUMNS = 6
PATIENCE = 120.0  # seconds that ranks wait for one that a busy machine holds up


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, COLUMNS, generator=generator)
    return x, x[:, :1] * 2.0 + 0.1 * torch.randn(count, 1, generator=generator)


def gather(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def flat(model: torch.nn.Module) -> list[float]:
    return [float(v) for p in model.parameters() for v in p.detach().reshape(-1)]


def epochs(rank: int, many: int = 2, workers: int = 0, **options: Any) -> dict[str, Any]:
    """Two epochs with a slow rank, as any script trains; what each rank has seen, and whether all have the same θ."""
    x, y = rows(1003)
    data = TensorDataset(x, y, torch.arange(len(x)))
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
    model = FlexibleDDP(network(), **options)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    scheduler = model.scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999))
    seen: list[list[int]] = []
    for epoch in range(many):
        sampler.set_epoch(epoch)
        seen.append([])
        for features, target, index in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(features), target)
            time.sleep(0.004 if rank == 0 else 0.0005)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            scheduler.step()
            seen[-1] += index.tolist()
    return {
        "seen": gather(seen), "parameters": gather(flat(model)), "barriers": model.barriers,
        "rate": scheduler.get_last_lr()[0], "samples": model.samples_seen,
    }  # fmt: skip


def weighted_mean(rank: int, **options: Any) -> dict[str, Any]:
    """Ranks make different numbers of micro-batches of different sizes; the gradient is the mean over all samples.
    Rank 0 makes four between two barriers and rank 1 one, whatever the machine does."""
    model = FlexibleDDP(network(), endless=True, interval=1.0, **options)
    model._is_in_time = lambda _: len(mine) >= (4, 1)[rank]
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    mine: list[tuple[torch.Tensor, torch.Tensor]] = []
    x, y = rows(4000)
    at, steps, worst = 2000 * rank, 0, 0.0
    while steps < 3:
        count = 3 + (at * 7 + rank) % 5
        part = x[at : at + count], y[at : at + count]
        at += count
        mine.append(part)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(part[0]), part[1]).backward()
        if not model.barrier.complete:
            assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            continue
        got = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        optimizer.step()
        parts = [p for parts in gather(mine) for p in parts]
        plain = network()
        xs, ys = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        torch.nn.functional.mse_loss(plain(xs), ys).backward()
        exact = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
        worst = max(worst, float((got - exact).abs().max() / exact.abs().max()))
        mine, steps = [], steps + 1
    return {"worst": max(gather(worst)), "counts": gather(at - 2000 * rank)}


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Whose second branch is not used in every micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom = torch.nn.Linear(COLUMNS, 1), torch.nn.Linear(COLUMNS, 1)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.always(x) + (self.seldom(x) if both else 0.0)


def unused(rank: int) -> dict[str, Any]:
    """Only rank 0 uses the branch, and not in the micro-batches that synchronize."""
    torch.manual_seed(0)
    net = Branches()
    model = FlexibleDDP(net, endless=True, interval=0.3, find_unused_parameters=True)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x, _ = rows(4)
    worst, made, used = 0.0, 0, 0
    while model.barriers < 4:
        before = net.seldom.weight.detach().clone()
        optimizer.zero_grad()
        both = rank == 0 and made % 5 == 1
        model(x, both).mean().backward()
        time.sleep(0.01)
        made, used = made + 1, used + both
        optimizer.step()
        if model.stepped:
            counts = gather((made, used))
            share = sum(u for _, u in counts) / sum(m for m, _ in counts)
            exact = before - 0.1 * share * x.mean(0)
            worst = max(worst, float((net.seldom.weight.detach() - exact).abs().max()))
            made = used = 0
    return {"worst": gather(worst), "parameters": gather(flat(model))}


def lost(rank: int) -> dict[str, Any]:
    """The last rank freezes in the middle; the others must end with a sentence."""
    model = FlexibleDDP(network(), endless=True, interval=0.02, timeout=30.0)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    x, y = rows(64)
    for step in range(100_000):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if step == 20 and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), 19 if sys.argv[4] == "freeze" else 9)
    return {}


def static(rank: int) -> dict[str, Any]:
    """Without a FlexibleSampler every micro-batch is synchronized, and a warning says so."""
    model = FlexibleDDP(network())
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    x, y = rows(80)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for at in range(0, 80, 16):
            part = slice(at + 8 * rank, at + 8 * rank + 8)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
    plain = network()
    other = torch.optim.SGD(plain.parameters(), lr=0.05)
    for at in range(0, 80, 16):
        other.zero_grad()
        torch.nn.functional.mse_loss(plain(x[at : at + 16]), y[at : at + 16]).backward()
        other.step()
    told = [str(w.message) for w in said if issubclass(w.category, FlegelWarning)]
    return {"barriers": model.barriers, "said": told, "mine": flat(model), "plain": flat(plain)}


def buffers(rank: int) -> dict[str, Any]:
    """Running statistics of BatchNorm, averaged by samples; a scaler and groups of micro-batches."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    model = FlexibleDDP(net, endless=True, interval=0.05, lr_rule="adascale")
    optimizer = model.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    scaler = model.scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    x, y = rows(4000)
    while model.barriers < 12:
        part = torch.randint(0, 4000, (16,))
        optimizer.zero_grad()
        with model.no_sync():
            scaler.scale(torch.nn.functional.mse_loss(model(x[part]), y[part]) / 2).backward()
        scaler.scale(torch.nn.functional.mse_loss(model(x[part]), y[part]) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    statistics = [float(v) for b in model.module.buffers() if b.is_floating_point() for v in b]
    return {"statistics": gather(statistics), "parameters": gather(flat(model))}


def skipped(rank: int) -> dict[str, Any]:
    """A scaler that leaves a step out because gradients are not finite: training goes on at the next barrier."""
    model = FlexibleDDP(network(), endless=True, interval=0.02)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    scaler = model.scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    x, y = rows(16)
    before, scales = flat(model), []
    while model.barriers < 3:
        optimizer.zero_grad()
        wrong = float("inf") if model.barriers == 0 else 1.0
        scaler.scale(torch.nn.functional.mse_loss(model(x), y) * wrong).backward()
        scaler.step(optimizer)
        scaler.update()
        if model.stepped:
            scales.append(scaler.get_scale())
            same = flat(model) == before
            assert same if model.barriers == 1 else not same
    return {"scales": scales, "parameters": gather(flat(model))}


def refused(rank: int) -> dict[str, Any]:
    """Modules that another wrapper has sharded."""
    from torch.distributed.fsdp import fully_shard

    net = network()
    fully_shard(net)
    try:
        FlexibleDDP(net)
    except UsageError as error:
        return {"said": str(error)}
    return {"said": ""}


def compiled(rank: int) -> dict[str, Any]:
    """A compiled module inside."""
    x, y = rows(64)
    model = FlexibleDDP(torch.compile(network(), backend="aot_eager"), endless=True, interval=0.02)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    while model.barriers < 5:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return {"parameters": gather(flat(model))}


class Checkpointed(torch.nn.Module):  # type: ignore[misc]
    """Whose activations are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


def alike(rank: int) -> dict[str, Any]:
    """Kinds of modules and of options, each beside one process that trains the samples of both ranks."""
    kinds: dict[str, tuple[torch.nn.Module, dict[str, Any], bool]] = {
        "plain": (network(), {}, False),
        "static graph": (network(), {"static_graph": True}, False),
        "activation checkpointing": (Checkpointed(), {}, False),
        "static graph, activation checkpointing": (Checkpointed(), {"static_graph": True}, False),
        "autocast": (network(), {}, True),
        "no views": (network(), {"gradient_as_bucket_view": False}, False),
    }
    x, y = rows(96)
    found = {}
    for name, (net, options, cast) in kinds.items():
        plain = network()
        model = FlexibleDDP(net, **options)
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        other = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
        for at in range(0, 96, 16):
            part = slice(at + 8 * rank, at + 8 * rank + 8)
            for one, made, rows_of in ((model, optimizer, part), (plain, other, slice(at, at + 16))):
                made.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                    loss = torch.nn.functional.mse_loss(one(x[rows_of]).float(), y[rows_of])
                loss.backward()
                made.step()
        worst = max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))
        found[name] = {"worst": worst, "parameters": gather(flat(model)), "barriers": model.barriers}
    return found


def counted(rank: int) -> dict[str, Any]:
    """Messages, their values, and operations of three steps of equal ranks, beside DDP with the same options."""
    x, y = rows(32)
    found: dict[str, Any] = {}
    for kind in ("ddp", "flexible"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 500), torch.nn.Tanh(), torch.nn.Linear(500, 200))
        options: dict[str, Any] = {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True}
        if kind == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(net, **options)
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        else:
            model = FlexibleDDP(net, endless=True, **options)
            model.pace._judge = lambda *_: None  # equal, whatever this machine does
            optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))

        def train(steps: int, model: Any = model, optimizer: Any = optimizer) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y.expand(-1, 200)).backward()
                optimizer.step()

        train(4)
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            train(3)
        messages = [e for e in profile.events() if e.name.startswith("gloo:")]
        values = sum(math.prod(shape) for e in messages for shape in e.input_shapes)
        large = [e.name for e in profile.events() if any(math.prod(s or [0]) >= 500 * COLUMNS for s in e.input_shapes)]
        found[kind] = {
            "messages": len(messages),
            "values": values,
            "large": sorted(name for name in large if name.startswith("aten::")),
            "grads": sum(p.grad.untyped_storage().nbytes() for p in net.parameters()),
            "parameters": gather(flat(model)),
        }
    return found


def compressed(rank: int) -> dict[str, Any]:
    """Gradients with 8 bits beside full precision: 30 barriers of a network with 20,000 weights."""
    found = {}
    for kind in ("none", "int8"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 1))
        model = FlexibleDDP(net, endless=True, compress=kind, bucket_cap_mb=0.03)
        model.pace._judge = lambda *_: None  # equal, whatever this machine does: steps of the same samples
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.001))
        x, y = rows(512)
        losses = []
        while model.barriers < 30:
            part = slice(16 * (model.barriers % 16) + 256 * rank, 16 * (model.barriers % 16) + 256 * rank + 16)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(torch.nn.functional.mse_loss(model.module(x), y)))
        found[kind] = {"loss": losses[-1], "digests": gather(hash(tuple(flat(model))))}
    return found


def indexed(count: int) -> TensorDataset:
    x, y = rows(count)
    return TensorDataset(x, y, torch.arange(count))


def generator() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(4, COLUMNS)


def adversaries(
    d: torch.nn.Module, g: torch.nn.Module, of_d: torch.optim.Optimizer, of_g: torch.optim.Optimizer, real: torch.Tensor
) -> None:
    """One iteration as tutorials write it: two losses of the discriminator, one after the other, then the generator's,
    whose gradients in the discriminator are thrown away."""
    truth = torch.nn.functional.binary_cross_entropy_with_logits
    z = real[:, :4] * 0.5
    one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    of_d.zero_grad()
    truth(d(real), one).backward()
    fake = g(z)
    truth(d(fake.detach()), zero).backward()
    of_d.step()
    of_g.zero_grad()
    truth(d(fake), one).backward()
    of_g.step()


def adversarial(rank: int, workers: int = 0) -> dict[str, Any]:
    """Two models that share one sampler; rank 0 is slow. The first iteration, beside one process with all samples."""
    data = indexed(611)
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
    d, g = FlexibleDDP(network()), FlexibleDDP(generator())
    of_d = d.optimizer(torch.optim.SGD(d.parameters(), lr=0.5))
    of_g = g.optimizer(torch.optim.SGD(g.parameters(), lr=0.5))
    seen: list[list[int]] = []
    worst = 0.0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([])
        for real, _, index in loader:
            time.sleep(0.004 if rank == 0 else 0.0)
            adversaries(d, g, of_d, of_g, real)
            if not seen[0]:
                everyone = torch.cat(gather(real))
                plain = network(), generator()
                adversaries(*plain, *(torch.optim.SGD(one.parameters(), lr=0.5) for one in plain), everyone)
                mine, exact = flat(d) + flat(g), flat(plain[0]) + flat(plain[1])
                worst = max(abs(a - b) for a, b in zip(mine, exact, strict=True))
            seen[-1] += index.tolist()
    return {
        "seen": gather(seen), "parameters": gather(flat(d) + flat(g)), "barriers": [d.barriers, g.barriers],
        "worst": worst, "samples": [d.samples_seen, g.samples_seen],
    }  # fmt: skip


def small(rank: int) -> dict[str, Any]:
    """Less than four batches for each rank."""
    found = {}
    for count in (300, 130, 64):
        data = indexed(count)
        sampler = FlexibleSampler(data)
        model = FlexibleDDP(network())
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        seen: list[list[int]] = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.append([])
            for features, target, index in DataLoader(data, batch_size=64, sampler=sampler):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(features), target).backward()
                optimizer.step()
                seen[-1] += index.tolist()
        found[str(count)] = {"seen": gather(seen), "parameters": gather(flat(model)), "state": sampler.state_dict()}
    return found


def accumulated(rank: int, told: bool) -> dict[str, Any]:
    """Steps after every third batch, with `no_sync` or without it; and a second optimizer of the same model."""
    data = indexed(611)
    sampler = FlexibleSampler(data)
    model = FlexibleDDP(network())
    inner = model.module
    optimizers = [
        model.optimizer(torch.optim.SGD(inner[0].parameters(), lr=0.05)),
        model.optimizer(torch.optim.SGD(inner[2].parameters(), lr=0.05)),
    ]
    seen: list[list[int]] = []
    made, worst = 0, 0.0
    first: list[tuple[torch.Tensor, torch.Tensor]] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([])
        for features, target, index in DataLoader(data, batch_size=8, sampler=sampler, drop_last=epoch == 1):
            made += 1
            time.sleep(0.003 if rank == 0 else 0.0)
            with model.no_sync() if told and made % 3 else contextlib.nullcontext():
                (torch.nn.functional.mse_loss(model(features), target) / 3).backward()
            first.append((features, target))
            if made % 3 == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            if made == 3:
                plain = network()
                parts = [part for parts in gather(first) for part in parts]
                xs, ys = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
                torch.nn.functional.mse_loss(plain(xs), ys).backward()
                torch.optim.SGD(plain.parameters(), lr=0.05).step()
                worst = max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))
            seen[-1] += index.tolist()
    return {"seen": gather(seen), "parameters": gather(flat(model)), "barriers": model.barriers, "worst": worst}


def incomplete(rank: int, anew: bool) -> dict[str, Any]:
    """Steps after every fourth batch, nothing said by `no_sync`. The first epoch has five batches for rank 0 and four
    for rank 1, so only rank 0 begins the second one with an incomplete group; `anew`: batches are counted in each
    epoch, otherwise in all of them."""
    data = indexed(65)
    sampler = FlexibleSampler(data)
    model = FlexibleDDP(network(), timeout=PATIENCE)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[list[int]] = []
    made, clipped = 0, []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        seen.append([])
        made = 0 if anew else made
        for features, target, index in DataLoader(data, batch_size=8, sampler=sampler):
            made += 1
            (torch.nn.functional.mse_loss(model(features), target) / 4).backward()
            seen[-1] += index.tolist()
            if made % 4 == 0:
                norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
                optimizer.step()
                optimizer.zero_grad()
                clipped += [norm] if model.stepped else []
    return {"seen": gather(seen), "parameters": gather(flat(model)), "barriers": model.barriers,
            "clipped": gather(clipped)}  # fmt: skip


def left_early(rank: int, alike: bool) -> dict[str, Any]:
    """`break` in the middle of an epoch: at the same barrier on all ranks, or after a number of batches, fewer on the
    rank that is faster: whatever the machine does, it leaves before the other one."""
    data = indexed(20_000)  # of which claims of five intervals of 20 ms are a small part, however fast a rank seems
    sampler = FlexibleSampler(data)
    model = FlexibleDDP(network(), interval=0.02, timeout=PATIENCE)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    said = ""
    try:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            until = model.barriers + 5
            for made, (features, target, _) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(features), target).backward()
                time.sleep(0.02 if rank == 0 else 0.001)
                optimizer.step()
                if (model.stepped and model.barriers == until) if alike else made == (20 if rank == 0 else 12):
                    break
    except UsageError as error:
        said = str(error)
    return {"said": gather(said), "parameters": gather(flat(model)), "barriers": model.barriers}


def stopped(rank: int) -> dict[str, Any]:
    """Data without an end: left by the clock of one rank, then by samples; gradients that are not finite, which every
    fourth barrier looks at; larger steps.

    The clock of rank 1 is an hour ahead."""
    model = FlexibleDDP(network(), endless=True, interval=0.2)
    optimizer = model.optimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    model._wrapped_at -= 3600.0 if rank == 1 else 0.0
    x, y = rows(8)
    left = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for limits in ({"seconds": 1800.0}, {"samples": 4000}, {}):
            began = model.barriers
            while True:
                time.sleep(0.02 if rank == 0 else 0.0)
                optimizer.zero_grad()
                wrong = 1.0 if limits else float("nan")
                (torch.nn.functional.mse_loss(model(x), y) * wrong).backward()
                optimizer.step()
                if model.should_stop(**limits) if limits else model.stepped and model.barriers == began + 4:
                    break
            left.append([model.barriers, model.samples_seen])
            model._stopping = model._asks_to_stop = False
    told = [str(w.message) for w in said if issubclass(w.category, FlegelWarning)]
    return {"left": gather(left), "told": gather(told)}


def evaluated(rank: int, on: list[int], kind: str, tuned: bool, interval: float | None) -> dict[str, Any]:
    """Forward passes without a backward pass, on some of the ranks, wherever a script may make them, and of another
    size than those that are trained. `tuned`: from the second barrier on all is trained in eval mode, as where the
    statistics of BatchNorm are frozen. Weights stay as they are, so the gradient of each barrier is known."""
    model = FlexibleDDP(network(), endless=True, timeout=PATIENCE, interval=interval)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    x, y = rows(40_000)
    mine: list[tuple[torch.Tensor, torch.Tensor]] = []
    at, worst = 20_000 * rank, 0.0

    def evaluate() -> None:
        if rank not in on:
            return
        before = model.training
        model.train(kind == "train mode")
        with torch.no_grad() if kind == "no gradients" else contextlib.nullcontext():
            for size in (37, 11):
                torch.nn.functional.mse_loss(model(x[:size]), y[:size])
        model.train(before)

    while model.barriers < 4:
        model.train(not tuned or model.barriers < 2)
        optimizer.zero_grad()
        for _ in range(2):  # gradients of two micro-batches are accumulated
            evaluate()
            part = x[at : at + 8], y[at : at + 8]
            at += 8
            mine.append(part)
            loss = torch.nn.functional.mse_loss(model(part[0]), part[1]) / 2
            evaluate()
            loss.backward()
        got = [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
        time.sleep(0.004 if rank == 0 and interval is not None else 0.0)
        complete = model.barrier.complete
        optimizer.step()
        evaluate()
        if complete:
            parts = [part for parts in gather(mine) for part in parts]
            plain = network()
            torch.nn.functional.mse_loss(
                plain(torch.cat([p[0] for p in parts])), torch.cat([p[1] for p in parts])
            ).backward()
            exact = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
            worst = max(worst, float((torch.cat(got) - exact).abs().max() / exact.abs().max()))
            mine = []
    return {"worst": gather(worst), "samples": 2 * model.samples_seen, "trained": sum(gather(at - 20_000 * rank))}


def all_evaluated(rank: int) -> dict[str, Any]:
    """On one rank and on all, with gradients and without, while ranks train in train mode and in eval mode; with equal
    ranks and with intervals in which one makes more iterations than the other."""
    kinds: list[tuple[list[int], str, bool]] = [
        ([0], "eval mode", False),
        ([0], "no gradients", False),
        ([0], "train mode", False),
        ([0, 1], "eval mode", False),
        ([], "", True),
        ([0], "eval mode", True),
        ([1], "no gradients", True),
    ]
    return {f"{kind}, {dt}": evaluated(rank, *kind, dt) for dt in (None, 0.01) for kind in kinds}


def evaluated_in_epochs(rank: int) -> dict[str, Any]:
    """A loss of other data on rank 0 in the middle of each epoch, with gradients, while a sampler deals the indices."""
    data = indexed(611)
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = FlexibleDDP(network())
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[list[int]] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([])
        for made, (features, target, index) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), target).backward()
            optimizer.step()
            seen[-1] += index.tolist()
            if rank == 0 and made % 4 == 2:
                model.eval()
                for others, wanted, _ in DataLoader(indexed(40), batch_size=16):
                    torch.nn.functional.mse_loss(model(others), wanted)
                model.train()
    return {"seen": gather(seen), "parameters": gather(flat(model)), "samples": model.samples_seen}


def unseen(rank: int) -> dict[str, Any]:
    """Outputs in an object of the script's own, in which no tensor can be found."""

    class Outputs:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Hidden(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> Outputs:
            return Outputs(self.inner(x))

    model = FlexibleDDP(Hidden(), endless=True)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    x, y = rows(8)
    torch.nn.functional.mse_loss(model(x).value, y).backward()
    try:
        optimizer.step()
    except UsageError as error:
        return {"said": gather(str(error))}
    return {"said": []}


def calls_of(work: Any) -> int:
    """Calls of Python and C functions that it makes in this thread."""
    made = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


def silent(rank: int) -> dict[str, Any]:
    """Equal ranks: most barriers carry no report. Then things that end a run of these on one rank or on both, each
    beside one process that trains the samples of both ranks."""
    found: dict[str, Any] = {"calls": {}, "parameters": {}}
    x, y = rows(4000)
    model = FlexibleDDP(network(), endless=True, timeout=PATIENCE)
    model.pace._judge = lambda *_: None  # equal, whatever this machine does
    model._run.waiting_share = 1e9
    plain = torch.nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=True)
    pairs = [(one, torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9)) for one in (model, plain)]
    model.optimizer(pairs[0][1])
    for one, optimizer in pairs:

        def train(steps: range, one: Any = one, optimizer: Any = optimizer) -> None:
            for at in steps:
                part = slice(16 * at + 8 * rank, 16 * at + 8 * rank + 8)
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(one(x[part]), y[part]).backward()
                optimizer.step()

        train(range(40))
        name = type(one).__name__
        found["calls"][name] = calls_of(lambda train=train: train(range(40, 72))) / 32
        found["parameters"][name] = gather(flat(one))
    optimizer, kinds = pairs[0][1], ["ragged", "evaluated", "zeroed", "twice", "two passes"]
    seen, worst, reported = 72 * 16, {}, 0
    for step in range(len(kinds) * 20):
        kind = kinds[step // 20] if step % 20 == 19 else ""
        if step % 20 == 0:
            model._expected = 1  # the next iteration has one backward pass again
            alone = network()
            alone.load_state_dict(model.module.state_dict())
            inner = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
            inner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        sizes = [8, 5 if kind == "ragged" else 8]
        parts = [slice(seen, seen + sizes[0]), slice(seen + sizes[0], seen + sum(sizes))]
        seen += sum(sizes)
        silent_before = model._run.left > 0
        for net, one, part in ((model, optimizer, parts[rank]), (alone, inner, slice(parts[0].start, parts[1].stop))):
            one.zero_grad()
            if kind == "evaluated" and rank == 0:
                torch.nn.functional.mse_loss(net(x[:3]), y[:3])
            if kind == "two passes":
                torch.nn.functional.mse_loss(net(x[part]), y[part]).backward()
            loss = torch.nn.functional.mse_loss(net(x[part]), y[part])
            loss.backward(retain_graph=kind == "twice")
            if kind == "twice":
                loss.backward()
            if kind == "zeroed":
                one.zero_grad()
                torch.nn.functional.mse_loss(net(x[part]), y[part]).backward()
            reported += net is model and not model._run.pending
            one.step()
        assert silent_before or not kind, "it happens in a run"
        off = max(abs(a - b) for a, b in zip(flat(model), flat(alone), strict=True))
        worst[kind] = max(worst.get(kind, 0.0), off)
    return {**found, "worst": worst, "reported": reported, "barriers": model.barriers, "samples": model.samples_seen,
            "seen": seen, "left": gather(flat(model))}  # fmt: skip


def saved_in_a_run(rank: int) -> dict[str, Any]:
    """What `state_dict` says after barriers of an epoch, beside what all ranks have trained by then. Each look at the
    clock takes a millisecond: after a pause in its first interval a rank would be dealt one barrier for the epoch."""
    looks = itertools.count()
    clock.now = lambda: next(looks) / 1000.0
    data = indexed(3000)
    sampler = FlexibleSampler(data)
    model = FlexibleDDP(network())
    model.pace._judge = lambda *_: None
    model._run.waiting_share = 1e9
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[int] = []
    wrong, silent = 0, 0
    for features, target, index in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target).backward()
        silent += model._run.pending
        optimizer.step()
        seen += index.tolist()
        if model.stepped and model.barriers % 7 == 0:
            order, spans = sampler.order(), sampler.state_dict()["trained"]
            saved = {order[at] for start, end in spans for at in range(start, end)}
            wrong += saved != {i for rank in gather(seen) for i in rank}
    return {"wrong": wrong, "silent": silent, "seen": gather(seen), "barriers": model.barriers}


def frozen(rank: int) -> dict[str, Any]:
    """Parameters that are frozen or released after the model was wrapped."""
    said = []
    for before, after, options in (
        (True, False, {}), (False, True, {}), (True, False, {"find_unused_parameters": True}),
    ):  # fmt: skip
        net = network()
        net[0].requires_grad_(before)
        model = FlexibleDDP(net, endless=True, **options)
        optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        x, y = rows(8)
        try:
            for step in range(4):
                net[0].requires_grad_(before if step < 2 else after)
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            said.append("")
        except UsageError as error:
            said.append(str(error))
    return {"said": gather(said)}


def derived_twice(rank: int) -> dict[str, Any]:
    """Two backward passes over the first forward pass."""
    model = FlexibleDDP(network(), endless=True)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    x, y = rows(8)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    try:
        optimizer.step()
    except UsageError as error:
        return {"said": gather(str(error))}
    return {"said": gather("")}


def unused_untold(rank: int) -> dict[str, Any]:
    """A branch that the second forward pass does not use, without find_unused_parameters."""
    torch.manual_seed(0)
    model = FlexibleDDP(Branches(), endless=True)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x, _ = rows(4)
    said = ""
    try:
        for both in (True, False, True):
            optimizer.zero_grad()
            model(x, both).mean().backward()
            optimizer.step()
    except UsageError as error:
        said = str(error)
    return {"said": gather(said), "barriers": model.barriers}


def static_grouped(rank: int) -> dict[str, Any]:
    """A static graph whose first backward pass does not synchronize, which PyTorch cannot record; then local steps."""
    x, y = rows(8)
    model = FlexibleDDP(network(), endless=True, static_graph=True)
    said = ""
    try:
        with model.no_sync():
            torch.nn.functional.mse_loss(model(x), y).backward()
    except UsageError as error:
        said = str(error)
    local = LocalStepsDDP(network(), endless=True, local_steps=2, static_graph=True)
    optimizer = local.optimizer(torch.optim.SGD(local.parameters(), lr=0.05))
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(local(x), y).backward()
        optimizer.step()
    return {"said": said, "barriers": local.barriers}


def empty(rank: int) -> dict[str, Any]:
    """Batches without samples, on one rank and on all, count as none."""
    model = FlexibleDDP(network())
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    plain = network()
    other = torch.optim.SGD(plain.parameters(), lr=0.05)
    x, y = rows(16)
    for sizes in ((8, 8), (0, 8), (0, 0), (8, 8)):
        parts = slice(0, sizes[0]), slice(8, 8 + sizes[1])
        both = torch.cat([x[parts[0]], x[parts[1]]]), torch.cat([y[parts[0]], y[parts[1]]])
        for net, one, batch in ((model, optimizer, (x[parts[rank]], y[parts[rank]])), (plain, other, both)):
            one.zero_grad()
            torch.nn.functional.mse_loss(net(batch[0]), batch[1]).backward()
            one.step()
    worst = max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))
    return {"worst": worst, "barriers": model.barriers, "parameters": gather(flat(model))}


CASES = {
    "epochs": epochs, "mean": weighted_mean, "lost": lost, "static": static, "buffers": buffers, "skipped": skipped,
    "unused": unused, "refused": refused, "compiled": compiled, "adversarial": adversarial, "small": small,
    "accumulated": accumulated, "incomplete": incomplete, "left early": left_early, "stopped": stopped, "alike": alike,
    "compressed": compressed, "counted": counted, "evaluated": all_evaluated, "unseen": unseen,
    "evaluated in epochs": evaluated_in_epochs, "silent": silent, "saved in a run": saved_in_a_run, "frozen": frozen,
    "derived twice": derived_twice, "unused untold": unused_untold, "empty": empty,
    "static grouped": static_grouped,
}  # fmt: skip


def play(name: str, folder: Path, rank: int, ranks: int, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    found = CASES[name](rank, **options)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Forks the ranks, so that torch is imported once; waits for all that end by themselves, and then ends the others.

    Exit codes are written to codes.json, the errors of each rank to a file of its own."""
    name, folder, options, ranks = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[5])
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(folder / f"errors-{rank}", os.O_WRONLY | os.O_CREAT), 2)
            code = 1
            try:
                play(name, folder, rank, ranks, options)
                code = 0
            except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = dict.fromkeys(children, 0)
    waited = children[:-1] if name == "lost" else children
    for pid in waited:
        codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for pid in set(children) - set(waited):
        os.kill(pid, 9)
        codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    (folder / "codes.json").write_text(json.dumps([codes[pid] for pid in children]))


if __name__ == "__main__":
    main()
