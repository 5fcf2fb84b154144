"""What do audits cost? The same work with and without them, in pairs; the answer is a ratio of training times.

    python -m bench.micro.audit --workers 16 --turns 20 --seconds 3

`bsp` does exactly the same work in both cases, so the ratio is the cost of checksums and of the points that are counted
again at barriers; `share` is what workers measured of the latter. The pass at the end is given beside: in seconds, in
average passes, and in first passes, which visit every point for the first time as it does. It is no part of training.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from flegel import LocalCluster
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans

CASES: dict[str, Any] = {
    "kmeans": lambda: KMeans(k=10, init="first"),
    "gmm": lambda: GMM(k=5, init="first"),
    "fcm": lambda: FCM(k=10, init="first"),
}


def compare(make: Any, data: np.ndarray, given: argparse.Namespace, cluster: LocalCluster) -> dict[str, float]:
    def trained(audit: str, rounds: int) -> flegel.Result:
        return flegel.run(make(), data, sync="bsp", tolerance=0, max_iterations=rounds, cluster=cluster, audit=audit)

    probe = trained("off", 10)
    rounds = max(10, round(given.seconds / (probe.seconds / 10)))
    ratios, checks, audits, plain, firsts, shares = [], [], [], [], [], []
    for turn in range(given.turns):
        pair = {}
        for mode in ("on", "off") if turn % 2 else ("off", "on"):
            pair[mode] = trained(mode, rounds)
        ratios.append(pair["on"].seconds / pair["off"].seconds)
        plain.append(pair["off"].seconds)
        checks.append(pair["on"].audit["seconds"])
        firsts.append(pair["off"].rows[0]["seconds"])
        shares.append(pair["on"].audit["at_barriers"] / pair["on"].seconds)
        audits.append(pair["on"].audit["audits"])
        assert pair["on"].audit["problems"] == [], pair["on"].audit
    middle = statistics.median(ratios)
    spread = statistics.median(abs(r - middle) for r in ratios)
    one_pass = statistics.median(plain) / rounds
    return {
        "ratio": middle, "spread": spread, "share": statistics.median(shares),
        "rounds": rounds, "seconds": statistics.median(plain),
        "audits": statistics.median(audits), "check_seconds": statistics.median(checks),
        "check_passes": statistics.median(checks) / one_pass,
        "check_first_passes": statistics.median(checks) / statistics.median(firsts),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=28)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default=",".join(CASES), help="algorithms, with commas between")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(given.rows, given.columns)).astype(np.float32) + rng.integers(0, 5, (given.rows, 1))
    found = {}
    with LocalCluster(given.workers) as cluster:
        for name in given.only.split(","):
            make = CASES[name]
            found[name] = compare(make, data.astype(np.float32), given, cluster)
            print(name, json.dumps(found[name]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
