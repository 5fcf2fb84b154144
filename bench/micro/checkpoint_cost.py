"""What do checkpoints cost? The same work with and without them, in pairs; the answer is a ratio of training times.

    python -m bench.micro.checkpoint_cost --workers 2 --out checkpoint.json

k-means and mixtures under `bsp` do exactly the same work in both cases. A checkpoint is written every second, thirty
times as often as by default, so that each run has several; the file says how large they are and what one costs.
Processor seconds are given beside: other programs lengthen a run, but add hardly anything to these.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import flegel
from flegel import LocalCluster
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore


def trained(make: Any, data: np.ndarray, rounds: int, cluster: LocalCluster, place: Path | None, every: float) -> Any:
    return flegel.run(
        make(), data, sync="bsp", tolerance=0, max_iterations=rounds, cluster=cluster, checkpoint=place,
        checkpoint_every=every,
    )  # fmt: skip


class Turn(NamedTuple):
    """One run: seconds of training, and processor seconds of coordinator and workers for it."""

    seconds: float
    processor: float


def processor() -> float:
    """Processor seconds so far: of this process, where checkpoints are written, and of its workers."""
    found = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in found)


def measured(make: Any, data: np.ndarray, rounds: int, cluster: LocalCluster, place: Path | None, every: float) -> Turn:
    before = processor()
    seconds = trained(make, data, rounds, cluster, place, every).seconds
    return Turn(seconds, processor() - before)


def compare(name: str, make: Any, data: np.ndarray, given: argparse.Namespace, cluster: LocalCluster) -> dict[str, Any]:
    """Pairs of runs right after one another, in changing order; the answer is the median of the pairs' ratios."""
    probe = trained(make, data, 10, cluster, None, 1.0)
    rounds = max(10, round(given.seconds / (probe.seconds / 10)))
    plain: list[Turn] = []
    kept: list[Turn] = []
    counts: list[int] = []
    size = 0
    with tempfile.TemporaryDirectory(prefix="flegel-bench-", dir=given.folder) as scratch:
        for turn in range(given.turns):
            place = Path(scratch) / str(turn)
            for with_checkpoints in (turn % 2 == 0, turn % 2 == 1):
                if with_checkpoints:
                    kept.append(measured(make, data, rounds, cluster, place, given.every))
                    found = read(FolderStore(place))
                    assert found.manifest is not None
                    counts.append(found.manifest.number)
                    size = sum(entry[0] for entry in found.manifest.files.values())
                    shutil.rmtree(place)
                else:
                    plain.append(measured(make, data, rounds, cluster, None, given.every))
    pairs = list(zip(kept, plain, strict=True))
    ratios = sorted(k.seconds / p.seconds for k, p in pairs)
    each = statistics.median((k.seconds - p.seconds) / n for (k, p), n in zip(pairs, counts, strict=True))
    return {
        "job": name, "rows": len(data), "rounds": rounds, "checkpoints": counts, "bytes": size,
        "without": plain, "with": kept, "ratio": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "processor_ratio": statistics.median(k.processor / p.processor for k, p in pairs),
        "seconds_each": each, "ratio_every_30_s": 1.0 + max(each, 0.0) / 30.0,
        "load": [round(x, 1) for x in os.getloadavg()],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="of training a run")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checkpoints")
    parser.add_argument("--turns", type=int, default=11, help="pairs of runs")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a disk, not a RAM disk")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(given.rows, 16)) + 2 * rng.integers(4, size=(given.rows, 1))).astype(np.float32)
    with LocalCluster(given.workers) as cluster:
        found = [
            compare("kmeans k=20", lambda: KMeans(k=20), data, given, cluster),
            compare("gmm k=8", lambda: GMM(k=8), data, given, cluster),
        ]
    for each in found:
        low, high = each["quartiles"]
        print(
            f"{each['job']}: {each['ratio']:.3f} times as long (quartiles {low:.3f} to {high:.3f}, "
            f"{each['processor_ratio']:.3f} times the processor time) with a checkpoint of "
            f"{each['bytes'] / 1e6:.1f} MB every {given.every:g} s; {each['ratio_every_30_s']:.4f} every 30 s"
        )
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
