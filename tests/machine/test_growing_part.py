"""A part of the points is visited until that gains less than its noise; other θ are tried on it; then it grows."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.algorithms.kmeans.swaps import swapped
from flegel.configuration.active import active
from flegel.machine.worker.growing_part import GrowingPart, OwnStatistics, PartAmongOthers, PartLimits, in_use
from flegel.machine.worker.local_updates import LocalUpdates
from flegel.machine.worker.visit_schedule import VisitRun, VisitSchedule
from flegel.plan.growing_part import first_part, next_part, worthwhile

POINTS = 64_000


def part_of(noise: float | None = 1.0, maximize: bool = False) -> GrowingPart:
    """A part of 1,000 of 64,000 points, whose objective has this noise."""
    return GrowingPart(POINTS, 10, 100, 1, maximize, lambda objective, points: noise)


def visit(part: GrowingPart, objective: float | None) -> str:
    """All of the part once more, in two runs."""
    for most in (300, POINTS):
        run = part.next(most)
        part.advance(run, run.end)
    assert part.complete
    return part.judge(objective)


def test_the_first_part_holds_enough_points_for_theta_and_is_a_small_part_of_all() -> None:
    assert first_part(1_000_000, 28, 280) == 15_625  # a 64th
    assert first_part(1_000_000, 28, 28_000) == 100_000  # a hundred points for each of 1,000 centroids
    assert first_part(1_000_000, 28, 28_001, grid=64) % 64 == 0
    assert first_part(1_000, 28, 280) == 1_000  # nothing is won with so few
    assert first_part(0, 28, 280) == 0


@pytest.mark.parametrize(
    ("gain", "noise", "expected"),
    [
        (0.2, 1.0, 3_000),
        (0.05, 1.0, 5_000),
        (0.0, 1.0, 1_000 * active().training.greatest_growth_of_part),
        (1e-9, 1.0, 1_000 * active().training.greatest_growth_of_part),
    ],
)
def test_a_part_grows_to_where_its_noise_is_as_small_as_the_gain(gain: float, noise: float, expected: int) -> None:
    assert (
        not worthwhile(gain, noise)
        and worthwhile(active().training.gain_per_noise_to_repeat * noise, noise)
        and not worthwhile(0.0, 0.0)
    )
    assert next_part(POINTS, 1_000, gain, noise) == expected
    assert next_part(POINTS, 10_000, gain, noise) == POINTS  # more than an eighth is as well everything


def test_a_part_is_visited_while_that_gains_more_than_its_noise_and_new_points_come_first() -> None:
    part = part_of()
    assert [visit(part, f) for f in (100.0, 90.0, 89.0)] == ["go on"] * 3 and part.size == 1_000
    assert visit(part, 88.8) == "try another" and part.theta_is_fixed
    part.grow()  # no other θ is named
    assert part.size == 3_000 and part.next(POINTS) == VisitRun(0, 1_000, 3_000)
    assert visit(part, 180.0) == "go on" and part.next(POINTS) == VisitRun(0, 0, 3_000)


def test_where_the_objective_is_maximized_a_gain_is_a_rise() -> None:
    part = part_of(maximize=True)
    assert [visit(part, f) for f in (-100.0, -90.0)] == ["go on"] * 2
    assert visit(part, -89.9) == "try another"


def test_a_theta_that_proves_worse_is_given_up_and_the_part_grows() -> None:
    part = part_of()
    assert [visit(part, f) for f in (100.0, 99.9)] == ["go on", "try another"]
    assert part.theta_is_fixed and not part.update_due(enough=True)
    visits = active().training.visits_before_comparison
    assert [visit(part, f) for f in (140.0, 110.0)] == ["go on"] * (visits - 1) and not part.theta_is_fixed
    assert visit(part, 100.5) == "go back" and part.theta_is_fixed and part.size == 1_000
    assert visit(part, 99.9) == "go on"
    assert part.size == 3_000


def test_a_theta_that_proves_better_is_kept_and_another_one_is_tried() -> None:
    part = part_of()
    assert [visit(part, f) for f in (100.0, 99.9)] == ["go on", "try another"]
    assert [visit(part, f) for f in (95.0, 93.0, 92.95)] == ["go on", "go on", "try another"]
    assert part.size == 1_000
    assert [visit(part, f) for f in (92.94, 92.93, 92.92)] == ["go on"] * 3  # no more than visits would have gained
    assert part.size == pytest.approx(active().training.greatest_growth_of_part * 1_000, abs=1)


@pytest.mark.parametrize("objective", [None, float("nan")])
def test_without_an_objective_all_points_are_visited(objective: float | None) -> None:
    part = part_of()
    assert visit(part, objective) == "go on" and part.over


def test_without_noise_all_points_are_visited() -> None:
    part = part_of(noise=None)
    assert visit(part, 100.0) == "go on" and part.over


def test_parts_end_after_some_passes_however_much_they_gain() -> None:
    part, objective, visits = part_of(), 1e9, 0
    while not part.over:
        visits += part.next(POINTS).end - part.next(POINTS).start
        objective *= 0.9
        if visit(part, objective) == "try another":
            part.grow()
    assert (
        active().training.max_passes_over_parts * POINTS
        <= visits
        <= (active().training.max_passes_over_parts + active().training.largest_later_part) * POINTS
    )


def test_visits_of_a_part_count_as_one_pass_and_the_others_come_next() -> None:
    schedule = VisitSchedule(1_000)
    for _ in range(3):
        schedule.advance(VisitRun(0, 0, 200), 200, first_pass=True)
    assert schedule.unseen == 800 and schedule.pass_sum == 200
    schedule.begin()
    assert schedule.next(5_000) == VisitRun(0, 200, 1_000)
    schedule.advance(VisitRun(0, 200, 1_000), 1_000)
    schedule.begin()
    assert schedule.next(5_000) == VisitRun(0, 0, 1_000) and schedule.unseen == 0


# -- θ that is tried ---------------------------------------------------------------------------------------


def test_a_theta_that_is_tried_outlasts_a_barrier_until_an_update_is_made() -> None:
    local = LocalUpdates(np.ones(2), np.zeros(2), lambda hook, sums, old: old + 5.0 if hook == "alternative" else sums)
    local.begin([np.ones(2)])
    local.update([np.ones(2)])
    other = local.alternative()
    np.testing.assert_array_equal(local.put(other)[0], 6.0)
    local.reported([np.ones(2)])
    np.testing.assert_array_equal(local.begin([np.ones(2)])[0], 6.0)
    assert local.useful
    np.testing.assert_array_equal(local.put(local.kept)[0], 1.0)
    local.update([np.zeros(2)])
    local.reported([np.zeros(2)])
    np.testing.assert_array_equal(local.begin([np.ones(2)])[0], 1.0)


def groups(labels: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Sums of points in four groups, 20 apart, as these labels see them."""
    rng = np.random.default_rng(0)
    where = np.repeat(np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]]), 100, axis=0)
    rows = where + rng.normal(size=where.shape)
    counts = np.bincount(labels, minlength=4).astype(float)
    sums = np.stack([rows[labels == j].sum(axis=0) for j in range(4)])
    squares = np.array([(rows[labels == j] ** 2).sum() for j in range(4)])
    return rows, (sums, counts, squares)


def test_one_of_two_centroids_in_a_group_goes_to_the_cluster_that_holds_two_groups() -> None:
    labels = np.repeat([0, 2, 3, 3], 100)
    labels[:50] = 1  # the first group is cut into two, the last two are one cluster
    _, (sums, counts, squares) = groups(labels)
    centroids = sums / counts[:, None]
    moved = swapped(centroids, sums, counts, squares)
    assert moved is not None
    np.testing.assert_allclose(moved[0], sums[:2].sum(axis=0) / 100)
    np.testing.assert_array_equal(moved[2], centroids[2])
    np.testing.assert_allclose((moved[1] + moved[3]) / 2, centroids[3])
    assert np.linalg.norm(moved[1] - moved[3]) > 10


def test_clusters_that_are_right_are_left_alone() -> None:
    _, (sums, counts, squares) = groups(np.repeat([0, 1, 2, 3], 100))
    assert swapped(sums / counts[:, None], sums, counts, squares) is None
    assert swapped(sums[:2], sums[:2], counts[:2], squares[:2]) is None


def test_no_swap_while_a_cluster_is_empty() -> None:
    labels = np.repeat([0, 0, 3, 3], 100)
    labels[:50] = 1
    _, (sums, counts, squares) = groups(labels)
    assert swapped(sums, sums, counts, squares) is None


# -- a part among others -----------------------------------------------------------------------------------


def part_among_others(objectives: list[float | None], noise: float | None = 1.0, workers: int = 2) -> PartAmongOthers:
    """A part of 1,000 of 64,000 points of each worker, whose objectives under coming θ are these."""
    limits = PartLimits(POINTS, 10, 100, 1, False, lambda objective, points: noise)
    answers = iter(objectives)
    return PartAmongOthers(limits, workers, OwnStatistics(np.zeros(1), np.zeros(1), lambda *given: next(answers)))


def visit_once(part: PartAmongOthers, most: int = 300) -> list[tuple[int, int]]:
    """As many points as one θ allows, in runs of `most`."""
    found = []
    while (run := part.next(most)) is not None:
        part.advance(run, run.end)
        found.append((run.start, run.end))
    return found


def test_a_part_among_others_is_visited_once_under_each_theta() -> None:
    part = part_among_others([100.0])
    part.begin([np.zeros(1)])
    assert visit_once(part, 400) == [(0, 400), (400, 800), (800, 1_000)]
    part.begin([np.zeros(1)])
    first = part.next(POINTS)
    assert first == VisitRun(0, 0, 1_000)
    part.advance(first, 600)  # the signal came
    part.begin([np.zeros(1)])
    assert visit_once(part, POINTS) == [(600, 1_000), (0, 600)], "a round goes on where the last one ended"


def test_a_part_among_others_grows_when_a_visit_gains_less_than_its_noise_and_new_points_come_first() -> None:
    part = part_among_others([100.0, 90.0, 89.8, 180.0])
    for size in (1_000, 1_000, 1_000, 3_000):
        part.begin([np.zeros(1)])
        assert part.size == size
        run = part.next(POINTS)
        visit_once(part, POINTS)
    assert run == VisitRun(0, 1_000, 3_000)


@pytest.mark.parametrize(("objective", "noise"), [(None, 1.0), (float("nan"), 1.0), (100.0, None)])
def test_a_part_among_others_is_over_where_nothing_is_known_of_it(objective: float | None, noise: float | None) -> None:
    part = part_among_others([objective], noise)
    part.begin([np.zeros(1)])
    visit_once(part)
    part.begin([np.zeros(1)])
    assert part.over


def test_a_part_among_others_ends_after_some_passes_however_much_it_gains() -> None:
    part, visits = part_among_others([1e9 * 0.9**n for n in range(10_000)]), 0
    while not part.over:
        part.begin([np.zeros(1)])
        if not part.over:
            visits += sum(end - start for start, end in visit_once(part))
    most = active().training.max_passes_over_parts * POINTS
    assert most <= visits <= most + 1_000


def test_a_part_among_others_is_given_up_when_points_move_or_a_place_is_marked() -> None:
    part, schedule = part_among_others([]), VisitSchedule(POINTS)
    assert in_use(part, None, schedule) is part
    assert schedule.cut((0, 0), 640) is not None
    assert in_use(part, None, schedule) is None and part.over
    part = part_among_others([])
    part.begin([np.zeros(1)], in_order=False)
    assert part.over


def test_the_objective_of_own_points_is_that_of_all_reports() -> None:
    seen: list[float] = []

    def call(hook: str, sums: np.ndarray, theta: np.ndarray) -> float:
        seen.append(float(sums[0]))
        return 1.0

    own = OwnStatistics(np.zeros(1), np.zeros(1), call)
    for report in (2.0, 3.0):
        own.reported([np.array([report - 1.0])])
        own.reported([np.array([report])])  # the rest of the same round
        own.merged()
        own.merged()
        own.objective([np.zeros(1)])
    assert seen == [2.0, 5.0]
