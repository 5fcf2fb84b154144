"""Comparisons on virtual time for benchmarks: generated rows, workers of given speeds, everything from one seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.api.jobs import resolve
from flegel.compare.candidate import parse_candidates
from flegel.compare.record import Comparison
from flegel.compare.simulation import ClusterModel, SimulationSettings, simulate
from flegel.core.pytree import Array
from flegel.datasets import open_data

COLUMNS, CLUSTERS = 8, 12


def clustered_rows(rows: int, seed: int) -> Array:
    """Clusters of unequal size that overlap, in random order: k-means takes some tens of passes on them."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(CLUSTERS, COLUMNS))
    weights = rng.dirichlet(np.full(CLUSTERS, 3.0))
    which = rng.choice(CLUSTERS, rows, p=weights)
    return (centres[which] + rng.normal(size=(rows, COLUMNS))).astype(np.float32)


def compare_virtually(
    algorithm: str,
    data: Any,
    sync: str,
    seed: int,
    workers: int,
    straggler: str = "",
    settings: dict[str, Any] | None = None,
    model: ClusterModel | None = None,
    **more: Any,
) -> Comparison:
    """All candidates once, every point trained for real."""
    return simulate(
        SimulationSettings(
            type(resolve(algorithm))(**(settings or {})),
            open_data(data),
            parse_candidates(sync),
            workers,
            straggler=straggler,
            seed=seed,
            **{"repeat": 1, "tolerance": 1e-5, "model": model or ClusterModel(learning="real"), **more},
        )
    )
