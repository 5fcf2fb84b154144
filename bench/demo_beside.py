"""The demo's rows once more, beside somebody else's k-means from the same start: the last lines of `make demo`.

From the same rows in memory and the same ten rows as centroids: scikit-learn's k-means where it is installed, else our
own with full barriers (`bsp`), to its end; then ours until its objective is as good. Whole calls. Keeps nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.datasets import open_data

CLUSTERS = 10


def ours(rows: Any, start: Any, sync: str, target: float | None = None) -> tuple[float, float]:
    """Seconds of the whole call, and the objective."""
    began = time.perf_counter()
    result = flegel.run(KMeans(k=CLUSTERS, init=start), rows, sync=sync, target=target, progress=False)
    assert result.objective is not None
    return time.perf_counter() - began, result.objective


def theirs(rows: Any, start: Any) -> tuple[float, float]:
    from sklearn.cluster import KMeans as PeerKMeans

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterations that ran out
        model = PeerKMeans(CLUSTERS, init=start, n_init=1).fit(rows)
    return time.perf_counter() - began, float(model.inertia_)


def line(who: str, seconds: float, objective: float) -> str:
    return f"  {who:<24} {seconds:6.2f} s   objective {objective:.5e}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = open_data("higgs").read().features
    start = rows[np.random.default_rng(0).choice(len(rows), CLUSTERS, replace=False)].astype(np.float64)
    if importlib.util.find_spec("sklearn") is not None:
        peer, (peer_seconds, peer_objective) = "scikit-learn", theirs(rows, start)
    else:
        ours(rows, start, "bsp")  # code is loaded
        peer, (peer_seconds, peer_objective) = "Flegel, full barriers", ours(rows, start, "bsp")
    ours(rows, start, "fsp", peer_objective)
    seconds, objective = ours(rows, start, "fsp", peer_objective)
    print(f"the same rows from an array, {CLUSTERS} of them as centroids; whole calls:")
    print(line(peer, peer_seconds, peer_objective))
    reached = objective <= peer_objective
    said = f"{peer_seconds / seconds:.1f} times as fast" if reached else "ended before it was as good"
    print(line("Flegel, as good", seconds, objective) + f"   {said}")


if __name__ == "__main__":
    main()
