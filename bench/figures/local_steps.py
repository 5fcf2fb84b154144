"""Local steps between barriers beside DDP: held-out loss against the bytes that a rank sends.

    python -m bench.figures.local_steps --images FOLDER --ranks 4 --steps 1920 --out runs/local_steps.json

Every method trains the same network from the same weights on the same batches of every rank, as many steps each; so
samples are equal, and what differs is what was exchanged. Bytes are those of values that a rank gives to collectives,
times 2·(n−1)/n for a sum and (n−1)/n for the two halves of a compressed one: what a ring sends. Seconds on a link of
`--mbit` are those bytes over its speed; they are computed, not measured, so nothing depends on this machine's load.
Without Fashion-MNIST (`--images`) a generated set stands in.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.common import ddp_ranks, network_runs

METHODS: dict[str, dict[str, Any]] = {
    "DDP": {},
    "int8": {"compress": "int8"},
    "8 local steps": {"local_steps": 8},
    "32 local steps": {"local_steps": 32},
    "128 local steps": {"local_steps": 128},
    "32 local steps, int8": {"local_steps": 32, "compress": "int8"},
    "32 local steps, mean of weights": {"local_steps": 32, "outer_rate": 1.0, "outer_momentum": 0.0},
}
COLLECTIVES = {"all_reduce": (0, 2.0), "all_to_all_single": (1, 1.0), "all_gather_into_tensor": (1, None)}
"""Which argument is sent, and how often a ring sends each of its bytes, times (n−1)/n; None: n−1 times."""


class SentBytes:
    """Of one rank, counted where collectives are called."""

    def __init__(self, ranks: int) -> None:
        import torch.distributed as dist

        self.total = 0.0
        for name, (argument, factor) in COLLECTIVES.items():
            times = ranks - 1.0 if factor is None else factor * (ranks - 1) / ranks
            setattr(dist, name, self._counting(getattr(dist, name), argument, times))

    def _counting(self, real: Any, argument: int, times: float) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.total += given[argument].nbytes * times
            return real(*given, **named)

        return call


def train(given: argparse.Namespace, method: str, rank: int, folder: Path, data: Any, held: Any) -> None:
    """One rank; the first writes [steps, bytes of a rank, held-out loss] at each barrier of 128 steps."""
    import torch
    import torch.distributed as dist

    from flegel.torch import FlexibleDDP, LocalStepsDDP

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=given.ranks)
    sent, options = SentBytes(given.ranks), METHODS[method]
    torch.manual_seed(given.seed)
    net = ddp_ranks.NETWORKS[given.network](torch)
    if "local_steps" in options:
        model: Any = LocalStepsDDP(net, endless=True, **options)
    else:  # a barrier after every batch: DDP, whose buckets are counted here
        model = FlexibleDDP(net, endless=True, interval=1e-9, lr_rule="none", **options)
    optimizer = model.optimizer(torch.optim.AdamW(model.parameters(), lr=given.rate))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(given.seed))[rank :: given.ranks]
    curve = []
    for step in range(given.steps):
        at = step * given.batch % (len(order) - given.batch)
        x, y = data.__getitems__(order[at : at + given.batch])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 128 == 0:
            with torch.no_grad():
                loss = float(torch.nn.functional.cross_entropy(net(held.features), held.labels))
            curve.append([step + 1, round(sent.total), round(loss, 4)])
    if rank == 0:
        (folder / "curve.json").write_text(json.dumps(curve), encoding="utf-8")
    dist.barrier()


def run(given: argparse.Namespace, method: str, data: Any, held: Any) -> list[list[float]]:
    """All ranks, forked; the curve of the first."""
    with tempfile.TemporaryDirectory() as name:
        children = []
        for rank in range(given.ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    train(given, method, rank, Path(name), data, held)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        if any(codes):
            raise SystemExit(f"{method}: ranks ended with {codes}")
        found: list[list[float]] = json.loads((Path(name) / "curve.json").read_text(encoding="utf-8"))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=None, help="folder with the IDX files of Fashion-MNIST")
    parser.add_argument("--network", choices=sorted(ddp_ranks.NETWORKS), default="lenet")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="samples of a step of one rank")
    parser.add_argument("--steps", type=int, default=1920, help="of each rank")
    parser.add_argument("--rate", type=float, default=0.001, help="of AdamW, which steps on each rank")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--held", type=int, default=2000, help="held-out images")
    parser.add_argument("--mbit", type=float, default=100.0, help="a second, of the link whose time is told")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/local_steps.json"))
    given = parser.parse_args()
    import torch
    import torch._dynamo  # DDP imports it, and forked ranks would do so one by one

    torch.set_num_threads(1)  # forked ranks inherit no threads
    found = network_runs.fashion(given.images, given.samples, given.held)
    mean, deviation = float(found.train[0].mean()), float(found.train[0].std())
    data, held = (
        ddp_ranks.Indexed(torch.from_numpy((x - mean) / deviation).view(-1, 1, 28, 28), torch.from_numpy(y).long())
        for x, y in (found.train, found.test)
    )
    curves = {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for method in given.methods:
        curves[method] = run(given, method, data, held)
        _, sent, loss = curves[method][-1]
        print(f"{method:32} loss {loss:.4f}, {sent / 1e6:9.2f} MB, {8 * sent / given.mbit / 1e6:8.2f} s on the link")
        told = {**vars(given), "images": "Fashion-MNIST" if found.real else "generated", "out": given.out.name}
        given.out.write_text(json.dumps({"setting": told, "curves": curves}), encoding="utf-8")


if __name__ == "__main__":
    main()
