"""What the tests of algorithms share: full and partial passes with the hooks, and with the block kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.shard import DataPoint, Shard, make_shard
from flegel.core.stop_flag import new_flag

NEVER = new_flag()


def sample_of(rows: np.ndarray, labels: np.ndarray | None = None) -> Sample:
    return Sample(rows, labels, len(rows), rows.shape[1])


def start(algorithm: Algorithm, rows: np.ndarray, seed: int = 0) -> tuple[Shard, Any, Any]:
    """A share in the algorithm's layout, θ(0), and empty statistics. θ is read-only as in a job: kernels are compiled
    for that type, and would be compiled once more for arrays that can be written to."""
    rng = np.random.default_rng(seed)
    sample = sample_of(rows)
    algorithm.validate(sample)
    parameter = pytree.read_only(pytree.as_doubles(algorithm.initParameter(sample, rng)))
    state = algorithm.initState(len(rows), rows.shape[1], rng)
    share = make_shard(rows, None, state, algorithm.kernels.layout)
    return share, parameter, pytree.as_doubles(algorithm.initAggregator(sample, parameter))


def by_points(algorithm: Algorithm, rows: np.ndarray, state: np.ndarray, parameter: Any, aggregator: Any) -> Any:
    """One pass with the per-point hooks, interpreted: the specification."""
    for x, s in zip(rows, state, strict=True):
        change = algorithm.updateDataPoint(DataPoint(x, 0.0, s), parameter, 0)
        algorithm.aggregate(aggregator, change)
    return aggregator


def by_kernel(
    algorithm: Algorithm,
    share: Shard,
    parameter: Any,
    aggregator: Any,
    first: int = 0,
    end: int | None = None,
) -> Any:
    kernel = algorithm.kernel(share)
    assert kernel is not None
    end = share.points if end is None else end
    assert kernel(share, pytree.read_only(parameter), aggregator, first, end, 0, NEVER) == end
    return aggregator


def random_stretches(points: int, rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Consecutive stretches of the share, wrapping at its end, as barriers cut passes: (first, end)."""
    at, found = 0, []
    while len(found) < count:
        end = min(points, at + int(rng.integers(1, points)))
        found.append((at, end))
        at = 0 if end == points else end
    return found


def data_file(*parts: str) -> Path:
    """A real data set kept beside the project, or a skipped test."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    path = Path(os.environ.get("FLEGEL_TEST_DATA", beside)).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent; set FLEGEL_TEST_DATA to the folder of data sets")
    return path
