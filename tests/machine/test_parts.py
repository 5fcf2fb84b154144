"""The parts of a coordinator by themselves: each with a job's shared record, without the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scene import Mean, Scene, load

from flegel.errors import WorkerLost
from flegel.job import Criteria, SyncSpec
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.events import BeginCheckpoint, Suspend
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.events import EvictWorker, Send, StartWorker, Timeouts, Timer, WorkerDied
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.observation import JobSnapshot, observe
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.state import JobState
from flegel.messages import CheckpointPart, Report, ResetPoints, Stop, Train
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold
from flegel.sync import make_policy
from flegel.sync.policy import TrainWorkers, Updated, WorkerView


class Parts:
    """A job in training with three workers, and its parts."""

    def __init__(self, sync: str = "bsp") -> None:
        algorithm = Mean()
        store = LocalStore(algorithm, np.zeros(2), np.zeros(2))
        self.job = JobState(algorithm, make_policy(SyncSpec(sync)), Criteria(), store, Timeouts(), phase="training")
        self.job.view.workers.update({w: WorkerView(w, 10) for w in range(3)})
        self.liveness = Liveness(self.job.timeouts)
        self.orders = WorkerOrders(self.job, self.liveness)
        self.commits = Commits(self.job, self.orders)
        self.membership = Membership(
            self.job, self.orders, self.liveness, {w: load(w, 3) for w in range(3)}, rows=30, replace_lost_workers=False
        )

    def sent(self, kind: type) -> list[int]:
        return [c.worker for c in self.job.out if isinstance(c, Send) and isinstance(c.body, kind)]

    def report(self, worker: int, amount: float = 1.0, now: float = 1.0) -> None:
        body = Report(self.job.view.round, 10, True, 0, 0, 0.5, 0.0, 0.0)
        self.commits.hold(worker, body, (np.array([amount, 1.0]),), now)

    def fold(self, request: Fold) -> Any:
        return self.job.store.fold(request)


def test_orders_remember_the_round_and_stop_only_those_who_train() -> None:
    parts = Parts()
    parts.orders.train(TrainWorkers((0, 2), linger=True), 1.0)
    assert parts.sent(Train) == [0, 2] and parts.orders.round_of == {0: 0, 2: 0} and parts.orders.lingering == {0, 2}
    parts.job.out.clear()
    parts.orders.stop_all(1.5)
    parts.orders.stop_all(1.6)
    assert parts.sent(Stop) == [0, 2], "once each"
    assert parts.orders.overdue(0, 61.0).startswith("Worker 0 did not commit within 61 s of the barrier of round 0")
    assert parts.orders.overdue(0, 59.0) == parts.orders.overdue(1, 61.0) == ""


def test_a_report_leaves_the_held_ones_when_it_is_handed_over_and_a_lost_one_does_not_count() -> None:
    parts = Parts()
    parts.orders.train(TrainWorkers((0, 1, 2)), 0.0)
    for worker in (2, 0, 1):
        parts.report(worker, 10.0**worker)
    assert parts.commits.forget(1) == 10 and sorted(parts.commits.held) == [0, 2]
    request = parts.commits.request((2, 0))
    assert request.workers == [0, 2] and not parts.commits.held and parts.commits.forget(0) == 0
    event = parts.commits.finish(request, (2, 0), parts.fold(request), 2.0)
    assert event.workers == (2, 0) and parts.job.iteration == 1 and parts.job.view.round == 1
    assert parts.job.store.statistics.tolist() == [101.0, 2.0] and parts.commits.staleness == {0: 2}


def test_accounts_are_closed_without_a_new_parameter() -> None:
    parts = Parts()
    parts.orders.train(TrainWorkers((0, 1)), 0.0)
    parts.report(0, 1.0)
    parts.report(1, 10.0)
    request = parts.commits.request_accounts(without={1})
    parts.commits.finish_accounts(request, parts.fold(request))
    assert parts.job.store.statistics.tolist() == [1.0, 1.0] and parts.job.store.parameter.tolist() == [0.0, 0.0]
    assert parts.job.iteration == 0 and parts.job.view.workers[1].phase == "idle"


def test_membership_says_what_comes_next_and_does_not_do_it() -> None:
    parts = Parts()
    assert parts.membership.lose(1, "was killed", False, False, 0, 1.0) is Next.BRING_TO_REST
    assert [c for c in parts.job.out if isinstance(c, EvictWorker)] == [EvictWorker(1, "was killed")]
    parts.membership.begin_change()
    assert parts.membership.changing and not parts.membership.steady
    assert parts.membership.step(1.1) is Next.FOLD_WITHOUT_UPDATE
    assert parts.membership.subtract_lost() == set()
    assert parts.membership.accounts_closed(set(), 1.1) is Next.NOTHING, "survivors are asked which points they hold"


def test_those_who_shared_the_account_of_a_lost_worker_begin_again() -> None:
    parts = Parts()
    parts.job.store.fold(Fold(1, [0, 1, 2], [np.array([1.0, 1.0])] * 3, "round 0", update=False))
    parts.job.store.join(0, 1)
    parts.membership.lose(1, "was killed", False, False, 0, 1.0)
    parts.membership.begin_change()
    again = parts.membership.subtract_lost()
    assert again == {0} and parts.job.store.statistics.tolist() == [1.0, 1.0]
    parts.membership.accounts_closed(again, 1.1)
    assert parts.sent(ResetPoints) == [0] and parts.job.view.workers[0].unseen == 10


def test_the_last_worker_cannot_be_lost() -> None:
    parts = Parts()
    for worker in (0, 1):
        assert parts.membership.lose(worker, "was killed", False, False, 0, 1.0) is Next.BRING_TO_REST
    assert isinstance(parts.membership.lose(2, "was killed", False, False, 0, 1.0), WorkerLost)


def test_scaling_up_starts_workers_and_scaling_down_lets_the_last_ones_leave() -> None:
    parts = Parts()
    assert parts.membership.scale(4, 1.0) is Next.NOTHING and parts.job.out == [StartWorker(3)]
    assert parts.membership.scale(2, 1.1) is Next.BRING_TO_REST and parts.membership.roster.leaving == {2}


@pytest.mark.parametrize(("sync", "forced"), [("asp", True), ("bsp", False)])
def test_a_checkpoint_stops_workers_only_under_models_without_barriers(sync: str, forced: bool) -> None:
    parts, schedule = Parts(sync), CheckpointSchedule(10.0)
    parts.orders.train(TrainWorkers((0, 1, 2)), 0.0)
    assert not schedule.heard(parts.job, Timer("checkpoint"), 1.0, steady=True) and not schedule.forced
    assert not schedule.heard(parts.job, Timer("force"), 2.0, steady=True) and schedule.forced is forced
    assert not schedule.heard(parts.job, Timer("force"), 2.0, steady=False) and not schedule.forced


def test_a_suspended_job_is_stored_at_rest_and_waits_for_every_part() -> None:
    parts, schedule = Parts(), CheckpointSchedule(10.0)
    assert not schedule.heard(parts.job, Suspend("asked"), 1.0, steady=True)
    event = Updated(1, (0, 1, 2), 1.0, True, 30, 0.0)
    schedule.at_rest(parts.job, event, 2.0, lambda event, now: {"now": now})
    saved = [c for c in parts.job.out if isinstance(c, BeginCheckpoint)]
    assert len(saved) == 1 and saved[0].state == {"now": 2.0} and schedule.suspended and not schedule.complete
    assert not schedule.took(0, CheckpointPart(7, ((10, 1),))), "of another checkpoint"
    assert [schedule.took(w, CheckpointPart(1, ((10, 1),))) for w in (0, 1, 2)] == [True] * 3 and schedule.complete


def test_observers_see_an_immutable_record_of_the_job() -> None:
    scene = Scene(workers=2, replace=False)
    scene.start()
    assert observe(scene.machine).phase == "loading" and observe(scene.machine).loads == 2
    scene.loaded(1.0)
    scene.report(0, 2.0)
    scene.report(1, 2.0)
    seen = observe(scene.machine)
    assert (seen.iteration, seen.round, seen.visits, seen.points, seen.objective) == (1, 1, 20, 20, 2.0)
    assert [(w.id, w.points, w.passes, w.state) for w in seen.workers] == [
        (0, 10, 1.0, "training"),
        (1, 10, 1.0, "training"),
    ]
    with pytest.raises(AttributeError):
        seen.phase = "over"  # type: ignore[misc]
    scene.machine.handle(WorkerDied(1, "was killed"), 3.0)
    assert observe(scene.machine).incidents == (), "training has not gone on yet"
    assert isinstance(seen, JobSnapshot) and len(seen.workers) == 2, "an older record stays as it was"
