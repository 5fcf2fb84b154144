"""What do a growing part of the points and swaps of centroids bring to k-means, and where do jobs end?

    python -m bench.micro.growing_part [--seeds 14] [--points 300000] [--data FOLDER] [--json growing_part.json]

Passes to within 0.1 % of Lloyd's end from the same start, in this process, as a lone worker makes them; then, with a
folder of real tables, objectives of whole jobs of one worker with and without both. Asserts nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.micro import kernels
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans

CLUSTERS, APART = 100, 0.8
TABLE_CLUSTERS, TABLE_SEEDS = 50, 5
MOST = 20  # passes, after which a seed counts as not reached


class UpdatesOnly(KMeans):
    """All points from the beginning."""

    def part_noise(self, objective: float, points: int, parameter: Any) -> None:  # type: ignore[override]
        return None


class NoSwaps(KMeans):
    """A growing part, on which no other centroids are tried."""

    def alternative(self, aggregator: Any, parameter: Any) -> None:  # type: ignore[override]
        return None


VARIANTS = {"updates": UpdatesOnly, "growing part": NoSwaps, "growing part and swaps": KMeans}


def passes_to_quality(points: int, seeds: int) -> dict[str, Any]:
    """By variant: passes of each seed, None where it is not reached, and how often Lloyd's passes are as many."""
    lloyd, found = [], {name: [] for name in VARIANTS}  # type: ignore[var-annotated]
    for seed in range(seeds):
        rows = kernels.overlapping(points, CLUSTERS, np.float32, seed, APART)
        sample = Sample(rows[:50_000], None, points, kernels.COLUMNS)
        start = KMeans(k=CLUSTERS).initParameter(sample, np.random.default_rng(seed))
        trail = kernels.lloyd_trail(kernels.Training(KMeans(k=CLUSTERS), rows, start))
        target = 1.001 * trail[-1]
        lloyd.append(next(i for i, value in enumerate(trail) if value <= target) + 1)
        for name, variant in VARIANTS.items():
            training = kernels.Training(variant(k=CLUSTERS), rows, start)
            found[name].append(kernels.incremental(training, target, MOST)[1])
        print(
            f"seed {seed}: Lloyd {lloyd[-1]}, " + ", ".join(f"{n} {p[-1] or '–'}" for n, p in found.items()), flush=True
        )
    ratios = {
        name: statistics.median(need / (own or MOST) for need, own in zip(lloyd, passes, strict=True))
        for name, passes in found.items()
    }
    reached = {name: sum(own is not None for own in passes) for name, passes in found.items()}
    return {"lloyd": lloyd, "passes": found, "median of the ratio to lloyd": ratios, "reached": reached}


def tables(folder: Path) -> dict[str, np.ndarray]:
    """Real tables, and one with heavy tails."""
    with gzip.open(folder / "skin/Skin_NonSkin.txt.gz") as file:
        skin = np.loadtxt(file, dtype=np.float32)[:, :3]
    with np.load(folder / "higgs/higgs_real_combined.npz") as files:
        higgs = next(files[name] for name in files.files if files[name].ndim == 2)[:, -28:].astype(np.float32)
    rng = np.random.default_rng(5)
    heavy = rng.standard_t(2.0, size=(200_000, 8)) + 5 * rng.normal(size=(30, 8))[rng.integers(30, size=200_000)]
    return {"Skin Segmentation": skin, "HIGGS": higgs, "Student's t, 2 degrees of freedom": heavy.astype(np.float32)}


def ends(rows: np.ndarray) -> dict[str, list[float]]:
    """How much lower (−) or higher jobs end with a growing part and swaps than without, and their passes."""
    changes, before, after = [], [], []
    for seed in range(TABLE_SEEDS):
        results = [
            flegel.run(kind(k=TABLE_CLUSTERS), rows, workers=1, sync="fsp", seed=seed, max_passes=120)
            for kind in (UpdatesOnly, KMeans)
        ]
        without, own = (float(result.objective or np.nan) for result in results)
        changes.append(100.0 * (own - without) / without)
        for passes, result in zip((before, after), results, strict=True):
            passes.append(result.rows[-1]["passes"][0])
    return {"change of the objective, %": changes, "passes without": before, "passes": after}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=14)
    parser.add_argument("--points", type=int, default=300_000)
    parser.add_argument("--data", type=Path, help="folder of real tables; without it only passes are counted")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"quality": passes_to_quality(options.points, options.seeds), "tables": {}}
    print({name: report["quality"][name] for name in ("median of the ratio to lloyd", "reached")})
    for name, rows in (tables(options.data) if options.data else {}).items():
        report["tables"][name] = ends(rows)
        print(
            name, rows.shape, {what: [round(x, 2) for x in values] for what, values in report["tables"][name].items()}
        )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
