"""Sites that train on virtual time: links take as long as their bytes, and sites end where central training ends."""

from __future__ import annotations

import numpy as np
import pytest

from bench.figures.site_matrix import CELLS, WAYS, course, places
from bench.sites.training import Agreement, LinkedBucket, Place, TrainingWorld, prepared
from flegel.algorithms.kmeans import KMeans
from flegel.machine.group.events import Answered, PutObject

NOTHING = (np.zeros((1, 1)), None)


def test_an_object_takes_its_bytes_over_the_link_and_small_ones_do_not_wait_for_it() -> None:
    later: list[tuple[float, object]] = []
    bucket = LinkedBucket(lambda when, what: later.append((when, what)))
    call = bucket.link("g0", Place(NOTHING, 1.0, bandwidth=1000.0, latency=0.2))

    def ignored(answer: Answered, now: float) -> None:
        raise AssertionError("nothing has arrived yet")

    call(PutObject(1, "rounds/1/g0.1", b"x" * 5000, "replace", ""), 0.0, ignored)
    call(PutObject(2, "rounds/2/g0.1", b"x" * 5000, "replace", ""), 0.0, ignored)
    call(PutObject(3, "members/g0", b"x" * 100, "replace", ""), 0.0, ignored)
    assert [when for when, _ in later] == pytest.approx([5.1, 10.1, 0.2])
    assert bucket.bytes_of_rounds == {"g0": 10_000}


def test_a_site_that_waits_trains_less_than_one_that_trains_on() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))

    def passes(waits: bool) -> int:
        plan = prepared(KMeans(k=2), (rows, None), 0)
        slow = Place((rows[:30], None), 5.0, 1e6, 0.01)
        world = TrainingWorld(plan, [slow, Place((rows[30:], None), 50.0, 1e6, 0.01)], Agreement(waits=waits))
        world.run_until(30.0)
        return world.sites[1].job.iteration

    assert passes(True) < passes(False) / 3


@pytest.mark.parametrize("way", WAYS)
def test_sites_with_clusters_of_their_own_end_where_central_training_ends(way: str) -> None:
    found = course("kmeans", CELLS["sorted rows"], WAYS[way], seed=1)
    assert found["ratio"] == pytest.approx(1.0, abs=1e-3) and found["goodput"] > 0.8


def test_sizes_and_speeds_of_sites_are_as_unequal_as_asked_for() -> None:
    found = places(CELLS["all of it"], (np.zeros((1500, 2)), None), 0)
    sizes, speeds = [len(place.rows[0]) for place in found], [place.speed for place in found]
    assert 45 < sizes[2] / sizes[0] < 55 and speeds[0] / speeds[2] == pytest.approx(50.0)
