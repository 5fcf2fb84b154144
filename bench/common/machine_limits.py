"""What one core can do: fused multiply-adds and bytes read a second, in processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from flegel.algorithms.simd import emit, vectors


def clock(work: Callable[[], Any]) -> float:
    """CPU seconds. All implementations are single-threaded, so this is wall time without the neighbours' share."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


_LANES32, _LANES64 = 2 * emit.register_lanes("f4"), 2 * emit.register_lanes("f8")


@njit
def _multiply32(x, times):
    sums = vectors.splats(x, 0, 5, _LANES32)
    more = vectors.splats(x, 5, 5, _LANES32)
    for _ in range(times):
        sums = vectors.fma_each(vectors.load(x, 0, _LANES32), vectors.splats(x, 0, 5, _LANES32), sums)
        more = vectors.fma_each(vectors.load(x, 0, _LANES32), vectors.splats(x, 5, 5, _LANES32), more)
    return _all(sums) + _all(more)


@njit
def _multiply64(x, times):
    sums = vectors.splats(x, 0, 5, _LANES64)
    more = vectors.splats(x, 5, 5, _LANES64)
    for _ in range(times):
        sums = vectors.fma_each(vectors.load(x, 0, _LANES64), vectors.splats(x, 0, 5, _LANES64), sums)
        more = vectors.fma_each(vectors.load(x, 0, _LANES64), vectors.splats(x, 5, 5, _LANES64), more)
    return _all(sums) + _all(more)


@njit
def _all(v):
    return vectors.total(v[0] + v[1] + v[2] + v[3] + v[4])


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
    for dtype, multiply, lanes in (("float32", _multiply32, _LANES32), ("float64", _multiply64, _LANES64)):
        x = np.zeros(256, dtype)
        multiply(x, 10)
        best = min(clock(lambda f=multiply, x=x: f(x, times)) for _ in range(7))
        found[f"gflops_{dtype}"] = 20 * lanes * times / best / 1e9
    big = np.ones(1 << 25, np.float32)
    _read(big)
    found["read_gb_per_s"] = big.nbytes / min(clock(lambda: _read(big)) for _ in range(7)) / 1e9
    return found
