"""The demo's job once more, beside somebody else's on the same rows: the last lines of `make demo`.

From the same rows in memory: scikit-learn's k-means where it is installed, else our own with full barriers (`bsp`).
Seconds of training from the start that each chooses; a smaller objective is better. Keeps nothing.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from typing import Any

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.datasets import open_data

CLUSTERS = 10


def ours(rows: Any, sync: str) -> tuple[float, float]:
    """Seconds of the whole call, and the objective."""
    began = time.perf_counter()
    result = flegel.run(KMeans(k=CLUSTERS), rows, sync=sync, progress=False)
    assert result.objective is not None
    return time.perf_counter() - began, result.objective


def theirs(rows: Any) -> tuple[float, float]:
    from sklearn.cluster import KMeans as PeerKMeans

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterations that ran out
        model = PeerKMeans(CLUSTERS, n_init=1, random_state=0).fit(rows)
    return time.perf_counter() - began, float(model.inertia_)


def line(who: str, seconds: float, objective: float) -> str:
    return f"  {who:<24} {seconds:6.2f} s   objective {objective:.5e}"


def main() -> None:
    rows = open_data("higgs").read().features
    ours(rows, "fsp")  # workers are up, code is loaded
    seconds, objective = ours(rows, "fsp")
    if importlib.util.find_spec("sklearn") is not None:
        peer, (peer_seconds, peer_objective) = "scikit-learn", theirs(rows)
    else:
        peer, (peer_seconds, peer_objective) = "Flegel, full barriers", ours(rows, "bsp")
    print(f"the same rows from an array, whole call, {CLUSTERS} clusters:")
    print(line("Flegel", seconds, objective))
    print(line(peer, peer_seconds, peer_objective) + f"   {peer_seconds / seconds:.1f} times as long")


if __name__ == "__main__":
    main()
