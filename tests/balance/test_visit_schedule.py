"""The schedule: plain data go round robin; moved data lose and gain no pass; nothing is trained twice under one θ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flegel.core.shard import TILE
from flegel.machine.worker.visit_schedule import VisitRun, VisitSchedule


def train(schedule: VisitSchedule, budget: int) -> list[tuple[int, int, int]]:
    """One round: begin, then run until the budget or the data are used up."""
    schedule.begin()
    visited = []
    while budget > 0 and (run := schedule.next(budget)):
        visited.append((run.shard, run.start, run.end))
        schedule.advance(run, run.end)
        budget -= run.end - run.start
    return visited


@given(st.integers(1, 2_000), st.lists(st.integers(1, 3_000), max_size=20))
def test_data_that_never_move_go_round_robin(points: int, budgets: list[int]) -> None:
    schedule, cursor, visits = VisitSchedule(points), 0, 0
    for budget in budgets:
        for _, start, end in train(schedule, budget):
            assert start == cursor
            visits += end - start
            cursor = end % points
        assert schedule.pass_sum == visits
        assert schedule.unseen == max(points - visits, 0)
        assert len(schedule.segments) <= 3


@given(st.integers(1, 500), st.lists(st.integers(0, 400), max_size=30))
def test_a_stop_anywhere_is_resumed_there(points: int, stops: list[int]) -> None:
    schedule, cursor = VisitSchedule(points), 0
    for stop in stops:
        schedule.begin()
        run = schedule.next(points)
        assert run is not None and run.start == cursor
        reached = min(run.start + stop, run.end)
        schedule.advance(run, reached)
        cursor = reached % points
    assert sum(s.points for s in schedule.segments) == points


def test_runs_end_on_the_grid_where_one_lies_within_reach() -> None:
    schedule = VisitSchedule(1000)
    ends = []
    for most in (300, 300, 10, 400, 400):
        run = schedule.next(most, grid=256)
        assert run is not None
        ends.append(run.end)
        schedule.advance(run, run.end)
    assert ends == [256, 512, 522, 768, 1000]


def test_no_point_is_visited_twice_under_one_parameter() -> None:
    schedule = VisitSchedule(100)
    train(schedule, 60)
    assert train(schedule, 1000) == [(0, 60, 100), (0, 0, 60)]


def test_windows_are_cut_backwards_from_the_cursor() -> None:
    schedule = VisitSchedule(20 * TILE)
    train(schedule, 10 * TILE)
    first, second = schedule.cut((1, 0), 2 * TILE), schedule.cut((1, 1), 2 * TILE)
    assert first is not None and (first.start, first.end) == (8 * TILE, 10 * TILE)
    assert second is not None and (second.start, second.end) == (6 * TILE, 8 * TILE)
    assert train(schedule, 20 * TILE) == [(0, 10 * TILE, 20 * TILE), (0, 0, 6 * TILE)]


def test_before_the_first_point_the_window_wraps_to_the_end() -> None:
    schedule = VisitSchedule(10 * TILE + 5)
    window = schedule.cut((1, 0), TILE)
    assert window is not None and (window.start, window.end) == (9 * TILE, 10 * TILE)


def test_windows_are_filled_although_a_pass_has_just_begun() -> None:
    """A few tiles were trained just now; each would be a window, as soon as it is trained. What comes last of the rest
    fills one, but nothing that is further behind: that is trained next."""
    schedule = VisitSchedule(20 * TILE)
    train(schedule, 22 * TILE)
    train(schedule, 2 * TILE)
    window = schedule.cut((0, 0), 6 * TILE)
    assert window is not None and (window.start, window.end) == (14 * TILE, 20 * TILE)
    behind = VisitSchedule(4 * TILE)
    train(behind, 4 * TILE)
    train(behind, 4 * TILE)
    behind.admit((9, 0), 1, 12 * TILE, 0)
    window = behind.cut((0, 0), 8 * TILE)
    assert window is not None and (window.shard, window.points) == (0, 4 * TILE)


def test_arrivals_are_trained_first_until_they_have_caught_up() -> None:
    schedule = VisitSchedule(4 * TILE)
    for _ in range(3):
        train(schedule, 4 * TILE)
    schedule.admit((9, 0), shard=1, points=TILE, passes=1)
    assert train(schedule, 2 * TILE) == [(1, 0, TILE), (0, 0, TILE)]
    assert train(schedule, 2 * TILE) == [(1, 0, TILE), (0, TILE, 2 * TILE)]
    assert train(schedule, 2 * TILE) == [(0, 2 * TILE, 4 * TILE)]  # now native: it waits for its turn
    assert train(schedule, 2 * TILE) == [(1, 0, TILE), (0, 0, TILE)]


def test_arrivals_that_are_ahead_wait_for_the_natives() -> None:
    schedule = VisitSchedule(2 * TILE)
    schedule.admit((9, 0), shard=1, points=TILE, passes=2)
    for _ in range(2):
        assert train(schedule, 2 * TILE) == [(0, 0, 2 * TILE)]
    assert train(schedule, 9 * TILE) == [(0, 0, 2 * TILE), (1, 0, TILE)]


def test_a_cancelled_window_is_trained_again() -> None:
    schedule = VisitSchedule(4 * TILE)
    schedule.cut((1, 0), TILE)
    schedule.unlock(1)
    assert train(schedule, 9 * TILE) == [(0, 0, 4 * TILE)]
    assert len(schedule.segments) == 1


def test_only_the_window_under_way_is_locked() -> None:
    schedule = VisitSchedule(4 * TILE)
    schedule.cut((1, 0), TILE)
    assert train(schedule, 9 * TILE) == [(0, 0, 3 * TILE)]
    schedule.unlock(1)
    assert train(schedule, 9 * TILE) == [(0, 3 * TILE, 4 * TILE), (0, 0, 3 * TILE)]


def test_parcels_that_the_target_knows_go_first_and_whole() -> None:
    schedule = VisitSchedule(8 * TILE)
    train(schedule, 8 * TILE)
    schedule.admit((7, 3), shard=1, points=2 * TILE, passes=0)
    window = schedule.cut((8, 0), 2 * TILE, cheap={(7, 3)})
    assert window is not None and window.block == (7, 3) and window.points == 2 * TILE
    schedule.retire((8, 0))
    assert schedule.owned == 8 * TILE
    assert schedule.revive((7, 3), passes=5).passes == 5
    assert schedule.pass_sum == 8 * TILE + 10 * TILE


def test_a_parcel_that_is_too_large_to_go_back_whole_keeps_nobody_from_giving() -> None:
    """Half of all points came in one block; a small part of them is asked back, again and again."""
    schedule = VisitSchedule(8 * TILE)
    schedule.admit((7, 0), shard=1, points=8 * TILE, passes=0)
    for number in range(7):
        window = schedule.cut((8, number), TILE, cheap={(7, 0)})
        assert window is not None and (window.shard, window.points, window.block) == (0, TILE, None)
    schedule.retire((8, 6))
    assert schedule.owned == 15 * TILE


def test_where_there_is_nothing_else_a_large_parcel_is_divided() -> None:
    schedule = VisitSchedule(0)
    schedule.admit((7, 0), shard=1, points=8 * TILE, passes=3)
    run = VisitRun(1, 0, 3 * TILE)
    schedule.begin()
    schedule.advance(run, run.end)  # stopped at half: two segments, one block
    window = schedule.cut((8, 0), 2 * TILE, cheap={(7, 0)})
    assert window is not None and window.points == 2 * TILE and window.block is None
    assert {s.block for s in schedule.segments} == {None}, "nobody has a copy of what is left"
    schedule.retire((8, 0))
    assert (schedule.owned, schedule.copy_of((7, 0))) == (6 * TILE, None)
    assert schedule.copy_of((8, 0)) is not None


def test_points_of_which_the_target_has_a_copy_are_waited_for() -> None:
    schedule = VisitSchedule(8 * TILE)
    schedule.admit((7, 0), shard=1, points=2 * TILE, passes=0)
    run = VisitRun(1, 0, TILE)
    schedule.begin()
    schedule.advance(run, run.end)
    assert schedule.cut((8, 0), 2 * TILE, cheap={(7, 0)}) is None
    assert schedule.cut((9, 0), 6 * TILE, cheap={(7, 0)}) is not None, "too few of them to wait for"


def test_points_that_come_again_by_another_name_bury_the_copy() -> None:
    """Memory that was lent is mapped at the same place again: an active run must not overlap an inactive one."""
    schedule = VisitSchedule(2 * TILE)
    schedule.admit((7, 0), shard=1, points=4 * TILE, passes=1, start=5 * TILE)
    schedule.cut((8, 0), 4 * TILE, cheap={(7, 0)})
    schedule.retire((8, 0))
    assert schedule.bury(1, 3 * TILE, 7 * TILE) == [(7, 0)]
    schedule.admit((9, 0), shard=1, points=4 * TILE, passes=2, start=3 * TILE)
    assert schedule.copy_of((7, 0)) is None, "two of its tiles are gone"
    spans = [(s.start // TILE, s.end // TILE, s.status) for s in schedule.segments if s.shard == 1]
    assert spans == [(3, 7, "active"), (7, 9, "away")]
    assert train(schedule, 5 * TILE) == [(0, 0, 2 * TILE), (1, 3 * TILE, 6 * TILE)]
    assert train(schedule, 9 * TILE)[-1] == (1, 3 * TILE, 6 * TILE) and schedule.owned == 6 * TILE


def test_something_always_stays() -> None:
    schedule = VisitSchedule(3 * TILE)
    for number in range(5):
        schedule.cut((1, number), 2 * TILE)
    assert schedule.active >= TILE


operations = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 12 * TILE)),
        st.tuples(st.just("stop"), st.integers(0, 5 * TILE)),
        st.tuples(st.just("disturb"), st.integers(1, 6 * TILE)),
        st.tuples(st.just("cut"), st.integers(1, 4 * TILE)),
        st.tuples(st.just("unlock"), st.integers(0, 9)),
        st.tuples(st.just("retire"), st.integers(0, 9)),
        st.tuples(st.just("revive"), st.integers(0, 9)),
        st.tuples(st.just("admit"), st.integers(1, 4)),
    ),
    max_size=60,
)


@given(st.integers(TILE, 10 * TILE + 7), operations)
def test_whatever_happens_points_and_passes_are_kept(points: int, script: list[tuple[str, int]]) -> None:
    """Each point has one segment; a model that counts passes point by point agrees."""
    schedule = VisitSchedule(points)
    count = {(0, i): 0 for i in range(points)}
    flying: dict[tuple[int, int], list[tuple[int, int]]] = {}
    away: dict[tuple[int, int], list[tuple[int, int]]] = {}
    shards, moves = 1, 0

    def visit(run: VisitRun, reached: int) -> None:
        hidden = {key for keys in (*flying.values(), *away.values()) for key in keys}
        waiting = [(p, *key) for key, p in count.items() if key not in hidden and key not in seen]
        assert min(waiting)[1:] == (run.shard, run.start), "fewest passes first, equal ones in their order"
        schedule.advance(run, reached)
        for i in range(run.start, reached):
            assert (run.shard, i) not in seen
            seen.add((run.shard, i))
            count[(run.shard, i)] += 1

    for what, n in script:
        if what in ("train", "stop"):
            seen: set[tuple[int, int]] = set()
            schedule.begin()
            left = n
            while left > 0 and (run := schedule.next(left)):
                reached = run.end if what == "train" else min(run.end, run.start + left)
                visit(run, reached)
                left -= reached - run.start
        elif what == "disturb":  # in the middle of a round one move begins and another is called off
            seen = set()
            schedule.begin()
            for step in range(4):
                if run := schedule.next(n):
                    visit(run, run.start + -(-(run.end - run.start) // 2))
                if step == 1 and (window := schedule.cut((moves, 0), n)):
                    flying[(moves, 0)] = [(window.shard, i) for i in range(window.start, window.end)]
                if step == 2 and flying:
                    schedule.unlock(min(flying)[0])
                    del flying[min(flying)]
            moves += 1
        elif what == "cut":
            window = schedule.cut((moves, 0), n)
            if window:
                flying[(moves, 0)] = [(window.shard, i) for i in range(window.start, window.end)]
                assert window.points % TILE == 0 or window.block
            moves += 1
        elif what == "unlock" and flying:
            move = sorted(flying)[n % len(flying)]
            schedule.unlock(move[0])
            del flying[move]
        elif what == "retire" and flying:
            move = sorted(flying)[n % len(flying)]
            block = schedule.retire(move).block
            assert block is not None
            away[block] = flying.pop(move)
        elif what == "revive" and away:
            block = sorted(away)[n % len(away)]
            for key in away.pop(block):
                count[key] = n
            schedule.revive(block, n)
        elif what == "admit":
            schedule.admit((1000 + moves, 0), shards, n * TILE, n)
            count.update({(shards, i): n for i in range(n * TILE)})
            shards, moves = shards + 1, moves + 1
        gone = {key for keys in away.values() for key in keys}
        mine = {key: p for key, p in count.items() if key not in gone}
        assert schedule.owned == len(mine)
        assert schedule.pass_sum == sum(mine.values())
        assert schedule.unseen == sum(p == 0 for p in mine.values())
        assert schedule.active == len(mine) - sum(map(len, flying.values()))
        covered = sorted((s.shard, s.start, s.end) for s in schedule.segments)
        for one, two in itertools.pairwise(covered):
            assert one[0] < two[0] or one[2] == two[1]


class Counted(list[Any]):
    """Says how often it was gone through."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()


def test_the_work_of_a_cut_grows_with_the_number_of_parcels_not_with_its_square() -> None:
    schedule = VisitSchedule(TILE)
    for n in range(200):
        schedule.admit((n, 0), 1, TILE, n % 3, start=n * TILE)
    schedule.segments = segments = Counted(schedule.segments)
    assert schedule.cut((999, 0), 5 * TILE) is not None
    assert segments.looks < 10


def test_a_parcel_that_is_cut_in_the_middle_of_a_round_is_not_trained() -> None:
    schedule = VisitSchedule(4 * TILE)
    schedule.admit((7, 0), 1, 2 * TILE, 3)
    schedule.begin()
    first = schedule.next(4 * TILE)
    assert first is not None and first.shard == 0
    window = schedule.cut((9, 0), 2 * TILE, cheap={(7, 0)})
    assert window is not None and window.block == (7, 0)
    schedule.advance(first, first.end)
    assert schedule.next(4 * TILE) is None
    schedule.unlock(9)
    assert schedule.next(4 * TILE) == VisitRun(1, 0, 2 * TILE)


def test_visits_of_points_that_are_behind_are_counted_apart() -> None:
    schedule = VisitSchedule(100)

    def train(points: int) -> None:
        schedule.begin()
        while points > 0 and (run := schedule.next(points)) is not None:
            schedule.advance(run, run.end)
            points -= run.end - run.start

    for _ in range(20):
        train(50)
    assert (schedule.pass_sum, schedule.caught_up) == (1000, 0), "without moves every visit is in turn"
    schedule.admit((0, 0), 1, 64, passes=4)
    for _ in range(5):
        train(64)
    assert schedule.caught_up == 5 * 64, "the points that came are visited alone, from 4 to 9 passes"
    train(64)
    train(100)
    assert schedule.caught_up == 5 * 64
    assert min(s.passes for s in schedule.segments) == 10


def test_points_that_are_behind_belong_to_a_pass_that_visits_all() -> None:
    """Under bsp every point is visited once under each θ, so that points that fell behind on their way stay behind."""
    schedule = VisitSchedule(100)
    schedule.resume([(60, 7), (40, 4)])
    for _ in range(3):
        schedule.begin()
        before = schedule.caught_up
        while (run := schedule.next(30)) is not None:
            schedule.advance(run, run.end)
        assert schedule.end_order() - before == 0


def test_points_that_are_behind_alone_make_no_pass() -> None:
    schedule = VisitSchedule(100)
    schedule.resume([(60, 7), (40, 4)])
    schedule.begin()
    run = schedule.next(40)
    assert run is not None and run.start == 60
    schedule.advance(run, run.end)
    assert schedule.end_order() == 40
