"""Ranks of two sites that train one model through a folder: as real processes, and one leader's decisions alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.library("torch")

import flegel
from flegel.errors import StorageError, UsageError
from flegel.machine.group.events import GroupLost, Offered, RoundOpened, Stalled, StatusChanged, Synchronized
from flegel.torch import FlexibleDDP, Site
from flegel.torch.flexible.site_exchange import SiteExchange
from flegel.torch.flexible.site_session import SiteSession

ROOT = Path(__file__).resolve().parents[3]
RANKS = ("oslo-0", "oslo-1", "paris-0", "paris-1")


def play(folder: Path, **options: Any) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Lines of every rank, how those that reached the end ended, and exit codes with the accuracy of central
    training."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    paths["FLEGEL_SETTINGS"] = "ranks.silence_after_failure_seconds=5"  # a busy machine may hold a rank up for long
    command = [sys.executable, "-m", "tests.extras.networks.site_ranks", str(folder), json.dumps(options)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    lines = {name: [json.loads(line) for line in (folder / name).read_text().splitlines()] for name in RANKS}
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
    assert ends[0]["round"] >= 4
    assert ends[0]["accuracy"] >= told["central"] - 0.05
    return ended


@pytest.mark.processes
def test_the_next_rank_leads_its_site_when_the_leader_is_killed(tmp_path: Path) -> None:
    lines, told = play(tmp_path, killed="leader", site={"every": 3, "groups": 2})
    last = next(name for name in check(lines, told, killed=1) if "oslo" in name)
    lost = next(name for name in RANKS[:2] if name != last)
    assert lines[last][-1]["round"] > lines[lost][-1][1] and lines[last][-1]["ranks"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "options"),
    [
        (0, {"site": {"every": 3, "groups": 2}}),
        (1, {"killed": "rank", "site": {"every": 3, "groups": 2, "outer": "mean"}}),
        (0, {"local": True, "site": {"every": "200ms", "groups": 2, "fragments": 2, "wire": "int8", "quorum": 2}}),
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
