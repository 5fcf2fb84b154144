"""`auto`: no trials among equal workers, searched intervals among unequal ones, and a sentence at each change."""

from __future__ import annotations

from flegel.plan.interval.interval import Round, Step
from flegel.sync.auto import Auto, idle_part
from flegel.sync.fsp import FlexibleBarrier, equally_fast
from flegel.sync.policy import Reported, Started, StopWorkers, TrainWorkers, Updated, View, Wake, Woken, WorkerView


def rounds(rates: list[float], barrier_cost: float = 1e-3, count: int = 6) -> tuple[Auto, list[str]]:
    """So many rounds, each ended by everybody's report, and what was said of them."""
    model = Auto()
    view = View({i: WorkerView(i, 1000) for i in range(len(rates))})
    now, said = 0.0, [model.decide(Started(), view, 0.0).reason]
    for number in range(1, count + 1):
        for worker, rate in zip(view.workers.values(), rates, strict=True):
            worker.rate, worker.phase = rate, "reported"
            now += 0.01
            model.decide(Reported(worker.id, True), view, now)
        view.round = number
        ended = Updated(number, tuple(view.workers), 10.0 / number, True, 4000, barrier_cost, 1.0 / number, 0.1)
        for worker in view.workers.values():
            worker.phase = "idle"
        decision = model.decide(ended, view, now)
        assert isinstance(decision.actions[0], TrainWorkers)
        said.append(decision.reason)
    return model, said


def test_among_equal_workers_the_interval_follows_from_speed_and_cost_alone() -> None:
    model, said = rounds([1000.0, 1010.0, 990.0, 1005.0], count=20)
    assert not model._chosen.probes and not any("speeds" in text or "stage" in text for text in said)
    assert model.interval is not None and 0.0 < model.interval < 1.0, "barriers are cheap: less than a pass"


def test_a_slow_worker_starts_the_search_after_two_rounds_and_the_reason_has_figures() -> None:
    model, said = rounds([1000.0, 1000.0, 1000.0, 125.0])
    assert model._chosen.probes
    assert ["speeds differ" in text for text in said] == [False, False, True, False, False, False, False]
    assert "wait 66% of their time" in said[2]


def test_points_that_have_moved_do_not_hide_that_workers_differ() -> None:
    view = View({0: WorkerView(0, 1900, rate=1000.0), 1: WorkerView(1, 100, rate=50.0)})
    assert idle_part(view) > 0.4
    assert idle_part(View({0: WorkerView(0, 10)})) == 0.0


class WholePasses:
    def first(self, least: float) -> Step:
        return Step(1.0, whole=True)

    def next(self, last: Round) -> Step:
        return Step(1.0, whole=True)


def test_a_round_of_whole_passes_ends_with_the_last_worker_or_half_as_long_again() -> None:
    model = FlexibleBarrier(WholePasses(), "semi")
    view = View({i: WorkerView(i, 1000, "training", rate=1000.0) for i in range(4)})
    order, wake = model.decide(Started(), view, 0.0).actions
    assert order == TrainWorkers((0, 1, 2, 3)) and wake == Wake(1.5, 0)
    for worker in (0, 1, 2):
        view.workers[worker].phase = "reported"
        assert model.decide(Reported(worker, True), view, 1.0).actions == (), "the last one is waited for"
    assert model.decide(Woken(0), view, 1.5).actions == (StopWorkers((3,)),)
    assert model.deltas == {}


def test_workers_are_alike_by_all_that_they_computed() -> None:
    assert equally_fast(
        [WorkerView(i, 1000, visits=1000, compute=seconds) for i, seconds in enumerate((1.0, 0.9, 1.2))]
    )
    assert not equally_fast(
        [WorkerView(i, 1000, visits=1000, compute=seconds) for i, seconds in enumerate((1.0, 0.9, 4.0))]
    )
    assert not equally_fast([WorkerView(0, 1000, visits=1000, compute=1.0), WorkerView(1, 1000)]), (
        "one is not known yet"
    )
