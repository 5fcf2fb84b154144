"""θ in fragments: cut and put together, which one is next, and changes that are outliers."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.machine.group.contributions import Contributions
from flegel.machine.group.fragments import ALL_FRAGMENTS, Fragments, next_fragment
from flegel.machine.group.outer_step import outer_step
from flegel.machine.group.outliers import ChangeSize, judge
from flegel.machine.group.records import Contribution, Entry, RoundResult, decode, digest_of, encode

SHAPES = [(7, 5), (), (0, 3), (11,), (2, 2, 2)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_fragments_are_of_the_same_size_and_make_up_all_of_it(count: int) -> None:
    cut, rng = Fragments(SHAPES, count), np.random.default_rng()
    fields = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    sizes = [sum(part.size for part in cut.take(at, fields)) for at in range(cut.count)]
    assert sum(sizes) == sum(field.size for field in fields) and max(sizes) - min(sizes) <= 1
    found = [np.zeros(shape, np.float32) for shape in SHAPES]
    for at in range(cut.count):
        parts = cut.take(at, fields)
        assert [part.shape for part in parts] == cut.shapes(at)
        found = cut.put(at, found, parts)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(found, fields, strict=True))
    assert cut.count == 1 or all(
        np.array_equal(a, b) for a, b in zip(cut.take(ALL_FRAGMENTS, fields), fields, strict=True)
    )


def test_putting_a_fragment_leaves_the_given_fields_alone() -> None:
    cut, fields = Fragments([(6,)], 3), [np.arange(6.0)]
    assert cut.put(1, fields, [np.array([8.0, 9.0])])[0].tolist() == [0, 1, 8, 9, 4, 5]
    assert fields[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_fragment_that_changed_most_is_next_and_none_waits_for_ever() -> None:
    assert next_fragment([0.1, 0.5, 0.2], [3, 2, 1], 3) == 1
    assert next_fragment([0.0, 0.0, 0.0], [3, 1, 2], 3) == 1
    rounds, waits = [0, 0, 0, 0], []
    for round_ in range(1, 200):
        chosen = next_fragment([9.0, 5.0, 1.0, 0.001], rounds, round_ - 1)
        waits.append(round_ - rounds[chosen])
        rounds[chosen] = round_
    assert max(waits) < 3 * 4  # several may be due at the same time


def contribution(group: str, change: list[float], fragment: int, changed: tuple[float, ...]) -> tuple[Entry, bytes]:
    header = Contribution(group, 1, 1, 1, 1.0, 1, settled=False, fragment=fragment, changed=changed)
    content = encode(header, [np.array(change)])
    return Entry(group, 1, f"rounds/1/{group}.1", digest_of(content), 1), content


def test_a_result_holds_the_fragments_of_its_contributions_and_names_the_next() -> None:
    known = Contributions([(6,)], fragments=3)
    entries = []
    for group, change, fragment in (("a", [1.0, 3.0], 1), ("b", [3.0, 5.0], 1), ("c", [7.0, 7.0], 0)):  # c was late
        entry, content = contribution(group, change, fragment, (0.1, 9.0, 2.0))
        assert known.accept(entry, content) == ""
        entries.append(entry)
    result, arrays = decode(known.result(4, entries, False, "a", "mean", [np.full(6, 10.0)]), RoundResult)
    assert result.fragments == (0, 1) and result.exchanged_in == (4, 4, 0) and result.next_fragment == 2
    assert [a.tolist() for a in arrays] == [[17.0, 17.0], [12.0, 14.0]]


@pytest.mark.parametrize(
    ("fragment", "change"), [(3, [1.0, 1.0]), (-2, [1.0, 1.0]), (1, [1.0]), (ALL_FRAGMENTS, [1.0, 2.0])]
)
def test_contributions_of_other_fragments_are_refused(fragment: int, change: list[float]) -> None:
    entry, content = contribution("a", change, fragment, ())
    assert Contributions([(6,)], fragments=3).accept(entry, content)


def usual(how: str, rng: np.random.Generator) -> ChangeSize | None:
    size: ChangeSize | None = None
    for _ in range(20):
        judged = judge(how, [0.01 * rng.normal(size=1000)], size)
        assert judged.reason == "" and judged.factor == 1.0
        size = judged.size
    return size


@pytest.mark.parametrize("how", ["clip", "damp", "exclude"])
def test_a_change_far_larger_than_before_is_an_outlier(how: str) -> None:
    rng = np.random.default_rng()
    known, change = usual(how, rng), [1.0 * rng.normal(size=1000)]
    judged = judge(how, change, known)
    assert "times as large as usual" in judged.reason and judged.size == known
    size = float(np.sqrt(np.mean(np.square(judged.parts[0]))))
    assert (size < 0.05) == (how == "clip")
    assert judged.factor == pytest.approx({"clip": 1.0, "damp": 0.015, "exclude": 0.0}[how], abs=0.005)
    assert judge("keep", change, known).reason == ""


def test_training_that_slows_down_makes_no_outliers_and_the_first_changes_are_none() -> None:
    rng, size = np.random.default_rng(), None
    assert judge("exclude", [np.full(9, 100.0)], (0.0, 0.0, 2)).reason == ""
    for step in range(200):
        judged = judge("exclude", [0.97**step * rng.normal(size=500)], size)
        assert judged.reason == ""
        size = judged.size


def test_where_everything_is_left_out_nothing_changes() -> None:
    base, changes = [np.array([1.0])], [(2.0, [np.array([9.0])]), (2.0, [np.array([5.0])])]
    assert outer_step("mean", base, [], changes, [0.0, 0.0])[0][0].tolist() == [1.0]
    assert outer_step("visits", base, [], changes, [0.0, 1.0])[0][0].tolist() == [6.0]


def test_an_outlier_is_named_in_the_result_and_the_next_writer_knows_the_sizes() -> None:
    known, previous, rng = Contributions([(50,)]), None, np.random.default_rng()
    for round_ in range(1, 9):
        entries = []
        for group in "abc":
            change = rng.normal(size=50) * (100.0 if (group, round_) == ("c", 8) else 1.0)
            entry, content = contribution(group, list(change), ALL_FRAGMENTS, ())
            known.accept(entry, content)
            entries.append(entry)
        made = known.result(round_, entries, False, "a", "mean", [np.zeros(50)], outliers="exclude", previous=previous)
        previous, arrays = decode(made, RoundResult)
        assert [group for group, _ in previous.outliers] == (["c"] if round_ == 8 else [])
    assert float(np.abs(arrays[0]).max()) < 5.0
