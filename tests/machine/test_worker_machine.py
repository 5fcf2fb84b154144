"""The worker's machine on virtual time: orders and results of its trainer in, commands out."""

from __future__ import annotations

import numpy as np
import pytest
from scene import load

from flegel.machine.worker.worker import (
    BeginLoad,
    BeginTrain,
    CountAgain,
    DropShard,
    OrderReceived,
    OwnTimer,
    Quit,
    RaiseFlag,
    SendReply,
    SendState,
    SetOwnTimer,
    ShardReady,
    TrainerDone,
    TrainerFailed,
    Worker,
)
from flegel.messages import AuditPoints, Exit, FetchStates, ReleaseJob, Report, ShardLoaded, Stop, Train, WorkerFailed

LOADED = ShardLoaded(10, 3, "compiled", "", 0.1)


def finished(visits: int = 10, exhausted: bool = True, began: float = 0.0, ended: float = 0.0) -> TrainerDone:
    return TrainerDone(visits, exhausted, 0, 0, ended - began, began, ended)


def ready() -> Worker:
    worker = Worker()
    worker.handle(OrderReceived(load(0, 1)), 0.0)
    worker.handle(ShardReady(LOADED), 1.0)
    return worker


def test_a_load_is_begun_and_answered_when_the_share_is_in_place() -> None:
    worker = Worker()
    order = load(0, 1)
    assert worker.handle(OrderReceived(order), 0.0) == [BeginLoad(order)]
    assert worker.handle(ShardReady(LOADED), 1.0) == [SendReply(LOADED)]


def test_an_order_to_train_starts_the_trainer_with_the_parameter() -> None:
    theta = (np.zeros(2),)
    assert ready().handle(OrderReceived(Train(0, 10), theta), 2.0) == [BeginTrain(0, 10, theta)]


def test_a_time_limit_of_the_worker_itself_becomes_a_timer_that_raises_the_flag() -> None:
    worker = ready()
    assert worker.handle(OrderReceived(Train(0, 10, seconds=0.5)), 2.0)[1] == SetOwnTimer(2.5, 0)
    assert worker.handle(OwnTimer(0), 2.5) == [RaiseFlag()]


def test_the_signal_raises_the_flag_once() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    assert worker.handle(OrderReceived(Stop(0)), 2.1) == [RaiseFlag()]
    assert worker.handle(OrderReceived(Stop(0)), 2.2) == []
    assert worker.handle(OwnTimer(0), 2.3) == []


@pytest.mark.parametrize("late", [Stop(0), Train(0, 10), Train(1, 10)])
def test_orders_of_rounds_that_are_over_do_nothing(late: Stop | Train) -> None:
    worker = ready()
    for round_ in (0, 1):
        worker.handle(OrderReceived(Train(round_, 10)), 2.0)
        worker.handle(finished(), 2.5)
    assert worker.handle(OrderReceived(late), 3.0) == []


def test_a_signal_for_another_round_does_not_stop_this_one() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    worker.handle(finished(), 2.5)
    worker.handle(OrderReceived(Train(1, 10)), 3.0)
    assert worker.handle(OrderReceived(Stop(0)), 3.1) == []
    assert worker.handle(OwnTimer(0), 3.2) == []


def test_the_time_account_adds_up() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    worker.handle(OrderReceived(Stop(0)), 3.0)
    (reply,) = worker.handle(finished(7, False, began=2.1, ended=3.2), 3.3)
    report = reply.body
    assert isinstance(report, Report) and reply.with_changes
    assert (report.visits, report.exhausted) == (7, False)
    assert report.compute == pytest.approx(1.1)
    assert report.respond == pytest.approx(0.1 + 0.3), "told at 2.0, began at 2.1; stopped at 3.0, said so at 3.3"
    assert report.wait == 0.0
    worker.handle(OrderReceived(Train(1, 10)), 4.0)
    (reply,) = worker.handle(finished(began=4.0, ended=5.0), 5.0)
    assert reply.body.wait == pytest.approx(0.7), "from the report at 3.3 to the order at 4.0"
    assert reply.body.respond == pytest.approx(0.0)


def test_a_failure_is_passed_on_and_the_worker_can_be_loaded_again() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    failed = WorkerFailed("updateDataPoint", 0, "ValueError", "…")
    assert worker.handle(TrainerFailed(failed), 2.5) == [SendReply(failed)]
    order = load(0, 1)
    assert worker.handle(OrderReceived(order), 3.0) == [BeginLoad(order)]


def test_release_ends_training_and_the_late_result_is_dropped() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    assert worker.handle(OrderReceived(ReleaseJob()), 2.1) == [RaiseFlag(), DropShard()]
    assert worker.handle(finished(), 2.2) == []


@pytest.mark.parametrize(
    "leftover", [finished(), TrainerFailed(WorkerFailed("updateDataPoint", 3, "ValueError", "…")), ShardReady(LOADED)]
)
def test_what_the_trainer_still_had_to_say_about_a_released_job_is_not_said_in_the_next(leftover: object) -> None:
    worker = Worker()
    worker.handle(OrderReceived(load(0, 1)), 0.0)
    if not isinstance(leftover, ShardReady):
        worker.handle(ShardReady(LOADED), 0.5)
        worker.handle(OrderReceived(Train(0, 10)), 1.0)
    worker.handle(OrderReceived(ReleaseJob()), 2.0)
    worker.handle(OrderReceived(load(0, 1)), 2.1)
    assert worker.handle(leftover, 2.2) == []  # type: ignore[arg-type]
    assert worker.handle(ShardReady(LOADED), 3.0) == [SendReply(LOADED)]


def test_the_state_is_sent_between_rounds_only() -> None:
    worker = ready()
    assert worker.handle(OrderReceived(FetchStates()), 2.0) == [SendState()]
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    assert worker.handle(OrderReceived(FetchStates()), 2.1) == []


def test_exit_ends_whatever_is_going_on() -> None:
    worker = ready()
    worker.handle(OrderReceived(Train(0, 10)), 2.0)
    assert worker.handle(OrderReceived(Exit()), 2.1) == [RaiseFlag(), Quit()]


def test_an_own_clock_is_told_to_the_trainer_too():
    theta = (np.zeros(1),)
    commands = ready().handle(OrderReceived(Train(0, 10, 0.5), theta), 2.0)
    assert commands == [BeginTrain(0, 10, theta, until=2.5), SetOwnTimer(2.5, 0)]


def test_an_audit_ends_overtime_and_is_answered_then() -> None:
    """Under psp a worker goes on training after its report; an audit that was dropped there was awaited for ever."""
    worker = ready()
    worker.handle(OrderReceived(Train(0, 4, linger=True)), 2.0)
    assert worker.handle(finished(4), 2.5)[1] == BeginTrain(0, 6, ())
    order = AuditPoints(1, 128)
    assert worker.handle(OrderReceived(order), 2.6) == [RaiseFlag()]
    assert worker.handle(finished(2, exhausted=False), 2.7) == [CountAgain(order, ())]
    theta = (np.zeros(2),)
    assert worker.handle(OrderReceived(Train(1, 4), theta), 2.8) == [BeginTrain(1, 4, theta, keep=True)]
