"""θ on every worker: slices are summed to the coordinator's bits, and losses in the middle of a fold undo it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scene import Mean, Scene, done, trains

from flegel import Statistics
from flegel.core.pytree import Array
from flegel.errors import DecodeError, ProtocolError
from flegel.machine.checkpoint.part import snapshot_of
from flegel.machine.coordinator.events import Command, Send, Timeouts, WorkerDied
from flegel.machine.worker.replica import HeldReports, Replica, SliceSum, digest
from flegel.messages import (
    DropFold,
    HoldReplica,
    Reduced,
    ReduceReports,
    Report,
    ResetPoints,
    ShardLoaded,
    WorkerBeat,
    WorkerFailed,
)  # fmt: skip
from flegel.params.ledger import add_in_order
from flegel.params.replicated import ReplicatedStore


def fold(members: int, reporting: tuple[int, ...]) -> ReduceReports:
    return ReduceReports(7, 3, "round 3", tuple((w, f"at {w}") for w in range(members)), reporting, True)


def exchange(parts: list[SliceSum]) -> None:
    """Every piece to whom it is for."""
    for sender, part in enumerate(parts):
        for member, arrays in part.outgoing().items():
            parts[member].put(sender, False, arrays)
    for sender, part in enumerate(parts):
        own = part.take_own_sum()
        assert own is not None and part.take_own_sum() is None, "once"
        for member, other in enumerate(parts):
            if member != sender:
                other.put(sender, True, own)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_slices_add_up_to_the_bits_of_the_coordinator_on_every_member(members: int, dtype: type) -> None:
    rng = np.random.default_rng(members)
    shapes: list[tuple[int, ...]] = [(17, 3), (2,), (), (0,)]
    total = tuple(rng.normal(size=s).astype(dtype) for s in shapes)
    reporting = tuple(w for w in range(members) if w != 1)
    reports = [[(1e3 * rng.normal(size=s)).astype(dtype) for s in shapes] for _ in range(members)]
    wanted = [np.array(a) for a in total]
    add_in_order(wanted, [[reports[w][at] for w in reporting] for at in range(len(shapes))])
    order = fold(members, reporting)
    parts = [SliceSum(order, w, total, reports[w] if w in reporting else None) for w in range(members)]
    exchange(parts)
    for part in parts:
        assert not part.missing
        assert digest(part.statistics) == digest(wanted)
        assert [a.shape for a in part.statistics] == shapes


def test_a_slice_of_another_size_or_type_is_refused() -> None:
    part = SliceSum(fold(2, (0, 1)), 0, (np.zeros(4),), [np.ones(4)])
    for wrong in (np.ones(3), np.ones(2, np.float32)):
        with pytest.raises(DecodeError, match="worker 1 sent a slice"):
            part.put(1, False, (wrong,))
    assert part.take_own_sum() is None and part.missing == [0, 1]


def test_reports_add_up_until_a_fold_takes_them_and_an_undone_fold_gives_them_back() -> None:
    held, change = HeldReports(), np.array([1.0])
    held.add((change,))
    change[0] = 5.0  # the kernel goes on in the same memory
    held.add((np.array([2.0]),))
    taken = held.take(4)
    assert taken is not None and taken[0].tolist() == [3.0]
    held.give_back(3)
    assert held.take(5) is None, "that was another fold"
    held.add((np.array([7.0]),))
    held.take(6)
    held.give_back(6)
    assert held.take(8)[0].tolist() == [7.0]  # type: ignore[index]


class SimulatedWorkers:
    """Workers that hold replicas, in one process: they answer the orders of a coordinator on a stage."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.copies: dict[int, Replica] = {}
        self.reports: dict[int, HeldReports] = {w: HeldReports() for w in range(8)}
        self.reset: list[int] = []

    def hear(self, said: list[Command]) -> ReduceReports | None:
        """Carry out all but the fold itself, which is returned."""
        wanted = None
        for command in said:
            if not isinstance(command, Send):
                continue
            match command.body:
                case HoldReplica() as body:
                    self.copies[command.worker] = Replica(body, command.arrays)
                case DropFold(number):
                    self.reports[command.worker].give_back(number)
                case ResetPoints():
                    self.reports[command.worker].clear()
                    self.reset.append(command.worker)
                case ReduceReports() as body:
                    wanted = body
                case _ if command.worker in trains([command]):
                    assert command.arrays == (), "θ is there already"
        return wanted

    def fold(self, order: ReduceReports) -> list[tuple[int, Reduced, tuple[Array, ...]]]:
        members = [w for w, _ in order.members]
        parts = [SliceSum(order, w, self.copies[w].total, self.reports[w].take(order.fold)) for w in members]
        exchange(parts)
        algorithm = self.scene.algorithm
        return [
            (w, *self.copies[w].finish(algorithm, order, p.statistics, w, lambda h, *a: getattr(algorithm, h)(*a)))
            for w, p in zip(members, parts, strict=True)
        ]

    def barrier(self, now: float, change: tuple[float, float] = (1.0, 1.0)) -> ReduceReports:
        order = None
        for worker in self.scene.machine.view.workers:
            self.reports[worker].add((np.array(change),))
            body = Report(self.scene.machine.view.round, self.scene.points, True, 0, 0, 0.5, 0.01, 0.02)
            order = self.hear(self.scene.say(worker, body, now)) or order
        assert order is not None
        return order

    def finish(self, order: ReduceReports, now: float) -> list[Command]:
        said: list[Command] = []
        for worker, body, arrays in self.fold(order):
            said = self.scene.say(worker, body, now, arrays)
        self.hear(said)
        return said


def stage(**options: Any) -> tuple[Scene, SimulatedWorkers]:
    scene = Scene(store=ReplicatedStore, replace=False, **options)  # type: ignore[arg-type]
    simulated = SimulatedWorkers(scene)
    scene.start(0.0)
    for worker in range(scene.count):
        loaded = ShardLoaded(scene.points, 3, "compiled", "", 0.1, address=f"at {worker}")
        simulated.hear(scene.say(worker, loaded, 1.0))
    return scene, simulated


def test_the_coordinator_decides_when_and_hears_one_copy_of_the_result() -> None:
    scene, simulated = stage(workers=3)
    order = simulated.barrier(2.0, (2.0, 1.0))
    assert order.members == ((0, "at 0"), (1, "at 1"), (2, "at 2")) and order.reporting == (0, 1, 2)
    assert scene.machine.iteration == 0, "nobody has answered"
    said = simulated.finish(order, 2.5)
    assert sorted(trains(said)) == [0, 1, 2] and scene.machine.iteration == 1
    assert scene.total.tolist() == [6.0, 3.0] and scene.machine.parameter.tolist() == [2.0, 3.0]
    assert scene.machine.trace[-1].objective == 6.0
    simulated.finish(simulated.barrier(3.0), 3.5)
    assert scene.total.tolist() == [9.0, 6.0]
    assert snapshot_of(scene.machine, scene.machine.commits.last, 4.0), "a checkpoint"  # type: ignore[arg-type]


def test_copies_that_differ_end_the_job_in_a_sentence() -> None:
    scene, simulated = stage()
    answers = simulated.fold(simulated.barrier(2.0))
    answers[1][1].digest += 1
    ended = None
    for worker, body, arrays in answers:
        ended = done(scene.say(worker, body, 2.5, arrays)) or ended
    assert ended is not None and isinstance(ended.error, ProtocolError)
    assert "Worker 1 made another θ than worker 0 in round 0" in str(ended.error)


def test_a_worker_that_fails_in_a_fold_ends_the_job_at_once() -> None:
    scene, simulated = stage()
    simulated.barrier(2.0)
    ended = done(scene.say(1, WorkerFailed("updateParameter", 0, "ValueError: no", "trace"), 2.1))
    assert ended is not None and "updateParameter raised ValueError: no (worker 1, round 0)" in str(ended.error)


@pytest.mark.parametrize("how", ["died", "silent"])
def test_the_loss_of_a_worker_in_a_fold_undoes_it_and_all_points_count_again(how: str) -> None:
    scene, simulated = stage(workers=3, timeouts=Timeouts(silence=5.0))
    simulated.finish(simulated.barrier(2.0, (4.0, 2.0)), 2.5)
    simulated.barrier(3.0)
    if how == "died":
        said = scene.machine.handle(WorkerDied(1, "was killed"), 3.2)
    else:
        for worker in (0, 2):
            scene.say(worker, WorkerBeat(1), 8.0)
        said = scene.timer("watch", 9.0)
    simulated.hear(said)
    assert sorted(c.worker for c in said if isinstance(c, Send) and isinstance(c.body, DropFold)) == [0, 1, 2]
    assert simulated.reset == [0, 2], "their contributions were in the same account"
    assert scene.machine.iteration == 1 and scene.machine.parameter.tolist() == [2.0, 6.0], "θ is the last one"
    assert scene.total.tolist() == [0.0, 0.0]


def test_statistics_without_memory_lose_nothing_but_the_round_of_the_lost_worker() -> None:
    class Gradient(Mean):
        statistics = Statistics(spent=("value",))

    scene, simulated = stage(workers=3, algorithm=Gradient())
    simulated.finish(simulated.barrier(2.0, (4.0, 2.0)), 2.5)
    simulated.barrier(3.0)
    simulated.hear(scene.machine.handle(WorkerDied(1, "was killed"), 3.2))
    assert simulated.reset == [], "no point has to be visited again"
