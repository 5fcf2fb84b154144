"""Workers choose their group without flapping, on virtual time."""

from __future__ import annotations

import pytest

from bench.sites.moving_workers import simulate
from flegel.plan.group_choice import GroupLoad, choose_group


def test_a_worker_moves_only_where_its_own_move_leaves_a_gain_of_a_fifth() -> None:
    groups = {"a": GroupLoad(3.0, 3, 0.01), "b": GroupLoad(2.0, 2, 0.01)}
    assert choose_group("a", groups, 100.0)[0] == "a"  # three and two would be two and three
    groups = {"a": GroupLoad(4.0, 4, 0.01), "b": GroupLoad(1.0, 1, 0.01)}
    assert choose_group("a", groups, 100.0)[0] == "b"
    assert choose_group("a", groups, 1.0)[0] == "a"
    near = GroupLoad(1.0, 1, 0.02)  # 0.04 after the move
    assert choose_group("a", {"a": GroupLoad(4.5, 4, 0.01), "b": near}, 100.0)[0] == "a"  # 11 % less
    assert choose_group("a", {"a": GroupLoad(5.5, 4, 0.01), "b": near}, 100.0)[0] == "b"  # 27 % less
    far = {"a": GroupLoad(4.0, 4, 0.01), "b": GroupLoad(1.0, 1, 0.1)}
    assert choose_group("a", far, 100.0)[0] == "a"


def test_a_worker_whose_group_is_gone_goes_to_the_best() -> None:
    groups = {"b": GroupLoad(2.0, 2, 0.01), "c": GroupLoad(1.0, 1, 0.01)}
    assert choose_group("a", groups, 0.0)[0] == "c"


@pytest.mark.parametrize("seed", range(8))
def test_one_one_eight_becomes_even_and_stays_so_for_ten_minutes(seed: int) -> None:
    course = simulate((1, 1, 8), seed)
    assert max(course.counts) - min(course.counts) <= 2
    late = [at for at, *_ in course.moves if at > 60.0]
    assert len(course.moves) <= 8 and len(late) <= 2  # two by noise in nine minutes, at most
