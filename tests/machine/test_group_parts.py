"""Parts of a group: status table, schedule, outer step, gate, objects of the bucket."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest

from flegel.errors import DecodeError, UsageError
from flegel.machine.group.common_parameter import CommonParameter
from flegel.machine.group.contributions import Contributions
from flegel.machine.group.data_form import DataForm, difference
from flegel.machine.group.events import Answered, GetObject, PutObject
from flegel.machine.group.fragments import Fragments
from flegel.machine.group.outer_step import moved, outer_step
from flegel.machine.group.outliers import judge
from flegel.machine.group.own_beat import OwnBeat
from flegel.machine.group.records import (
    Contribution,
    Current,
    Entry,
    MemberBeat,
    RoundResult,
    contribution_key,
    decode,
    digest_of,
    encode,
)
from flegel.machine.group.schedule import Every, SendSchedule, parse_every
from flegel.machine.group.store_calls import StoreCalls
from flegel.machine.group.table import MemberTable
from flegel.machine.group.unreadable import UnreadableObjects
from flegel.params.gate import Gate, parse_gate


def beat(number: int, life: int = 1, state: str = "training", round_: int = 1) -> MemberBeat:
    return MemberBeat("lyon", life, number, state, round_)


def test_a_group_whose_beat_changes_stays_whatever_time_passes() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=3.0)
    for at in range(100):
        table.hear(beat(at), float(at))
    assert [b.group for b in table.live()] == ["lyon"]


def test_a_silent_group_leaves_the_table_and_comes_back_with_its_next_beat() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=3.0)
    assert table.hear(beat(1), 0.0)
    for at in range(1, 8):
        table.hear(beat(1), float(at))
    assert table.live() == [] and table.silent() == ["lyon"]
    assert table.hear(beat(2), 8.0)
    assert [b.beat for b in table.live()] == [2]


def test_time_in_which_the_store_was_away_is_no_silence() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=1.0)
    table.hear(beat(1), 0.0)
    table.hear(beat(1), 600.0)  # the next look after ten minutes
    assert [b.group for b in table.live()] == ["lyon"]


def test_a_beat_of_a_former_life_or_an_older_one_changes_nothing() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=1.0)
    table.hear(beat(7, life=2, round_=4), 0.0)
    assert not table.hear(beat(99, life=1, round_=9), 1.0)
    assert not table.hear(beat(6, life=2, round_=3), 2.0)
    assert [(b.life, b.beat, b.round) for b in table.live()] == [(2, 7, 4)]


def test_finished_groups_are_not_waited_for_and_never_silent() -> None:
    table = MemberTable("paris", limit=2.0, longest_look=1.0)
    for at in range(10):
        table.hear(beat(1, state="finished"), float(at))
    assert table.live() == [] and table.finished("lyon") and [b.group for b in table.present()] == ["lyon"]


def commits_until_sent(schedule: SendSchedule, now: float = 0.0) -> int:
    for count in range(1, 100):
        if schedule.commit(now):
            schedule.sent(now)
            return count
    raise AssertionError("never sent")


def test_a_contribution_is_due_after_so_many_commits() -> None:
    schedule = SendSchedule(Every(commits=3))
    schedule.opened(0.0)
    assert commits_until_sent(schedule) == 3
    assert not any(schedule.commit(0.0) for _ in range(10))  # the round is not over
    schedule.opened(0.0)
    assert commits_until_sent(schedule) == 3


def test_a_contribution_is_due_after_so_much_time() -> None:
    schedule = SendSchedule(Every(seconds=30.0))
    schedule.opened(10.0)
    assert not schedule.commit(39.9)
    assert schedule.commit(40.0)


def found_interval(schedule: SendSchedule, phi: float, rounds: int = 60, now: float = 0.0) -> tuple[float, float]:
    """Median seconds between a result and the next contribution, where a result takes `phi`; and the time. A commit
    takes 0.1 s and visits 100 of 10,000 points; what a round gains falls with its length."""
    lengths, objective = [], 1e6
    schedule.opened(now, comparable=True)
    for _ in range(rounds):
        began, visits = now, 0
        while True:
            now, visits = now + 0.1, visits + 100
            objective -= 100 / (1.0 + visits / 20_000)
            if schedule.commit(now, 100, 10_000, objective):
                break
        lengths.append(now - began)
        schedule.sent(now)
        now += phi
        schedule.opened(now, comparable=True)
    return float(np.median(lengths[-10:])), now


def test_an_interval_is_found_from_the_measured_cost_of_a_synchronization() -> None:
    cheap, _ = found_interval(SendSchedule(parse_every("auto")), phi=0.05)
    dear, _ = found_interval(SendSchedule(parse_every("auto")), phi=5.0)
    assert 0.1 <= cheap < 6.0 < dear <= 80.0, (cheap, dear)


def test_an_interval_follows_a_cost_that_changes() -> None:
    schedule = SendSchedule(parse_every("auto"))
    before, now = found_interval(schedule, phi=0.05)
    after, _ = found_interval(schedule, phi=5.0, now=now)
    assert after > 2.0 * before


def test_a_joiner_before_a_synchronization_defers_it_to_the_next_commit() -> None:
    schedule = SendSchedule(Every(commits=3))
    schedule.opened(0.0)
    schedule.commit(0.0), schedule.commit(0.0)
    schedule.joined(0.0)
    assert commits_until_sent(schedule) == 2


def test_a_second_joiner_does_not_defer_it_again() -> None:
    schedule = SendSchedule(Every(commits=3))
    schedule.opened(0.0)
    schedule.commit(0.0), schedule.commit(0.0)
    schedule.joined(0.0)
    schedule.commit(0.0)
    schedule.joined(0.0)
    assert commits_until_sent(schedule) == 1


def test_a_joiner_during_a_synchronization_advances_the_next() -> None:
    schedule = SendSchedule(Every(commits=3))
    schedule.opened(0.0)
    commits_until_sent(schedule)
    schedule.joined(0.0)
    schedule.opened(0.0)
    assert commits_until_sent(schedule) == 1
    schedule.opened(0.0)
    assert commits_until_sent(schedule) == 3


@pytest.mark.parametrize("every", [Every(commits=5), Every(seconds=60.0)])
def test_a_joiner_after_a_finished_synchronization_advances_the_next(every: Every) -> None:
    schedule = SendSchedule(every)
    schedule.opened(0.0)
    schedule.sent(0.0)
    schedule.opened(0.0)
    schedule.joined(0.0)
    assert schedule.commit(0.0)


def test_a_group_that_joins_contributes_at_its_first_commit() -> None:
    schedule = SendSchedule(Every(commits=5))
    schedule.opened(0.0, joins=True)
    assert commits_until_sent(schedule) == 1


def test_a_group_joins_when_it_takes_part_and_not_while_it_loads() -> None:
    table = MemberTable("oslo", limit=5.0, longest_look=10.0)
    assert not table.hear(MemberBeat("lyon", 1, 1, "loading", 0), 0.0)
    assert table.hear(MemberBeat("lyon", 1, 2, "training", 1), 1.0)
    assert not table.hear(MemberBeat("lyon", 1, 3, "resting", 1), 2.0)
    assert not table.hear(MemberBeat("lyon", 1, 3, "resting", 1), 9.0)  # silent from now on
    assert table.hear(MemberBeat("lyon", 1, 4, "resting", 1), 10.0)
    assert table.hear(MemberBeat("lyon", 2, 1, "training", 1), 11.0)


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "30q", "1e3"])
def test_other_words_are_no_schedule(text: str) -> None:
    with pytest.raises(UsageError):
        parse_every(text)


def test_outer_steps() -> None:
    base = [np.array([1.0, 2.0])]
    changes = [(1.0, [np.array([1.0, 0.0])]), (3.0, [np.array([0.0, 4.0])])]
    assert outer_step("mean", base, [], changes)[0][0].tolist() == [1.5, 4.0]
    assert outer_step("visits", base, [], changes)[0][0].tolist() == [1.25, 5.0]
    theta, velocity = outer_step("nesterov", base, [], changes)
    assert velocity[0].tolist() == [0.5, 2.0]
    assert np.allclose(theta[0], [1.0 + 0.7 * (0.9 * 0.5 + 0.5), 2.0 + 0.7 * (0.9 * 2.0 + 2.0)])
    _, again = outer_step("nesterov", theta, velocity, changes)
    assert np.allclose(again[0], [0.95, 3.8])


def test_momentum_moves_nothing_where_nobody_has_trained() -> None:
    """Groups at rest contribute without visits. θ that goes on by its momentum would wake them, for hundreds of rounds;
    what a coarse form of the last change left over counts."""
    base, velocity = [np.array([1.0, 2.0])], [np.array([0.5, -3.0])]
    none, rest = (0.0, [np.zeros(2)]), (0.0, [np.array([0.0, 0.5])])
    theta, after = outer_step("nesterov", base, velocity, [none, none])
    assert theta[0].tolist() == [1.0, 2.0] and after[0].tolist() == [0.5, -3.0]
    assert outer_step("nesterov", base, velocity, [none, rest])[0][0].tolist() == [1.0, 2.25]
    assert outer_step("nesterov", base, velocity, [none, (1.0, [np.zeros(2)])])[0][0].tolist() != [1.0, 2.0]


def test_what_was_learned_since_sending_is_kept() -> None:
    result, now, sent = [np.float32([5.0])], [np.float32([3.5])], [np.float32([3.0])]
    assert moved(result, now, sent)[0].tolist() == [5.5] and moved(result, now, sent)[0].dtype == np.float32


def test_a_gate_is_a_number() -> None:
    for text in ("nan", "inf", "good", ""):
        with pytest.raises(UsageError, match="give best, or the least score"):
            parse_gate(text)


def test_a_gate_lets_through_what_is_at_least_the_best_so_far() -> None:
    gate = Gate(parse_gate("best"), failures=2)
    assert [gate.passes(s) for s in (0.5, 0.4, 0.6, 0.6)] == [True, False, True, True]
    assert not gate.excluded
    assert not gate.passes(float("nan")) and not gate.passes(0.1) and gate.excluded
    assert not gate.passes(0.5), "a score that did not pass is no new best"


def contribution(round_: int = 2, values: float = 1.0) -> tuple[Entry, bytes]:
    content = encode(Contribution("lyon", 7, round_, 1, 3.0, 10, False), [np.full((2, 2), values), np.zeros(3)])
    return Entry("lyon", 7, contribution_key(round_, "lyon", 7), digest_of(content), round_), content


def test_a_contribution_is_taken_only_as_its_name_and_digest_say() -> None:
    entry, content = contribution()
    known = Contributions([(2, 2)])
    assert known.accept(entry, content) == ""
    assert "digest" in known.accept(entry, content[:-1] + b"x")
    late = Entry("lyon", 7, entry.key, entry.digest, 3)
    assert "round 2" in known.accept(late, content)
    assert "other statistics" in Contributions([(2, 2), (1,)]).accept(entry, content)
    assert "another shape" in Contributions([(2, 3)]).accept(entry, content)
    bad, wrong = contribution(values=np.nan)
    assert "not finite" in known.accept(bad, wrong)


@pytest.mark.parametrize(
    ("said", "values", "why"),
    [
        ({}, np.inf, "not finite"),
        ({}, -1e19, "beyond 1e\\+18"),  # its square is not finite in float32, of which θ is
        ({"visits": -3.0}, 1.0, "cannot be"),
        ({"visits": np.nan}, 1.0, "cannot be"),
        ({"visits": 1e300}, 1.0, "cannot be"),
        ({"points": -1}, 1.0, "cannot be"),
        ({"changed": (np.nan,)}, 1.0, "cannot be"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_they_are_in_the_model_of_all(
    said: dict[str, Any], values: float, why: str
) -> None:
    header = msgspec.structs.replace(Contribution("lyon", 7, 2, 1, 3.0, 10, False), **said)
    content = encode(header, [np.full((2, 2), values)])
    entry = Entry("lyon", 7, contribution_key(2, "lyon", 7), digest_of(content), 2)
    known = Contributions([(2, 2)], exchange="parameters")
    assert re.search(why, known.accept(entry, content)) and known.get(entry.key) is None


def test_a_result_whose_numbers_are_not_finite_is_refused() -> None:
    common = CommonParameter([np.zeros(3)], Fragments([(3,)], 1))
    result = RoundResult(1, (), fields=1, fragments=(0,), exchanged_in=(1,))
    assert common.misfit(result, [np.ones(3)]) == ""
    assert "not finite" in common.misfit(result, [np.array([1.0, np.nan, 0.0])])
    lies = msgspec.structs.replace(result, sizes=(("lyon", 0, 0.0, -1.0, 9),))
    assert "not finite" in common.misfit(lies, [np.ones(3)]), "the square root of a variance would end this group"


def test_a_change_that_is_larger_than_can_be_said_is_an_outlier() -> None:
    assert judge("exclude", [np.full(3, 1e18)], (-700.0, 0.1, 9)).factor == 0.0


def test_objects_survive_and_damaged_ones_are_refused() -> None:
    content = encode(RoundResult(4, (contribution()[0],), True, 1, "paris"), [np.arange(3, dtype=np.float32)])
    header, arrays = decode(content, RoundResult)
    assert header.final and header.life_of("lyon") == 7 and arrays[0].tolist() == [0, 1, 2]
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        cut = bytes(damaged[: rng.integers(len(damaged) + 1)])
        for candidate in (bytes(damaged), cut):
            try:
                decode(candidate, RoundResult)
            except DecodeError:
                continue
    with pytest.raises(DecodeError):
        decode(content, Current)


def test_a_beat_that_cannot_be_read_counts_as_silence() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=3.0)
    table.hear(beat(1), 0.0)
    for at in range(1, 8):
        table.missed("lyon", float(at))
    table.missed("nobody", 8.0)
    assert table.live() == [] and table.gone() == {"lyon"}


def test_a_stalled_group_is_not_waited_for() -> None:
    table = MemberTable("paris", limit=5.0, longest_look=3.0)
    table.hear(beat(1, state="stalled"), 0.0)
    assert table.live() == [] and table.gone() == {"lyon"} and table.seen() == {"lyon"}


def test_what_cannot_be_read_is_named_and_given_up_after_a_while() -> None:
    lacks = UnreadableObjects(5.0)
    lacks.note("rounds/1/result", "it is damaged", "t1", 0.0)
    lacks.note("rounds/1/result", "it is damaged", "t2", 5.0)  # since the first time, with the tag of now
    assert lacks.names == ("rounds/1/result",) and lacks.tag("rounds/1/result") == "t2"
    assert not lacks.given_up("rounds/1/result")
    lacks.note("rounds/1/result", "it is damaged", "t2", 5.1)
    assert lacks.given_up("rounds/1/result")
    lacks.found("rounds/1/result")
    assert lacks.names == () and not lacks.given_up("rounds/1/result")
    lacks.note("rounds/1/result", "it is not there", "", 6.0)  # a store that is away for hours answers no look
    assert not lacks.given_up("rounds/1/result")


FORM = DataForm(2, ("a", "b"), ("no", "yes"), "float32", "none", "error", (("b", "onehot (x, y)"),))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"columns": 3}, "lyon has 3 columns, and this group has 2"),
        ({"features": ("b", "a")}, "Column 1 of lyon is 'b', and of this group 'a'"),
        ({"classes": ("yes", "no")}, "other classes"),
        ({"dtype": "float64"}, "The rows of lyon are float64, and those of this group float32"),
        ({"scale": "standard"}, "lyon uses --scale standard, and this group --scale none"),
        ({"gaps": "mean"}, "lyon uses --missing mean, and this group --missing error"),
        ({"treatment": (("b", "onehot (x, z)"),)}, "lyon uses column b as onehot (x, z)"),
        ({"treatment": ()}, "Column b is onehot (x, y)"),
    ],
)
def test_groups_whose_rows_differ_are_told_in_what(other: dict[str, Any], said: str) -> None:
    assert difference(FORM, FORM, "lyon") == ""
    told = difference(msgspec.structs.replace(FORM, **other), FORM, "lyon")
    assert said in told and told.endswith(".")


def own_beat_put(own: OwnBeat, calls: StoreCalls, number: int, now: float) -> PutObject:
    assert own.write(calls, encode(MemberBeat("paris", 5, number, "training", 1)), now)
    put = calls.out[-1]
    assert isinstance(put, PutObject)
    return put


def test_a_name_is_held_by_compare_and_swap() -> None:
    own, calls = OwnBeat("paris", 5, 0.0), StoreCalls(0.02, 1.0)
    assert not own.write(calls, b"", 0.0)  # what is there is read first
    read = calls.out[-1]
    assert isinstance(read, GetObject) and not own.read(Answered(read.op, "absent"))
    put = own_beat_put(own, calls, 1, 0.0)
    assert put.mode == "create"
    calls.took(Answered(put.op, "done", tag="t1"), 0.1)
    own.stored(put, Answered(put.op, "done", tag="t1"), 0.1)
    put = own_beat_put(own, calls, 2, 1.0)
    assert (put.mode, put.expected) == ("swap", "t1")
    calls.took(Answered(put.op, "conflict"), 1.1)
    own.stored(put, Answered(put.op, "conflict"), 1.1)
    earlier, later = (encode(MemberBeat("paris", life, 9, "training", 1)) for life in (4, 6))
    assert not own.read(Answered(0, "done", earlier, "t2"))
    assert own_beat_put(own, calls, 2, 1.2).expected == "t2"  # the earlier one is replaced
    assert own.read(Answered(0, "done", later, "t3"))  # and the later one replaces this one
    assert not own.read(Answered(0, "refused", tag="t4"))


def test_with_fragments_all_of_theta_is_exchanged_as_often_as_in_one_piece() -> None:
    """With eight fragments at the interval of one piece each of them was exchanged once or twice in a training."""
    assert Every(commits=16).of_part(8) == Every(commits=2)
    assert Every(commits=3).of_part(8) == Every(commits=1)
    assert Every(seconds=30.0).of_part(4) == Every(seconds=7.5)
    assert Every(auto=True).of_part(4) == Every(auto=True)
