"""When a job is over: criteria that combine, on the clock of full passes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flegel.cli import local_job as job
from flegel.job import Criteria
from flegel.plan.termination import SOUND_OUTCOMES, Progress, Termination
from flegel.terminal import display


def at(iteration=1, seconds=1.0, objective=10.0, exact=True, passes=0.0, halted=0, points=100, diverged=""):
    return Progress(iteration, seconds, objective, exact, passes, halted, points, diverged)


def test_the_first_criterion_that_holds_ends_the_job() -> None:
    check = Termination(Criteria(max_iterations=3, target=5.0, max_seconds=9.0), maximize=False)
    assert check.judge(at(1), False) is None
    assert check.judge(at(2, objective=4.0), False).converged
    assert not check.judge(at(3), False).converged
    assert "9 s" in check.judge(at(2, seconds=9.5), False).reason


def test_the_target_counts_only_when_every_point_was_seen() -> None:
    check = Termination(Criteria(target=5.0), maximize=False)
    assert check.judge(at(objective=4.0, exact=False), False) is None
    assert check.judge(at(objective=4.0), False).converged


def test_maximizing_turns_the_target_round() -> None:
    check = Termination(Criteria(target=5.0), maximize=True)
    assert check.judge(at(objective=4.0), False) is None
    assert check.judge(at(objective=6.0), False).converged


def test_short_intervals_give_no_false_convergence() -> None:
    """Two hundred barriers a pass, each with a tiny change: judged once a pass only."""
    check = Termination(Criteria(tolerance=1e-2), maximize=False)
    value = 100.0
    for step in range(1, 600):
        value *= 0.9995
        assert check.judge(at(step, objective=value, passes=step / 200), False) is None, step


def test_checks_are_a_whole_pass_apart_whatever_the_barriers_are() -> None:
    """Barriers of most of a pass, then a short one: 1.95 and 2.05 passes are no pass apart."""
    check = Termination(Criteria(tolerance=1e-2), maximize=False)
    for passes, value in ((1.0, 100.0), (1.95, 50.0), (2.05, 49.9), (2.9, 30.0), (3.02, 29.99)):
        assert check.judge(at(objective=value, passes=passes), False) is None, passes


def test_a_fast_worker_that_stands_still_is_waited_for() -> None:
    """Worker 0 has most points and made more passes; while it stands, the other goes over its few points again."""
    check = Termination(Criteria(tolerance=1e-2), maximize=False)
    fast = SimpleNamespace(points=90, visits=0, caught_up=0)
    slow = SimpleNamespace(points=10, visits=0, caught_up=0)

    def judged(fast_passes: float, slow_passes: float, objective: float):
        fast.visits, slow.visits = int(90 * fast_passes), int(10 * slow_passes)
        seen = at(objective=objective, passes=min(fast_passes, slow_passes))
        return check.judge(replace(seen, workers={0: fast, 1: slow}), False)

    assert judged(5.0, 1.0, 100.0) is None
    assert judged(9.0, 2.0, 50.0) is None
    assert judged(9.0, 3.0, 49.9) is None, "no pass of worker 0"
    assert judged(9.5, 7.0, 49.8) is None
    assert judged(10.0, 8.0, 49.8).converged


def test_visits_of_points_that_catch_up_are_no_pass_over_all_points() -> None:
    check, worker = Termination(Criteria(tolerance=1e-2), maximize=False), SimpleNamespace(points=100, visits=0)

    def judged(visits: int, caught_up: int, objective: float):
        worker.visits, worker.caught_up = visits, caught_up
        return check.judge(replace(at(objective=objective, passes=visits / 100), workers={0: worker}), False)

    assert judged(100, 0, 50.0) is None
    assert judged(300, 200, 50.0) is None, "twenty points were visited ten times, and the others not at all"
    assert judged(360, 200, 50.0) is None
    assert judged(400, 200, 50.0).converged


def test_relative_change_over_a_pass_ends_the_job() -> None:
    check = Termination(Criteria(tolerance=1e-2), maximize=False)
    assert check.judge(at(objective=100.0, passes=1.0), False) is None
    assert check.judge(at(objective=90.0, passes=2.0), False) is None
    assert check.judge(at(objective=89.5, passes=2.5), False) is None, "no further pass yet"
    assert check.judge(at(objective=89.5, passes=3.1), False).converged


def test_the_users_check_and_all_votes_to_halt_end_the_job() -> None:
    check = Termination(Criteria(tolerance=0, max_iterations=99), maximize=False)
    assert check.judge(at(halted=99), False) is None
    assert "voted" in check.judge(at(halted=100), False).reason
    assert "terminationCheck" in check.judge(at(passes=1.0), True).reason


def test_no_job_ends_short_of_its_target_in_silence() -> None:
    """Whatever ends it: the verdict is not that it converged, and the reason names the target."""
    criteria = Criteria(target=5.0, max_iterations=9, max_passes=90.0, max_seconds=900.0)
    ends = [
        at(halted=100),
        replace(at(), finished="10 epochs are done"),
        at(iteration=9),
        at(passes=90.0),
        at(seconds=900.0),
        at(iteration=9, objective=None, exact=False),
        at(iteration=9, objective=4.0, exact=False),
    ]
    for end in ends:
        verdict = Termination(criteria, maximize=False).judge(end, False)
        assert verdict is not None and not verdict.converged and "short of the target 5" in verdict.reason, end
    said = Termination(criteria, maximize=False).judge(at(passes=1.0), True)
    assert said is not None and not said.converged and "short of the target 5" in said.reason
    assert Termination(criteria, maximize=False).judge(at(halted=100, objective=4.0), False).converged


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_divergence(value: float) -> None:
    verdict = Termination(Criteria(), maximize=False).judge(at(objective=value), False)
    assert not verdict.converged and verdict.reason.startswith("diverged")


def test_an_objective_that_runs_away_is_divergence_and_a_bump_is_not() -> None:
    check = Termination(Criteria(), maximize=False)
    assert check.judge(at(objective=10.0), False) is None
    assert check.judge(at(objective=60.0), False) is None
    verdict = check.judge(at(7, objective=200.0), False)
    assert "diverged" in verdict.reason and "iteration 7" in verdict.reason
    upward = Termination(Criteria(), maximize=True)
    upward.judge(at(objective=-10.0), False)
    assert upward.judge(at(objective=-5.0), False) is None
    assert "diverged" in upward.judge(at(objective=-300.0), False).reason


def test_an_algorithm_that_knows_its_distance_to_the_minimum_is_judged_by_it() -> None:
    """A small change may mean small steps."""
    check = Termination(Criteria(tolerance=1e-4), maximize=False)
    assert check.judge(replace(at(passes=1.0), optimality=math.inf), False) is None
    assert check.judge(replace(at(passes=2.0), optimality=0.5), False) is None
    verdict = check.judge(replace(at(passes=3.0), optimality=1e-5), False)
    assert verdict is not None and verdict.converged and "to the minimum" in verdict.reason


def test_an_algorithm_that_finds_no_better_step_ends_the_job_unconverged() -> None:
    check = Termination(Criteria(tolerance=1e-4), maximize=False)
    verdict = check.judge(replace(at(passes=1.0), optimality=math.nan), False)
    assert verdict is not None and not verdict.converged


@pytest.mark.parametrize(
    ("values", "baseline", "target", "outcome", "says"),
    [
        ((9.0, 5.0, 5.0), 8.0, None, "converged", "relative change 0 over a full pass"),
        ((9.0, 5.0, 5.0), 4.0, None, "worse", "worse than the 4 of one cluster"),
        ((9.0, 9.5, 9.5), None, None, "worse", "worse than the 9 after the first pass"),
        ((9.0, 5.0, 5.0), None, 4.0, "stalled", "short of the target 4"),
        ((9.0, 5.0, 5.0), None, 5.0, "target", "reached the target"),
    ],
)
def test_a_job_has_converged_only_where_its_model_is_good(values, baseline, target, outcome, says) -> None:
    for maximize in (False, True):
        sign = -1.0 if maximize else 1.0
        check = Termination(Criteria(tolerance=1e-4, target=None if target is None else sign * target), maximize)
        verdict = None
        for passes, value in enumerate(values, start=1):
            trivial = None if baseline is None else sign * baseline
            seen = replace(at(objective=sign * value, passes=passes), baseline=trivial, trivial="one cluster")
            verdict = verdict or check.judge(seen, False)
        assert (
            verdict.outcome == outcome
            and says.replace("the 4", f"the {sign * 4:g}")
            .replace("the 9", f"the {sign * 9:g}")
            .replace("target 4", f"target {sign * 4:g}")
            in verdict.reason
        )
        assert verdict.converged == (outcome in SOUND_OUTCOMES)


def test_a_job_that_stalls_above_its_target_says_so_and_ends_and_a_slow_one_does_not() -> None:
    stuck, slow = (Termination(Criteria(tolerance=0, target=1.0), maximize=False) for _ in range(2))
    verdicts = [stuck.judge(at(objective=2.0 + 1e-6 / p, passes=p), False) for p in range(1, 30)]
    first = next(v for v in verdicts if v is not None)
    assert first.outcome == "stalled" and "short of the target" in first.reason and verdicts.index(first) >= 12
    assert all(slow.judge(at(objective=2.0 - 1e-3 * p, passes=p), False) is None for p in range(1, 200))


@pytest.mark.parametrize(("outcome", "code"), [("stalled", 3), ("worse", 3), ("unsound", 3), ("limit", 0)])
def test_the_command_line_exits_with_3_where_the_model_is_not_as_asked_for(
    outcome: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        """A display that shows nothing."""

        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None: ...

        def finish(self, result: object) -> None: ...

    class Nobody:
        def observers(self, stack: object) -> list[object]:
            return []

    found = 0
    monkeypatch.setattr(display, "make_display", lambda stream: Silent())
    monkeypatch.setattr(job, "_finish_job", lambda *_: SimpleNamespace(outcome=outcome))
    try:
        line = SimpleNamespace(begin=lambda phase: None)
        job.show_and_save(lambda **_: None, job.Outputs(None, None, None), Nobody(), line)
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == code


def test_slow_gains_end_a_job_only_when_the_second_half_of_all_passes_gained_little() -> None:
    """1 + 1/p falls by a millionth in pass 1000 and has a thousandth to go; the old rule would end it there."""
    ended = {}
    for slow in (False, True):
        check, passes = Termination(Criteria(tolerance=1e-6), maximize=False, slow_gains=slow), 0
        while passes < 20_000:
            passes += 1
            if check.judge(at(passes, objective=1.0 + 1.0 / passes, passes=float(passes)), False):
                break
        ended[slow] = 1.0 / passes
    assert 5e-4 < ended[False] < 2e-3
    assert 5e-5 < ended[True] <= 1e-4, "what remains is within 100 tolerances"


def test_small_gains_that_do_not_shrink_are_no_convergence() -> None:
    """A long valley: 5e-7 a pass over 2,000 passes are a thousandth; every pass alone is within the tolerance."""
    check = Termination(Criteria(tolerance=1e-6), maximize=False, slow_gains=True)
    for passes in range(1, 101):
        assert check.judge(at(objective=1.0 - 5e-7 * passes, passes=passes), False) is None
    ended = [check.judge(at(objective=1.0 - 5e-5, passes=p), False) for p in range(101, 260)]
    assert any(verdict is not None and verdict.converged for verdict in ended)


def test_slow_gains_below_the_rounding_of_a_trivial_model_are_none() -> None:
    check = Termination(Criteria(tolerance=1e-6), maximize=False, slow_gains=True)
    values = enumerate((1.05e-12, 1e-12, 1e-12), 1)
    verdicts = [check.judge(replace(at(p, objective=v, passes=float(p)), baseline=1.0), False) for p, v in values]
    assert verdicts[-1] is not None and verdicts[-1].converged


@pytest.mark.parametrize(
    ("noise", "error", "outcome"),
    [(2e-6, 2.5e-4, "converged"), (2e-6, 0.0, "worse"), (1e-12, 0.0, "converged"), (1e-5, 2.5e-4, "worse")],
)
def test_objectives_that_differ_by_the_rounding_of_their_statistics_are_equal(
    noise: float, error: float, outcome: str
) -> None:
    """A job that begins at the optimum goes up and down by rounding."""
    check = Termination(Criteria(tolerance=1e-4), maximize=False)
    verdict = None
    for passes, value in enumerate((100.0, 100.0 * (1 + noise), 100.0 * (1 + noise)), 1):
        verdict = check.judge(replace(at(passes, objective=value, passes=float(passes)), error=lambda: error), False)
        if verdict is not None:
            break
    assert verdict is not None and verdict.outcome == outcome
