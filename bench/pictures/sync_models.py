"""Draws a moment of each synchronization model, from real runs, as the pages about them show it.

    python -m bench.pictures.sync_models --out docs/img [--straggler 3:3x] [--models bsp,fsp]

One worker of four is slow. The drawing is that of reports (`flegel.report.timeline`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import flegel
from bench.common.standalone_pictures import excerpt
from flegel.algorithms.kmeans import KMeans
from flegel.api.jobs import LocalCluster
from flegel.compare import run_environment
from flegel.report.timeline import draw
from flegel.report.write import save

WIDTH = 760


def main() -> None:
    """Run each model for a moment and draw it."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("docs/img"))
    options.add_argument("--straggler", default="3:3x")
    options.add_argument("--models", default="bsp,bsp-mini,ssp,asp,psp,fsp-binary,fsp")
    options.add_argument("--rows", type=int, default=48_000)
    options.add_argument("--window", type=float, default=0.6)
    chosen = options.parse_args()
    data = np.random.default_rng(0).normal(size=(chosen.rows, 64)).astype(np.float32)
    with LocalCluster(4) as cluster:
        for model in chosen.models.split(","):
            extra = {"batches": 4} if model in ("bsp-mini", "ssp", "asp", "psp") else {}
            result = flegel.run(
                KMeans(k=160), data, cluster=cluster, sync=model, tolerance=0,
                max_seconds=3 * chosen.window + 0.5, straggler=chosen.straggler, **extra,
            )  # fmt: skip
            begin = result.seconds / 2
            shown = excerpt(result.rows, begin, begin + chosen.window)
            title = f"{model}, worker 3 three times slower" if chosen.straggler == "3:3x" else f"{model}, slow workers"
            canvas = draw([("", shown)], WIDTH, title, axis="a moment in the middle of training")
            place = run_environment()
            canvas.origin = f"A moment of a real run. {place.date}, commit {place.commit}, {place.machine['cores']}."
            save(canvas.svg(standalone=True), chosen.out / f"{model}.svg")
            print(f"{model}: utilization {result.utilization:.0%}, {result.iterations} updates")


if __name__ == "__main__":
    main()
