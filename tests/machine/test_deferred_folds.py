"""A parameter store that answers later: a fold is asked for in one event and finished in another.

The same jobs as with the local store, on virtual time; and what happens while a fold is under way: the end of a job,
its suspension, the loss of a worker, a doubled answer, and no answer at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scene import Scene, done, stops, trains
from virtual_training import train

from flegel.core import pytree
from flegel.errors import ProtocolError, WorkerLost
from flegel.job import Criteria, SyncSpec
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.events import BeginCheckpoint, Suspend
from flegel.machine.coordinator.events import Command, FoldFinished, Note, Timeouts, Timer, WorkerDied
from flegel.messages import CheckpointPart, WorkerBeat
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold, Folded


class DeferredStore(LocalStore):
    """Does every fold when `answer` is called, not when it is asked."""

    asked: Fold | None = None

    def fold(self, request: Fold) -> Folded | None:  # type: ignore[override]
        assert self.asked is None, "one fold at a time"
        self.asked = request
        return None

    def answer(self) -> FoldFinished:
        assert self.asked is not None
        request, self.asked = self.asked, None
        return FoldFinished(super().fold(request))


def stage(**options: Any) -> Scene:
    return Scene(store=DeferredStore, **options)


def answer(scene: Scene, now: float) -> list[Command]:
    return scene.machine.handle(scene.machine.store.answer(), now)  # type: ignore[attr-defined]


def barrier(scene: Scene, now: float, change: tuple[float, float] = (1.0, 1.0)) -> list[Command]:
    said: list[Command] = []
    for worker in scene.machine.view.workers:
        said = scene.report(worker, now, change)
    return said


@pytest.mark.parametrize("sync", ["bsp", "ssp", "asp", "fsp"])
def test_a_virtual_job_trains_to_the_end_and_bsp_to_the_same_bits(sync: str) -> None:
    rows = np.random.default_rng(3).normal(size=(300, 2)) + np.repeat([[0.0], [4.0], [8.0]], 100, axis=0)
    limit = Criteria(max_iterations=12, tolerance=0)
    here, later = (
        train(rows[::100], rows, [3e4, 2e4, 1e4], SyncSpec(sync), limit, store_type)
        for store_type in (LocalStore, DeferredStore)
    )
    assert here.machine.iteration >= 12 and later.machine.iteration >= 12
    assert later.machine.store.discrepancy() < 1e-10
    if sync == "bsp":
        assert later.machine.iteration == here.machine.iteration == 12
        for mine, other in zip(
            pytree.flatten(later.machine.parameter), pytree.flatten(here.machine.parameter), strict=True
        ):
            assert np.array_equal(mine, other)
        assert [r.objective for r in later.machine.trace] == [r.objective for r in here.machine.trace]


def test_nobody_is_told_to_train_before_the_store_has_answered() -> None:
    scene = stage()
    scene.loaded(1.0)
    assert not trains(barrier(scene, 2.0)) and scene.machine.iteration == 0
    assert sorted(trains(answer(scene, 2.5))) == [0, 1] and scene.machine.iteration == 1
    assert scene.machine.trace[-1].seconds == 1.5, "the commit is when the store has answered"


def test_a_job_that_reaches_its_limit_while_a_fold_is_pending_ends_after_it() -> None:
    scene = stage(criteria=Criteria(max_seconds=5.0, tolerance=0))
    scene.loaded(1.0)
    barrier(scene, 2.0)
    assert scene.timer("limit", 5.5) == [], "it waits"
    said = answer(scene, 5.6)
    assert not done(said) and stops(said) == {0: 1, 1: 1}, "the round that begins is committed first"
    assert scene.machine.verdict is not None and scene.machine.iteration == 1
    said = barrier(scene, 7.0)
    assert not done(said), "the last fold is asked for"
    assert done(answer(scene, 7.5)) and scene.machine.iteration == 2
    assert scene.total.tolist() == [4.0, 4.0], "four reports, each once"


def test_a_job_that_is_suspended_while_a_fold_is_pending_takes_its_last_checkpoint_after_the_next_one() -> None:
    scene = stage(checkpoints=CheckpointSchedule(100.0))
    scene.loaded(1.0)
    barrier(scene, 2.0)
    assert scene.machine.handle(Suspend("asked"), 2.1) == []
    answer(scene, 2.2)
    assert not any(isinstance(c, BeginCheckpoint) for c in barrier(scene, 3.0))
    said = answer(scene, 3.1)
    saved = [c for c in said if isinstance(c, BeginCheckpoint)]
    assert len(saved) == 1 and saved[0].iteration == 2 and scene.machine.phase == "checkpointing"
    for worker in (0, 1):
        said = scene.say(worker, CheckpointPart(1, ((10, 2),)), 3.2)
    assert done(said)


def test_a_worker_that_is_lost_while_a_fold_is_pending_is_subtracted_after_it() -> None:
    scene = stage(workers=3, replace=False)
    scene.loaded(1.0)
    for worker, amount in enumerate((1.0, 10.0, 100.0)):
        scene.report(worker, 2.0, (amount, 1.0))
    assert scene.machine.handle(WorkerDied(1, "was killed"), 2.1) == []
    assert 1 in scene.machine.view.workers
    answer(scene, 2.2)
    assert scene.machine.iteration == 1 and 1 not in scene.machine.view.workers
    assert scene.machine.parameter.tolist() == [37.0, 3.0], "its report was handed over before it was lost"
    for worker in (0, 2):
        scene.report(worker, 2.3, (0.0, 0.0))
    assert scene.machine.membership.changing, "the statistics of those who stay are being closed"
    answer(scene, 2.4)
    assert scene.total.tolist() == [101.0, 2.0], "what the lost worker contributed is subtracted, once"
    assert scene.machine.store.discrepancy() == 0.0


def test_the_last_worker_is_lost_while_a_fold_is_pending() -> None:
    scene = stage(workers=1, replace=False)
    scene.loaded(1.0)
    barrier(scene, 2.0)
    scene.machine.handle(WorkerDied(0, "was killed"), 2.1)
    found = done(answer(scene, 2.2))
    assert found is not None and isinstance(found.error, WorkerLost)


def test_reports_that_come_while_a_fold_is_pending_are_folded_by_the_next_one() -> None:
    scene = stage(sync="asp")
    scene.loaded(1.0)
    scene.report(0, 2.0, (1.0, 1.0))
    scene.report(1, 2.1, (10.0, 1.0), round=0)
    assert scene.machine.store.asked.workers == [0]  # type: ignore[attr-defined]
    answer(scene, 2.2)
    assert scene.machine.iteration == 1 and scene.machine.store.asked.workers == [1]  # type: ignore[attr-defined]
    answer(scene, 2.3)
    assert scene.machine.iteration == 2 and scene.total.tolist() == [11.0, 2.0]


def test_a_doubled_answer_changes_nothing() -> None:
    scene = stage()
    scene.loaded(1.0)
    barrier(scene, 2.0)
    finished = scene.machine.store.answer()  # type: ignore[attr-defined]
    scene.machine.handle(finished, 2.1)
    said = scene.machine.handle(finished, 2.2)
    assert len(said) == 1 and isinstance(said[0], Note) and scene.machine.iteration == 1
    barrier(scene, 3.0)
    said = scene.machine.handle(finished, 3.1)
    assert isinstance(said[0], Note) and scene.machine.iteration == 1, "the fold under way is another one"
    answer(scene, 3.2)
    assert scene.machine.iteration == 2


def test_a_store_that_never_answers_ends_the_job_by_name_and_beats_keep_workers_alive() -> None:
    scene = stage(timeouts=Timeouts(silence=30.0, report=60.0))
    scene.loaded(1.0)
    barrier(scene, 2.0)
    for now in range(3, 62):
        for worker in (0, 1):
            assert scene.say(worker, WorkerBeat(0), float(now)) == []
        assert not done(scene.machine.handle(Timer("watch"), float(now)))
    found = done(scene.machine.handle(Timer("watch"), 63.0))
    assert found is not None and isinstance(found.error, ProtocolError)
    assert "parameter store did not fold the reports of round 0" in str(found.error)


def test_a_fold_that_fails_ends_the_job() -> None:
    scene = stage()
    scene.loaded(1.0)
    barrier(scene, 2.0)
    number = scene.machine.store.asked.number  # type: ignore[attr-defined]
    found = done(scene.machine.handle(FoldFinished(Folded(number, error=ProtocolError("gone"))), 2.1))
    assert found is not None and str(found.error) == "gone"


def test_a_change_of_workers_waits_for_its_own_fold() -> None:
    scene = stage(workers=3, replace=False)
    scene.loaded(1.0)
    scene.report(0, 2.0, (1.0, 1.0))
    said = scene.machine.handle(WorkerDied(1, "was killed"), 2.1)
    assert stops(said) == {2: 0}
    scene.report(2, 2.2, (4.0, 1.0))
    request = scene.machine.store.asked  # type: ignore[attr-defined]
    assert request.workers == [0, 2] and not request.update
    answer(scene, 2.3)
    assert scene.total.tolist() == [5.0, 2.0] and scene.machine.parameter.tolist() == [0.0, 0.0], "θ is as before"
