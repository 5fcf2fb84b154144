"""Each synchronization model by itself: events in, actions out."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.configuration.active import using
from flegel.errors import UsageError
from flegel.job import SyncSpec
from flegel.sync import make_policy, models
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import (
    Reported,
    Started,
    StopWorkers,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
    WorkerView,
)
from flegel.sync.psp import iterations


class Stage:
    """A policy and the workers that it sees."""

    def __init__(self, workers: int = 3, points: int = 800, **spec) -> None:
        self.policy = make_policy(SyncSpec(**spec))
        self.view = View({w: WorkerView(w, points) for w in range(workers)})
        self.now = 0.0

    def tell(self, event) -> list:
        said = list(self.policy.decide(event, self.view, self.now).actions)
        for action in said:
            match action:
                case TrainWorkers(workers=workers):
                    for w in workers:
                        self.view.workers[w].phase = "training"
                case StopWorkers(workers=workers):
                    for w in workers:
                        self.view.workers[w].stopping = True
                case Update(workers=workers):
                    for w in workers:
                        self.view.workers[w].phase = "idle"
                    self.view.round += 1
                    said += self.tell(Updated(self.view.round, workers, 1.0, True, 100, 0.01, 1.0, 0.1))
        return said

    def report(self, worker: int, exhausted: bool = True, rate: float = 1000.0) -> list:
        seen = self.view.workers[worker]
        seen.phase, seen.rate, seen.stopping = "reported", rate, False
        seen.clock += 1
        return self.tell(Reported(worker, exhausted))


def trained(said: list) -> set[int]:
    return {w for a in said if isinstance(a, TrainWorkers) for w in a.workers}


def points(said: list) -> dict[int, int]:
    return next(a.points for a in said if isinstance(a, TrainWorkers))


# -- options -----------------------------------------------------------------------------------------------


def test_every_model_is_made_and_described() -> None:
    for name, model in models().items():
        assert make_policy(SyncSpec(name)).name == name and model.summary


def test_swapped_letters_are_understood() -> None:
    with pytest.raises(UsageError, match="did you mean 'fsp'"):
        make_policy(SyncSpec("fps"))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [({"name": "bsp", "interval": 1.0}, "bsp has no --interval; it is an option of fsp."),
     ({"name": "asp", "staleness": 1}, "asp has no --staleness; it is an option of ssp."),
     ({"name": "fsp", "batches": 4}, "fsp has no --batches; it is an option of asp, bsp-mini, psp, ssp."),
     ({"name": "fsp", "interval": -1.0}, "--interval -1s must be more than 0 and less than a day."),
     ({"name": "fps"}, "No synchronization model is called 'fps'; did you mean 'fsp'?"),
     ({"name": "ssp", "staleness": -1}, "--staleness -1 must be 0 or more."),
     ({"name": "asp", "batches": 0}, "--batches 0 must be at least 1."),
     ({"name": "fsp", "coordination": "none"}, "--coordination none must be semi or centralized."),
     ({"name": "fsp-binary", "factor": 1.0}, "--factor 1 must be more than 1 and at most 16."),
     ({"name": "psp", "coordination": "semi"}, "psp has no --coordination; it is an option of fsp, fsp-binary.")],
)  # fmt: skip
def test_a_switch_that_makes_no_sense_is_refused_in_a_sentence(spec: dict, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_policy(SyncSpec(**spec))
    assert str(refused.value).endswith(sentence)


def test_a_refusal_says_where_the_switch_belongs() -> None:
    with pytest.raises(UsageError, match="ssp"):
        make_policy(SyncSpec("bsp", staleness=2))


# -- barriers by workload ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{"name": "bsp"}, {"name": "bsp-mini"}, {"name": "ssp", "staleness": 0, "batches": 1}])
def test_nobody_goes_on_before_all_have_reported(spec: dict) -> None:
    stage = Stage(**spec)
    assert trained(stage.tell(Started())) == {0, 1, 2}
    assert stage.report(2) == [] and stage.report(0) == []
    said = stage.report(1)
    assert trained(said) == {0, 1, 2}
    assert next(a for a in said if isinstance(a, Update)).workers == (0, 1, 2), "one update of all reports"


def test_mini_batches_begin_small_and_can_be_given() -> None:
    assert points(Stage(name="bsp-mini", points=3200).tell(Started())) == dict.fromkeys(range(3), 100)
    assert points(Stage(name="bsp-mini", batches=4).tell(Started())) == dict.fromkeys(range(3), 200)


# -- staleness ---------------------------------------------------------------------------------------------


def test_ssp_lets_a_worker_be_so_far_ahead_and_not_further() -> None:
    stage = Stage(name="ssp", staleness=2, batches=8)
    stage.tell(Started())
    for _ in range(2):
        assert trained(stage.report(0)) == {0}
    assert trained(stage.report(0)) == set(), "three ahead of the slowest"
    assert trained(stage.report(1)) == {1}
    assert trained(stage.report(2)) == {0, 2}, "the slowest moved, so worker 0 is free again"


def test_asp_never_waits() -> None:
    stage = Stage(name="asp", batches=4)
    assert points(stage.tell(Started())) == dict.fromkeys(range(3), 200)
    for _ in range(50):
        assert trained(stage.report(1)) == {1}


def lingering(said: list) -> set[int]:
    return {w for a in said if isinstance(a, TrainWorkers) and a.linger for w in a.workers}


def test_while_its_report_travels_a_worker_trains_on_where_that_is_asked_for() -> None:
    for spec in ({"name": "asp"}, {"name": "asp", "waiting": "idle"}, {"name": "psp", "waiting": "idle"}):
        assert not lingering(Stage(**spec).tell(Started()))
    for waiting, networks_too in (("training", True), ("interruptible", False)):
        assert lingering(Stage(name="asp", waiting=waiting).tell(Started())) == {0, 1, 2}
        networks = Stage(name="asp", waiting=waiting)
        networks.view.in_batches = True
        assert bool(lingering(networks.tell(Started()))) is networks_too


def test_who_trains_on_stays_within_the_bound_of_staleness() -> None:
    stage = Stage(name="ssp", staleness=2, batches=8, waiting="training")
    assert lingering(stage.tell(Started())) == {0, 1, 2}
    assert lingering(stage.report(0)) == {0}
    said = stage.report(0)
    assert trained(said) == {0} and not lingering(said), "after its next report it has to stop"
    assert not trained(stage.report(0))
    stage.report(1)
    said = stage.report(2)
    assert trained(said) == {0, 2} and lingering(said) == {2}


# -- flexible barriers -------------------------------------------------------------------------------------


def test_the_coordinators_signal_ends_a_centralized_round() -> None:
    stage = Stage(name="fsp", interval=0.5, coordination="centralized")
    said = stage.tell(Started())
    assert next(a for a in said if isinstance(a, TrainWorkers)).seconds is None
    assert next(a for a in said if isinstance(a, Wake)).at == 0.5
    assert stage.tell(Woken(0)) == [StopWorkers((0, 1, 2))]


def late_worker(stage: Stage, times: int = 3) -> list:
    """Worker 2 answers half a second after the signal, several times; what is said at the end."""
    said: list = []
    for _ in range(times):
        stage.now += 0.5
        stage.tell(Woken(stage.view.round))
        stage.report(0, exhausted=False, rate=1600.0)
        stage.report(1, exhausted=False, rate=1600.0)
        stage.now += 0.5
        said = stage.report(2, exhausted=False, rate=1600.0)
    return said


def test_workers_that_answer_late_keep_their_own_time() -> None:
    stage = Stage(name="fsp", interval=0.4, coordination="semi")
    assert not next(a for a in stage.tell(Started()) if isinstance(a, TrainWorkers)).seconds, "nobody is late yet"
    began = next(a for a in late_worker(stage) if isinstance(a, TrainWorkers))
    assert set(began.seconds) == {2} and began.seconds[2] <= 0.4


def test_the_signal_comes_later_where_somebody_cannot_be_in_time() -> None:
    stage = Stage(name="fsp", interval=0.4, coordination="semi")
    assert next(a for a in stage.tell(Started()) if isinstance(a, Wake)).at == pytest.approx(0.4)
    said = late_worker(stage, times=5)
    assert stage.now + 0.4 < next(a for a in said if isinstance(a, Wake)).at < stage.now + 0.9
    stage.report(2, exhausted=False)
    assert stage.tell(Woken(stage.view.round)) == [StopWorkers((0, 1))]


def test_own_clocks_are_set_no_later_than_shares_last() -> None:
    stage = Stage(name="fsp", interval=5.0, coordination="semi")
    stage.tell(Started())
    began = next(a for a in late_worker(stage) if isinstance(a, TrainWorkers))
    assert began.seconds[2] <= 0.5  # 800 points at 1,600 a second


def test_a_worker_with_nothing_left_ends_the_round_for_all() -> None:
    stage = Stage(name="fsp", interval=0.5, coordination="centralized")
    stage.tell(Started())
    for worker in range(3):
        stage.report(worker, exhausted=False, rate=1000.0)
    assert stage.report(1) == [StopWorkers((0, 2))]


@pytest.mark.parametrize("name", ["fsp", "fsp-binary"])
def test_a_setting_says_where_the_search_for_the_interval_begins(name: str) -> None:
    with using({"interval.first_seconds": 0.3}):
        stage = Stage(name=name)
        assert next(a for a in stage.tell(Started()) if isinstance(a, Wake)).at == pytest.approx(0.3)
    assert not [a for a in Stage(name=name).tell(Started()) if isinstance(a, Wake)], "it is measured"


def test_the_first_update_waits_for_half_of_the_workers() -> None:
    """No speed is known yet: the first one to be through may have begun long before the others."""
    stage = Stage(name="fsp", interval=0.5)
    stage.tell(Started())
    assert stage.report(1) == []
    assert stage.report(0) == [StopWorkers((2,))]


def test_a_slow_worker_with_few_points_does_not_end_the_round() -> None:
    """Balance left worker 0 a hundredth of the points; when it is through with them, the others go on."""
    stage = Stage(name="fsp", interval=0.5, coordination="centralized")
    stage.tell(Started())
    for worker, rate in ((0, 10.0), (1, 1000.0), (2, 1000.0)):
        stage.report(worker, exhausted=False, rate=rate)
    assert stage.report(0, rate=10.0) == []
    assert stage.report(1) == [StopWorkers((2,))]


def test_several_slow_workers_that_are_through_count_together() -> None:
    stage = Stage(name="fsp", interval=0.5, coordination="centralized")
    stage.tell(Started())
    for worker, rate in ((0, 400.0), (1, 400.0), (2, 1000.0)):
        stage.report(worker, exhausted=False, rate=rate)
    assert stage.report(0, rate=400.0) == []
    assert stage.report(1, rate=400.0) == [StopWorkers((2,))]


def test_where_barriers_are_expensive_a_round_ends_when_more_workers_have_finished() -> None:
    """A pass takes 0.8 s here; a barrier of 1.6 s is worth waiting until two thirds of the workers have finished."""
    stage = Stage(name="fsp", workers=6, interval=5.0, coordination="centralized")
    stage.tell(Started())
    for worker in range(6):
        stage.report(worker, exhausted=False)
    for _ in range(5):
        stage.tell(Updated(2, tuple(range(6)), 1.0, True, 100, 1.6, 0.1, 3.0))
    for worker in range(3):
        assert stage.report(worker) == [], "a third to a half stands idle: less than a barrier would cost"
    assert stage.report(3) == [StopWorkers((4, 5))]


def test_a_few_points_hardly_change_what_is_known_of_a_speed() -> None:
    worker = WorkerView(0, 1000)
    worker.note_rate(500, 0.5)
    worker.note_rate(1, 0.1)
    assert worker.rate > 950.0
    worker.note_rate(100, 0.2)
    assert worker.rate == 500.0


RESPONSES = {0: 0.001, 1: 0.0012, 2: 0.0011, 3: 0.030}


def rounds(learned: LocalTimers, count: int, eta: float, response: dict[int, float]) -> dict[int, float]:
    """Everybody stops at η, or by its own clock; what is said for the round after that."""
    for round_ in range(count):
        asked = learned.begin(eta)
        for worker, late in response.items():
            learned.arrived(worker, round_ + asked.get(worker, eta) + late)
        learned.close()
    return learned.begin(eta)


def test_who_is_late_while_its_points_move_waits_for_the_signal_all_the_same() -> None:
    learned, eta = LocalTimers(), 0.05
    for round_ in range(30):
        assert not learned.begin(eta)
        for worker in range(4):
            moving = worker == 3 and round_ % 10 > 0
            learned.arrived(worker, round_ + eta + 0.001 * worker / 4 + 0.02 * moving, moving)
        learned.close()
    assert not learned.delta
    assert set(rounds(learned, 10, eta, RESPONSES)) == {3}, "who is late without that is found out"


def test_where_signals_interrupt_nothing_every_worker_keeps_its_own_time() -> None:
    learned = LocalTimers()
    assert learned.begin(0.1, besides=(0, 1)) == {0: 0.1, 1: 0.1}
    learned.delta[1] = -0.02
    assert learned.begin(0.1, besides=(0, 1)) == {0: 0.1, 1: pytest.approx(0.08)}


def test_a_late_worker_learns_to_stop_early_and_the_others_wait_for_the_signal() -> None:
    asked = rounds(LocalTimers(), 30, 0.1, RESPONSES)
    assert set(asked) == {3}
    assert asked[3] + RESPONSES[3] == pytest.approx(0.1 + RESPONSES[2], abs=1e-3)


def test_hitches_make_nobody_late_and_no_round_longer() -> None:
    """Sixteen workers on busy cores: everybody is sometimes late, and somebody nearly always is."""
    learned, rng, eta = LocalTimers(), np.random.default_rng(0), 0.02
    lasted, own = [], []
    for round_ in range(300):
        asked = learned.begin(eta)
        own.append(len(asked))
        for worker in range(16):
            late = rng.exponential(0.0004) + (rng.random() < 0.05) * rng.uniform(0.002, 0.010)
            learned.arrived(worker, round_ + asked.get(worker, eta + learned.patience) + late)
        learned.close()
        lasted.append(learned.patience)
    assert np.mean(own) < 5 and np.mean(lasted) < 0.0005


def test_patience_lasts_until_those_report_that_cannot_be_earlier() -> None:
    learned, eta = LocalTimers(), 0.01
    for round_ in range(60):
        learned.begin(eta)
        for worker in range(3):
            learned.arrived(worker, round_ + eta + learned.patience + 1e-4 * worker)
        learned.arrived(3, round_ + 0.035)  # one step of it takes so long, whatever it is told
        learned.close()
    assert learned.patience == pytest.approx(0.025, abs=0.005)
    rounds(learned, 60, eta, dict.fromkeys(range(4), 0.001))
    assert learned.patience < 0.002, "it fades when there is nobody to wait for"


def test_who_was_late_once_waits_for_the_signal() -> None:
    learned = LocalTimers()
    rounds(learned, 20, 0.1, dict.fromkeys(range(4), 0.001) | {1: 0.0015})
    rounds(learned, 1, 0.1, RESPONSES)
    assert 3 not in learned.delta or learned.delta[3] == 0.0


def test_however_late_a_worker_is_it_keeps_some_time_to_train() -> None:
    assert rounds(LocalTimers(), 50, 0.01, {0: 0.0, 1: 0.0, 2: 0.5})[2] >= 0.0025 - 1e-12


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_scatter_alone_does_not_shorten_the_rounds(workers: int) -> None:
    """Somebody is always last; over hundreds of rounds that must not make everybody stop early."""
    learned, rng = LocalTimers(), np.random.default_rng(workers)
    given = []
    for round_ in range(400):
        asked = learned.begin(0.004)
        for worker in rng.permutation(workers):
            learned.arrived(int(worker), round_ + asked.get(int(worker), 0.004) + rng.exponential(0.001))
        learned.close()
        given.append(sum(asked.get(w, 0.004) for w in range(workers)) / workers)
    assert np.mean(given[200:]) > 0.92 * 0.004


def test_who_stopped_long_before_a_round_was_cut_short_trains_longer_again() -> None:
    """A late start taught worker 0 to stop early; since then others end the rounds by going through their shares."""
    learned = LocalTimers()
    assert rounds(learned, 20, 0.1, {0: 0.2, 1: 0.0, 2: 0.0})[0] == pytest.approx(0.025)
    for round_ in range(100, 200):
        asked = learned.begin(0.1)
        if asked[0] < 0.07:
            learned.arrived(0, round_ + asked[0])
        learned.arrived(1, round_ + 0.07)
        learned.cut(round_ + 0.07)
        learned.arrived(2, round_ + 0.071)
        learned.close()
    assert learned.begin(0.1)[0] > 0.065


def test_late_answers_count_in_rounds_that_were_cut_short_too() -> None:
    learned = LocalTimers()
    for round_ in range(10):
        learned.begin(0.1)
        learned.arrived(0, round_ + 0.05)
        learned.cut(round_ + 0.05)
        for worker, late in ((1, 0.001), (2, 0.0012), (3, 0.03)):
            learned.arrived(worker, round_ + 0.05 + late)
        learned.close()
    assert learned.delta == {3: 0.0}


# -- prediction --------------------------------------------------------------------------------------------


def test_iteration_counts_follow_speeds() -> None:
    counts, use = iterations({0: 1.0, 1: 2.0, 2: 3.0}, most=8)
    assert counts == {0: 6, 1: 3, 2: 2} and use == pytest.approx(1.0)
    counts, use = iterations({0: 1.0, 1: 1.0, 2: 3.0}, most=8)
    assert counts == {0: 3, 1: 3, 2: 1} and use == pytest.approx(1.0)


def test_measured_times_are_no_integers_and_still_fit() -> None:
    _, use = iterations({0: 1.013, 1: 1.987, 2: 3.04}, most=8)
    assert use > 0.95


def test_equal_workers_synchronize_after_every_iteration() -> None:
    assert iterations(dict.fromkeys(range(5), 0.1), most=8)[0] == dict.fromkeys(range(5), 1)


def test_who_spends_gradients_prefers_more_updates_to_a_little_more_use() -> None:
    times = {0: 1.0, 1: 0.4, 2: 0.2}
    assert iterations(times, most=64)[0] == {0: 2, 1: 5, 2: 10}
    assert iterations(times, most=64, nearly=0.15)[0] == {0: 1, 1: 2, 2: 5}


def test_psp_asks_workers_to_go_on_while_they_wait() -> None:
    stage = Stage(name="psp")
    said = stage.tell(Started())
    assert next(a for a in said if isinstance(a, TrainWorkers)).linger
    stage.report(0, rate=3000.0)
    stage.report(1, rate=1500.0)
    assert points(stage.report(2, rate=1000.0)) == {0: 300, 1: 150, 2: 100}


def test_psp_lets_networks_wait_since_nothing_interrupts_a_micro_batch() -> None:
    stage = Stage(name="psp")
    stage.view.in_batches = True
    said = stage.tell(Started())
    assert not next(a for a in said if isinstance(a, TrainWorkers)).linger


def test_psp_leaves_the_fastest_something_to_go_on_with() -> None:
    stage = Stage(name="psp", batches=8)
    stage.tell(Started())
    stage.report(0, rate=9000.0)
    stage.report(1, rate=9000.0)
    asked = points(stage.report(2, rate=1000.0))
    assert asked[0] == asked[1] == 700  # of 800: an eighth is left for the time until θ comes


@pytest.mark.parametrize("model", ["bsp", "bsp-mini"])
def test_a_barrier_with_a_timer_does_not_wait_longer_for_slow_workers(model: str) -> None:
    stage = Stage(name=model, barrier_timeout=120.0)
    stage.tell(Started())
    stage.now = 5.0
    said = stage.report(0)
    assert [(a.at, a.tag) for a in said if isinstance(a, Wake)] == [(125.0, 0)]
    assert not stage.report(1), "one timer a round"
    assert stage.tell(Woken(0)) == [StopWorkers((2,))]
    assert any(isinstance(a, Update) for a in stage.report(2, exhausted=False))
    assert not stage.tell(Woken(0)), "the timer of a round that is over"


def test_without_a_timer_a_barrier_waits() -> None:
    stage = Stage(name="bsp")
    stage.tell(Started())
    assert stage.report(0) == [] == stage.report(1) and stage.tell(Woken(0)) == []
