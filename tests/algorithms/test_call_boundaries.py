"""Where a pass is cut into calls depends on measured times, and decides no bit: sums of GMM, FCM and dense logistic
regression begin anew at fixed places, and calls end at these; those of sparse rows go on from call to call."""

from __future__ import annotations

import numpy as np
import pytest
from local_training import sparse_of
from passes import start

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.lr import LR
from flegel.algorithms.soft_kernel import GridKernel
from flegel.configuration.active import DEFAULTS, active
from flegel.core import pytree
from flegel.core.shard import Shard, make_shard
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


def regression(
    classes: int, columns: int, sparse: bool, points: int = 5000
) -> tuple[LR, Shard, list[pytree.Tree], pytree.Tree]:
    """Weighted rows with labels, two θ for a pass each, and statistics of zeros."""
    rng = np.random.default_rng(classes)
    dense = rng.normal(size=(points, columns)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.7] = 0.0
    labels = rng.integers(classes, size=points).astype(np.float64)
    labels[:classes] = np.arange(classes)
    rows = sparse_of(dense) if sparse else dense
    algorithm, sample = LR(l2=0.01), Sample(rows, labels, points, columns)
    algorithm.validate(sample)
    begun = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.as_doubles(algorithm.initAggregator(sample, begun))
    visit = begun.internal_visit
    thetas = [
        begun._replace(
            weights=rng.normal(size=begun.weights.shape), internal_visit=np.r_[visit[0], float(number), visit[2:]]
        )
        for number in (1, 2)
    ]
    state, masses = algorithm.initState(points, columns, rng), rng.uniform(0.1, 2.0, points)
    layout = "rows" if sparse else algorithm.layout_for(columns)
    return algorithm, make_shard(rows, labels, state, layout, weights=masses), thetas, zero


def bits_of_regression(classes: int, columns: int, sparse: bool, cuts: tuple[int, ...], steps: bool = False) -> bytes:
    algorithm, share, thetas, statistics = regression(classes, columns, sparse)
    kernel = algorithm.kernel(share)
    assert kernel is not None
    if isinstance(kernel, GridKernel):
        kernel.grid = 1024  # fewer rows show the same
    for theta in map(pytree.read_only, thetas):
        for begin, end in zip((0, *cuts), cuts, strict=False):
            if steps:
                kernel.prepare(share, theta)  # type: ignore[attr-defined]
                kernel.decide(share, theta, statistics, begin, end, 0, new_flag())  # type: ignore[attr-defined]
                for part in range(kernel.collect(share, begin, end)):  # type: ignore[attr-defined]
                    kernel.add(share, theta, statistics, part)  # type: ignore[attr-defined]
            else:
                assert kernel(share, theta, statistics, begin, end, 0, new_flag()) == end
    return b"".join(a.tobytes() for a in pytree.flatten(statistics))


@pytest.mark.parametrize(("classes", "columns"), [(2, 12), (9, 12), (9, 90), (9, 700)])
def test_sums_of_sparse_regression_go_on_from_call_to_call(classes: int, columns: int) -> None:
    whole = bits_of_regression(classes, columns, True, (5000,))
    assert bits_of_regression(classes, columns, True, (700, 2049, 2050, 5000)) == whole
    if classes > 2:
        assert bits_of_regression(classes, columns, True, (700, 2049, 2050, 5000), steps=True) == whole


@pytest.mark.parametrize(("classes", "columns", "grid"), [(2, 12, 1024), (9, 90, 1024), (100, 300, 0)])
def test_sums_of_dense_regression_begin_anew_at_fixed_places(classes: int, columns: int, grid: int) -> None:
    grid = grid or active().lr.product_rows
    whole = bits_of_regression(classes, columns, False, (5000,))
    assert bits_of_regression(classes, columns, False, (grid, 3 * grid, 5000)) == whole
