"""Pictures of the README, from real runs: where the time goes when one worker is slow, and who is first.

    python -m bench.pictures.readme [--out docs/img] [--workers 4] [--rows 400000] [--slow 8x]
    python -m bench.pictures.readme --record runs/bench/runtime_stragglers.json --out docs/img

Without a record it trains k-means under bsp and under fsp with worker 0 slowed, from the same start to the same
objective, and draws what each worker did (timeline.svg); of some runs, the one in the middle. With a record of the
suite it draws that benchmark's first chart (race.svg) and the workers of its first comparison with stragglers
(timeline.svg).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.common.record import Bench, read
from bench.common.standalone_pictures import chart_picture, timeline_picture
from flegel.algorithms.kmeans import KMeans
from flegel.compare import Comparison, compare
from flegel.compare.table import text
from flegel.report.write import save


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--record", type=Path, default=None, help="what a benchmark wrote; nothing is run then")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--slow", default="8x")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = _recorded(options.record, options.out) if options.record else _run(options)
    if found is not None:
        title = f"{found.algorithm}, {found.workers} workers, slowed {found.straggler}, to the same objective"
        print(save(timeline_picture(found, ["bsp", "fsp"], title), options.out / "timeline.svg"))


def _run(options: argparse.Namespace) -> Comparison:
    found = compare(
        KMeans(k=options.k), f"higgs:{options.rows}", "bsp,fsp", workers=options.workers, repeat=options.repeat,
        straggler=f"0:{options.slow}", seed=options.seed, say=print,
    )  # fmt: skip
    print(text(found))
    return found


def _recorded(path: Path, out: Path) -> Comparison | None:
    record = read(path)
    if isinstance(record, Comparison):
        return record
    assert isinstance(record, Bench)
    if record.charts:
        print(save(chart_picture(record), out / "race.svg"))
    return next((c for c in record.comparisons if c.straggler and {"bsp", "fsp"} <= c.pictures.keys()), None)


if __name__ == "__main__":
    main()
