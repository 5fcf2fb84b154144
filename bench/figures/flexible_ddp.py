"""FlexibleDDP beside PyTorch's DDP: samples a second and time to a loss, with a slow rank, a wandering one, or none.

    python -m bench.figures.flexible_ddp --part slow equal wander bias --seconds 20 --out runs/ddp.json

Each case runs DDP and FlexibleDDP in turns on the same ranks, network, data and order. A slow rank computes in each
micro-batch until that has taken as many times the processor time as it needs by itself, reading of data and stepping
included; it is not put to sleep, and waiting for others is not multiplied. Weights are copied now and then and judged
after the run, on other images, so that judging slows no rank down. One label in five is wrong: gradients are as noisy
as those of real data, and a larger batch is worth more. Processor time a micro-batch is told beside, which other load
on the machine changes little. `bias` needs no ranks: it shows what abandoning a micro-batch, or averaging means of
ranks, does to a gradient whose cost depends on its content.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

CLASSES = 10
WRONG = 0.2  # labels drawn at random
USED = "processor ms a micro-batch"
COPIES = 24  # of the weights, over a run


def lenet(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    )  # fmt: skip


def transformer(torch: Any) -> Any:
    """About ten million parameters, on images read row by row."""
    nn = torch.nn

    class Rows(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(28, 384)
            layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.last = nn.Linear(384, CLASSES)

        def forward(self, images: Any) -> Any:
            return self.last(self.layers(self.first(images.squeeze(1))).mean(1))

    return Rows()


NETWORKS = {"lenet": lenet, "transformer": transformer}


def images(torch: Any, count: int, seed: int) -> Any:
    """Blurred patterns with noise: learnable, and no file is needed."""
    patterns = torch.randn(CLASSES, 1, 7, 7, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    clean = torch.nn.functional.interpolate(patterns[labels], size=28, mode="bilinear")
    wrong = torch.rand(count, generator=generator) < WRONG
    labels = torch.where(wrong, torch.randint(0, CLASSES, (count,), generator=generator), labels)
    return clean + 1.5 * torch.randn(count, 1, 28, 28, generator=generator), labels


class Slowness:
    """Processor time of this rank, and as much again as makes it `factor` times slower."""

    def __init__(self, torch: Any) -> None:
        self._work = torch.randn(64, 64)
        self._at = time.process_time()

    def pay(self, factor: int) -> None:
        """In each micro-batch; what was used since the last call counts, so stepping and reading do as well."""
        until = time.process_time() + (factor - 1) * (time.process_time() - self._at)
        while time.process_time() < until:
            self._work @ self._work
        self._at = time.process_time()


def slowness(kind: str, rank: int, ranks: int, factor: int, elapsed: float) -> int:
    """How many times slower a rank is now."""
    if kind == "slow":
        return factor if rank == ranks - 1 else 1
    if kind == "wander":
        chosen = {int(elapsed // 5) % ranks, (int(elapsed // 5) + ranks // 2) % ranks}
        return factor if rank in chosen else 1
    return 1


def train(given: argparse.Namespace, kind: str, flexible: bool, rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from flegel.torch import FlexibleDDP, FlexibleSampler

    torch.set_num_threads(1)
    device = torch.device("cuda:0" if kind == "gpu" and rank == 0 else "cpu")
    torch.manual_seed(0)
    features, labels = images(torch, given.samples, 1)
    held, truth = (t.to(device) for t in images(torch, 512, 2))
    data = TensorDataset(features, labels)
    net = NETWORKS[given.network](torch).to(device)
    sampler: Any = FlexibleSampler(data) if flexible else DistributedSampler(data)
    loader = DataLoader(data, batch_size=given.batch, sampler=sampler)
    model: Any = FlexibleDDP(net, lr_rule="adascale") if flexible else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.rate)
    if flexible:
        optimizer = model.optimizer(optimizer)
    counted, epoch = 0, 0
    copies: list[tuple[float, list[Any]]] = []
    slow = Slowness(torch)
    began, used = time.monotonic(), time.process_time()
    going = torch.ones(1)
    while going.item():
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            elapsed = time.monotonic() - began
            slow.pay(slowness(kind, rank, dist.get_world_size(), given.factor, elapsed))
            loss.backward()
            optimizer.step()
            counted += len(x)
            if rank == 0 and elapsed > len(copies) * given.seconds / COPIES:
                copies.append((elapsed, [p.detach().clone() for p in net.parameters()]))
        epoch += 1
        going.fill_(time.monotonic() - began < given.seconds)
        dist.all_reduce(going, dist.ReduceOp.MIN)  # all ranks end after the same epoch
    seconds, used = time.monotonic() - began, time.process_time() - used
    total = torch.tensor([float(counted)])
    dist.all_reduce(total)
    losses = judged(torch, net, copies, held, truth) if rank == 0 else []
    barriers = -(-counted // given.batch)
    if flexible:
        model.watchdog.close()
        barriers = model.barriers
    return {
        "rate": float(total) / seconds,
        "seconds": seconds,
        "reached": next((at for at, loss in losses if loss <= given.target), None),
        "best": min((loss for _, loss in losses), default=None),
        "micro-batches a barrier": counted / given.batch / barriers,
        "processor ms a micro-batch": 1e3 * used / (counted / given.batch),
    }


def judged(torch: Any, net: Any, copies: list[tuple[float, list[Any]]], held: Any, truth: Any) -> Any:
    """The loss of each copy of the weights on images that were not trained on."""
    found = []
    with torch.no_grad():
        for at, weights in copies:
            for parameter, value in zip(net.parameters(), weights, strict=True):
                parameter.copy_(value)
            found.append((at, float(torch.nn.functional.cross_entropy(net(held), truth))))
    return found


def rank_main(rank: int, given: argparse.Namespace, kind: str, flexible: bool, place: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=given.ranks)
    found = train(given, kind, flexible, rank)
    if rank == 0:
        Path(place + ".json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def case(given: argparse.Namespace, kind: str, folder: Path) -> dict[str, Any]:
    import torch.multiprocessing as processes

    found: dict[str, list[dict[str, Any]]] = {"ddp": [], "flexible": []}
    for turn in range(given.repeats):
        for name in ("ddp", "flexible"):
            place = str(folder / f"{kind}-{turn}-{name}-{os.getpid()}")
            processes.spawn(rank_main, (given, kind, name == "flexible", place), nprocs=given.ranks)
            found[name].append(json.loads(Path(place + ".json").read_text()))
            print(kind, name, found[name][-1], flush=True)

    def middle(name: str, what: str) -> float | None:
        values = [one[what] for one in found[name]]
        return None if None in values else statistics.median(values)

    if kind == "gpu":
        found["alone"] = [alone(given, k, folder) for k in ("gpu", "equal")]
        own = found["alone"][0]["rate"] + (given.ranks - 1) * found["alone"][1]["rate"]
        return {"flexible / sum of the ranks alone": (middle("flexible", "rate") or 0.0) / own, "runs": found}
    rates = middle("flexible", "rate"), middle("ddp", "rate")
    times = middle("ddp", "reached"), middle("flexible", "reached")
    return {
        "samples a second, flexible / ddp": None if None in rates else rates[0] / rates[1],  # type: ignore[operator]
        "seconds to the target, ddp / flexible": None if None in times else times[0] / times[1],  # type: ignore[operator]
        "processor time a micro-batch, flexible / ddp": (middle("flexible", USED) or 0.0)
        / (middle("ddp", USED) or 1.0),
        "runs": found,
    }


def alone(given: argparse.Namespace, kind: str, folder: Path) -> dict[str, Any]:
    """One rank by itself, with DDP: the first one of this kind."""
    import torch.multiprocessing as processes

    place = str(folder / f"alone-{kind}-{os.getpid()}")
    single = argparse.Namespace(**{**vars(given), "ranks": 1})
    processes.spawn(rank_main, (single, kind, False, place), nprocs=1)
    found: dict[str, Any] = json.loads(Path(place + ".json").read_text())
    print("alone", kind, found, flush=True)
    return found


def bias(draws: int = 200_000, interval: float = 6.0) -> dict[str, float]:
    """A sample's gradient equals its cost (mean 1, exponential): the relative error of the mean gradient."""
    draw = random.Random(0)
    sums = {name: [0.0, 0.0] for name in ("abandon the running one", "finish it", "foresee by the past")}
    means = []
    for _ in range(draws // 8):
        at = 0.0
        done: list[float] = []
        while at < interval:
            done.append(draw.expovariate(1.0))
            at += done[-1]
        kept = done[:-1]
        foreseen, at = [], 0.0
        while at + 1.0 <= interval:
            foreseen.append(draw.expovariate(1.0))
            at += foreseen[-1]
        for name, values in zip(sums, (kept, done, foreseen), strict=True):
            sums[name][0] += sum(values)
            sums[name][1] += len(values)
        means.append(sum(foreseen) / len(foreseen))
    errors = {name: total / count - 1.0 for name, (total, count) in sums.items()}
    return {**errors, "average of ranks' means": statistics.fmean(means) - 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", nargs="+", choices=["slow", "equal", "wander", "gpu", "bias"], default=["bias", "slow"]
    )
    parser.add_argument("--network", choices=sorted(NETWORKS), default="lenet")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument(
        "--target", type=float, default=1.2, help="loss on 512 held-out images, one label in five of which is wrong"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/flexible_ddp.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    found = {kind: bias() if kind == "bias" else case(given, kind, given.out.parent.resolve()) for kind in given.part}
    given.out.write_text(json.dumps(found, indent=1))
    for kind, one in found.items():
        print(kind, {name: value for name, value in one.items() if name != "runs"})


if __name__ == "__main__":
    main()
