"""A job that tests run inside other programs: in threads, in processes, in workers of other libraries."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("FLEGEL_WARM", "0")  # also where another process imports this file

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans

ROWS = np.random.default_rng(2).normal(size=(60_000, 12))


def nested_job(phase: Any = None, *_: Any) -> tuple[float, int]:
    """The objective, whose bits are the same for any number of threads, and the number of threads."""
    result = flegel.run(KMeans(k=8), ROWS, sync="bsp", max_iterations=3, phase=phase, progress=False)
    assert result.objective is not None
    return result.objective, result.threads
