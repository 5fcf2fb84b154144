"""The survey before a scaled job: moments of all workers, failures that name their worker. Virtual time only."""

from __future__ import annotations

import numpy as np

from flegel.errors import ProtocolError, UsageError, WorkerLost
from flegel.machine.coordinator.events import (
    Done,
    EvictWorker,
    FromWorker,
    Send,
    StartWorker,
    Timeouts,
    Timer,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.scaling_moments import MomentsCollector
from flegel.messages import MeasureMoments, MomentsMeasured, WorkerFailed


def surveyor(workers: int = 2, replace: bool = True) -> MomentsCollector:
    orders = {i: MeasureMoments({"kind": "memory"}, i, workers, 0) for i in range(workers)}
    return MomentsCollector(orders, Timeouts(load=10.0), replace)


def test_every_worker_is_asked_and_the_last_answer_ends_it() -> None:
    machine = surveyor()
    assert [c.worker for c in machine.start(0.0) if isinstance(c, Send)] == [0, 1]
    assert machine.handle(FromWorker(1, MomentsMeasured(), (np.ones(3),)), 1.0) == []
    assert machine.handle(FromWorker(0, MomentsMeasured(), (np.zeros(3),)), 2.0) == [Done()]
    assert sorted(machine.moments) == [0, 1]


def error_of(commands: list[object]) -> Exception:
    (done,) = commands
    assert isinstance(done, Done) and done.error is not None
    return done.error


def test_a_failure_reaches_the_caller_as_what_it_is() -> None:
    machine = surveyor()
    machine.start(0.0)
    wrong = WorkerFailed("loading", -1, "points.csv: row 7 has 3 columns, not 4.", "", usage=True)
    error = error_of(machine.handle(FromWorker(0, wrong), 1.0))
    assert isinstance(error, UsageError) and "row 7" in str(error)


def test_the_share_of_a_dead_worker_is_read_by_its_successor() -> None:
    machine = surveyor()
    machine.start(0.0)
    assert machine.handle(WorkerDied(1, "was killed by SIGKILL"), 1.0) == [
        EvictWorker(1, "was killed by SIGKILL"),
        StartWorker(1),
    ]
    assert machine.handle(FromWorker(0, MomentsMeasured(), ()), 2.0) == []
    (order,) = machine.handle(WorkerJoined(1), 3.0)
    assert isinstance(order, Send) and (order.worker, order.body.index) == (1, 1)
    assert machine.handle(FromWorker(1, MomentsMeasured(), ()), 4.0) == [Done()]


def test_without_a_successor_another_worker_reads_the_share() -> None:
    machine = surveyor(replace=False)
    machine.start(0.0)
    assert machine.handle(WorkerDied(1, "was killed by SIGKILL"), 1.0) == [EvictWorker(1, "was killed by SIGKILL")]
    (order,) = machine.handle(FromWorker(0, MomentsMeasured(), (np.ones(1),)), 2.0)
    assert isinstance(order, Send) and (order.worker, order.body.index) == (0, 1)
    assert machine.handle(FromWorker(0, MomentsMeasured(), (np.zeros(1),)), 3.0) == [Done()]
    assert sorted(machine.moments) == [0, 1] and machine.moments[1][0] == 0.0


def test_a_survey_without_any_worker_names_the_last_one() -> None:
    machine = surveyor(1, replace=False)
    machine.start(0.0)
    error = error_of(machine.handle(WorkerDied(0, "was killed by SIGKILL"), 1.0))
    assert isinstance(error, WorkerLost) and "Worker 0" in str(error)


def test_a_late_worker_is_named_and_others_are_not() -> None:
    machine = surveyor()
    machine.start(0.0)
    machine.handle(FromWorker(0, MomentsMeasured(), ()), 1.0)
    assert not isinstance(machine.handle(Timer("watch"), 9.0)[0], Done)
    error = error_of(machine.handle(Timer("watch"), 11.0))
    assert isinstance(error, ProtocolError) and "[1]" in str(error)
