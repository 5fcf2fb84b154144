"""Windows of a move one by one: doubled, late and foreign messages change nothing; sizes follow the link."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.machine.migration.endpoints import (
    AnswerSource,
    CutWindow,
    MigrationSource,
    MigrationTarget,
    ReportSent,
    SendWindow,
    StoreWindow,
)
from flegel.machine.migration.migrations import Migrations
from flegel.messages import MoveReady, MoveRefused, MoveSent, WindowArrived
from flegel.plan.balance.planner import Proposal


def giving(points: int = 8 * TILE, window: int = 2 * TILE, **more: int) -> MigrationSource:
    return MigrationSource(1, points, window, **more)


def cut_all(machine: MigrationSource, commands: list[object], now: float = 0.0) -> list[object]:
    """Do what the trainer does: cut whatever is asked for."""
    shipped: list[object] = []
    waiting = list(commands)
    while waiting:
        command = waiting.pop(0)
        if isinstance(command, CutWindow):
            waiting += machine.was_cut(command.transfer[1], command.points, now)
        else:
            shipped.append(command)
    return shipped


def test_a_window_that_is_cut_twice_is_sent_once() -> None:
    machine = giving()
    (first, *_) = machine.start()
    assert isinstance(first, CutWindow)
    assert SendWindow((1, 0)) in machine.was_cut(0, first.points, 0.0)
    assert machine.was_cut(0, first.points, 0.0) == [] and machine.windows == 1
    assert machine.was_cut(99, TILE, 0.0) == [], "nobody asked for that one"


def test_an_answer_that_comes_twice_frees_one_credit() -> None:
    machine = giving(points=100 * TILE, credits=2)
    cut_all(machine, machine.start())
    assert len(machine.answered(0, False, 1.0)) == 1
    assert machine.answered(0, False, 1.0) == []
    assert len(machine.in_flight) + len(machine.cutting) == 2


def test_a_target_that_lacks_the_points_gets_them_once() -> None:
    machine = giving()
    cut_all(machine, machine.start())
    assert machine.answered(0, True, 1.0) == [SendWindow((1, 0), full=True)]
    assert machine.answered(0, True, 1.1) == []
    assert machine.tick(100.0)[0] == SendWindow((1, 0), full=True), "lost again: again in full"


def test_the_end_is_told_once_and_after_it_nothing_is_sent() -> None:
    machine = giving(points=2 * TILE)
    cut_all(machine, machine.start())
    assert machine.answered(0, False, 1.0) == [ReportSent(1, 1)]
    assert machine.answered(0, False, 1.0) == []
    assert len(machine.close()) == 1 and machine.close() == []
    late = giving()
    late.start()
    late.close()
    assert late.was_cut(0, TILE, 0.0) == [] and late.answered(0, False, 0.0) == [] and late.tick(99.0) == []


def test_what_is_kept_is_kept_once_and_answered_as_often_as_it_comes() -> None:
    machine = MigrationTarget(1)
    assert machine.came(0, usable=False) == [AnswerSource((1, 0), lacking=True)]
    assert machine.came(0, usable=True) == [StoreWindow((1, 0)), AnswerSource((1, 0))]
    assert machine.came(0, usable=True) == [AnswerSource((1, 0))]
    assert machine.came(0, usable=False) == [AnswerSource((1, 0))], (
        "it is here; how it came the second time does not matter"
    )
    assert len(machine.close()) == 1 and machine.close() == [] and machine.came(1, usable=True) == []


def test_a_rest_below_a_tile_is_not_asked_for() -> None:
    """To look for it would call the trainer away from its kernel for nothing."""
    machine = giving(points=2 * TILE + TILE // 2, window=2 * TILE)
    assert cut_all(machine, machine.start()) == [SendWindow((1, 0))]
    assert machine.answered(0, False, 1.0) == [ReportSent(1, 1)]
    assert giving(points=TILE - 1).start() == [ReportSent(1, 0)]


def test_on_a_fast_link_few_windows_are_small() -> None:
    machine = giving(points=1000 * TILE, window=64 * TILE, first=TILE, pieces=1000)
    cut_all(machine, machine.start())
    assert [c.points for c in machine.answered(0, False, 1e-4) if isinstance(c, CutWindow)] == [
        active().moves.max_window_growth * TILE
    ]
    assert [c.points for c in machine.answered(1, False, 2e-4) if isinstance(c, CutWindow)] == [64 * TILE]


@given(bandwidth=st.floats(1e3, 1e9), delay=st.floats(0, 0.005))
def test_windows_come_to_fit_the_link(bandwidth: float, delay: float) -> None:
    """Whatever the points a second of the link: a window is under way for about AIM, or is the largest or smallest."""
    machine = MigrationSource(1, 10**9, window=10**6 // TILE * TILE, first=1024, pieces=10**9)
    now, free, line = 0.0, 0.0, []

    def send(commands: list[object]) -> None:
        nonlocal free
        for ship in cut_all(machine, commands, now):
            assert isinstance(ship, SendWindow)
            number = ship.transfer[1]
            free = max(free, now) + machine.in_flight[number].points / bandwidth
            line.append((free + delay, number))

    send(machine.start())  # type: ignore[arg-type]
    for _ in range(80):
        now, number = line.pop(0)
        send(machine.answered(number, False, now))  # type: ignore[arg-type]
    takes = machine.size / bandwidth
    largest, smallest = machine.size == machine.window, machine.size == TILE
    assert (
        largest
        or smallest
        or active().moves.window_transfer_seconds / 4 <= takes <= 2 * active().moves.window_transfer_seconds
    )


def test_a_slow_link_does_not_grind_a_move_to_crumbs() -> None:
    machine = giving(points=6400 * TILE, window=400 * TILE)
    flying = cut_all(machine, machine.start())
    now = 0.0
    while flying and machine.windows < 6400:
        ship = flying.pop(0)
        assert isinstance(ship, SendWindow)
        now += 60.0
        more = cut_all(machine, machine.answered(ship.transfer[1], False, now), now)  # type: ignore[arg-type]
        flying += [command for command in more if isinstance(command, SendWindow)]
    assert (
        machine.phase == "sent"
        and machine.size == 100 * TILE
        and machine.windows <= active().moves.max_windows_per_move + 4
    )


def test_a_window_that_waits_for_its_turn_is_not_sent_again() -> None:
    machine = giving(points=100 * TILE)
    cut_all(machine, machine.start())
    machine.answered(0, False, 1.9)
    assert machine.tick(2.1) == [] and machine.due() is not None and machine.due() > 2.1  # type: ignore[operator]
    assert machine.tick(2.1 + machine.patience)


# -- the coordinator's book --------------------------------------------------------------------------------


def book() -> Migrations:
    moves = Migrations()
    moves.begin(Proposal(0, 1, 4 * TILE, "test"), 0.0)
    moves.answer(1, MoveReady(0, "there"), 0.0)
    return moves


def test_what_is_said_twice_counts_once() -> None:
    moves = Migrations()
    moves.begin(Proposal(0, 1, 4 * TILE, "test"), 0.0)
    assert len(moves.answer(1, MoveReady(0, "there"), 0.0)) == 1
    assert moves.answer(1, MoveReady(0, "there"), 0.0) == [], "two orders to give would send everything twice"
    arrived = WindowArrived(0, 0, 2 * TILE, 1, 0, 100)
    for _ in range(2):
        moves.answer(1, arrived, 1.0)
    assert moves.bytes == 100
    changes, orders = moves.settle({0, 1}, 2.0)
    assert len(changes) == 1 and orders[0].given == ((0, 0),) and orders[1].taken == ((0, 0),)
    moves.answer(1, arrived, 3.0)
    assert moves.settle({0, 1}, 3.0) == ([], {}) and moves.points == 2 * TILE and moves.bytes == 100


def test_a_move_is_over_when_every_window_has_changed_hands_and_then_nothing_more_counts() -> None:
    moves = book()
    moves.answer(0, MoveSent(0, 1), 1.0)
    assert moves.settle({0, 1}, 1.0) == ([], {})
    moves.answer(1, WindowArrived(0, 0, 2 * TILE, 1, 0, 100), 2.0)
    assert moves.settle({0}, 2.0) == ([], {}), "only one of the two has committed"
    _, orders = moves.settle({0, 1}, 3.0)
    assert orders[0].closed == orders[1].closed == (0,) and not moves.open
    moves.answer(1, WindowArrived(0, 1, 2 * TILE, 1, 0, 100), 4.0)
    assert moves.settle({0, 1}, 4.0) == ([], {}) and moves.points == 2 * TILE
    assert moves.cost.lag == 3.0


def test_only_the_two_of_a_move_have_a_say_in_it() -> None:
    moves = book()
    for worker in (0, 2):
        moves.answer(worker, WindowArrived(0, 0, TILE, 1, 0, 1), 1.0)
    moves.answer(1, MoveSent(0, 1), 1.0)
    moves.answer(2, MoveRefused(0, "not mine"), 1.0)
    assert moves.open[0].waiting == {} and moves.open[0].windows is None


def test_a_refusal_that_comes_twice_cancels_once() -> None:
    moves = book()
    assert len(moves.answer(1, MoveRefused(0, "no room"), 1.0)) == 2
    assert moves.answer(1, MoveRefused(0, "no room"), 1.0) == [] and len(moves.notes) == 1
    assert moves.cancel(0, "again") == []
