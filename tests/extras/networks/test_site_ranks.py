"""Ranks of two sites that train one model through a folder: as real processes, and one leader's decisions alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.library("torch")

import flegel
from flegel.errors import FlegelError, FlegelWarning, GroupReplaced, StorageError, UsageError
from flegel.machine.group.events import GroupLost, Offered, RoundOpened, Stalled, StatusChanged, Synchronized
from flegel.torch import FlexibleDDP, Site
from flegel.torch.flexible.site_exchange import SiteExchange
from flegel.torch.flexible.site_rounds import ENDS_ALONE, LEAVES, SILENT, SiteRounds
from flegel.torch.flexible.site_session import SiteSession

ROOT = Path(__file__).resolve().parents[3]
RANKS = ("oslo-0", "oslo-1", "paris-0", "paris-1")


def play(folder: Path, **options: Any) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Lines of every rank, how those that reached the end ended, and exit codes with the accuracy of central
    training."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    held_up = "ranks.silence_after_failure_seconds=5"  # a busy machine may hold a rank up for long
    paths["FLEGEL_SETTINGS"] = f"{held_up},ranks.abandoned_after_silences=3"
    command = [sys.executable, "-m", "tests.extras.networks.site_ranks", str(folder), json.dumps(options)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    names = [path.name for path in folder.glob("*-[0-9]")]
    lines = {name: [json.loads(line) for line in (folder / name).read_text().splitlines()] for name in names}
    told = json.loads((folder / "codes.json").read_text())
    return lines, {**told, "errors": ended.stderr}


def check(lines: dict[str, list[Any]], told: dict[str, Any], killed: int = 0) -> list[str]:
    """θ was the same on all ranks of a site after every barrier, and at all sites in the end. `killed`: so many ranks
    of oslo were. Returns the names of all others."""
    ended = [name for name in RANKS if told["codes"][name] == 0]
    assert len(ended) == len(RANKS) - killed and "paris-0" in ended and "paris-1" in ended, told
    for site in ("oslo", "paris"):
        ranks = [
            {line[0]: line[1:] for line in lines[name] if isinstance(line, list)} for name in RANKS if site in name
        ]
        common = ranks[0].keys() & ranks[1].keys()
        assert len(common) >= 5 and all(ranks[0][at] == ranks[1][at] for at in common)
    ends = [lines[name][-1] for name in ended]
    assert all(end["agreed"] for end in ends) and len({(end["digest"], end["round"]) for end in ends}) == 1
    assert ends[0]["round"] >= 6
    # one site alone has half of the rows, and no rate falls: several points of difference are drawn
    assert ends[0]["accuracy"] >= told["central"] - 0.1
    return ended


@pytest.mark.processes
def test_the_next_rank_leads_its_site_when_the_leader_is_killed(tmp_path: Path) -> None:
    lines, told = play(tmp_path, killed="leader", site={"every": 3, "groups": 2})
    last = next(name for name in check(lines, told, killed=1) if "oslo" in name)
    lost = next(name for name in RANKS[:2] if name != last)
    assert lines[last][-1]["round"] > lines[lost][-1][1] and lines[last][-1]["ranks"] == 1


@pytest.mark.processes
def test_a_site_whose_ranks_all_died_begins_again_with_what_the_sites_have_in_common(tmp_path: Path) -> None:
    lines, told = play(tmp_path, killed="all", site={"every": 3, "groups": 2, "group_timeout": "120s"})
    again = ("oslo-2", "oslo-3")
    assert {told["codes"][name] for name in RANKS[:2]} == {-9}
    assert all(told["codes"][name] == 0 for name in (*RANKS[2:], *again)), told
    before = max(line[1] for name in RANKS[:2] for line in lines[name])
    for name in again:
        rounds = [line[1] for line in lines[name] if isinstance(line, list)]
        assert rounds[-1] > before and min(rounds[1:]) >= before, "it goes on from the rounds of all sites"
    ends = [lines[name][-1] for name in (*RANKS[2:], *again)]
    assert all(end["agreed"] for end in ends) and len({(end["digest"], end["round"]) for end in ends}) == 1
    assert ends[0]["accuracy"] >= told["central"] - 0.2


@pytest.mark.slow
def test_a_leader_that_was_frozen_is_told_that_it_was_excluded(tmp_path: Path) -> None:
    """Its site has another leader by then, which has taken its name in the bucket: that is no other site."""
    lines, told = play(tmp_path, frozen="leader", site={"every": 3, "groups": 2})
    check(lines, told, killed=1)
    assert "The other ranks went on without this one" in told["errors"], told["errors"]
    assert "a name of its own" not in told["errors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "options"),
    [
        (0, {"site": {"every": 3, "groups": 2}}),
        (1, {"killed": "rank", "site": {"every": 3, "groups": 2, "outer": "mean"}}),
        (0, {"local": True, "site": {"every": "20ms", "groups": 2, "fragments": 2, "wire": "int8", "quorum": 2}}),
    ],
    ids=["all stay", "a rank is killed", "local steps, fragments, few bytes, quorum"],
)
def test_sites_of_two_ranks_end_with_one_model(tmp_path: Path, killed: int, options: dict[str, Any]) -> None:
    check(*play(tmp_path, **options), killed=killed)


# -- the leader's decisions --------------------------------------------------------------------------------


def exchange(**options: Any) -> SiteExchange:
    site = Site("bucket", "oslo", every=2, **options)
    return SiteExchange(site.spec, site.every, [np.zeros(3, np.float32)])


def result(round_: int, theta: list[float], included: bool, final: bool = False) -> Synchronized:
    array = np.array(theta, np.float32)
    return Synchronized(round_, {}, (array,), included, final, ("oslo", "paris"))


def offers(leader: SiteExchange) -> list[Offered]:
    found = [body for body in leader.out if isinstance(body, Offered)]
    leader.out.clear()
    return found


def test_a_leader_begins_with_what_the_sites_have_and_counts_each_change_once() -> None:
    leader, theta = exchange(), np.array([5.0, 5.0, 5.0], np.float32)
    first = leader.heard(result(7, [1.0, 1.0, 1.0], included=False), lambda: [theta], 0.0)
    assert first is not None and first.replaces and first.round == 7
    theta = first.values[0] + np.float32(2.0)
    for now in (1.0, 2.0):
        leader.at_barrier(10, 2, lambda: [theta], moves=False, now=now)
    (offer,) = offers(leader)  # a site that joins contributes at its first barrier
    assert offer.round == 8 and offer.visits == 10 and np.array_equal(offer.arrays[0], np.full(3, 2.0))
    theta = theta + np.float32(0.5)  # trained on meanwhile
    move = leader.heard(result(8, [4.0, 4.0, 4.0], included=True), lambda: [theta], 3.0)
    assert move is not None and not move.replaces
    assert np.array_equal(theta + move.values[0], np.full(3, 4.5)), "the result, and what was learned since"


def test_nothing_is_sent_while_a_move_is_on_its_way() -> None:
    leader, theta = exchange(), np.zeros(3, np.float32)
    assert leader.heard(RoundOpened(1), lambda: [theta], 0.0) is not None
    for now in range(1, 5):
        leader.at_barrier(10, 2, lambda: [theta], moves=True, now=float(now))
    assert not offers(leader)
    leader.at_barrier(10, 2, lambda: [theta], moves=False, now=5.0)
    assert [offer.visits for offer in offers(leader)] == [50.0]


def test_a_leader_at_rest_contributes_until_all_rest_and_takes_the_last_result_as_it_is() -> None:
    leader, theta = exchange(), np.zeros(3, np.float32)
    leader.heard(RoundOpened(1), lambda: [theta], 0.0)
    theta = np.full(3, 0.1, np.float32)
    leader.rest(lambda: [theta], 1.0)
    leader.rest(lambda: [theta], 1.1)
    assert [body.state for body in leader.out if isinstance(body, StatusChanged)][-1] == "resting"
    assert [offer.settled for offer in offers(leader)] == [True]
    move = leader.heard(result(1, [0.1, 0.1, 0.1], included=True), lambda: [theta], 1.2)
    assert move is not None and not move.ends and not move.values[0].any()
    leader.rest(lambda: [theta], 1.3)
    assert not offers(leader), "θ has not changed: not at once"
    leader.rest(lambda: [theta], 60.0)
    assert len(offers(leader)) == 1
    last = leader.heard(result(2, [0.3, 0.3, 0.3], included=True, final=True), lambda: [theta], 60.1)
    assert last is not None and last.ends and last.replaces and np.array_equal(last.values[0], np.float32([0.3] * 3))


def test_a_site_says_who_is_lost_and_ends_alone_where_nobody_comes() -> None:
    leader, theta = exchange(), np.zeros(3, np.float32)
    leader.heard(RoundOpened(1), lambda: [theta], 0.0)
    leader.heard(GroupLost("paris", "has been silent for 30 s"), lambda: [theta], 1.0)
    assert leader.told == ["site paris has been silent for 30 s; what it sent before stays in the model"]
    leader.heard(Stalled("the bucket does not answer"), lambda: [theta], 2.0)
    assert not leader.why_ended, "it trains on"
    leader.rest(lambda: [theta], 3.0)
    leader.heard(Stalled("the bucket does not answer"), lambda: [theta], 4.0)
    assert leader.why_ended


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": "auto"}, "number of barriers"),
        ({"evry": 3}, "did you mean 'every'"),
        ({"gate": "best"}, "no option of a site"),
        ({"quorum": 3, "groups": 2}, "can never be reached"),
        ({"grace": "5s"}, "no effect without"),
        ({"group_listen": "127.0.0.1:7000"}, "group_key"),
        ({"wire": "int5"}, "not known"),
    ],
)
def test_wrong_options_of_a_site_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Site("bucket", "oslo", **options)


def test_a_site_needs_ranks_that_heal() -> None:
    with pytest.raises(UsageError, match="Ranks of a site are replaced"):
        FlexibleDDP(torch.nn.Linear(2, 1), site=Site("bucket", "oslo"))


def test_another_module_or_other_options_are_refused(tmp_path: Path) -> None:
    site, theta = Site(str(tmp_path), "oslo"), [np.zeros((2, 3), np.float32)]
    first = SiteSession(site, ["weight"], theta, takes_over=False)
    while not (tmp_path / "members" / "oslo").exists():
        time.sleep(0.01)
    try:
        for other, names, fields, says in (
            (Site(str(tmp_path), "paris"), ["weight"], [np.zeros((3, 3), np.float32)], "other parameters"),
            (Site(str(tmp_path), "paris", fragments=2), ["weight"], theta, "fragments=1"),
            (Site(str(tmp_path), "oslo"), ["weight"], theta, "Another process takes part as oslo"),
        ):
            with pytest.raises(UsageError, match=says):
                SiteSession(other, names, fields, takes_over=False)
        with pytest.raises(UsageError, match="a job cannot take part"):
            flegel.join(str(tmp_path), np.zeros((8, 3)), group="bern")
    finally:
        first.close("left")
    (tmp_path / "job").write_bytes(b"something else")
    with pytest.raises(StorageError, match="refused"):
        SiteSession(Site(str(tmp_path), "paris"), ["weight"], theta, takes_over=False)


# -- attacks on a leader -----------------------------------------------------------------------------------


def rounds_of(tmp_path: Path, name: str = "oslo", size: int = 2, **options: Any) -> SiteRounds:
    return SiteRounds(torch.nn.Linear(size, 1), Site(str(tmp_path), name, **options))


def at_a_barrier(ranks: list[SiteRounds]) -> None:
    """What ranks say, and what travels with their gradients."""
    said = [rank.report() for rank in ranks]
    parts = [part for part in (rank.part() for rank in ranks) if part is not None]
    for rank in ranks:
        rank.settle(said, sum(parts) if parts else None)  # type: ignore[arg-type]


def until(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.01)


def test_all_ranks_of_a_site_end_together_where_its_module_is_another_one(tmp_path: Path) -> None:
    """The next rank would lead, and fail likewise, one after the other."""
    first, other, rank = rounds_of(tmp_path), rounds_of(tmp_path, "paris", size=3), rounds_of(tmp_path, "paris", size=3)
    first.lead(True)
    until(lambda: first._session is not None)
    other.lead(True)
    other.await_first()
    said = [other.report(), rank.report()]
    try:
        with pytest.raises(UsageError, match="other parameters"):
            other.settle(said, None)
        with pytest.raises(UsageError, match="rank 0, cannot take part"):
            rank.settle(said, None)
        assert not other.leads
    finally:
        first.close("left")


def test_a_leader_whose_name_was_taken_does_not_fail_before_a_barrier(tmp_path: Path) -> None:
    """A leader that was frozen is replaced by a rank of its own site. At the next barrier it is told that it was
    excluded, and may rejoin; only where all ranks hold the barrier another site has this name."""
    frozen, following = rounds_of(tmp_path), rounds_of(tmp_path)
    frozen.lead(True)
    frozen.await_first()
    at_a_barrier([frozen, following])
    assert following.has_begun
    following.lead(True)  # as rank 0 of the next generation
    until(lambda: following._session is not None)
    until(lambda: frozen.report() == LEAVES)
    frozen.forget()  # it was excluded
    assert frozen.report() == SILENT and not frozen.leads
    following.close("left")


def test_two_sites_with_one_name_that_begin_together_end_in_one_of_them_on_all_ranks(tmp_path: Path) -> None:
    one, rank = rounds_of(tmp_path), rounds_of(tmp_path)
    one.lead(True)
    one.await_first()
    at_a_barrier([one, rank])
    other = SiteSession(Site(str(tmp_path), "oslo"), one._names, one._theta(), takes_over=True)
    until(lambda: one.report() == LEAVES)
    said = [one.report(), rank.report()]
    with pytest.raises(GroupReplaced, match="a name of its own"):
        one.settle(said, None)
    with pytest.raises(UsageError, match="rank 0, cannot take part"):
        rank.settle(said, None)
    other.close("left")


def test_a_site_whose_parameters_are_not_finite_says_so_and_sends_nothing(tmp_path: Path) -> None:
    site = rounds_of(tmp_path, every=1)
    site.lead(True)
    site.await_first()
    at_a_barrier([site])
    with torch.no_grad():
        site._fields[0].fill_(float("nan"))
    site.at_barrier(8, 1)
    said = [site.report()]
    with pytest.raises(FlegelError, match="not finite"):
        site.settle(said, None)
    assert not list((tmp_path / "rounds").glob("*/oslo*"))


def test_a_leader_that_takes_over_while_the_bucket_is_away_trains_on_and_ends_alone(tmp_path: Path) -> None:
    place = tmp_path / "bucket"
    with flegel.settings({"groups.stalled_after_silences": 1.0}):
        lost, following = rounds_of(place), rounds_of(place, group_timeout="2s")
        lost.lead(True)
        lost.await_first()
        at_a_barrier([lost, following])
        lost.close("left")
        shutil.rmtree(place)
        following.lead(True)
        until(lambda: bool(following._unreachable))
        at_a_barrier([following])
        assert following.leads and not following.ended, "it trains on"
        following.rest(600.0)
        with pytest.warns(FlegelWarning, match="is not in .* any more"):
            until(lambda: following.report() == ENDS_ALONE)
        following.settle([float(ENDS_ALONE)], None)
        assert following.ended and not following.agreed


def test_a_site_that_nobody_joined_does_not_say_that_others_still_train(tmp_path: Path) -> None:
    alone = rounds_of(tmp_path, groups=2)
    alone.lead(True)
    alone.await_first()
    at_a_barrier([alone])
    alone.rest(0.0)
    with pytest.warns(FlegelWarning, match="without the others: no other site was in the last round"):
        until(lambda: alone.report() == ENDS_ALONE)
    alone.settle([float(ENDS_ALONE)], None)
    assert alone.ended and not alone.agreed
