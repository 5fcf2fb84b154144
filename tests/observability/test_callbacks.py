"""Callbacks: every barrier in order, a reason to stop, and no way to harm a job."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.callbacks import Callback, CsvWriter, EarlyStopping
from flegel.callbacks.runner import CallbackRunner
from flegel.callbacks.track import trackers
from flegel.errors import UsageError
from flegel.job import Job
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime.job.observers import (
    Functions,
    JobBegan,
    JobControl,
    JobEnded,
    JobEvent,
    JobSeen,
    Observer,
    Observers,
)


def snapshot(**figures: Any) -> JobSnapshot:
    return JobSnapshot("KMeans", "fsp", "training", 2, 2, points=100, **figures)


def row(number: int, objective: float = 1.0) -> TraceRow:
    return TraceRow(0.1 * number, number, objective, 0.1, objective, 50, 0.0, f"reason {number}")


class Recorder(Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def before_training(self, job: Job) -> None:
        self.heard.append(job)

    def after_barrier(self, snapshot: JobSnapshot) -> None:
        self.heard.append(snapshot)

    def after_training(self, result: object) -> None:
        self.heard.append(result)


def run(callback: Callback, barriers: int = 3) -> tuple[JobControl, list[str]]:
    said: list[str] = []
    observers = Observers([CallbackRunner([callback]), Functions(say=said.append)])
    control = JobControl(observers)
    observers.tell(JobBegan(Job(), control))
    observers.tell(JobSeen(snapshot(), [row(i + 1) for i in range(barriers)]))
    observers.tell(JobEnded(None))
    return control, said


def test_a_callback_hears_of_every_barrier_in_order_with_its_own_figures() -> None:
    recorder = Recorder()
    run(recorder)
    assert recorder.heard[0] == Job() and recorder.heard[-1] is None
    seen = recorder.heard[1:-1]
    assert [(s.iteration, s.seconds, s.visits, s.reason) for s in seen] == [
        (i, pytest.approx(0.1 * i), 50 * i, f"reason {i}") for i in (1, 2, 3)
    ]


def test_a_callback_that_raises_is_named_once_and_called_again() -> None:
    class Broken(Recorder):
        def after_barrier(self, snapshot: JobSnapshot) -> None:
            self.heard.append(snapshot)
            raise SystemExit("no such disk")

    broken = Broken()
    control, said = run(broken)
    assert len(broken.heard) == 5 and not control.why()
    assert said == ["Callback Broken raised SystemExit in after_barrier: no such disk; training goes on without it."]


def test_a_callback_that_hangs_is_named_once_and_left_behind() -> None:
    called, release = threading.Event(), threading.Event()

    class Hanging(Callback):
        def after_barrier(self, snapshot: JobSnapshot) -> None:
            called.set()
            release.wait(600)

    said: list[str] = []
    observers = Observers([CallbackRunner([Hanging()], grace=0.05), Functions(say=said.append)])
    control = JobControl(observers)
    observers.tell(JobBegan(Job(), control))
    observers.tell(JobSeen(snapshot(), [row(1)]))
    assert called.wait(600), "else the end of the job might come before the call"
    observers.tell(JobEnded(None))
    release.set()
    assert len(said) == 1 and said[0].startswith("Callback Hanging has not returned from after_barrier for")
    assert not control.why()


def test_the_first_reason_to_stop_counts() -> None:
    class Enough(Callback):
        def after_barrier(self, snapshot: JobSnapshot) -> str | bool:
            return f"enough after {snapshot.iteration}" if snapshot.iteration == 2 else snapshot.iteration > 2

    assert run(Enough())[0].why() == "enough after 2"


@pytest.mark.parametrize("maximize", [False, True])
def test_early_stopping_counts_passes_since_the_last_improvement(maximize: bool) -> None:
    stopping, sign = EarlyStopping(patience=2, least=0.01), -1.0 if maximize else 1.0
    course = [10.0, 9.0, 8.99, 8.98, 8.97, 8.96]
    said = [
        stopping.after_barrier(snapshot(objective=sign * value, visits=50 * i, maximize=maximize))
        for i, value in enumerate(course, 1)
    ]
    assert said[:5] == [None] * 5 and said[5] is not None, "four barriers of half a pass after the improvement"
    assert stopping.after_barrier(snapshot(objective=None)) is None


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(UsageError, match="is no callback"):
        flegel.run(KMeans(k=2), np.zeros((10, 2), np.float32), callbacks=[print])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("word", "says"),
    [("mlfow:x", "did you mean 'mlflow'"), ("csv", "write --track csv:PATH"), ("csv:/", "folder")],
)
def test_wrong_trackers_are_refused_with_a_sentence(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        trackers([word])


def test_an_observer_that_raises_is_removed_and_named() -> None:
    class Broken(Observer):
        def see(self, event: JobEvent) -> None:
            raise ValueError("no")

    said: list[str] = []
    observers = Observers([Functions(say=said.append), Broken()])
    observers.phase("reading")
    observers.tell(JobEnded(None))
    assert said == ["Broken raised ValueError: no; it gets nothing more, and training goes on."]


def test_what_a_function_of_the_caller_raises_ends_the_job() -> None:
    def broken(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="a remark"):
        Observers([Functions(say=broken)]).say("a remark")


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(UsageError, match="is no observer"):
        flegel.run(KMeans(k=2), np.zeros((10, 2), np.float32), observers=[print])  # type: ignore[list-item]


@pytest.mark.processes
def test_a_real_job_ends_when_a_callback_says_so_and_its_csv_is_its_trace(tmp_path: Path) -> None:
    class Stop(Recorder):
        def after_barrier(self, snapshot: JobSnapshot) -> str | None:
            super().after_barrier(snapshot)
            return "five are enough" if snapshot.iteration == 5 else None

    stop, rows = Stop(), np.random.default_rng(0).normal(size=(4000, 4)).astype("float32")
    result = flegel.run(
        KMeans(k=3), rows, workers=2, tolerance=0, max_seconds=600, callbacks=[stop, CsvWriter(tmp_path / "t.csv")]
    )
    assert result.reason == "five are enough" and not result.converged and result.iterations >= 5
    assert stop.heard[0].algorithm.hyper["k"] == 3 and stop.heard[-1] is result
    assert stop.heard[-2].workers[0].host
    with (tmp_path / "t.csv").open(encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert [int(line["iteration"]) for line in lines] == [r["iteration"] for r in result.rows]
    assert [line["objective"] for line in lines] == [
        "" if r["objective"] is None else repr(r["objective"]) for r in result.rows
    ]
    assert int(lines[-1]["visits"]) == sum(r["visits"] for r in result.rows)
