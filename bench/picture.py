"""Where does the time go when one worker is slow? The picture of the README, from a real run.

    python bench/picture.py [--out docs/img/timeline.svg] [--workers 4] [--rows 400000] [--slow 8x]

Trains k-means under bsp and under fsp with worker 0 slowed, from the same start to the same objective, and draws what
each worker did. Takes the middle one of some runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flegel.algorithms.kmeans import KMeans
from flegel.compare import compare
from flegel.compare.table import text
from flegel.report.write import save, timeline_picture


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/img/timeline.svg"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--slow", default="8x")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = compare(
        KMeans(k=options.k), f"higgs:{options.rows}", "bsp,fsp", workers=options.workers, repeat=options.repeat,
        straggler=f"0:{options.slow}", seed=options.seed, say=print,
    )  # fmt: skip
    print(text(found))
    title = (
        f"k-means, {options.workers} workers, worker 0 slowed {options.slow.rstrip('x')} times, to the same objective"
    )
    print(save(timeline_picture(found, ["bsp", "fsp"], title), options.out))


if __name__ == "__main__":
    main()
