"""One unit of the gauntlet: an algorithm on a table, under every model and number of workers, judged beside its peer.

    python -m bench.gauntlet.cells     reads lines "TABLE ALGORITHM [MODEL:WORKERS ...]", writes a JSON line for each;
                                       `team` for WORKERS: a team of three threads

A cell is `ok` where the evaluated objective is within 0.1 % of the peer's or better; `warned` where it is worse and a
warning says why; `stopped` where it is worse and the job does not claim to have converged; `refused` where a sentence
says that such data cannot be trained on. Failures: `silent` (worse, and nothing says so), `misreported` (the reported
objective is not that of the returned θ), `error` (anything else that went wrong).
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

import flegel
from bench.common.program import words_of
from bench.gauntlet import labelled, matrices, peers, real
from bench.gauntlet.tables import CLUSTERING, DENSE, REAL, SPARSE, TABLES, Table
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.core.shard import Sparse, unit_rows
from flegel.errors import FlegelError
from flegel.runtime.job.teams import obstacle

__all__ = ["CLUSTERING", "REAL", "labelled", "matrices", "real"]

MODELS = ("bsp", "fsp", "auto", "bsp-mini", "ssp", "asp", "psp")
WORKERS = (1, 2, 3, 4)
TEAM, TEAM_THREADS = "team", 3
"""In place of a number of workers: a team of so many threads of this process, as jobs of one host are by default."""
SECONDS = 10.0  # of training after which a job is stopped
WITHIN = 1e-3  # relative: as good as the peer
REPORTED = 1e-3  # relative: the reported objective is that of the returned θ
EXACT = 1e-7  # of the squares: a factorization that leaves less is exact (its entries have a relative error of 3e-4)
FAILURES = ("silent", "misreported", "error")
SHAPED = ("collinear", "rare_columns", "tails_2", "cauchy", "unequal_scales", "offset_1e8", "outlier_1e6", "plain")
"""Tables on which mixtures of every shape are trained."""
COUNTS = (
    "nmf_low_rank", "nmf_exact", "nmf_counts", "nmf_blocks", "nmf_zero_rows_and_columns", "nmf_times_1e_4",
    "small_integers", "zero_inflated", "tails_2", "sparse_text", "sparse_mostly_empty", "sparse_one_huge_value",
)  # fmt: skip
"""Tables that are also factorized by Kullback–Leibler divergence."""

ANGLES = (
    "plain", "tails_2", "wide", "narrow", "narrow_cone", "zero_inflated", "extreme_large", "plain_float32",
    "half_duplicates", "sparse_text", "sparse_50000_columns", "sparse_float32", "all_zero",
)  # fmt: skip
"""Tables that are also clustered by angle."""


def algorithms_of(name: str, made: Table) -> list[str]:
    """Which algorithms run on a table."""
    sparse = isinstance(made.rows, Sparse)
    chosen = made.algorithms
    if chosen is None:
        chosen = SPARSE if sparse else DENSE
        chosen = tuple(a for a in chosen if a != "lr" or made.labels is not None)
    more = [f"gmm-{shape}" for shape in ("full", "tied", "spherical")] if name in SHAPED else []
    if name in COUNTS:
        more.append("nmf-kl")
    if name in ANGLES:
        more.append("kmeans-cosine")
    return [*chosen, *more]


def make(kind: str, made: Table) -> Algorithm:
    if kind == "kmeans" and made.algorithms == ("kmeans",):
        half = np.random.default_rng(0).choice(len(made.rows), made.k // 2, replace=False)
        return KMeans(k=made.k, init=np.repeat(made.rows[half], 2, axis=0))
    if kind.startswith("kmeans"):
        return KMeans(k=made.k, metric=kind.partition("-")[2] or "euclidean")
    if kind.startswith("gmm"):
        return GMM(k=made.k, covariance=kind.partition("-")[2] or "diagonal")
    if kind == "fcm":
        return FCM(k=made.k)
    if kind == "lr":
        return LR(**made.lr)
    if kind == "nmf-kl":
        return KLNMF(rank=rank_for(made.rows))
    missing = not isinstance(made.rows, Sparse) and np.isnan(made.rows).any()
    solver = "sgd" if missing or (made.algorithms == ("nmf",) and isinstance(made.rows, Sparse)) else "coordinate"
    return NMF(rank=rank_for(made.rows), solver=solver, precision="float64")


def rank_for(rows: Any) -> int:
    """Less than the number of columns: a factorization of full rank leaves nothing to compare."""
    return max(1, min(3, columns_of(rows) - 1))


def columns_of(rows: Any) -> int:
    return rows.columns if isinstance(rows, Sparse) else int(rows.shape[1])


def count_of(rows: Any) -> int:
    return len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)


def rows_for(kind: str, made: Table) -> Any:
    """Factorizations get absolute values."""
    if not kind.startswith("nmf"):
        return made.rows
    if isinstance(made.rows, Sparse):
        return made.rows._replace(values=np.abs(made.rows.values))
    return np.abs(made.rows)


def size_of(kind: str, rows: Any) -> float:
    """The objective of a trivial model: differences of 1e-9 of it (1e-6 with float32 rows) are rounding."""
    if kind.startswith("gmm"):
        return float(count_of(rows)) / WITHIN * 1e-3
    if kind == "lr":
        return 1.0
    if kind == "kmeans-cosine":
        return float(count_of(rows))
    values = rows.values if isinstance(rows, Sparse) else rows
    values = np.asarray(values, dtype=np.float64)
    if kind.startswith("nmf") or isinstance(rows, Sparse):
        return float(np.nansum(values**2))
    return float(((values - values.mean(axis=0)) ** 2).sum())


def peer_of(kind: str, algorithm: Algorithm, rows: Any, made: Table) -> float:
    if kind == "lr":
        return peers.quietly(peers.lr, rows, made.labels, made.lr)
    peer = peers.spherical if kind == "kmeans-cosine" else getattr(peers, kind.partition("-")[0])
    rows = unit_rows(rows) if kind == "kmeans-cosine" else rows
    sample = Sample(rows, made.labels, count_of(rows), columns_of(rows))
    first = algorithm.initParameter(sample, np.random.default_rng(0))
    return peers.quietly(peer, algorithm, rows, first)


def margin(kind: str, rows: Any, peer: float) -> float:
    """How much worse than the peer still counts as equal."""
    if kind.startswith("gmm"):
        return WITHIN * max(abs(peer), size_of(kind, rows))
    values = rows.values if isinstance(rows, Sparse) else rows
    rounding = 1e-6 if values.dtype == np.float32 else EXACT if kind.startswith("nmf") else 1e-9
    return max(WITHIN * abs(peer), rounding * size_of(kind, rows))


def judge(cell: dict[str, Any], kind: str, rows: Any, peer: float | None, maximize: bool) -> str:
    """The verdict on a finished run."""
    value, said = cell["value"], bool(cell["warnings"]) or not cell["converged"]
    if not np.isfinite(value):
        return "error"
    worse = 0.0 if peer is None else (peer - value if maximize else value - peer)
    reported = cell["reported"]
    if kind in ("fcm", "lr") or kind.startswith(("gmm", "kmeans")):
        apart = abs(reported - value) if reported is not None else np.inf
        if apart > max(REPORTED * abs(value), margin(kind, rows, value)) and not said:
            return "misreported"
    if peer is None:
        return "ok"
    if worse <= margin(kind, rows, peer):
        return "ok"
    if cell["warnings"]:
        return "warned"
    return "silent" if cell["converged"] else "stopped"


def train(cluster: Any, kind: str, algorithm: Algorithm, rows: Any, labels: Any, sync: str, workers: str) -> Any:
    began = time.perf_counter()
    staff: dict[str, Any] = {"workers": int(workers), "cluster": cluster} if workers != TEAM else {"processes": False}
    if workers == TEAM and not obstacle(algorithm):
        staff["threads"] = TEAM_THREADS
    data = rows if labels is None or kind != "lr" else (rows, labels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = flegel.run(algorithm, data, sync=sync, max_seconds=SECONDS, seed=0, **staff)
            found = algorithm.evaluate(rows, labels, result.parameter)
    except FlegelError as error:
        return {"verdict": "refused", "reason": str(error), "seconds": time.perf_counter() - began}
    assert found is not None
    return {
        "value": float(found.objective),
        "reported": result.objective,
        "converged": bool(result.converged),
        "reason": result.reason,
        "iterations": result.iterations,
        "warnings": list(result.warnings),
        "seconds": time.perf_counter() - began,
    }


def unit(name: str, kind: str, cells: list[tuple[str, str]], cluster: Any) -> dict[str, Any]:
    """All cells of a table and an algorithm."""
    made = TABLES[name]()
    rows, algorithm = rows_for(kind, made), make(kind, made)
    record: dict[str, Any] = {"table": name, "algorithm": kind, "points": count_of(rows), "columns": columns_of(rows)}
    began = time.perf_counter()
    try:
        record["peer"] = peer_of(kind, algorithm, rows, made)
    except (ValueError, FlegelError, np.linalg.LinAlgError) as error:
        record["peer"], record["peer_says"] = None, str(error).splitlines()[0][:160]
    record["peer_seconds"] = time.perf_counter() - began
    record["cells"] = {}
    for sync, workers in cells:
        try:
            cell = train(cluster, kind, algorithm, rows, made.labels, sync, workers)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding
            cell = {"verdict": "error", "reason": f"{type(error).__name__}: {error}"[:300]}
        if "verdict" not in cell:
            cell["verdict"] = judge(cell, kind, rows, record["peer"], algorithm.learning.maximize)
        record["cells"][f"{sync}:{workers}"] = cell
    return record


def main() -> None:
    words_of(__doc__)
    with flegel.LocalCluster(max(WORKERS)) as cluster:
        for line in sys.stdin:
            name, kind, *wanted = line.split()
            cells = [(sync, workers) for sync, _, workers in (word.partition(":") for word in wanted)]
            print(json.dumps(unit(name, kind, cells, cluster)), flush=True)


if __name__ == "__main__":
    main()
