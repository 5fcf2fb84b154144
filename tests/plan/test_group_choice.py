"""Workers choose their group without flapping, on virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.plan.group_choice import GroupLoad, choose_group


def test_a_worker_moves_only_where_its_own_move_leaves_a_gain_of_a_fifth() -> None:
    groups = {"a": GroupLoad(3.0, 3, 0.01), "b": GroupLoad(2.0, 2, 0.01)}
    assert choose_group("a", groups, 100.0)[0] == "a"  # three and two would be two and three
    groups = {"a": GroupLoad(4.0, 4, 0.01), "b": GroupLoad(1.0, 1, 0.01)}
    assert choose_group("a", groups, 100.0)[0] == "b"
    assert choose_group("a", groups, 1.0)[0] == "a"
    far = {"a": GroupLoad(4.0, 4, 0.01), "b": GroupLoad(1.0, 1, 0.1)}
    assert choose_group("a", far, 100.0)[0] == "a"


def test_a_worker_whose_group_is_gone_goes_to_the_best() -> None:
    groups = {"b": GroupLoad(2.0, 2, 0.01), "c": GroupLoad(1.0, 1, 0.01)}
    assert choose_group("a", groups, 0.0)[0] == "c"


@pytest.mark.parametrize("seed", range(8))
def test_one_one_eight_becomes_even_and_stays_so_for_ten_minutes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    belongs = ["a", "b", *["c"] * 8]
    moved_at = [-100.0] * 10
    moves: list[float] = []
    looks = sorted((float(at + 30.0 * n), w) for w, at in enumerate(30.0 * rng.random(10)) for n in range(20))
    told: dict[str, int] = {}
    told_at = -10.0
    for now, worker in looks:
        if now - told_at >= 1.0:  # loads travel with beats
            told, told_at = {name: belongs.count(name) for name in "abc"}, now
        noise = 1.0 + 0.05 * rng.normal(size=3)
        groups = {n: GroupLoad(told[n] * noise[i], told[n], 0.01 * (1.0 + 0.1 * i)) for i, n in enumerate("abc")}
        chosen, _ = choose_group(belongs[worker], groups, now - moved_at[worker])
        if chosen != belongs[worker]:
            belongs[worker], moved_at[worker] = chosen, now
            moves.append(now)
    counts = [belongs.count(name) for name in "abc"]
    assert max(counts) - min(counts) <= 2
    assert len(moves) <= 8 and sum(at > 60.0 for at in moves) <= 2  # two by noise in nine minutes, at most
