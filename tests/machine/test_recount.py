"""A recount of points: every point is counted, whatever lies beside it in its tile."""

from __future__ import annotations

import numpy as np
import pytest

from flegel import Kernels
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import Shard, make_shard
from flegel.declarations.hidden_state import StateHooks
from flegel.declarations.kernels import COUNTING
from flegel.declarations.optional import hook
from flegel.machine.audit.owned_numbers import NUMBERS_PER_KEPT_SUM, OWNER_SUM_MODULUS, OwnedNumbers, sum_below, sum_of
from flegel.machine.audit.recount import Recount
from flegel.runtime.backends.numba.backend import BACKEND


class FirstVisits(Algorithm):
    """Counts points whose state says that they were never visited."""

    kernels = Kernels(layout="tiles")

    def kernel(self, shard: Shard):  # type: ignore[no-untyped-def]
        def run(shard, parameter, aggregator, start, end, iteration, flag):  # type: ignore[no-untyped-def]
            aggregator[0] += (shard.state_rows()[start:end] == -1).sum()
            return end

        return run


def unvisited(points: int) -> np.ndarray:
    return np.full((points, 1), -1, np.int32)


def test_points_behind_a_shorter_last_tile_are_counted() -> None:
    shards = [make_shard(np.zeros((points, 2)), None, unvisited(points), "tiles") for points in (100, 128, 70)]
    assert len({shard.state.shape for shard in shards}) == 1, "all have two tiles, with 36, 64 and 6 points in the last"
    theta, empty = np.zeros(1), np.zeros(1)
    kernel = BACKEND.build(FirstVisits(), shards[0], theta, empty, interpret=False)
    recount = Recount(FirstVisits(), kernel, theta, empty, unvisited)
    (counted,) = recount._sum([(shard, 0, shard.points) for shard in shards], pytree.flatten(theta))
    assert counted[0] == 100 + 128 + 70


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    "algorithm",
    [*(GMM(k=3, covariance=shape) for shape in ("diagonal", "full", "tied", "spherical")), FCM(k=3), KMeans(k=3)],
    ids=lambda a: f"{type(a).__name__} {getattr(a, 'covariance', '')}",
)
def test_what_is_counted_at_the_end_is_what_evaluate_says(algorithm: Algorithm, precision: str) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(331, 4)) + 6.0 * rng.integers(0, 3, (331, 1))).astype(precision)
    sample = Sample(rows, None, *rows.shape)
    theta = algorithm.initParameter(sample, rng)
    empty = algorithm.initAggregator(sample, theta)

    def fresh(points: int) -> np.ndarray:
        return algorithm.initState(points, 4, np.random.default_rng(0))

    states = fresh(331)
    states = states.astype(precision) if states.dtype.kind == "f" else states
    shard = make_shard(rows, None, states, "tiles")
    kernel = BACKEND.build(algorithm, shard, theta, empty, interpret=False)
    recount = Recount(algorithm, kernel, theta, empty, fresh)
    counted = recount._sum([(shard, 0, 200), (shard, 200, 331)], pytree.flatten(theta), COUNTING)
    value = hook(algorithm, StateHooks.recounted)(pytree.unflatten(empty, counted), theta)
    wanted = algorithm.evaluate(rows, None, theta)
    assert wanted is not None and value == pytest.approx(wanted.objective, rel=1e-12)


def test_sums_of_numbers_have_a_closed_form_and_tell_exchanged_points() -> None:
    for points in (0, 1, 2, NUMBERS_PER_KEPT_SUM, 3 * NUMBERS_PER_KEPT_SUM + 5):
        assert sum_of(np.arange(points)) == sum_below(points)
    ids = np.random.default_rng(0).permutation(3 * NUMBERS_PER_KEPT_SUM + 5)
    for wrong in ([7], [7, 11], [0, 3, NUMBERS_PER_KEPT_SUM]):  # counted twice, each in place of its neighbour
        seen = ids.copy()
        for number in wrong:
            seen[seen == number + 1] = number
        assert sum_of(seen) != sum_below(len(ids))


def test_numbers_of_loaded_and_of_moved_points_are_counted_alike() -> None:
    ids = np.random.default_rng(1).permutation(4 * NUMBERS_PER_KEPT_SUM)
    zeros = np.zeros((len(ids), 1))
    shards = [
        make_shard(zeros[: len(own)], None, zeros[: len(own)], "rows", own)
        for own in np.split(ids, [3 * NUMBERS_PER_KEPT_SUM])
    ]
    numbers = OwnedNumbers()
    numbers.learn(shards[0].ids)
    parts = [(0, 5), (5, 6), (6, NUMBERS_PER_KEPT_SUM + 1), (NUMBERS_PER_KEPT_SUM + 1, 3 * NUMBERS_PER_KEPT_SUM)]
    runs = [(shards[0], *part) for part in parts] + [(shards[1], 0, NUMBERS_PER_KEPT_SUM)]
    for _ in range(2):  # the second time sums of moved points are known
        assert numbers.count(runs) == (4 * NUMBERS_PER_KEPT_SUM, sum_below(4 * NUMBERS_PER_KEPT_SUM))
    points, total = numbers.count(runs[1:])
    assert points == 4 * NUMBERS_PER_KEPT_SUM - 5 and (total + sum_of(ids[:5])) % OWNER_SUM_MODULUS == sum_below(
        4 * NUMBERS_PER_KEPT_SUM
    )
