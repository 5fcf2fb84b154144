"""Sites whose bucket is damaged, whose names are the same, and that come to an end, on virtual time."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from bench.sites.bucket import BucketFaults
from bench.sites.simulate import first_broken
from bench.sites.site import LastCommit
from bench.sites.world import ENDED_BY, SiteScenario, SiteWorld
from flegel.machine.group.events import PutObject, Remark
from flegel.machine.group.group import Group
from flegel.machine.group.quorum import ALL_GROUPS, Quorum
from flegel.machine.group.records import MemberBeat, decode, encode, result_key
from flegel.machine.group.table import MemberTable

Patch = pytest.MonkeyPatch


def quiet(groups: int = 2, exchange: str = "statistics", **more: Any) -> SiteScenario:
    """Nothing goes wrong by itself."""
    return SiteScenario(exchange, groups, 1, BucketFaults(), (), (), (0.0,) * groups, (0.3,) * groups, **more)


@pytest.mark.parametrize("exchange", ["statistics", "parameters"])
@pytest.mark.parametrize("noise", [b"cut off", None], ids=["damaged", "deleted"])
@pytest.mark.parametrize("key", ["rounds/2/result", "current", "rounds/2/g1.2", "members/g1"])
def test_rounds_go_on_after_an_object_is_damaged(exchange: str, noise: bytes | None, key: str) -> None:
    world = SiteWorld(0, quiet(exchange=exchange))
    written = world.laws.written

    def damaging(name: str, content: bytes | None, now: float) -> None:
        written(name, content, now)
        if name == key and not spoilt and now > 1.0:
            spoilt.append(name)
            world.at(now, lambda t: world.bucket.spoil(key, noise, t))

    spoilt: list[str] = []
    world.bucket._written = damaging
    world.run_until(40.0)
    assert spoilt == [key]
    assert min(site.applied for site in world.sites.values()) > 10


@pytest.mark.parametrize("says", ["another version", "1e300 visits", "another name"])
def test_nobody_waits_for_a_group_whose_beats_cannot_be_used_any_more(says: str) -> None:
    """It lives, and what it writes is whole: as of a site that was updated while the others train, or one that lies."""
    world = SiteWorld(0, quiet())
    written = world.laws.written

    def another(name: str, content: bytes | None, now: float) -> None:
        written(name, content, now)
        if name == "members/g1" and content and now > 5.0:
            beat, _ = decode(content, MemberBeat)
            changed = {"1e300 visits": {"visits": 1e300}, "another name": {"group": "g7"}}.get(says, {})
            lie = encode(msgspec.structs.replace(beat, **changed)) if changed else content + b"a later field"
            world.at(now, lambda t: world.bucket._history[name].append((t, lie)))

    world.bucket._written = another
    world.run_until(15.0)
    before = world.sites[0].applied
    world.run_until(60.0)
    assert world.sites[0].applied > before + 5 and world.sites[0].exchange.groups == ("g0",)


def test_a_damaged_result_is_written_again_by_who_has_applied_it(monkeypatch: Patch) -> None:
    world, said = SiteWorld(0, quiet()), list[Any]()
    handle = Group.handle

    def noting(self: Group, event: Any, now: float) -> Any:
        out = handle(self, event, now)
        said.extend((self.name, c) for c in out if isinstance(c, (Remark, PutObject)))
        return out

    monkeypatch.setattr(Group, "handle", noting)
    adopt = Group._adopt

    def late(self: Group, content: bytes, tag: str, now: float) -> None:
        if self.name == "g1" and self.round == 2 and self._unreadable.holds(result_key(2)) is False and now < 9.0:
            world.bucket.spoil(result_key(2), b"cut off", now)
            self._calls.forget("get", result_key(2))
            return
        adopt(self, content, tag, now)

    monkeypatch.setattr(Group, "_adopt", late)
    world.run_until(30.0)
    again = [c for name, c in said if isinstance(c, PutObject) and c.key == result_key(2) and c.mode == "replace"]
    assert again and all(site.applied > 5 for site in world.sites.values())


def test_of_two_groups_with_one_name_the_older_is_told_that_it_was_replaced() -> None:
    world = SiteWorld(0, quiet(groups=1))
    world.run_until(5.0)
    first = world.sites.pop(0)
    world._start(0, 5.0)
    world.run_until(15.0)
    second = world.sites[0]
    assert first.ended == "replaced" and not second.ended
    assert second.applied > first.applied


def test_groups_end_after_another_has_reached_its_limit() -> None:
    lasts = (LastCommit(8), LastCommit(3, limit=True), LastCommit(12))
    world = SiteWorld(0, quiet(groups=3, lasts=lasts)).run()
    assert [world.sites[i].ended for i in range(3)] == ["converged", "limit", "converged"]
    assert world.sites[0].exchange.agreed and world.sites[2].exchange.agreed


def test_a_group_that_wakes_after_the_others_have_ended_does_not_take_their_end_for_its_own() -> None:
    scenario = quiet(groups=2, lasts=(LastCommit(4), LastCommit(4)))
    world = SiteWorld(0, dataclasses.replace(scenario, freezes=((1, 1.0, 29.0),)))
    world.run_until(28.9)
    assert world.sites[0].ended == "converged" and not world.sites[1].ended
    world.run()
    late = world.sites[1]
    assert late.ended == "converged" and late.applied > world.sites[0].applied
    assert "g1" in late.exchange.groups  # its own statistics are in the result with which it ends


@pytest.mark.parametrize("quorum", [ALL_GROUPS, Quorum(count=2)])
def test_a_group_with_too_few_rows_sends_nothing_and_ends_with_the_others(quorum: Quorum) -> None:
    lasts = (LastCommit(8), LastCommit(5), LastCommit(6))
    world = SiteWorld(0, quiet(groups=3, lasts=lasts, least_groups=3, quorum=quorum))
    world.run_until(0.1)
    small = world.sites[2]
    small.exchange._least_rows = 5  # the rows of a simulated site are not counted
    world.run()
    assert all(e.group != "g2" for entries in world.laws.results.values() for e in entries)
    assert [world.sites[i].ended for i in range(3)] == ["converged"] * 3
    assert [world.sites[i].exchange.agreed for i in range(3)] == [True, True, False]
    assert small.exchange.withheld > 1 and small.store.statistics.steps.tolist() == [8.0, 5.0, 6.0]


def test_groups_that_all_have_too_few_rows_end_with_a_sentence() -> None:
    world = SiteWorld(0, quiet(groups=2, lasts=(LastCommit(3), LastCommit(3))))
    world.run_until(0.1)
    for site in world.sites.values():
        site.exchange._least_rows = 5
    world.run()
    assert {site.ended for site in world.sites.values()} == {"unsynchronized"}
    assert "no group has contributed, because of too few rows" in str(world.sites[0].job.verdict)


def test_a_group_does_not_wait_for_ever_for_groups_that_never_come() -> None:
    world = SiteWorld(0, quiet(groups=1, lasts=(LastCommit(4),), least_groups=2)).run()
    site = world.sites[0]
    assert site.ended == "unsynchronized"
    assert site.job.verdict is not None and "only 1 of --groups 2 came" in site.job.verdict.reason


def test_a_group_whose_contribution_cannot_be_written_ends_with_a_sentence(monkeypatch: Patch) -> None:
    world = SiteWorld(0, quiet(groups=2, lasts=(LastCommit(4), LastCommit(4))))
    call = world.bucket.call

    def full(command: Any, now: float, answer: Any) -> None:
        if isinstance(command, PutObject) and command.key.startswith("rounds/") and ".2" in command.key:
            command = PutObject(command.op, "elsewhere", command.content, "swap", "no such tag")
        call(command, now, answer)

    monkeypatch.setattr(world.bucket, "call", full)
    world.run_until(ENDED_BY)
    stuck, other = world.sites[1], world.sites[0]
    assert stuck.ended == "unsynchronized" and "cannot be written" in str(stuck.job.verdict)
    assert other.ended == "converged"


# -- planted bugs ------------------------------------------------------------------------------------------


def nobody_writes_again(patch: Patch) -> None:
    patch.setattr(Group, "_write_again", lambda self, lacks, now: None)
    patch.setattr("flegel.machine.group.unreadable.UnreadableObjects.given_up", lambda self, key: False)


def finished_groups_stay_unsettled(patch: Patch) -> None:
    final = Group._is_final

    def strict(self: Group, entries: Any, live: Any) -> bool:
        return final(self, entries, live) and all(entry.settled for entry in entries)

    patch.setattr(Group, "_is_final", strict)


def a_damaged_beat_is_no_silence(patch: Patch) -> None:
    patch.setattr(MemberTable, "missed", lambda self, group, now: None)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (nobody_writes_again, "damaged"),
        (finished_groups_stay_unsettled, "ending"),
        (a_damaged_beat_is_no_silence, "damaged"),
    ],
)
def test_a_planted_bug_is_found(plant: Any, kind: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert first_broken(kind, range(200)) != ""


def test_groups_with_two_packages_never_add_their_statistics(monkeypatch: Patch) -> None:
    """`job` was removed while groups began: the one with the larger hash is told, the other one goes on alone."""
    world = SiteWorld(0, quiet())
    make = Group.__init__

    def packaged(self: Group, settings: Any, *rest: Any) -> None:
        make(self, dataclasses.replace(settings, package="ab" if settings.name == "g0" else "cd"), *rest)

    monkeypatch.setattr(Group, "__init__", packaged)
    world.run_until(20.0)
    assert world.sites[1].ended == "replaced" and not world.sites[0].ended
    assert world.sites[0].applied > 5 and world.sites[0].exchange.groups == ("g0",)
