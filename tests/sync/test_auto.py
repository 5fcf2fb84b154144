"""`auto`: no trials among equal workers, searched intervals among unequal ones, and a sentence at each change."""

from __future__ import annotations

from flegel.plan.interval.interval import Round, Step
from flegel.sync.auto import Auto, idle_part
from flegel.sync.fsp import FlexibleBarrier, equally_fast
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


# -- networks: barriers or single reports ------------------------------------------------------------------


class VirtualNetwork:
    """Workers whose calls take 1 ms and each of their 14,000 samples a second its time, on virtual time."""

    def __init__(self, workers: int = 4, barrier: float = 4e-3, answer: float = 5e-4, single: bool = True) -> None:
        self.model, self.now, self.barrier, self.answer = Auto(), 0.0, barrier, answer
        self.view = View({i: WorkerView(i, 1000) for i in range(workers)}, single_reports=single, in_batches=True)
        self.said: list[str] = []
        self.orders: dict[int, float] = {}
        """By worker that trains: when it ends."""
        self.folds: list[tuple[int, ...]] = []
        self.noise = 40.0
        self._do(Started())

    def _do(self, event: Started | Reported | Updated | Woken) -> None:
        decision = self.model.decide(event, self.view, self.now)
        if decision.reason:
            self.said.append(decision.reason)
        for action in decision.actions:
            if isinstance(action, TrainWorkers):
                for worker in action.workers:
                    self.view.workers[worker].phase = "training"
                    seconds = (action.seconds or {}).get(worker, 5e-3)
                    self.orders[worker] = self.now + seconds
                    self.view.workers[worker].last_compute = seconds
            elif isinstance(action, StopWorkers):
                for worker in action.workers:
                    self.view.workers[worker].stopping = True
                    self.orders[worker] = self.now
            elif isinstance(action, Update):
                self._fold(action.workers)

    def _fold(self, workers: tuple[int, ...]) -> None:
        self.folds.append(workers)
        whole = len(workers) == len(self.view.workers)
        self.now += self.barrier if whole else self.answer
        self.view.round += 1
        for worker in workers:
            self.view.workers[worker].phase = "idle"
        seconds = max(self.view.workers[w].last_compute for w in workers) + self.barrier
        self._do(
            Updated(
                self.view.round, workers, 1.0, True, 60 * len(workers), self.barrier, 0.01, seconds, None, self.noise
            )
        )

    def reports(self, count: int, moving: bool = False) -> None:
        for _ in range(count):
            worker = min(self.orders, key=lambda w: self.orders[w])
            self.now = max(self.orders.pop(worker), self.now)
            seen = self.view.workers[worker]
            compute = max(seen.last_compute, 2e-3)
            seen.hear(max(int((compute - 1e-3) * 14_000), 1), compute, 0.0, 0.0, 1e-3)
            self._do(Reported(worker, False, moving))


def test_networks_leave_costly_barriers_with_the_first_measurements_and_say_why() -> None:
    job = VirtualNetwork()
    job.reports(16)
    assert job.folds[0] == (0, 1, 2, 3)
    assert all(len(fold) == 1 for fold in job.folds[1:]), "each report is folded in as it comes"
    assert any("an update of each report: single reports are worth" in text for text in job.said)
    assert job.model.choice.startswith("an update of each report") and job.model.interval is not None


def test_barriers_come_back_when_gradients_become_noise() -> None:
    job = VirtualNetwork()
    job.reports(12)
    job.noise = 1e7
    job.reports(40)
    assert job.folds[-1] == (0, 1, 2, 3), "everybody was stopped, and rounds have barriers again"
    assert job.model.choice.startswith("an update at each barrier")
    assert job.model.choice in job.said


def test_points_that_move_bring_barriers_at_once() -> None:
    job = VirtualNetwork()
    job.reports(12)
    before = len(job.folds)
    job.reports(4, moving=True)
    assert len(job.folds[before]) >= 1 and job.folds[-1] != () and not job.model._single
    job.reports(4)
    assert job.folds[-1] == (0, 1, 2, 3), "windows change owner between workers that have both reported"


def test_jobs_whose_parts_need_every_report_keep_barriers() -> None:
    job = VirtualNetwork(single=False)
    job.reports(32)
    assert all(fold == (0, 1, 2, 3) for fold in job.folds)


def test_algorithms_without_gradient_noise_keep_barriers() -> None:
    model, said = rounds([1000.0] * 4, barrier_cost=0.05, count=20)
    assert not model._single and not any("report" in text for text in said)
