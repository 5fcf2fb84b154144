"""Where a pass is cut into calls depends on measured times, and decides no bit: GMM and FCM begin sums anew at fixed
places, and calls end at these."""

from __future__ import annotations

import numpy as np
import pytest
from passes import start

from flegel.algorithm import Algorithm
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.soft_kernel import GridKernel
from flegel.configuration.active import DEFAULTS
from flegel.core import pytree
from flegel.core.stop_flag import new_flag

LARGEST_GRID = DEFAULTS.kernels.soft_grid_points


def statistics_of(algorithm: Algorithm, rows: np.ndarray, cuts: tuple[int, ...], grid: int) -> bytes:
    share, parameter, statistics = start(algorithm, rows)
    kernel, flag = algorithm.kernel(share), new_flag()
    assert isinstance(kernel, GridKernel) and kernel.grid == LARGEST_GRID
    kernel.grid = grid  # fewer rows show the same
    for begin, end in zip((0, *cuts), cuts, strict=False):
        assert kernel(share, parameter, statistics, begin, end, 0, flag) == end
    return b"".join(a.tobytes() for a in pytree.flatten(statistics))


@pytest.mark.parametrize("algorithm", [GMM(k=3), FCM(k=3)], ids=["gmm", "fcm"])
def test_calls_that_end_on_the_grid_give_the_same_bits(algorithm: Algorithm) -> None:
    rows = np.random.default_rng(0).normal(size=(3000, 5)).astype(np.float32)
    whole = statistics_of(algorithm, rows, (3000,), 512)
    assert statistics_of(algorithm, rows, (512, 2048, 3000), 512) == whole
    assert (
        statistics_of(algorithm, rows, (3000,), LARGEST_GRID) != whole
    )  # without the grid sums are grouped in another way


def test_parts_of_wide_rows_are_smaller_since_a_call_has_to_return() -> None:
    share, _, _ = start(FCM(k=2), np.ones((4, 3000), np.float32))
    kernel = FCM(k=2).kernel(share)
    assert isinstance(kernel, GridKernel) and kernel.grid == DEFAULTS.kernels.soft_least_grid_points
