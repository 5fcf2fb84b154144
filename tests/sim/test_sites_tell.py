"""What a group says of the others: for whom it waits, who was lost, and whether all ended together. On virtual time."""

from __future__ import annotations

import io
import itertools

import pytest

from bench.sites.bucket import BucketFaults
from bench.sites.site import LastCommit
from bench.sites.world import SILENCE, SiteScenario, SiteWorld
from flegel.configuration.active import active
from flegel.job import Criteria
from flegel.machine.coordinator.events import Note, Timer
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.machine.coordinator.state import JobState
from flegel.machine.group.events import FromGroup, GroupLost, Remark, Waiting
from flegel.machine.group.exchange import GroupStep
from flegel.machine.group.quorum import ALL_GROUPS, Quorum
from flegel.machine.group.waiting import WaitReports
from flegel.runtime import clock
from flegel.runtime.group.part import about_groups
from flegel.terminal.display import PlainDisplay
from flegel.terminal.progress_line import line

NEVER = 1e9


def world(
    lasts: tuple[LastCommit, ...] = (),
    kills: tuple[tuple[int, float, float], ...] = (),
    joins: tuple[float, ...] = (0.0, 0.0),
    exchange: str = "statistics",
    quorum: Quorum = ALL_GROUPS,
) -> SiteWorld:
    """Two groups, g0 and g1, and a bucket that answers."""
    faults = BucketFaults(latency=0.01)
    scenario = SiteScenario(exchange, 2, 1, faults, kills, (), joins, (0.1, 0.1), (), lasts, 2, quorum)
    return SiteWorld(1, scenario)


def test_a_group_that_waits_for_one_that_never_came_says_so_from_the_beginning() -> None:
    seen = world((LastCommit(2), LastCommit(2)), joins=(0.0, NEVER))
    seen.run_until(1.0)
    said = seen.sites[0].job.waits_for
    assert said == f"waits for 1 more group of 2 (for {20 * SILENCE:.0f} s at most)"
    site = seen.sites[0]
    site.exchange.heard(site.job, FromGroup(Waiting(said, True)), 1.0)
    assert any(isinstance(command, Note) and said in command.text for command in site.job.out), "the log has it, too"
    seen.run_until(21 * SILENCE)
    assert site.ended == "unsynchronized" and site.job.waits_for == ""


def test_why_a_group_ended_without_the_others_is_told_with_its_end_and_not_before() -> None:
    seen = world((LastCommit(2), LastCommit(2)), joins=(0.0, NEVER))
    seen.run_until(1.0)
    site, heard = seen.sites[0], list[object]()
    hear = site.exchange.heard

    def noted(job: JobState, event: FromGroup | Timer, now: float) -> GroupStep:
        heard.append(event)
        return hear(job, event, now)

    site.exchange.heard = noted  # type: ignore[method-assign]
    seen.run_until(21 * SILENCE)
    assert "only 1 of --groups 2 came" in str(site.job.verdict)
    assert not [event for event in heard if isinstance(event, FromGroup) and isinstance(event.news, Remark)]


def test_a_group_that_was_waited_for_and_came_is_not_waited_for_any_more() -> None:
    seen = world((LastCommit(2), LastCommit(2)), joins=(0.0, 5.0))
    seen.run_until(4.0)
    assert seen.sites[0].job.waits_for
    seen.run_until(100.0)
    assert [site.ended for site in seen.sites.values()] == ["converged"] * 2
    assert seen.sites[0].job.waits_for == "" and "group g1 joined" in seen.sites[0].job.news


def test_a_silent_group_in_a_round_is_named_before_it_is_given_up() -> None:
    seen = world(kills=((1, 5.0, NEVER),))
    seen.run_until(5.0 + 0.8 * SILENCE)
    assert seen.sites[0].job.waits_for.startswith("waits for g1 in round")
    seen.run_until(5.0 + 3 * SILENCE)
    assert seen.sites[0].job.waits_for == ""


@pytest.mark.parametrize(
    ("exchange", "told", "result"),
    [
        ("statistics", "the next round is without its rows", "its rows are not in the model"),
        ("parameters", "its rows are no longer trained on", "its rows are no longer trained on"),
    ],
)
def test_a_lost_group_is_told_once_and_stands_in_the_result(exchange: str, told: str, result: str) -> None:
    seen = world(kills=((1, 5.0, NEVER),), exchange=exchange)
    seen.run_until(5.0 + 6 * SILENCE)
    site = seen.sites[0]
    news = [text for text in site.job.news if "silent" in text]
    assert len(news) == 1 and news[0].startswith("group g1 has been silent for") and told in news[0]
    (warning,) = about_groups({"without": site.exchange.without()})
    assert warning.startswith("group g1 has been silent for") and result in warning


def test_of_a_lost_group_whose_statistics_are_still_in_the_model_nothing_else_is_said() -> None:
    """It is lost, and this group ends before the next round: no sentence says that its rows are not in the model."""
    seen = world(kills=((1, 5.0, NEVER),))
    seen.run_until(5.0)
    exchange, job = seen.sites[0].exchange, seen.sites[0].job
    assert exchange.groups == ("g0", "g1")
    exchange.heard(job, FromGroup(GroupLost("g1", "has been silent for 5 s")), 6.0)
    assert job.news[-1] == "group g1 has been silent for 5 s; the next round is without its rows"
    told = about_groups({"without": exchange.without(), "groups": exchange.groups, "objective_of": ["g0"]})
    assert len(told) == 2 and told[0] == "group g1 has been silent for 5 s; its last statistics stand"
    assert "also holds statistics of g1" in told[1] and not any("not in the model" in text for text in told)


def test_a_group_that_is_missing_in_the_end_and_was_not_noticed_to_be_lost_is_named() -> None:
    """This group reaches its limit while the other one is silent, and not yet for long enough to be lost."""
    seen = world()
    seen.run_until(3.0)
    exchange = seen.sites[0].exchange
    exchange.groups, exchange.lost = ("g0",), {}
    assert exchange.without() == ["group g1 did not take part in the last round; its rows are not in the model"]


def test_with_a_quorum_a_lost_group_whose_statistics_stand_is_named() -> None:
    seen = world(kills=((1, 5.0, NEVER),), quorum=Quorum(count=1))
    seen.run_until(5.0 + 6 * SILENCE)
    exchange = seen.sites[0].exchange
    assert "g1" in exchange.groups
    assert [text.partition("; ")[2] for text in exchange.without()] == ["its last statistics stand"]


def test_a_group_that_comes_back_is_no_loss_in_the_result() -> None:
    seen = world(kills=((1, 5.0, 5.0 + 3 * SILENCE),))
    seen.run_until(5.0 + 6 * SILENCE)
    assert any("silent" in text for text in seen.sites[0].job.news) and seen.sites[0].exchange.without() == []


def test_groups_that_end_with_one_result_ended_together() -> None:
    seen = world((LastCommit(20), LastCommit(20)))
    seen.run_until(100.0)
    assert [site.ended for site in seen.sites.values()] == ["converged"] * 2
    assert all(site.exchange.agreed and site.exchange.together for site in seen.sites.values())


def test_where_one_was_lost_or_ended_before_not_all_ended_together() -> None:
    lost = world((LastCommit(200), LastCommit(200)), kills=((1, 5.0, NEVER),))
    lost.run_until(300.0)
    assert lost.sites[0].ended == "converged" and lost.sites[0].exchange.agreed
    assert not lost.sites[0].exchange.together and lost.sites[0].exchange.without()
    before = world((LastCommit(200), LastCommit(5, limit=True)))
    before.run_until(300.0)
    assert [site.ended for site in before.sites.values()] == ["converged", "limit"]
    assert not any(site.exchange.together for site in before.sites.values())


def test_a_wait_is_a_line_of_the_log_every_half_minute_at_most() -> None:
    reports = WaitReports()
    told = [reports.look(f"waits for lyon in round {at // 10}", at % 20 == 0, float(at)) for at in range(100)]
    lines = [at for at, report in enumerate(told) if report is not None and report.line]
    assert lines[0] == 0 and len(lines) == 4
    assert all(
        later - earlier >= active().groups.wait_reported_every_seconds for earlier, later in itertools.pairwise(lines)
    )
    short = WaitReports()
    assert short.look("waits for lyon in round 1, still training", False, 0.0) is None
    assert short.look("", False, active().groups.wait_reported_after_seconds / 2) is None, (
        "nothing was told, and nothing is taken back"
    )


def test_displays_say_what_happened_once_and_a_wait_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, stream = itertools.count(), io.StringIO()
    monkeypatch.setattr(clock, "now", lambda: float(next(seconds)))
    display, why = PlainDisplay(stream), "waits for 1 more group of 2"
    seen = JobSnapshot("KMeans", "bsp", "resting", 1, 1, iteration=3, waits_for=why, news=("group lyon joined",))
    for _ in range(59):
        display.show(seen)
    assert stream.getvalue().count(why) == 2 and stream.getvalue().count("lyon joined") == 1
    assert why in line(seen, Criteria())


def test_the_job_sees_its_sites_who_is_waited_for_and_how_old_contributions_are() -> None:
    scenario = SiteScenario(
        "statistics", 3, 1, BucketFaults(), ((2, 5.0, 1e9),), (), (0.0,) * 3, (0.3,) * 3, quorum=Quorum(count=2)
    )
    world = SiteWorld(0, scenario)
    world.run_until(5.0)
    seen = world.sites[0].exchange.seen
    assert seen is not None and [site.group for site in seen.sites] == ["g0", "g1", "g2"]
    world.run_until(20.0)
    seen = world.sites[0].exchange.seen
    assert seen is not None and seen.sites[2].silent and (seen.sites[2].age or 0) > 5 and seen.round > 10
