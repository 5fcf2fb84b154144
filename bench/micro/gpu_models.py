"""A pass of a mixture and of logistic regression on a GPU, beside the same pass as people write it in PyTorch.

    python -m bench.micro.gpu_models [--rows 500000] [--repeat 5] [--device cuda:0] [--json FILE]

Mixture: diagonal covariances, 128 columns, 256 components: log densities by two products, shares by a softmax, sums by
two products. Regression: 784 columns, 10 classes: scores, softmax, gradient; the peer computes no curvature and keeps
nothing of a row. The peer runs in the precision of the rows (float32) and in float64, which is what ours computes in.
Both visit all rows with the same θ, in turn; medians. Rows are drawn anew from a seed that is printed. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flegel.algorithm import Sample
from flegel.algorithms.gmm.gmm import GMM
from flegel.algorithms.lr.lr import LR
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime.backends.registry import choose

Array = np.ndarray[Any, Any]
BLOCK = 65_536  # rows of one product of the peer
SAMPLED = 20_000


def timed(call: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def mixture_pass(rows: torch.Tensor, means: torch.Tensor, variances: torch.Tensor, logs: torch.Tensor) -> Any:
    """Σ of shares, of shares · x and of shares · x², as EM needs them."""
    inverse = 1.0 / variances
    constant = logs - 0.5 * (variances.log().sum(1) + (means**2 * inverse).sum(1))
    sums = [torch.zeros(len(means), device=rows.device, dtype=rows.dtype)]
    sums += [torch.zeros_like(means), torch.zeros_like(means)]
    for x in rows.split(BLOCK):
        shares = torch.softmax(constant + x @ (means * inverse).T - 0.5 * (x**2) @ inverse.T, 1)
        for total, part in zip(sums, (shares.sum(0), shares.T @ x, shares.T @ x**2), strict=True):
            total += part
    return sums


def logistic_pass(rows: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> Any:
    """The gradient of the mean loss."""
    gradient = torch.zeros_like(weights)
    for x, y in zip(rows.split(BLOCK), targets.split(BLOCK), strict=True):
        residual = torch.softmax(x @ weights.T, 1)
        residual[torch.arange(len(y), device=y.device), y] -= 1.0
        gradient += residual.T @ x
    return gradient


def our_pass(algorithm: Any, rows: Array, labels: Array | None, device: str) -> tuple[Callable[[], Any], Any]:
    """A visit of all rows by our program, and the θ that it sees."""
    rng = np.random.default_rng(0)
    count, columns = rows.shape
    sample = Sample(rows[:SAMPLED], None if labels is None else labels[:SAMPLED], count, columns)
    theta = algorithm.initParameter(sample, rng)
    empty = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    shard = make_shard(rows, labels, algorithm.initState(count, columns, rng), algorithm.kernels.layout)
    sent = pytree.without(theta, algorithm.placement.unsent)
    kernel = choose(device).build(algorithm, shard, sent, empty, False)
    return partial(kernel.run, shard, 0, count, 0, new_flag()), theta


def compared(ours: Callable[[], Any], peers: dict[str, Callable[[], Any]], repeat: int, device: str) -> dict[str, Any]:
    """Medians of passes in turn; the first of each side compiles and is not counted."""
    sides = {"flegel": ours, **peers}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeat + 1):
        for name, call in sides.items():
            seconds = timed(call, device)
            if number:
                times[name].append(seconds)
    found: dict[str, Any] = {name: 1e3 * statistics.median(spent) for name, spent in times.items()}
    return {"ms": found, "ratio": {name: found[name] / found["flegel"] for name in peers}}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rng, device = np.random.default_rng(given.seed), given.device
    print("seed", given.seed)
    record: dict[str, Any] = {"seed": given.seed, "rows": given.rows, "device": device}
    rows = (
        rng.standard_normal((given.rows, 128), np.float32)
        + 3.0 * rng.standard_normal((256, 128), np.float32)[rng.integers(0, 256, given.rows)]
    )
    ours, theta = our_pass(GMM(k=256, init="random"), rows, None, device)
    peers = {}
    for kind in (torch.float32, torch.float64):
        here = torch.from_numpy(rows).to(device, kind)
        parts = [torch.from_numpy(np.array(a)).to(device, kind) for a in (theta.means, np.ones((256, 128)))]
        peers[f"torch {kind}"] = partial(mixture_pass, here, *parts, torch.zeros(256, device=device, dtype=kind))
    record["gmm 128 x 256"] = compared(ours, peers, given.repeat, device)
    print("gmm 128 x 256", record["gmm 128 x 256"], flush=True)
    rows = rng.random((given.rows, 784), np.float32)
    labels = rng.integers(0, 10, given.rows).astype(np.float64)
    ours, theta = our_pass(LR(), rows, labels, device)
    peers = {}
    for kind in (torch.float32, torch.float64):
        here, targets = torch.from_numpy(rows).to(device, kind), torch.from_numpy(labels).to(device, torch.int64)
        peers[f"torch {kind}"] = partial(
            logistic_pass, here, targets, torch.zeros((10, 784), device=device, dtype=kind)
        )
    record["lr 784 x 10"] = compared(ours, peers, given.repeat, device)
    print("lr 784 x 10", record["lr 784 x 10"], flush=True)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
