"""Only rows of θ that changed travel: whatever happens in between, workers train under the θ of the coordinator."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flegel.core.changed_rows import RowsOfStep
from flegel.core.pytree import Array
from flegel.errors import ProtocolError
from flegel.params.parameter_changes import (
    WHOLE,
    HeldParameter,
    NumberedParameter,
    ParameterChanges,
    ParameterVersions,
    with_changes,
)

Theta = tuple[Array, ...]


def theta(rng: np.random.Generator) -> Theta:
    return rng.normal(size=(40, 3)), rng.normal(size=7), np.array(rng.normal()), np.zeros((0, 3))


def moved(old: Theta, rows: list[int], value: float) -> Theta:
    found = tuple(np.array(a) for a in old)
    for row in rows:
        found[0][row] += value
    if rows:
        found[2][...] = value
    return found


def same(one: Theta, other: Theta) -> bool:
    return all(a.tobytes() == b.tobytes() and a.shape == b.shape for a, b in zip(one, other, strict=True))


def test_rows_that_changed_and_nothing_else_are_sent() -> None:
    first = theta(np.random.default_rng(0))
    changes, held = ParameterChanges(), HeldParameter()
    sent = changes.order(0, 1, first)
    assert sent == NumberedParameter(0, WHOLE, first)
    held.take(sent.version, sent.since, tuple(sent.arrays))
    changes.reported(0, 1)
    second = moved(first, [5, 17], 0.5)
    sent = changes.order(0, 2, second)
    numbers, rows, *_ = sent.arrays
    assert (sent.version, sent.since) == (1, 0)
    assert numbers.tolist() == [5, 17, 47] and rows.shape == (2, 3)
    assert same(held.take(sent.version, sent.since, tuple(sent.arrays)), second)


def test_all_of_theta_is_sent_where_rows_save_less_than_half() -> None:
    first = theta(np.random.default_rng(0))
    changes = ParameterChanges()
    changes.order(0, 1, first)
    changes.reported(0, 1)
    second = moved(first, list(range(20)), 1.0)
    assert changes.order(0, 2, second).since == WHOLE
    changes.reported(0, 2)
    assert changes.order(0, 3, second).since == 1  # nothing changed


def test_a_worker_that_has_not_reported_on_its_order_is_sent_all_of_theta() -> None:
    first = theta(np.random.default_rng(0))
    changes = ParameterChanges()
    changes.order(0, 1, first)
    assert changes.order(0, 2, first).since == WHOLE
    changes.reported(0, 1)  # late: it says nothing about the order of round 2
    assert changes.order(0, 3, first).since == WHOLE
    changes.reported(0, 3)
    changes.forget(0)
    assert changes.order(0, 4, first).since == WHOLE


def test_zero_and_minus_zero_differ_and_nan_equals_itself() -> None:
    versions = ParameterVersions()
    versions.publish((np.array([[0.0], [np.nan], [1.0]] * 9),))
    new = np.array([[-0.0], [np.nan], [1.0]] + [[0.0], [np.nan], [1.0]] * 8)
    assert versions.publish((new,)) == 1
    rows = versions.since(0)
    assert rows is not None and rows[0].tolist() == [0]


def test_a_class_that_writes_theta_into_the_same_array_is_noticed() -> None:
    kept = np.zeros((20, 2))
    versions = ParameterVersions()
    versions.publish((kept,))
    kept[3] = 1.0
    versions.publish((kept,))
    rows = versions.since(0)
    assert rows is not None and rows[0].tolist() == [3]


def test_rows_that_a_maker_names_are_not_looked_for_unless_a_step_was_left_out() -> None:
    first, versions = theta(np.random.default_rng(0)), ParameterVersions()
    versions.publish(first, RowsOfStep(4, (None,) * 4))
    second = moved(first, [3], 1.0)
    second[0][8] += 1.0
    versions.publish(second, RowsOfStep(5, (np.array([3]), np.array([], int), None, None)))
    rows = versions.since(0)
    assert rows is not None and rows[0].tolist() == [3, 47], "row 8 was not named"
    third = moved(second, [9], 2.0)
    versions.publish(third, RowsOfStep(7, (np.array([9]), np.array([], int), None, None)))
    rows = versions.since(1)
    assert rows is not None and rows[0].tolist() == [8, 9, 47], "step 6 may have changed others"
    versions.publish(moved(third, [1], 1.0), None)
    versions.publish(moved(moved(third, [1], 1.0), [2], 1.0), RowsOfStep(8, (np.array([9]), None, None, None)))
    rows = versions.since(3)
    assert rows is not None and rows[0].tolist() == [2], "θ from elsewhere was published in between"


def test_a_worker_refuses_rows_for_a_theta_that_it_does_not_hold() -> None:
    held, first = HeldParameter(), theta(np.random.default_rng(0))
    rows = (np.array([1]), np.ones((1, 3)), np.ones(0), np.ones(0), np.zeros((0, 3)))
    with pytest.raises(ProtocolError, match="version 0, and version -1"):
        held.take(1, 0, rows)
    held.take(3, WHOLE, first)
    with pytest.raises(ProtocolError, match="version 2, and version 3"):
        held.take(4, 2, rows)
    assert held.take(4, 3, rows)[0][1].tolist() == [1.0, 1.0, 1.0]
    held.take(WHOLE, WHOLE, first)  # an order without a number: nothing is held from then on
    with pytest.raises(ProtocolError):
        held.take(5, 4, rows)


@pytest.mark.parametrize(
    "rows",
    [
        (np.array([40]), np.ones((1, 3)), np.ones(0), np.ones(0), np.zeros((0, 3))),  # a row of another field
        (np.array([-1]), np.ones((1, 3)), np.ones(0), np.ones(0), np.zeros((0, 3))),
        (np.array([1, 2]), np.ones((1, 3)), np.ones(0), np.ones(0), np.zeros((0, 3))),
        (np.array([1]), np.ones((1, 2)), np.ones(0), np.ones(0), np.zeros((0, 3))),
        (np.array([1]), np.ones((1, 3), np.float32), np.ones(0), np.ones(0), np.zeros((0, 3))),
        (np.array([1.0]), np.ones((1, 3)), np.ones(0), np.ones(0), np.zeros((0, 3))),
        (np.array([1]), np.ones((1, 3))),
        (np.array([1]), np.ones((1, 3)), np.ones(0), np.array(1.0), np.zeros((0, 3))),
    ],
)
def test_rows_in_another_form_are_refused(rows: Theta) -> None:
    with pytest.raises(ProtocolError):
        with_changes(theta(np.random.default_rng(0)), rows)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.lists(st.integers(0, 39), max_size=4, unique=True)),
        st.tuples(st.sampled_from(["order", "deliver", "report", "hear", "lose", "elsewhere"]), st.integers(0, 2)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(EVENTS)
def test_any_interleaving_gives_the_theta_of_full_broadcasts(events: list[tuple[str, object]]) -> None:
    """Orders and reports of three workers are under way at any time; workers are lost and come back, and some orders
    carry θ in another way (shared memory)."""
    present = theta(np.random.default_rng(1))
    changes, round_, made = ParameterChanges(), 0, RowsOfStep(0, (None,) * 4)
    held = [HeldParameter() for _ in range(3)]
    orders: list[deque[tuple[int, NumberedParameter, Theta]]] = [deque() for _ in range(3)]
    reports: list[deque[int]] = [deque() for _ in range(3)]
    trained: list[deque[int]] = [deque() for _ in range(3)]
    for what, about in events:
        if what == "update":
            assert isinstance(about, list)
            present = moved(present, about, 1.0 + round_)
            made = RowsOfStep(made.step + 1, (np.array(sorted(about), int), np.array([], int), None, None))
            continue
        assert isinstance(about, int)
        if what == "order":
            round_ += 1
            orders[about].append((round_, changes.order(about, round_, present, made), present))
        elif what == "elsewhere":
            round_ += 1
            changes.forget(about)
            orders[about].append((round_, NumberedParameter(WHOLE, WHOLE, present), present))
        elif what == "deliver" and orders[about]:
            number, sent, meant = orders[about].popleft()
            assert same(held[about].take(sent.version, sent.since, tuple(sent.arrays)), meant)
            trained[about].append(number)
        elif what == "report" and trained[about]:
            reports[about].append(trained[about].popleft())
        elif what == "hear" and reports[about]:
            changes.reported(about, reports[about].popleft())
        elif what == "lose":
            changes.forget(about)
            held[about] = HeldParameter()
            orders[about].clear()
            trained[about].clear()
            reports[about].clear()
