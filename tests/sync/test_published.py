"""Models as their papers print them: one name, made of options that can each be chosen alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from flegel.compare.candidate import parse_candidate, parse_candidates
from flegel.errors import UsageError
from flegel.job import SyncSpec
from flegel.machine.plain_data import freeze, thaw
from flegel.plan.interval.interval import Round
from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.interval.rollback_stages import RollbackStages
from flegel.plan.interval.search import BinarySearch
from flegel.sync import make_policy, matching, models
from flegel.sync.fsp import FSP, FlexibleBarrier
from flegel.sync.local_timers import EveryTimer, LocalTimers
from flegel.sync.policy import Reported, Started, StopWorkers, TrainWorkers, Updated, View, WorkerView
from flegel.sync.psp import by_common_multiple


def view(*points: int) -> View:
    return View({i: WorkerView(i, n, phase="training", rate=100.0) for i, n in enumerate(points)})


def test_the_name_the_flag_and_the_candidate_are_one_model() -> None:
    named, flagged = SyncSpec("fsp:published"), SyncSpec("fsp", published=True)
    assert named.model == flagged.model == parse_candidate("fsp:published").sync == "fsp:published"
    for spec in (named, flagged):
        made = make_policy(spec)
        assert isinstance(made, FSP) and made.name == "fsp:published" and matching(spec) == "pairs"
        assert isinstance(made._interval, RollbackStages) and isinstance(made._arrivals, EveryTimer)
    assert matching(SyncSpec("fsp")) == "level"


def test_each_option_can_be_chosen_alone_and_taken_back() -> None:
    one = make_policy(SyncSpec("fsp", probes="rollback"))
    assert isinstance(one, FSP) and isinstance(one._interval, RollbackStages) and isinstance(one._arrivals, LocalTimers)
    back = make_policy(SyncSpec("fsp:published", probes="bracketed"))
    assert isinstance(back, FSP) and isinstance(back._interval, MultiStage) and isinstance(back._arrivals, EveryTimer)
    candidate = parse_candidate("fsp:published:timers=late")
    assert candidate.sync == "fsp:published" and candidate.options == {"timers": "late"}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (SyncSpec("bsp", published=True), "^bsp has no other form in a paper"),
        (SyncSpec("bsp:published"), "^bsp has no other form in a paper"),
        (SyncSpec("fsp", probes="forward"), "--probes forward must be bracketed or rollback."),
        (SyncSpec("bsp", timers="all"), "bsp has no --timers; it is an option of fsp"),
        (SyncSpec("fsp:publishd"), "did you mean 'fsp:published'"),
        (SyncSpec("fsp", 0.05, probes="rollback"), "--probes rollback has no effect with --interval 50ms; omit one"),
        (SyncSpec("fsp", 1.0, probes="rollback"), "--probes rollback has no effect with --interval 1s; omit one"),
        (SyncSpec("fsp", timers="all", coordination="centralized"), "--timers all has no effect with --coordination"),
        (SyncSpec("fsp", matching="pairs", balance="off"), "--matching pairs has no effect with --balance off"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: SyncSpec, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make_policy(spec)


def test_every_published_model_has_a_form_of_ours_and_the_same_options() -> None:
    for name, model in models().items():
        if name.endswith(":published"):
            ours = models()[name.removesuffix(":published")]
            assert model.options() == ours.options() and issubclass(model, ours)


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize(("round_end", "stops"), [("idle", False), ("first", True)])
def test_the_first_worker_through_its_data_ends_the_round_as_in_the_paper(
    round_end: str, stops: bool, rate: float
) -> None:
    policy, seen = make_policy(SyncSpec("fsp", interval=10.0, round_end=round_end)), view(10, 1000, 1000)
    seen.workers[0].rate = rate  # a slow worker with few points, or one of unknown speed, is not enough for ours
    policy.decide(Started(), seen, 0.0)
    seen.workers[0].phase = "reported"
    decision = policy.decide(Reported(0, exhausted=True), seen, 1.0)
    assert decision.actions == ((StopWorkers((1, 2)),) if stops else ())


def test_every_worker_has_a_clock_that_makes_reports_arrive_together() -> None:
    """Worker 2 answers 0.2 s late: it is told to stop earlier, the others a little later."""
    timers, late = EveryTimer(), {0: 0.0, 1: 0.0, 2: 0.2}
    for _ in range(60):
        own = timers.begin(1.0)
        for worker, respond in late.items():
            timers.arrived(worker, own.get(worker, 1.0) + respond)
        timers.close()
    arrivals = {worker: own[worker] + respond for worker, respond in late.items()}
    assert max(arrivals.values()) - min(arrivals.values()) < 0.01 and own[2] < own[0]
    assert timers.patience >= max(timers.delta.values())


def test_a_round_that_was_cut_short_teaches_no_clock() -> None:
    timers = EveryTimer()
    timers.begin(1.0)
    timers.arrived(0, 0.5)
    timers.cut(0.5)
    timers.arrived(1, 0.9)
    timers.close()
    assert timers.delta == {}


def test_the_probe_tells_workers_to_go_back_and_is_kept_by_a_checkpoint() -> None:
    policy, seen = make_policy(SyncSpec("fsp:published")), view(1000, 1000)
    assert isinstance(policy, FlexibleBarrier)
    policy.decide(Started(), seen, 0.0)
    cursors = []
    for number in range(1, 5):
        if number == 3:
            policy = thaw(freeze(policy), make_policy(SyncSpec("fsp:published")))
        done = Updated(number, (0, 1), 1.0, True, 100, 0.01, gain=1.0, seconds=0.21)
        decision = policy.decide(done, seen, 0.3 * number)
        cursors += [a.cursor for a in decision.actions if isinstance(a, TrainWorkers)]
    assert cursors == ["mark", "", "rewind", ""]


# -- fsp-binary and psp ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_the_binary_search_begins_again_when_speeds_change(again: bool) -> None:
    search = BinarySearch(again=again)
    search.first(0.0)
    steps = []
    for number in range(60):
        rate = 1000.0 if number < 30 else 250.0
        seconds = 1.0 if not steps else steps[-1].seconds or 1.0
        visits = int(rate * seconds)
        gain = seconds * (2.0 - seconds)  # shorter rounds gain more a second
        made = Round(visits, seconds + 0.2, 0.2, gain, full_pass=1000.0, points=1000.0, laps=1.0)
        steps.append(search.next(made))
    told = [step for step in steps[30:] if "begins again" in step.reason]
    assert len(told) == (1 if again else 0)
    if again:
        assert told[0].seconds == pytest.approx(4.0) and "speed changed" in told[0].reason
        assert "settled" in " ".join(step.reason for step in steps[steps.index(told[0]) :])


def test_iterations_are_the_common_multiple_of_the_papers_example() -> None:
    assert by_common_multiple({0: 1.0, 1: 2.0, 2: 3.0}, 15) == ({0: 6, 1: 3, 2: 2}, 1.0)  # its Fig. 4
    assert by_common_multiple({0: 1.0, 1: 1.02, 2: 2.97}, 15)[0] == {0: 3, 1: 3, 2: 1}
    counts, use = by_common_multiple({0: 1.0, 1: 5.0, 2: 7.0}, 15)  # 35 are more than a pass has
    assert counts == {0: 15, 1: 3, 2: 2} and 0.9 < use < 1.0
    assert by_common_multiple({0: 1.0, 1: 0.0}, 15) == ({0: 1, 1: 1}, 1.0)
    seen, updated = view(160, 160), Updated(1, (0, 1), None, False, 30, 0.0)
    seen.workers[1].rate /= 1.4  # rounded to the same time
    published = make_policy(SyncSpec("psp", counts="multiple")).decide(updated, seen, 0.0)
    assert "iterations 0:1, 1:1;" in published.reason
    assert "iterations 0:1, 1:1;" not in make_policy(SyncSpec("psp")).decide(updated, seen, 0.0).reason


@pytest.mark.parametrize(("name", "lingers"), [("psp", False), ("psp:published", True)])
def test_networks_train_on_while_they_wait_as_in_the_paper(name: str, lingers: bool) -> None:
    seen = view(100, 100)
    seen.in_batches = True
    (train,) = make_policy(SyncSpec(name)).decide(Started(), seen, 0.0).actions
    assert isinstance(train, TrainWorkers) and train.linger is lingers


def test_every_row_of_the_page_names_files_and_tests_that_are_there() -> None:
    root = Path(__file__).resolve().parents[2]
    tests = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    lines = (root / "docs/published.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if "| `test_" in line]
    compared, listed = (
        [
            (row[at - 2], row[at].strip("` "), row[at + 1].strip("` "))
            for row in rows
            if row[0].startswith("00") is all_columns
        ]
        for all_columns, at in ((True, 3), (False, 2))
    )
    assert len(compared) > 15 and len(listed) > 70
    for mechanism, file, test in [*compared, *listed]:
        assert (root / file).is_file() and not file.startswith("docs/"), f"{mechanism}: no file {file}"
        assert f"def {test}(" in tests, f"{mechanism}: no test {test}"


def test_a_comparison_adds_the_published_form_beside_each_model_that_has_one() -> None:
    found = parse_candidates("bsp,fsp:interval=1s,psp,psp:published", published=True)
    assert [each.label for each in found] == ["bsp", "fsp:interval=1s", "fsp:published", "psp", "psp:published"]
    with pytest.raises(UsageError, match="--published: no model of bsp,asp has another form in a paper; fsp"):
        parse_candidates("bsp,asp", published=True)
