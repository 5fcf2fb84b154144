"""Which rank is slow, and where: from records of windows, without PyTorch."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from flegel.errors import UsageError
from flegel.report.rank_page import html_of, prometheus_of, text_of, verdict
from flegel.report.rank_sections import RankWindow, change_points, examine, read_watch

USUAL = {"data": 0.2, "forward": 1.0, "backward": 2.0, "exchange": 0.5, "step": 0.3, "host": 0.5}


def windows(slow: dict[str, float] | None = None, since: int = 0, many: int = 20, seed: int = 0) -> list[RankWindow]:
    """Of 10 iterations, 1 % of noise; some sections take so many times as long from a window on."""
    draw, found = random.Random(seed), []
    for window in range(100, 100 + many):
        factor = slow if slow and window - 100 >= since else {}
        times = {s: v * factor.get(s, 1.0) * draw.uniform(0.99, 1.01) for s, v in USUAL.items()}
        found.append(RankWindow(window, 10, times))
    return found


def test_equal_ranks_are_not_called_slow() -> None:
    report = examine(5.0, {rank: windows(seed=rank) for rank in range(4)})
    assert report.slowest() is None and "No rank is slow" in verdict(report)
    assert all(one.relative["all"] == one.history["all"] == 1.0 and not one.changes for one in report.ranks.values())


def test_a_slow_rank_for_which_nobody_waits_is_said_to_have_cost_nothing() -> None:
    """As with flexible barriers: others make more micro-batches meanwhile."""
    ranks = {0: windows(), 1: windows({"forward": 4.0})}
    ranks = {
        rank: [RankWindow(w.window, w.iterations, {**w.seconds, "exchange": 0.5}) for w in own]
        for rank, own in ranks.items()
    }
    told = verdict(examine(5.0, ranks))
    assert "Rank 1 is slow" in told and "but no time was lost by waiting." in told and "0.0 s" not in told


def test_a_slow_loader_is_found_with_its_beginning_and_its_cost() -> None:
    ranks = {rank: windows(seed=rank) for rank in range(3)}
    ranks[3] = windows({"data": 20.0, "exchange": 0.1}, since=12, seed=3)
    for rank in range(3):  # the others wait for it
        ranks[rank] = [
            RankWindow(w.window, w.iterations, {**w.seconds, "exchange": 4.3 if w.window >= 112 else 0.5})
            for w in ranks[rank]
        ]
    report = examine(5.0, ranks)
    assert report.slowest() == (3, "data")
    slow = report.ranks[3]
    assert slow.relative["all"] == pytest.approx(4.0 / 7.8, abs=0.05) and slow.relative["data"] < 0.1
    assert slow.relative["forward"] == 1.0
    assert slow.history["data"] < 0.1, "beside its own past"
    assert [window for window, _, _ in slow.changes] == [112]
    assert slow.caused == pytest.approx(3 * 8 * 4.25, rel=0.02) and slow.waited < 1.0
    assert "Rank 3 is slow" in verdict(report) and "data" in verdict(report)
    page, text, metrics = html_of(report), text_of(report), prometheus_of(report)
    assert "Rank 3 is slow" in page and "<svg" in page and "rank  " in text
    assert 'flegel_ddp_score{rank="3",section="all"} 0.5' in metrics


def test_a_small_section_that_doubles_is_noise() -> None:
    ranks = {rank: windows(seed=rank) for rank in range(3)}
    ranks[0] = windows({"data": 1.3}, seed=5)  # 0.006 s of 0.4
    assert examine(5.0, ranks).ranks[0].relative["data"] == 1.0


def test_changes_of_level_and_none_in_noise() -> None:
    draw = random.Random(1)
    level = [1.0] * 20 + [1.6] * 15 + [1.0] * 10
    assert change_points([v * draw.uniform(0.97, 1.03) for v in level]) == [20, 35]
    false = sum(bool(change_points([draw.gauss(1.0, 0.05) for _ in range(30)])) for _ in range(300))
    assert false <= 6
    assert change_points([1.0, 2.0]) == []


def test_records_are_read_and_damaged_lines_left_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"flegel.torch.watch"):
        read_watch(tmp_path)
    line = {"window": 7, "every": 5.0, "iterations": 3, "seconds": USUAL}
    (tmp_path / "rank-0.jsonl").write_text(json.dumps(line) + '\n{"window": 8, "ev')
    every, found, ranks = read_watch(tmp_path)
    assert every == 5.0 and [one.window for one in found[0]] == [7] and ranks == 0


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe\x00garbage\n",
        b"[1, 2]\n3\nnull\n",
        b'{"window": 8, "every": 5.0, "iterations": 3, "seconds": {"data": null}}\n',
        b'{"window": Infinity, "every": 5.0, "iterations": 3, "seconds": {}}\n',
        b'{"window": 8, "every": 5.0, "iterations": 3, "seconds": {"data": NaN}}\n',
        b'{"window": 8, "every": 0, "iterations": 3, "seconds": {}}\n',
        b'{"window": 8, "every": 5.0, "iterations": 0, "seconds": {}}\n',
        b'{"window": 8, "every": 5.0, "iterations": 3, "seconds": 4}\n',
    ],
)
def test_whatever_else_is_in_a_file_is_left_out(tmp_path: Path, damage: bytes) -> None:
    line = json.dumps({"window": 7, "every": 5.0, "ranks": 2, "iterations": 3, "seconds": USUAL})
    (tmp_path / "rank-0.jsonl").write_bytes(damage + line.encode() + b"\n" + damage)
    (tmp_path / "rank-x.jsonl").write_text(line)
    (tmp_path / "rank-1.jsonl").mkdir()
    report = examine(*read_watch(tmp_path))
    assert list(report.ranks) == [0] and len(report.windows[0]) == 1
    assert "no record of rank 1" in verdict(report)
    assert "<svg" in html_of(report) and text_of(report) and prometheus_of(report)
    (tmp_path / "rank-0.jsonl").write_bytes(damage)
    with pytest.raises(UsageError, match="no whole window"):
        read_watch(tmp_path)


def test_a_rank_that_ended_is_named_and_does_not_hide_who_is_slow() -> None:
    ranks = {rank: windows(seed=rank) for rank in range(3)}
    ranks[1] = ranks[1][:12]
    ranks[2] = windows({"forward": 5.0}, seed=2)
    report = examine(5.0, ranks, 5)
    assert report.slowest() == (2, "forward")
    told = verdict(report)
    assert "Rank 1 has written nothing for 40 s" in told and "no record of rank 3, 4" in told


def test_two_slow_ranks_are_both_named_and_when_it_began() -> None:
    ranks = {rank: windows(seed=rank) for rank in range(4)}
    ranks[1] = windows({"data": 30.0}, since=10, seed=5)
    ranks[3] = windows({"forward": 3.0}, seed=6)
    told = verdict(examine(5.0, ranks))
    assert "Rank 1 is slow" in told and "mostly in data" in told and "since 50 s after the beginning" in told
    assert "Slow in one section: rank 3 in forward (0.3" in told


@pytest.mark.parametrize("many", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_one_of_sixty_four_ranks_becomes_slow_half_way(many: int) -> None:
    ranks = {
        rank: windows({"backward": 4.0} if rank == 41 else None, since=many // 2, many=many, seed=rank)
        for rank in range(64)
    }
    report = examine(5.0, ranks, 64)
    assert report.slowest() == (41, "backward")
    assert [window for window, _, _ in report.ranks[41].changes] == [100 + many // 2]
    assert sum(bool(one.changes) for one in report.ranks.values()) <= 3, "noise is seldom called a change"
    assert len(text_of(report).splitlines()) == 64 + 3
    assert html_of(report).count("<tr>") > 128 and 'rank="63"' in prometheus_of(report)
