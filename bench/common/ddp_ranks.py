"""Ranks of a data-parallel training for benchmarks: DDP, FlexibleDDP or each rank alone, on the same network and data.

Ranks are forked from a process that has torch and the data loaded, so a run begins within a second; it ends by time, in
the middle of an epoch if need be, at a step that all ranks agree on without a message. A slow rank computes in each
micro-batch until that has taken as many times the processor time as it needs by itself, reading of data and stepping
included; it is not put to sleep, and waiting for others is not multiplied. In the kinds of `PAUSES` it sleeps instead,
the same seconds in every micro-batch, at one place of its loop; in those of `SLOWNESS` it sleeps in proportion to what
it has computed, so it is as many times slower wherever it sleeps, every micro-batch or a second at a time. Weights are
copied now and then and judged after the run, on other images, so that judging slows no rank down.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLASSES = 10
PAUSES = ("sleep in forward", "sleep in reading", "sleep in between")
SLOWNESS = ("forward", "reading", "between", "one wanders", "pauses")
"""One rank is slow: in its forward pass, in reading, between its step and the next forward pass, in the forward pass of
another rank each `--change` seconds, or by pauses of a second."""
PAUSE_SECONDS = 1.0  # of the kind "pauses"
START = 60.0  # seconds for a run to start and to judge its copies, beyond its own time


@dataclass
class Setting:
    """One case. `seconds` and `rate` (learning rate) are those of one run."""

    kind: str
    network: str = "lenet"
    optimizer: str = "sgd"
    ranks: int = 4
    factor: int = 8
    batch: int = 16
    seconds: float = 10.0
    warm: float = 1.0
    """Seconds at the beginning that do not count for samples a second."""
    rate: float = 0.02
    rule: str = "none"
    interval: float | None = None
    change: float = 20.0
    """Seconds after which other ranks are slow, where slowness wanders."""
    pause: float = 0.1
    """Seconds that the slow rank sleeps in each micro-batch, where the kind says so."""
    copies: int = 40
    device: str = "cuda:0"
    """Of rank 0 where the kind is "gpu"; all other ranks are on processors."""
    seed: int = 0
    """Of the first weights and of the order of samples."""
    epochs: int = 0
    """After which a run ends, with one judgement of its weights; 0: it ends by time."""


def lenet(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    )  # fmt: skip


def transformer(torch: Any) -> Any:
    """10.7 million parameters, on images as four patches of 14 x 14 pixels."""
    nn = torch.nn

    class Patches(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 384, 14, stride=14)
            self.place = nn.Parameter(torch.zeros(1, 4, 384))
            layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.last = nn.Sequential(nn.LayerNorm(384), nn.Linear(384, CLASSES))

        def forward(self, images: Any) -> Any:
            tokens = self.first(images).flatten(2).transpose(1, 2) + self.place
            return self.last(self.layers(tokens).mean(1))

    return Patches()


def gpt(torch: Any) -> Any:
    """0.8 million parameters: 49 grey levels of a small image, then the label, each token seeing those before it."""
    nn = torch.nn

    class Causal(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.place = nn.Embedding(32, 128), nn.Parameter(torch.zeros(1, 49, 128))
            layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.last = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, CLASSES))
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(49), persistent=False)

        def forward(self, images: Any) -> Any:
            levels = nn.functional.avg_pool2d(images, 4).flatten(1)
            tokens = ((levels + 1.0) * 10.0).long().clamp(0, 31)
            return self.last(self.layers(self.tokens(tokens) + self.place, mask=self.mask)[:, -1])

    return Causal()


NETWORKS = {"lenet": lenet, "transformer": transformer, "gpt": gpt}


def made(torch: Any, setting: Setting) -> tuple[Any, Any]:
    """The network, the same at every call, and its optimizer's class with the usual momentum."""
    torch.manual_seed(setting.seed)
    net = NETWORKS[setting.network](torch)
    if setting.optimizer == "adam":
        return net, lambda parameters: torch.optim.Adam(parameters, lr=setting.rate, fused=True)
    return net, lambda parameters: torch.optim.SGD(parameters, lr=setting.rate, momentum=0.9)


class Indexed:
    """A data set that hands out a micro-batch at once. An epoch of it is `times` times all samples."""

    def __init__(self, features: Any, labels: Any, times: int = 1) -> None:
        self.features, self.labels, self.times = features, labels, times

    def __len__(self) -> int:
        return self.times * len(self.labels)

    def __getitems__(self, indices: list[int]) -> Any:
        chosen = [i % len(self.labels) for i in indices] if self.times > 1 else indices
        return self.features[chosen], self.labels[chosen]


class SlowToRead(Indexed):
    """One that sleeps before it hands out a micro-batch."""

    def __init__(self, data: Indexed, sleep: Callable[[], None]) -> None:
        super().__init__(data.features, data.labels, data.times)
        self.sleep = sleep

    def __getitems__(self, indices: list[int]) -> Any:
        self.sleep()
        return super().__getitems__(indices)


def whole(batch: Any) -> Any:
    return batch


class Slowness:
    """Processor time of this rank, and as much again as makes it `factor` times slower."""

    def __init__(self, torch: Any) -> None:
        self._work = torch.randn(64, 64)
        self._at = time.process_time()

    def rest(self, factor: int, least: float = 0.0) -> None:
        """The same without computing: asleep, once this would take `least` seconds. A rank that is not slow owes
        nothing for the time until it becomes slow."""
        due = (factor - 1) * (time.process_time() - self._at)
        if due > least:
            time.sleep(due)
        if due > least or factor == 1:
            self._at = time.process_time()

    def pay(self, factor: int) -> None:
        """In each micro-batch; what was used since the last call counts, so stepping and reading do as well."""
        until = time.process_time() + (factor - 1) * (time.process_time() - self._at)
        while time.process_time() < until:
            self._work @ self._work
        self._at = time.process_time()


def slowness(setting: Setting, rank: int, elapsed: float) -> int:
    """How many times slower a rank is now."""
    if setting.kind == "one wanders":
        return setting.factor if rank == int(elapsed // setting.change) % setting.ranks else 1
    if setting.kind == "slow" or setting.kind in SLOWNESS:
        return setting.factor if rank == setting.ranks - 1 else 1
    if setting.kind == "wander":
        turn = int(elapsed // setting.change)
        return setting.factor if (rank - turn) % max(setting.ranks // 2, 2) == 0 else 1
    return 1


def wrapped(torch: Any, setting: Setting, method: str, data: Indexed, device: Any) -> tuple[Any, Any, Any, Any]:
    """Network, model, optimizer and sampler of one rank."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    from flegel.torch import FlexibleDDP, FlexibleSampler

    net, optimizers = made(torch, setting)
    net.to(device)
    if method == "flexible":
        model: Any = FlexibleDDP(net, lr_rule=setting.rule, interval=setting.interval)
        return net, model, model.optimizer(optimizers(net.parameters())), FlexibleSampler(data, seed=setting.seed)
    if method == "ddp":
        sampler = DistributedSampler(data, seed=setting.seed)
        return net, DistributedDataParallel(net), optimizers(net.parameters()), sampler
    return net, net, optimizers(net.parameters()), DistributedSampler(data)


def train(setting: Setting, method: str, rank: int, data: Indexed, stop: Any) -> tuple[dict[str, Any], Any, Any]:
    """One rank until the end of the run: its figures, its network, and copies of weights with their moments."""
    import torch
    import torch.distributed as dist

    device = torch.device(setting.device if setting.kind == "gpu" and rank == 0 else "cpu")
    net, model, optimizer, sampler = wrapped(torch, setting, method, data, device)
    pause = setting.pause if setting.kind in PAUSES and rank == setting.ranks - 1 else 0.0
    slow = Slowness(torch)
    if pause and setting.kind == "sleep in reading":
        data = SlowToRead(data, lambda: time.sleep(pause))
    if setting.kind == "reading":
        data = SlowToRead(data, lambda: slow.rest(slowness(setting, rank, 0.0)))
    loader = torch.utils.data.DataLoader(data, batch_size=setting.batch, sampler=sampler, collate_fn=whole)
    copies: list[tuple[float, list[Any]]] = []
    copying = method != "alone" and (rank < setting.ranks - 1 or setting.ranks == 1) and setting.copies > 0
    counted = steps = epoch = 0
    at_first: tuple[float, int, float] | None = None  # the end of the warm-up: time, samples, processor time
    elapsed = 0.0
    dist.barrier()
    began = time.monotonic()
    while not 0 <= stop[0] <= steps and (not setting.epochs or epoch < setting.epochs):
        sampler.set_epoch(epoch)
        epoch += 1
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            if pause and setting.kind == "sleep in between":
                time.sleep(pause)
            if setting.kind == "between":
                slow.rest(slowness(setting, rank, elapsed))
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if pause and setting.kind == "sleep in forward":
                time.sleep(pause)
            if setting.kind not in SLOWNESS:
                slow.pay(slowness(setting, rank, elapsed))
            elif setting.kind not in ("reading", "between"):
                slow.rest(slowness(setting, rank, elapsed), PAUSE_SECONDS if setting.kind == "pauses" else 0.0)
            loss.backward()
            optimizer.step()
            counted += len(x)
            steps = model.barriers if method == "flexible" else steps + 1
            elapsed = time.monotonic() - began
            if at_first is None and elapsed > setting.warm:
                at_first = (elapsed, counted, time.process_time())
            if copying and elapsed > (len(copies) + rank / setting.ranks) * setting.seconds / setting.copies:
                copies.append((elapsed, [p.detach().clone() for p in net.parameters()]))
            if elapsed > setting.seconds and not setting.epochs and stop[0] < 0 and (rank == 0 or method == "alone"):
                stop[0] = steps + 2  # nobody can be further than the next step of rank 0, so all see it in time
            if 0 <= stop[0] <= steps:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.monotonic() - began
    if setting.epochs and rank == 0:
        copies.append((elapsed, [p.detach().clone() for p in net.parameters()]))
    if method == "flexible":
        model.watchdog.close()
    since, before, used = at_first or (0.0, 0, time.process_time())
    batches = max(counted - before, 1) / setting.batch
    found = {
        "rate": (counted - before) / (elapsed - since),
        "seconds": elapsed,
        "micro-batches a step": counted / setting.batch / max(steps, 1),
        "samples": counted,
        "steps": steps,
        "steps a second": steps / elapsed,
        "weights": digest(net),
        "processor ms a micro-batch": 1e3 * (time.process_time() - used) / batches,
    }
    return found, net, copies


def digest(net: Any) -> int:
    """Of all bits of the weights."""
    found = 0
    for parameter in net.parameters():
        found = zlib.crc32(parameter.detach().cpu().numpy().tobytes(), found)
    return found


def judged(net: Any, copies: Any, held: Indexed) -> list[tuple[float, float]]:
    """The loss of each copy of the weights on images that were not trained on."""
    import torch

    found = []
    net.cpu()
    with torch.no_grad():
        for at, weights in copies:
            for parameter, value in zip(net.parameters(), weights, strict=True):
                parameter.copy_(value)
            found.append((at, float(torch.nn.functional.cross_entropy(net(held.features), held.labels))))
    return found


def rank_main(rank: int, setting: Setting, method: str, folder: str, data: Indexed, held: Indexed, stops: Any) -> None:
    """One forked rank. Ranks that run alone are a group of one each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    alone = method == "alone"
    place = f"file://{folder}/meet" + (f"-{rank}" if alone else "")
    dist.init_process_group(
        "gloo", init_method=place, rank=0 if alone else rank, world_size=1 if alone else setting.ranks
    )
    found, net, copies = train(setting, method, rank, data, stops[rank : rank + 1] if alone else stops)
    found["curve"] = judged(net, copies, held)
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def run(setting: Setting, method: str, data: Indexed, held: Indexed) -> dict[str, Any]:
    """All ranks of one run: `rate` is the sum of the ranks' samples a second, the rest is that of rank 0."""
    import torch
    import torch._dynamo  # DDP imports it, and forked ranks would do so one by one
    import torch.multiprocessing as processes

    stops = torch.full((setting.ranks,), -1, dtype=torch.int64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        given = (setting, method, folder, data, held, stops)
        context = processes.start_processes(rank_main, given, setting.ranks, join=False, start_method="fork")
        until = time.monotonic() + setting.seconds + START
        while not context.join(timeout=1.0):
            if time.monotonic() > until:
                for one in context.processes:
                    one.kill()
                raise SystemExit(f"{setting.kind}, {method}: not ended {START:.0f} s after its time; killed.")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(setting.ranks)]
    curve = sorted(point for one in ranks for point in one.pop("curve"))
    same = len({one.pop("weights") for one in ranks}) == 1
    found = {
        **ranks[0],
        "samples": sum(one["samples"] for one in ranks),
        "same weights on all ranks": same,
        "rate": sum(one["rate"] for one in ranks),
        "rates": [round(one["rate"], 1) for one in ranks],
    }
    return {**found, "curve": [[round(at, 3), round(loss, 4)] for at, loss in curve]}


def reached(curve: list[list[float]], target: float) -> float | None:
    """The first moment with such a loss: between two points of the running median of three, which hides outliers."""
    smooth = [
        (curve[i][0], sorted(loss for _, loss in curve[max(i - 1, 0) : i + 2])[len(curve[max(i - 1, 0) : i + 2]) // 2])
        for i in range(len(curve))
    ]
    for (before, high), (at, low) in itertools.pairwise(smooth):
        if low <= target < high:
            return before + (at - before) * (high - target) / (high - low)
    return None
