"""The coordinator on virtual time: events in, commands out, nothing sleeps."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scene import Mean, Scene, done, stops, timers, trains

from flegel.errors import AlgorithmError, UsageError
from flegel.job import Criteria
from flegel.machine.coordinator.events import (
    Note,
    Send,
    WorkerDied,
)
from flegel.messages import FetchStates, LoadShard, ShardLoaded, States, WorkerFailed

# -- the life of a job -------------------------------------------------------------------------------------


def test_a_job_begins_by_loading_every_worker_with_the_parameter_and_empty_statistics() -> None:
    said = Scene(workers=3).start()
    sent = [c for c in said if isinstance(c, Send)]
    assert [c.worker for c in sent] == [0, 1, 2]
    assert all(isinstance(c.body, LoadShard) and len(c.arrays) == 2 for c in sent)


def test_training_begins_only_when_the_last_worker_is_loaded() -> None:
    scene = Scene(workers=2)
    scene.start()
    assert not trains(scene.say(1, ShardLoaded(10, 3, "compiled", "", 0.1), 1.0))
    assert set(trains(scene.say(0, ShardLoaded(10, 3, "compiled", "", 0.1), 2.0))) == {0, 1}
    assert scene.machine.state.began == 2.0, "seconds count from here: loading is not training"


def test_workers_with_different_versions_of_a_library_are_refused() -> None:
    scene = Scene(workers=2)
    scene.start()
    scene.say(1, ShardLoaded(10, 3, "torch", "", 0.1, library="torch 2.12.0"), 1.0)
    with pytest.raises(UsageError, match=r"Worker 0 has torch 2\.13\.0, but worker 1 has torch 2\.12\.0"):
        scene.say(0, ShardLoaded(10, 3, "torch", "", 0.1, library="torch 2.13.0"), 2.0)


def test_bsp_waits_for_all_then_folds_in_and_goes_on() -> None:
    scene = Scene(workers=2)
    assert {t.points for t in trains(scene.loaded()).values()} == {10}
    assert scene.report(0, 2.0, (3.0, 1.0)) == []
    said = scene.report(1, 5.0, (4.0, 1.0))
    assert set(trains(said)) == {0, 1}
    assert {t.round for t in trains(said).values()} == {1}
    np.testing.assert_array_equal(scene.machine.parameter, [3.5, 2.0])
    assert scene.machine.trace[-1].seconds == 4.0
    assert scene.machine.trace[-1].visits == 20


def test_the_new_parameter_is_what_workers_are_sent() -> None:
    scene = Scene(workers=1)
    scene.loaded()
    said = scene.report(0, 2.0, (6.0, 2.0))
    (sent,) = [c for c in said if isinstance(c, Send)]
    np.testing.assert_array_equal(sent.arrays[0], [3.0, 2.0])


def test_a_report_that_comes_twice_counts_once() -> None:
    scene = Scene(workers=2)
    scene.loaded()
    scene.report(0, 2.0, (3.0, 1.0))
    again = scene.report(0, 2.1, (3.0, 1.0))
    assert [type(c) for c in again] == [Note]
    scene.report(1, 3.0, (4.0, 1.0))
    np.testing.assert_array_equal(scene.total, [7.0, 2.0])


def test_a_report_of_an_earlier_round_changes_nothing() -> None:
    scene = Scene(workers=1)
    scene.loaded()
    scene.report(0, 2.0, (3.0, 1.0), round=0)
    said = scene.report(0, 2.5, (100.0, 100.0), round=0)
    assert [type(c) for c in said] == [Note] and "round 0 again" in said[0].text
    np.testing.assert_array_equal(scene.total, [3.0, 1.0])


def test_nothing_is_said_after_the_end() -> None:
    scene = Scene(workers=1, criteria=Criteria(max_iterations=1, tolerance=0))
    scene.loaded()
    assert done(scene.report(0, 2.0)) is not None
    assert scene.report(0, 3.0) == []
    assert scene.timer("watch", 99.0) == []
    assert scene.machine.handle(WorkerDied(0, "was killed"), 100.0) == []


# -- the flexible barrier ----------------------------------------------------------------------------------


def test_fsp_ends_a_round_after_its_interval() -> None:
    scene = Scene(workers=2, sync="fsp", interval=0.25, coordination="centralized")
    assert timers(scene.loaded(now=1.0))["policy"] == 1.25
    assert stops(scene.timer("policy", 1.25, tag=0)) == {0: 0, 1: 0}


def test_fsp_full_passes_of_half_of_the_workers_raise_the_barrier_for_the_others() -> None:
    scene = Scene(workers=3, sync="fsp", interval=9.0)
    scene.loaded()
    assert not stops(scene.report(1, 2.0, exhausted=True)), "in the first pass one fast worker alone decides nothing"
    assert stops(scene.report(0, 2.1, exhausted=True)) == {2: 0}
    assert set(trains(scene.report(2, 2.2, visits=3, exhausted=False, unseen=7))) == {0, 1, 2}


def test_fsp_timer_of_a_round_that_is_over_stops_nobody() -> None:
    scene = Scene(workers=1, sync="fsp", interval=0.25)
    scene.loaded()
    scene.report(0, 1.1)
    assert scene.machine.view.round == 1
    assert scene.timer("policy", 1.25, tag=0) == []


def test_the_barrier_is_not_raised_twice() -> None:
    scene = Scene(workers=2, sync="fsp", interval=0.25)
    scene.loaded()
    assert stops(scene.timer("policy", 1.25, tag=0))
    assert not stops(scene.report(0, 1.26, exhausted=True)), "worker 1 was told already"


def test_barrier_cost_is_the_time_in_which_the_average_worker_did_not_compute() -> None:
    scene = Scene(workers=2)
    scene.loaded(now=1.0)
    scene.report(0, 1.6)
    scene.report(1, 1.7)  # each computed 0.5 s of 0.7 s
    assert scene.machine.trace[-1].barrier_cost == pytest.approx(0.2)


# -- endings -----------------------------------------------------------------------------------------------


def test_the_largest_number_of_iterations_ends_without_convergence() -> None:
    scene = Scene(workers=1, criteria=Criteria(max_iterations=2, tolerance=0))
    scene.loaded()
    scene.report(0, 2.0)
    assert done(scene.report(0, 3.0)) is not None
    assert scene.machine.verdict is not None
    assert not scene.machine.verdict.converged and scene.machine.verdict.reason == "reached 2 iterations"
    assert scene.machine.state.seconds == 2.0


def test_a_target_counts_once_every_point_was_seen() -> None:
    scene = Scene(workers=1, criteria=Criteria(target=5.0, tolerance=0))
    scene.loaded()
    scene.report(0, 2.0, (2.0, 1.0), visits=5, unseen=5, exhausted=False)
    assert scene.machine.verdict is None, "half of the points are unseen, so 2.0 is not the objective"
    scene.report(0, 3.0, (2.0, 1.0), visits=5)
    assert scene.machine.verdict is not None and scene.machine.verdict.converged


def test_tolerance_compares_full_passes_of_the_slowest_worker() -> None:
    scene = Scene(workers=2, sync="fsp", interval=1.0, criteria=Criteria(tolerance=0.01))
    scene.loaded()
    now = 1.0
    for _ in range(3):  # worker 1 needs ten barriers for a pass; the objective stands still meanwhile
        now += 1.0
        scene.report(0, now, (0.0, 0.0), visits=10)
        scene.report(1, now, (0.0, 0.0), visits=1, exhausted=False)
    assert scene.machine.verdict is None
    for _ in range(20):
        if scene.machine.verdict is None:
            now += 1.0
            scene.report(0, now, (0.0, 0.0), visits=10)
            scene.report(1, now, (0.0, 0.0), visits=1, exhausted=False)
    assert scene.machine.verdict is not None and scene.machine.verdict.converged
    assert scene.machine.iteration == 20, "first check after one pass of worker 1, second after two"


def test_a_worker_without_points_does_not_hold_up_the_end() -> None:
    scene = Scene(workers=2, criteria=Criteria(tolerance=0.01))
    scene.start()
    scene.say(0, ShardLoaded(10, 3, "compiled", "", 0.1), 1.0)
    scene.say(1, ShardLoaded(0, 3, "compiled", "", 0.1), 1.0)
    for now in (2.0, 3.0, 4.0):
        if scene.machine.verdict is None:
            scene.report(0, now, (0.0, 0.0), visits=10)
            scene.report(1, now, (0.0, 0.0), visits=0)
    assert scene.machine.verdict is not None and scene.machine.verdict.converged


def test_a_worker_without_points_does_not_raise_the_barrier() -> None:
    scene = Scene(workers=2, sync="fsp", interval=9.0)
    scene.start()
    scene.say(0, ShardLoaded(10, 3, "compiled", "", 0.1), 1.0)
    scene.say(1, ShardLoaded(0, 3, "compiled", "", 0.1), 1.0)
    assert not stops(scene.report(1, 1.001, (0.0, 0.0), visits=0))


def test_the_time_limit_stops_in_the_middle_of_a_pass_and_commits_what_was_done() -> None:
    scene = Scene(workers=2, criteria=Criteria(max_seconds=3.0, tolerance=0))
    assert timers(scene.loaded(now=1.0))["limit"] == 4.0
    scene.report(0, 2.0, (3.0, 1.0))
    assert stops(scene.timer("limit", 4.0)) == {1: 0}
    said = scene.report(1, 4.1, (4.0, 1.0), visits=3, exhausted=False, unseen=7)
    assert done(said) is not None and done(said).error is None
    np.testing.assert_array_equal(scene.total, [7.0, 2.0])
    assert scene.machine.verdict is not None and scene.machine.verdict.reason == "reached 3 s"
    assert scene.machine.trace[-1].objective is None, "seven points are unseen"
    assert scene.machine.state.seconds == pytest.approx(3.1)


def test_all_points_halted_is_convergence() -> None:
    scene = Scene(workers=2)
    scene.loaded()
    scene.report(0, 2.0, halted=10)
    scene.report(1, 2.0, halted=10)
    assert scene.machine.verdict is not None and scene.machine.verdict.reason == "every point voted to halt"


def test_an_objective_that_leaves_the_numbers_ends_the_job_and_says_so() -> None:
    scene = Scene(workers=1)
    scene.loaded()
    scene.report(0, 2.0, (float("nan"), 1.0))
    assert scene.machine.verdict is not None
    assert not scene.machine.verdict.converged and "diverged" in scene.machine.verdict.reason


def test_a_first_round_in_which_nobody_came_to_train_is_no_divergence() -> None:
    scene = Scene(workers=1, sync="fsp", interval=0.1)
    scene.loaded()
    scene.report(0, 2.0, (0.0, 0.0), visits=0, unseen=10, exhausted=False)
    assert scene.machine.trace[-1].estimate is None
    scene.report(0, 3.0, (1e9, 10.0))
    assert scene.machine.verdict is None


def test_estimates_from_the_first_few_points_are_no_ground_for_divergence() -> None:
    scene = Scene(workers=1, sync="fsp", interval=0.1)
    scene.loaded()
    scene.report(0, 2.0, (1e-9, 1.0), visits=1, unseen=9, exhausted=False)
    scene.report(0, 3.0, (1e9, 9.0), visits=9)
    assert scene.machine.verdict is None


def test_states_are_collected_before_the_end_where_they_are_wanted() -> None:
    scene = Scene(workers=2, criteria=Criteria(max_iterations=1, tolerance=0), collect=True)
    scene.loaded()
    scene.report(0, 2.0)
    said = scene.report(1, 2.0)
    assert [type(c.body) for c in said if isinstance(c, Send)] == [FetchStates, FetchStates]
    assert not scene.say(1, States(), 2.1, (np.zeros((10, 1)), np.arange(10)))
    assert done(scene.say(0, States(), 2.2, (np.zeros((10, 1)), np.arange(10))))
    assert scene.machine.state.seconds == 1.0, "collecting is not training"


# -- what goes wrong ---------------------------------------------------------------------------------------


def test_a_failed_hook_is_the_users_own_traceback_with_worker_and_round() -> None:
    scene = Scene(workers=2)
    scene.loaded()
    said = scene.say(1, WorkerFailed("updateDataPoint", 0, "ValueError: oh", "Traceback …\n  my.py, line 7\n"), 2.0)
    error = done(said).error
    assert isinstance(error, AlgorithmError)
    assert str(error) == "updateDataPoint raised ValueError: oh (worker 1, round 0)"
    assert "my.py, line 7" in error.trace


def test_a_worker_that_cannot_use_the_request_says_so_as_a_usage_error() -> None:
    scene = Scene()
    scene.start()
    error = done(scene.say(0, WorkerFailed("loading", -1, "There is no file x.", "", True), 0.5)).error
    assert isinstance(error, UsageError) and str(error) == "There is no file x."


def test_a_hook_that_raises_on_the_coordinator_names_itself_and_the_round() -> None:
    class Broken(Mean):
        def updateParameter(self, aggregator: object, oldParameter: object) -> object:
            raise KeyError("lost")

    scene = Scene(workers=1, algorithm=Broken())
    scene.loaded()
    with pytest.raises(AlgorithmError, match=r"updateParameter raised KeyError: 'lost' \(coordinator, round 0\)") as e:
        scene.report(0, 2.0)
    assert 'raise KeyError("lost")' in e.value.trace
    assert "_hook" not in e.value.trace, "the user sees only lines of their own"


class Late(Mean):
    """Says itself what intervals do to it."""

    worth = 1.0

    def efficiency(self, part: float, workers: int) -> float | None:
        return self.worth / (1.0 + workers * part)


def test_an_algorithm_that_knows_what_intervals_do_to_it_is_believed() -> None:
    scene = Scene(sync="fsp", points=4000, algorithm=Late())
    scene.loaded()
    scene.report(0, 1.5, visits=250)
    scene.report(1, 1.5, visits=250)
    assert "as the algorithm says" in scene.machine.trace[-1].reason + scene.machine.state.reason


@pytest.mark.parametrize("worth", [-1.0, float("nan"), 0.0])
def test_nonsense_about_intervals_is_refused_by_name(worth: float) -> None:
    algorithm = Late()
    algorithm.worth = worth
    scene = Scene(sync="fsp", points=4000, algorithm=algorithm)
    scene.loaded()
    scene.report(0, 1.5, visits=250)
    with pytest.raises(AlgorithmError, match="efficiency must return a number"):
        scene.report(1, 1.5, visits=250)


@pytest.mark.parametrize("answer", ["much", 1j, np.ones(2), np.ones(1), [0.5], float("nan"), -2.0])
def test_of_several_answers_the_one_that_is_no_number_is_named(answer: object) -> None:
    class Strange(Mean):
        def efficiency(self, part: float, workers: int) -> float | None:
            return 1.0 if part < 0.5 else answer  # type: ignore[return-value]

    scene = Scene(sync="fsp", points=4000, algorithm=Strange())
    scene.loaded()
    scene.report(0, 1.5, visits=250)
    with pytest.raises(AlgorithmError, match=rf"it returned {re.escape(repr(answer))} for 0.5 of a pass and 2 workers"):
        scene.report(1, 1.5, visits=250)


def test_an_algorithm_that_does_not_know_every_interval_is_probed() -> None:
    class Unsure(Mean):
        def efficiency(self, part: float, workers: int) -> float | None:
            return None if part > 0.5 else 1.0

    scene = Scene(sync="fsp", points=4000, algorithm=Unsure())
    scene.loaded()
    scene.report(0, 1.5, visits=250)
    scene.report(1, 1.5, visits=250)
    assert "first pass" in scene.machine.state.reason


def test_a_parameter_of_another_shape_is_refused_by_name() -> None:
    class Shrinking(Mean):
        def updateParameter(self, aggregator: object, oldParameter: object) -> object:
            return np.zeros(1)

    scene = Scene(workers=1, algorithm=Shrinking())
    scene.loaded()
    with pytest.raises(AlgorithmError, match=r"updateParameter.*shape"):
        scene.report(0, 2.0)
