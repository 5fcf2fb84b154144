"""Conservation: whatever is committed or lost in whatever order, the total is the sum over owners."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel import Statistics
from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.errors import AlgorithmError
from flegel.params.ledger import Ledger, merge


class Sums(NamedTuple):
    counts: Any
    sums: Any
    gradient: Any


class Kept(Algorithm):
    statistics = Statistics(spent=("gradient",))


def zero() -> Sums:
    return Sums(np.zeros(3), np.zeros((3, 2)), np.zeros(2))


finite = st.floats(-1e6, 1e6)
counts = st.lists(st.integers(-1000, 1000), min_size=3, max_size=3)
commit = st.tuples(
    st.just("commit"), st.integers(0, 4), counts, st.lists(finite, min_size=6, max_size=6), st.floats(-1, 1)
)
forget = st.tuples(st.just("forget"), st.integers(0, 4))


@given(st.lists(st.one_of(commit, commit, forget), max_size=40))
def test_the_total_is_the_sum_over_owners_after_any_history(history: list[Any]) -> None:
    ledger = Ledger(Kept(), zero())
    owners: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    scale = 1.0
    for step in history:
        if step[0] == "forget":
            ledger.forget(step[1])
            owners.pop(step[1], None)
            continue
        _, owner, whole, sums, gradient = step
        change = Sums(np.array(whole, float), np.array(sums).reshape(3, 2), np.full(2, gradient))
        ledger.commit(owner, change)
        old = owners.get(owner, (np.zeros(3), np.zeros((3, 2))))
        owners[owner] = (old[0] + change.counts, old[1] + change.sums)
        scale += float(np.abs(change.sums).sum())
    expected_counts = sum((c for c, _ in owners.values()), np.zeros(3))
    expected_sums = sum((s for _, s in owners.values()), np.zeros((3, 2)))
    np.testing.assert_array_equal(ledger.total.counts, expected_counts)
    np.testing.assert_allclose(ledger.total.sums, expected_sums, rtol=0, atol=1e-10 * scale)


@given(st.permutations(range(6)))
def test_the_order_of_commits_does_not_matter(order: list[int]) -> None:
    changes = [Sums(np.arange(3.0) + i, np.full((3, 2), i / 7), np.zeros(2)) for i in range(6)]
    ledger = Ledger(Kept(), zero())
    for i in order:
        ledger.commit(i % 3, changes[i])
    np.testing.assert_array_equal(ledger.total.counts, sum(c.counts for c in changes))
    np.testing.assert_allclose(ledger.total.sums, sum(c.sums for c in changes), rtol=1e-10)


def test_gradients_belong_to_no_owner_and_are_used_once() -> None:
    ledger = Ledger(Kept(), zero())
    ledger.commit(0, Sums(np.ones(3), np.ones((3, 2)), np.array([5.0, 6.0])))
    np.testing.assert_array_equal(ledger.total.gradient, [5.0, 6.0])
    ledger.spend()
    np.testing.assert_array_equal(ledger.total.gradient, [0.0, 0.0])
    np.testing.assert_array_equal(ledger.total.counts, np.ones(3))
    ledger.forget(0)
    np.testing.assert_array_equal(ledger.total.gradient, [0.0, 0.0])
    np.testing.assert_array_equal(ledger.total.counts, np.zeros(3))


def test_a_discrepancy_is_noticed() -> None:
    ledger = Ledger(Kept(), zero())
    ledger.commit(0, Sums(np.ones(3), np.ones((3, 2)), np.zeros(2)))
    assert ledger.discrepancy() == 0.0
    ledger.total.sums[1, 1] += 0.5
    assert ledger.discrepancy() == pytest.approx(0.5)


def test_statistics_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="worker 3"):
        Ledger(Kept(), zero()).commit(3, Sums(np.ones(2), np.ones((3, 2)), np.zeros(2)))


def test_read_only_reports_are_folded_in_without_being_written_to() -> None:
    change = Sums(np.ones(3), np.ones((3, 2)), np.ones(2))
    for array in change:
        array.setflags(write=False)
    ledger = Ledger(Kept(), zero())
    ledger.commit(0, change)
    ledger.commit(0, change)
    np.testing.assert_array_equal(ledger.total.counts, 2 * np.ones(3))


def test_an_aggregate_that_returns_a_new_value_is_merged_as_well() -> None:
    class Functional(Algorithm):
        def aggregate(self, target: Any, aggregator: Any) -> Any:
            return target + aggregator

    total = merge(Functional(), np.ones(2), np.full(2, 3.0))
    np.testing.assert_array_equal(total, [4.0, 4.0])


def test_forgetting_somebody_unknown_changes_nothing() -> None:
    ledger = Ledger(Kept(), zero())
    ledger.commit(0, Sums(np.ones(3), np.ones((3, 2)), np.zeros(2)))
    before = pytree.copy(ledger.total)
    ledger.forget(9)
    np.testing.assert_array_equal(ledger.total.counts, before.counts)


def test_many_commits_at_once_are_the_same_as_one_after_the_other() -> None:
    changes = [(i % 3, Sums(np.full(3, i), np.full((3, 2), 0.1 * i), np.full(2, 1.0 / (i + 1)))) for i in range(20)]
    together, apart = Ledger(Kept(), zero()), Ledger(Kept(), zero())
    together.commit_all([owner for owner, _ in changes], [change for _, change in changes])
    for owner, change in changes:
        apart.commit(owner, change)
    for a, b in zip(together.total, apart.total, strict=True):
        np.testing.assert_array_equal(a, b)
    assert together.discrepancy() <= 1e-10


def test_a_change_of_another_shape_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(ValueError, match=r"worker 4 committed sums in the shape \(1, 2\), not \(3, 2\)"):
        Ledger(Kept(), zero()).commit(4, Sums(np.ones(3), np.ones((1, 2)), np.zeros(2)))


def test_accounts_that_are_posted_late_lose_nothing_when_an_owner_is_lost() -> None:
    ledger = Ledger(Kept(), zero())
    for owner in (0, 1, 0):
        ledger.commit(owner, Sums(np.full(3, owner + 1.0), np.full((3, 2), 0.5), np.zeros(2)))
    ledger.forget(0)
    np.testing.assert_array_equal(ledger.total.counts, np.full(3, 2.0))
    accounts, account_of = ledger.accounts()
    np.testing.assert_array_equal(accounts[account_of[1]].counts, np.full(3, 2.0))


def test_once_posted_a_change_is_not_needed_any_more() -> None:
    ledger = Ledger(Kept(), zero())
    change = Sums(np.ones(3), np.ones((3, 2)), np.zeros(2))
    ledger.commit(7, change)
    ledger.update_accounts()
    change.counts[:] = 99.0
    ledger.update_accounts()
    accounts, account_of = ledger.accounts()
    np.testing.assert_array_equal(accounts[account_of[7]].counts, np.ones(3))
    assert ledger.discrepancy() == 0.0


@pytest.mark.parametrize("asked", ["accounts", "join", "detach", "retire", "together", "discrepancy"])
def test_whoever_asks_for_accounts_finds_every_commit_in_them(asked: str) -> None:
    ledger = Ledger(Kept(), zero())
    ledger.commit(0, Sums(np.ones(3), np.ones((3, 2)), np.zeros(2)))
    ledger.commit(1, Sums(np.full(3, 2.0), np.ones((3, 2)), np.zeros(2)))
    getattr(ledger, asked)(*{"join": (0, 1), "detach": (1,), "retire": (1,), "together": (1,)}.get(asked, ()))
    held = sum(account.counts for account in ledger._accounts.values())
    np.testing.assert_array_equal(held, np.full(3, 3.0))


def test_code_of_the_user_may_write_to_a_change_that_it_merges() -> None:
    class Greedy(Algorithm):
        def aggregate(self, target: Any, aggregator: Any) -> Any:
            aggregator += target
            return aggregator

    ledger = Ledger(Greedy(), np.zeros(2))
    ledger.commit_all([0, 1], [np.ones(2), np.full(2, 3.0)])
    np.testing.assert_array_equal(ledger.total, [4.0, 4.0])
    accounts, account_of = ledger.accounts()
    np.testing.assert_array_equal(accounts[account_of[1]], [3.0, 3.0])


def test_the_two_halves_of_a_report_are_merged_by_code_that_writes_to_them() -> None:
    """A worker that lingered is asked for the rest when the members change; reports cannot be written to."""

    class Doubling(Algorithm):
        def aggregate(self, target: Any, aggregator: Any) -> Any:
            aggregator *= 2.0
            return target + aggregator

    rest = np.full(2, 3.0)
    rest.flags.writeable = False
    np.testing.assert_array_equal(merge(Doubling(), np.ones(2), rest), [7.0, 7.0])
    np.testing.assert_array_equal(rest, [3.0, 3.0])


def test_what_the_user_s_aggregate_raises_at_a_barrier_is_told_as_theirs() -> None:
    class Broken(Algorithm):
        def aggregate(self, target: Any, aggregator: Any) -> Any:
            raise KeyError("lost")

    with pytest.raises(AlgorithmError, match=r"aggregate raised KeyError: 'lost' \(coordinator") as caught:
        Ledger(Broken(), np.zeros(2)).commit(0, np.ones(2))
    assert 'raise KeyError("lost")' in caught.value.trace and "commit_all" not in caught.value.trace
