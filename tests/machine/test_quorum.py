"""How many contributions end a round of groups, how long it waits for more, and what a late contribution becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flegel.errors import UsageError
from flegel.machine.group.overview import overview, told
from flegel.machine.group.own_contribution import OwnContribution
from flegel.machine.group.quorum import GraceWindow, Quorum, arrival_probability, parse_grace, parse_quorum
from flegel.machine.group.records import Entry, MemberBeat, RoundResult
from flegel.machine.group.schedule import Every, SendSchedule


@pytest.mark.parametrize(
    ("text", "quorum"),
    [
        ("2", Quorum(count=2)),
        ("60%", Quorum(share=0.6)),
        ("0.6", Quorum(share=0.6)),
        ("all", Quorum()),
        ("", Quorum()),
        ("100%", Quorum(share=1.0)),
    ],
)
def test_a_quorum_is_a_number_or_a_share(text: str, quorum: Quorum) -> None:
    assert parse_quorum(text) == quorum


@pytest.mark.parametrize("text", ["0", "-1", "120%", "1.5", "most", "nan"])
def test_what_is_no_quorum_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="give a number of groups such as 2, a share such as 60%, or all"):
        parse_quorum(text)


def test_grace_is_fixed_or_found() -> None:
    assert parse_grace("auto") is None
    assert (parse_grace("2.5s"), parse_grace("0")) == (2.5, 0.0)
    with pytest.raises(UsageError, match="no duration"):
        parse_grace("soon")


def test_a_quorum_counts_groups_that_are_expected_and_not_those_that_left() -> None:
    assert Quorum(count=2).needed(known=1, expected=1, left=0) == 2
    assert Quorum(count=2).needed(known=3, expected=3, left=2) == 1
    assert Quorum(share=0.6).needed(known=1, expected=3, left=0) == 2
    assert Quorum(share=0.6).needed(known=5, expected=3, left=0) == 3
    assert Quorum(share=0.5).needed(known=4, expected=4, left=2) == 1


def test_a_round_never_ends_before_its_quorum() -> None:
    grace = GraceWindow(0.0, 1.0)
    grace.opened(0.0)
    assert not grace.decide(1, 2, ["c"], 1e6).ends
    assert grace.decide(2, 2, ["c"], 1e6).ends


def test_a_fixed_grace_begins_with_the_quorum() -> None:
    grace = GraceWindow(3.0, 1.0)
    grace.opened(0.0)
    assert not grace.decide(1, 2, ["c"], 5.0).ends
    waits = grace.decide(2, 2, ["c"], 6.0)
    assert not waits.ends and waits.look_at == 9.0
    assert grace.decide(2, 2, ["c"], 9.0).ends
    assert grace.decide(3, 2, [], 7.0).ends  # all are there


def play(grace: GraceWindow, arrivals: dict[str, float], at: float, cost: float = 0.0) -> float:
    """A round in which groups arrive so many seconds after its opening, with a quorum of two; how long it took."""
    grace.opened(at)
    now, step = 0.0, 0.01
    while True:
        there = [g for g, t in arrivals.items() if t <= now]
        for g in there:
            grace.arrived(g, 1.0, at + now)
        late = [g for g in arrivals if g not in there]
        if grace.decide(len(there), 2, late, at + now).ends:
            grace.closed(list(arrivals), at + now + cost)
            return now
        now += step


def test_a_round_waits_for_a_group_that_comes_soon_and_not_for_one_that_comes_late() -> None:
    grace, at = GraceWindow(None, 0.1), 0.0
    for _ in range(8):  # all three together, so that arrivals are learned
        grace.opened(at)
        for group, offset in (("a", 1.0), ("b", 1.0), ("c", 1.2)):
            grace.arrived(group, 1.0, at + offset)
        at += 2.0
    assert play(grace, {"a": 1.0, "b": 1.0, "c": 1.2}, at) == pytest.approx(1.2, abs=0.02)
    slow, at = GraceWindow(None, 0.1), 0.0
    for _ in range(8):
        slow.opened(at)
        for group, offset in (("a", 1.0), ("b", 1.0), ("c", 9.0)):
            slow.arrived(group, 1.0, at + offset)
        at += 10.0
    assert play(slow, {"a": 1.0, "b": 1.0, "c": 9.0}, at) == pytest.approx(1.0, abs=0.02)


def test_a_group_with_many_visits_is_worth_a_longer_wait() -> None:
    def ends_at_once(weight: float) -> bool:
        grace, at = GraceWindow(None, 0.1), 0.0
        for _ in range(8):
            grace.opened(at)
            for group, offset, w in (("a", 1.0, 1.0), ("b", 1.0, 1.0), ("c", 3.0, weight)):
                grace.arrived(group, w, at + offset)
            at += 4.0
        grace.opened(at)
        grace.arrived("a", 1.0, at + 1.0)
        grace.arrived("b", 1.0, at + 1.0)
        return grace.decide(2, 2, ["c"], at + 1.0).ends

    assert ends_at_once(1.0) and not ends_at_once(50.0)


def test_a_group_that_does_not_come_as_it_used_to_is_not_waited_for_long() -> None:
    grace, at = GraceWindow(None, 0.1), 0.0
    for _ in range(8):
        grace.opened(at)
        for group, offset in (("a", 1.0), ("b", 1.0), ("c", 1.2)):
            grace.arrived(group, 1.0, at + offset)
        at += 2.0
    took = [play(grace, {"a": 1.0, "b": 1.0, "c": 1e9}, at + 2.0 * n) for n in range(40)]
    assert max(took) < 1.3 and took[-1] == pytest.approx(1.0, abs=0.02)


def test_rounds_that_ended_without_a_group_are_no_arrivals() -> None:
    seen = [(1.0, True), (2.0, False), (3.0, True), (3.0, False)]
    found = arrival_probability(seen, 0.0, np.array([0.5, 1.0, 2.5, 3.0]))
    np.testing.assert_allclose(found, [0.0, 0.25, 0.25, 0.625])
    np.testing.assert_allclose(arrival_probability(seen, 3.0, np.array([4.0])), [0.0])
    np.testing.assert_allclose(arrival_probability(seen, 1.5, np.array([3.0])), [0.5])


def entry(round_: int) -> Entry:
    return Entry("paris", 4, f"rounds/{round_}/paris.4", "digest", round_)


def test_a_change_that_is_late_is_pending_until_a_result_counts_it() -> None:
    own = OwnContribution(replaces=False)
    assert own.takes(1)
    own.offer(entry(1), b"x", 1.0)
    own.was_stored()
    assert own.told == entry(1) and not own.takes(2)
    assert not own.counted(0, 0) and own.told == entry(1)
    assert own.counted(4, 1) and own.told is None and own.takes(3)


def test_newer_statistics_replace_those_that_are_late_once_they_are_written() -> None:
    own = OwnContribution(replaces=True)
    own.offer(entry(1), b"x", 1.0)
    assert not own.takes(2)  # a slow link must bring one to its end
    own.was_stored()
    assert own.takes(2) and not own.takes(1)
    own.offer(entry(2), b"y", 1.0)
    assert own.told == entry(1)
    assert own.counted(4, 1) and own.told is None and own.entry == entry(2)
    own.was_stored()
    assert own.told == entry(2)


def test_rounds_that_end_without_a_slow_group_do_not_defer_its_contribution() -> None:
    schedule = SendSchedule(Every(commits=3))
    sent = 0
    for round_ in range(10):  # a round ends after every second commit of this group
        schedule.opened(float(round_))
        for _ in range(2):
            if schedule.commit(float(round_)):
                schedule.sent(float(round_))
                sent += 1
    assert sent >= 4


def test_a_bucket_says_who_is_waited_for_who_is_silent_and_how_old_contributions_are() -> None:
    def beat(group: str, number: int, **more: Any) -> MemberBeat:
        return MemberBeat(group, 4, number, more.pop("state", "training"), 12, **more)

    result = RoundResult(
        11, (Entry("lyon", 4, "k", "d", 11), Entry("oslo", 4, "k", "d", 8)), counted=(("lyon", 4, 11), ("oslo", 4, 8))
    )
    before = {"lyon": beat("lyon", 1), "oslo": beat("oslo", 5), "paris": beat("paris", 1)}
    now = {
        "lyon": beat("lyon", 2, sent="rounds/12/lyon.4", sent_round=12),
        "oslo": beat("oslo", 5),
        "paris": beat("paris", 2, sent="rounds/11/paris.4", sent_round=11, lacks=("current",)),
        "rome": beat("rome", 9, state="finished"),
    }
    found = overview(before, now, result, {"rounds/12/lyon.4": 3412})
    assert [g["state"] for g in found["groups"]] == ["training", "training, silent", "training", "finished"]
    assert [g["age"] for g in found["groups"]] == [0, 3, None, None]
    assert [g["sent"] for g in found["groups"]] == [True, False, True, False]
    assert found["waited_for"] == [] and found["results"] == 11
    lines = told("/srv/job7", "kmeans", found)
    assert lines[0] == "/srv/job7: kmeans; 11 results, round 12 is open"
    assert any("3,412" in line for line in lines) and "  cannot read current" in lines
    counted = overview(before, {"lyon": beat("lyon", 3, sent="k", sent_round=11)}, result, {})
    assert counted["waited_for"] == ["lyon"]
