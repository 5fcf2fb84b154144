"""A worker that is alone makes θ anew between barriers, from the same sums as the coordinator, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.machine.worker.growing_part import GrowingPart
from flegel.machine.worker.local_updates import LocalUpdates

ROWS = np.random.default_rng(0).normal(size=(4096, 5)).astype(np.float32)
ROWS[::2] += 3.0


def trained(until: int, barriers: tuple[int, ...]) -> tuple[list[Any], LocalUpdates, Any]:
    """θ after each part of 512 points, those of a lone worker whose reports are merged at `barriers`, and the last θ of
    the coordinator."""
    algorithm = KMeans(k=4, init="first")
    sample = Sample(ROWS, None, len(ROWS), ROWS.shape[1])
    theta = came = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    total = pytree.as_doubles(algorithm.initAggregator(sample, theta))
    changes = pytree.copy(total)
    local = LocalUpdates(theta, total, lambda hook, *args: getattr(algorithm, hook)(*args))
    shard = make_shard(ROWS, None, algorithm.initState(len(ROWS), 5, np.random.default_rng(0)), "tiles")
    kernel, found = algorithm.kernel(shard), []
    local.begin(pytree.flatten(theta))
    for start in range(0, until, 512):
        kernel(shard, pytree.read_only(theta), changes, start, start + 512, 0, new_flag())
        arrays = local.update(pytree.flatten(changes))
        assert arrays is not None
        theta = pytree.unflatten(theta, arrays)
        found.append(theta)
        if start + 512 in barriers:
            local.reported(pytree.flatten(changes))
            pytree.add(total, changes)
            pytree.clear(changes)
            came = theta = algorithm.updateParameter(total, came)
            local.begin(pytree.flatten(theta))
    return found, local, came


def test_updates_follow_from_all_reports_and_the_changes_since() -> None:
    without, _, _ = trained(4096, ())
    merged, local, came = trained(4096, (1024, 2048, 4096))
    assert local.useful and local.number == 8
    for one, other in zip(without[-1][:2], came[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=0.1)
    np.testing.assert_array_equal(merged[0].centroids, without[0].centroids)
    np.testing.assert_allclose(merged[-1].centroids, came.centroids, rtol=1e-12)  # every point was seen: θ is the means


def test_a_theta_that_others_contributed_to_ends_them() -> None:
    _, local, came = trained(2048, (1024, 2048))
    assert local.limit(10**6, 1e6, 2048, 64) == 2048
    local.reported(pytree.flatten(KMeans(k=4).initAggregator(Sample(ROWS, None, 4096, 5), came)))
    local.begin(pytree.flatten(came._replace(centroids=came.centroids * 1.01)))
    assert not local.useful
    assert local.limit(10**6, 1e6, 2048, 64) == 10**6


def test_an_update_that_is_no_theta_is_left_to_the_coordinator() -> None:
    theta, empty = np.ones(3), np.zeros(3)
    local = LocalUpdates(theta, empty, lambda hook, sums, old: old * np.nan)
    local.begin([theta])
    assert local.update([empty]) is None and not local.useful


def test_updates_take_a_small_part_of_the_time() -> None:
    local = LocalUpdates(np.ones(3), np.zeros(3), lambda hook, sums, old: old)
    local.begin([np.ones(3)])
    for seconds in (0.5, 0.001, *[0.002] * (active().training.remembered_updates - 2)):
        local.took(seconds)
    assert local.limit(10**9, 1e6, 2048, 64) == active().training.training_per_update_time * 1000 // 64 * 64
    assert local.limit(100, 1e6, 2048, 64) == 100


@pytest.mark.parametrize("algorithm", [KMeans(k=5), GMM(k=3), FCM(k=3)], ids=lambda a: type(a).__name__)
def test_a_job_of_one_worker_keeps_its_books(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective from the statistics is that of the points, and the audit finds nothing, also where a part of the
    points was visited first."""
    made: list[int] = []
    parts: set[int] = set()
    update, judge = LocalUpdates.update, GrowingPart.judge

    def judged(self: GrowingPart, objective: float | None) -> Any:
        parts.add(self.size)
        return judge(self, objective)

    def counted(self: LocalUpdates, statistics: Any) -> Any:
        made.append(1)
        return update(self, statistics)

    monkeypatch.setattr(LocalUpdates, "update", counted)
    monkeypatch.setattr(GrowingPart, "judge", judged)
    rows = np.tile(ROWS, (3, 1))
    result = flegel.run(algorithm, rows, workers=1, sync="fsp", processes=False, max_passes=9, tolerance=0)
    assert made and parts and max(parts) < len(rows)
    assert result.audit["audits"] and not result.audit["problems"]
    assert result.objective is not None and np.isfinite(result.objective)
