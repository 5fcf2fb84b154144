"""Sites and a bucket that lies, on virtual time: no law is broken, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.sites.laws import BrokenLaw
from bench.sites.world import SiteWorld
from flegel.machine.group.events import PutObject
from flegel.machine.group.exchange import GroupExchange
from flegel.machine.group.group import Group
from flegel.machine.group.records import CURRENT, Entry
from flegel.machine.group.store_calls import StoreCalls
from flegel.machine.group.table import MemberTable
from flegel.params.ledger import Ledger

Patch = pytest.MonkeyPatch


def first_broken(seeds: range) -> str:
    """The first broken law; empty where none is."""
    for seed in seeds:
        try:
            SiteWorld(seed).run()
        except BrokenLaw as broken:
            return f"seed {seed}: {broken}"
        except (KeyError, AssertionError, ValueError) as wrong:
            return f"seed {seed}: {wrong!r}"
    return ""


def test_no_law_is_broken_in_some_seeds() -> None:
    assert first_broken(range(12)) == ""


@pytest.mark.faults
def test_no_law_is_broken_in_two_thousand_seeds() -> None:
    assert first_broken(range(2000)) == ""


def test_the_same_seed_gives_the_same_course() -> None:
    one, other = SiteWorld(5).run(), SiteWorld(5).run()
    assert one.laws.results == other.laws.results and len(one.laws.results) > 5


# -- planted bugs ------------------------------------------------------------------------------------------


def results_are_overwritten(patch: Patch) -> None:
    put = StoreCalls.put

    def careless(self: StoreCalls, key: str, content: bytes, now: float, mode: str = "replace", *rest: str) -> bool:
        return put(self, key, content, now, "replace" if key.endswith("/result") else mode, *rest)

    patch.setattr(StoreCalls, "put", careless)


def current_is_overwritten(patch: Patch) -> None:
    put = StoreCalls.put

    def careless(self: StoreCalls, key: str, content: bytes, now: float, mode: str = "replace", *rest: str) -> bool:
        return put(self, key, content, now, "replace" if key == CURRENT else mode, *rest)

    patch.setattr(StoreCalls, "put", careless)


def a_failed_put_counts_as_done(patch: Patch) -> None:
    stored = Group._stored_one

    def trusting(self: Group, command: PutObject, event: Any, now: float) -> None:
        if command.key.endswith("/result") and event.outcome != "done":
            self._adopt(command.content, now)
        else:
            stored(self, command, event, now)

    patch.setattr(Group, "_stored_one", trusting)


def stale_contributions_count(patch: Patch) -> None:
    patch.setattr(Group, "_is_ready", lambda self, beat: bool(beat.sent))
    aggregate = Group._aggregate

    def with_old(self: Group, live: Any, now: float) -> None:
        present = MemberTable.present
        rounds = {b.group: b for b in present(self.table)}
        for beat in rounds.values():
            if beat.sent and beat.round < self.round and self._own is not None:
                old = Entry(beat.group, beat.life, beat.sent, beat.digest, beat.round)
                self._write_result([self._own, old], False, now)
                return
        aggregate(self, live, now)

    patch.setattr(Group, "_aggregate", with_old)


def late_work_is_dropped(patch: Patch) -> None:
    apply = GroupExchange._apply

    def forgetful(self: GroupExchange, job: Any, result: Any, over: bool) -> bool:
        if not result.included and self.kind == "parameters":
            self._base = self._additive(job)
        return apply(self, job, result, over)

    patch.setattr(GroupExchange, "_apply", forgetful)


def late_work_counts_as_included(patch: Patch) -> None:
    apply = GroupExchange._apply

    def double(self: GroupExchange, job: Any, result: Any, over: bool) -> bool:
        self._sent = list(self._base) or self._sent
        return apply(self, job, result, over)

    patch.setattr(GroupExchange, "_apply", double)


def lost_groups_stay_in_the_books(patch: Patch) -> None:
    set_remote = Ledger.set_remote

    def clinging(self: Ledger, statistics: dict[str, Any]) -> bool:
        return set_remote(self, {**self.remote, **statistics})

    patch.setattr(Ledger, "set_remote", clinging)


def silent_groups_are_waited_for(patch: Patch) -> None:
    patch.setattr(MemberTable, "_there", lambda self, member: True)


def two_lives_of_a_group_count(patch: Patch) -> None:
    write = Group._write_result

    def both(self: Group, entries: list[Entry], final: bool, now: float) -> None:
        former = self._previous.entries if self._previous else ()
        lives = {(e.group, e.life) for e in entries}
        write(self, [*entries, *(e for e in former if (e.group, e.life) not in lives)], final, now)

    patch.setattr(Group, "_write_result", both)


BUGS: list[Callable[[Patch], None]] = [
    results_are_overwritten,
    current_is_overwritten,
    a_failed_put_counts_as_done,
    stale_contributions_count,
    late_work_is_dropped,
    late_work_counts_as_included,
    lost_groups_stay_in_the_books,
    silent_groups_are_waited_for,
    two_lives_of_a_group_count,
]


@pytest.mark.faults
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert first_broken(range(400)) != ""
