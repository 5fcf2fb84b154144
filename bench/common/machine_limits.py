"""What one core can do: fused multiply-adds and bytes read a second, in processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from flegel.algorithms.simd import registers, vectors


def clock(work: Callable[[], Any]) -> float:
    """CPU seconds. All implementations are single-threaded, so this is wall time without the neighbours' share."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


@njit
def _all(v):
    return vectors.total(v[0] + v[1] + v[2] + v[3] + v[4])


def _multiplying(lanes: int) -> Any:
    """A loop of fused multiply-adds on vectors of so many numbers."""

    @njit
    def multiply(x, times):
        sums = vectors.splats(x, 0, 5, lanes)
        more = vectors.splats(x, 5, 5, lanes)
        for _ in range(times):
            sums = vectors.fma_each(vectors.load(x, 0, lanes), vectors.splats(x, 0, 5, lanes), sums)
            more = vectors.fma_each(vectors.load(x, 0, lanes), vectors.splats(x, 5, 5, lanes), more)
        return _all(sums) + _all(more)

    return multiply


@njit
def _read(x):
    sums = vectors.load(x, 0, 32)
    for at in range(32, x.size - 31, 32):
        sums = sums + vectors.load(x, at, 32)
    return vectors.total(sums)


def machine_limits() -> dict[str, float]:
    """Fused multiply-adds and bytes read by one core, the best of some tries."""
    found: dict[str, float] = {}
    times = 400_000
    for dtype in ("float32", "float64"):
        lanes = 2 * registers.register_lanes(dtype)
        x, multiply = np.zeros(256, dtype), _multiplying(lanes)
        multiply(x, 10)
        best = min(clock(lambda f=multiply, x=x: f(x, times)) for _ in range(7))
        found[f"gflops_{dtype}"] = 20 * lanes * times / best / 1e9
    big = np.ones(1 << 25, np.float32)
    _read(big)
    found["read_gb_per_s"] = big.nbytes / min(clock(lambda: _read(big)) for _ in range(7)) / 1e9
    return found
