"""K-means on a GPU at the shapes of embeddings, beside plain PyTorch and libraries for it that are installed.

    python -m bench.micro.gpu_shapes [--shapes 500000x384x1024,200000x768x4096] [--passes 20] [--seed N] [--json FILE]

`pass`: seconds of a pass of our program (nearest centroid, float64 statistics of rows that moved, M-step of the
reference) beside Lloyd's algorithm as people write it in PyTorch (a product in float32, a minimum, `index_add_`), both
from the same rows, in turn; how many labels differ from the product's. `job`: array to model with default settings,
beside `fastkmeans` where it is installed, objectives recomputed in float64. `stream`: the same with memory for a
quarter of the rows. Rows are drawn anew from a seed that is printed. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flegel
from bench.micro.shapes import objective_of, rows_of
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.torch_program import KMeansProgram
from flegel.core import pytree
from flegel.core.shard import TILE, make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime.backends.registry import choose
from flegel.runtime.backends.torch import kernel as device_kernel

PRODUCT = 2**30  # distances of one product of the peer


def lloyd_pass(rows: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels, and the next centroids."""
    half, some = 0.5 * (centres**2).sum(1), max(PRODUCT // len(centres), 1)
    parts = [
        torch.addmm(half, rows[at : at + some], centres.T, alpha=-1.0).argmin(1) for at in range(0, len(rows), some)
    ]
    labels = torch.cat(parts)
    sums = torch.zeros_like(centres).index_add_(0, labels, rows)
    counts = torch.bincount(labels, minlength=len(centres))[:, None]
    return labels, torch.where(counts > 0, sums / counts.clamp(min=1), centres)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = call()
    torch.cuda.synchronize()
    return time.perf_counter() - began, found


def passes(rows: np.ndarray[Any, Any], k: int, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Our program and the peer in turn, from the same centroids in each pass."""
    start = rows[rng.choice(len(rows), k, replace=False)].astype(np.float64)
    algorithm = KMeans(k=k, init=start)
    here = torch.from_numpy(rows).cuda()
    theta = algorithm.initParameter(Sample(rows[:4096], None, len(rows), rows.shape[1]), rng)
    program = KMeansProgram(algorithm, torch.device("cuda", 0))
    state = torch.full((len(rows), 1), -1, dtype=torch.int32, device="cuda")
    sums = [torch.zeros(a.shape, dtype=torch.float64, device="cuda") for a in pytree.flatten(_empty(algorithm, theta))]
    centres = torch.from_numpy(start.astype(np.float32)).cuda()
    ours, peers, differing = [], [], 0
    lloyd_pass(here, centres)  # wakes the libraries up
    program.set_parameter(theta)
    program.visit(here[:4096], here[:4096, 0], state[:4096].clone(), [torch.zeros_like(s) for s in sums], 0)
    for number in range(count):
        program.set_parameter(theta)
        seconds, _ = timed(lambda n=number: program.visit(here, here[:, 0], state, sums, n))  # type: ignore[misc]
        ours.append(seconds)
        seconds, (labels, centres) = timed(lambda c=centres: lloyd_pass(here, c))  # type: ignore[misc]
        peers.append(seconds)
        differing += int((labels != state[:, 0]).sum())
        theta = theta._replace(centroids=centres.double().cpu().numpy())
    return {
        "first": round(peers[0] / ours[0], 3),
        "later": round(statistics.median(peers[1:]) / statistics.median(ours[1:]), 3),
        "milliseconds": round(1e3 * statistics.median(ours[1:]), 3),
        "labels that differ in all passes": differing,
    }


def _empty(algorithm: KMeans, theta: Any) -> Any:
    return algorithm.initAggregator(Sample(np.zeros((1, 1)), None, 1, 1), theta)


def whole_jobs(rows: np.ndarray[Any, Any], k: int, count: int) -> list[dict[str, Any]]:
    """Array to model."""
    found = []
    for repeat in range(2):
        began = time.perf_counter()
        result = flegel.run(KMeans(k=k), rows, device="cuda", max_passes=count)
        seconds = time.perf_counter() - began
        value = objective_of(rows, result.parameter.centroids)
        found.append({"who": f"flegel, {result.sync}, call {repeat + 1}", "seconds": round(seconds, 3),
                      "training": round(result.seconds, 3), "objective": value})  # fmt: skip
    try:
        from fastkmeans import FastKMeans
    except ImportError:
        return found
    for repeat in range(2):
        began = time.perf_counter()
        made = FastKMeans(rows.shape[1], k, niter=count, tol=0, gpu=True)
        made.train(rows)
        seconds = time.perf_counter() - began
        value = objective_of(rows, np.asarray(made.centroids, dtype=np.float64))
        found.append({"who": f"fastkmeans, call {repeat + 1}", "seconds": round(seconds, 3), "objective": value})
    return found


def streamed(rows: np.ndarray[Any, Any], k: int) -> dict[str, Any]:
    """Seconds of a pass with memory for all rows, and for a quarter of them."""
    algorithm = KMeans(k=k, init="random")
    theta = algorithm.initParameter(Sample(rows[:8192], None, len(rows), rows.shape[1]), np.random.default_rng(0))
    shard = make_shard(rows, None, algorithm.initState(len(rows), rows.shape[1], np.random.default_rng(0)), "tiles")
    fit, found = device_kernel.TorchKernel.rows_that_fit, {}
    for name, share in (("all rows stay", 1.0), ("a quarter stays", 0.25)):
        staying = int(share * shard.points) // TILE * TILE
        device_kernel.TorchKernel.rows_that_fit = lambda *_, staying=staying: staying  # type: ignore[method-assign]
        kernel = choose("cuda:0").build(algorithm, shard, theta, _empty(algorithm, theta), False)
        visit = partial(kernel.run, shard, 0, shard.points, 0, new_flag())
        times = [timed(visit)[0] for _ in range(4)]
        found[name] = round(statistics.median(times[1:]), 4)
        kernel.close()
    device_kernel.TorchKernel.rows_that_fit = fit  # type: ignore[method-assign]
    found["GB/s of rows that come"] = round(0.75 * rows.nbytes / found["a quarter stays"] / 1e9, 1)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shapes", default="500000x384x1024,200000x768x4096,2000000x96x1024,1000000x128x64")
    options.add_argument("--passes", type=int, default=20)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    record: dict[str, Any] = {"seed": given.seed, "device": torch.cuda.get_device_name(0), "shapes": {}}
    print("seed", given.seed)
    for shape in given.shapes.split(","):
        points, columns, k = (int(n) for n in shape.split("x"))
        rows = rows_of(points, columns, given.seed)
        found: dict[str, Any] = {"pass": passes(rows, k, given.passes, np.random.default_rng(given.seed))}
        print(shape, found["pass"], flush=True)
        found["job"] = whole_jobs(rows, k, given.passes)
        for line in found["job"]:
            print("   ", line, flush=True)
        found["stream"] = streamed(rows, k)
        print("   ", found["stream"], flush=True)
        record["shapes"][shape] = found
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
