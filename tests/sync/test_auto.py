"""`auto`: no trials among equal workers, searched intervals among unequal ones, and a sentence at each change."""

from __future__ import annotations

from flegel.sync.auto import Auto, idle_part
from flegel.sync.policy import Reported, Started, TrainWorkers, Updated, View, WorkerView


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


def test_dear_barriers_make_trials_not_worth_it() -> None:
    assert not rounds([1000.0, 1000.0, 1000.0, 125.0], barrier_cost=0.5)[0]._chosen.probes


def test_points_that_have_moved_do_not_hide_that_workers_differ() -> None:
    view = View({0: WorkerView(0, 1900, rate=1000.0), 1: WorkerView(1, 100, rate=50.0)})
    assert idle_part(view) > 0.4
    assert idle_part(View({0: WorkerView(0, 10)})) == 0.0
