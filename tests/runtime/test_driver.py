"""The loop around a coordinator: orders go out first, and work that nobody waits for comes after them."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster

from flegel.machine.checkpoint.events import Suspend
from flegel.machine.coordinator.events import Command, Done, Event, FromWorker, Send, SetTimer, Timer
from flegel.messages import Envelope, Exit, WorkerBeat
from flegel.runtime import clock
from flegel.runtime.job.driver import JobDriver, Ports, drive
from flegel.runtime.transport.codec import EMPTY


class Story:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []


class Script(FakeCluster):
    """A cluster of one worker that says what is in the script: batches of beats, with waits in between."""

    def __init__(self, story: Story, batches: list[int]) -> None:
        super().__init__()
        self._story, self._batches, self._number = story, batches, 0

    def new_job(self) -> str:
        return "job"

    def end_job(self) -> None:
        self._story.lines.append(f"end, collector {'on' if gc.isenabled() else 'off'}")

    def incarnations(self) -> dict[int, int]:
        return {0: 0}

    def send(self, worker: int, body: Any, arrays: Any = EMPTY) -> None:
        self._story.lines.append(f"order, collector {'on' if gc.isenabled() else 'off'}")

    def receive(self, timeout: float) -> Iterator[Any]:
        if not self._batches:
            clock.sleep(max(timeout, 0.0))
            return
        while self._batches[0]:  # who stops listening finds the rest here the next time
            self._number += 1
            self._batches[0] -= 1
            yield Envelope("job", 0, 0, 0, self._number, WorkerBeat(self._number)), ()
        self._batches.pop(0)


class Echo:
    """Answers each message with an order; done once it has rested."""

    def __init__(self, story: Story, fails: bool = False) -> None:
        self._story, self._fails = story, fails
        self.notes: list[str] = []
        self.rested = 0

    def start(self, now: float) -> list[Command]:
        return []

    def handle(self, event: Event, now: float) -> list[Command]:
        if self._fails:
            raise RuntimeError("a defect")
        if isinstance(event, FromWorker):
            return [Send(event.worker, Exit())] if self.rested == 0 else [Done()]
        return []

    def rest(self) -> None:
        self.rested += 1
        self._story.lines.append("rest")


class Again(Script):
    """Says one more thing whenever nothing is left to say."""

    def receive(self, timeout: float) -> Iterator[Any]:
        if not self._batches and "rest" in self._story.lines:
            self._batches.append(1)
        return super().receive(timeout)


def test_orders_go_out_before_work_that_nobody_waits_for() -> None:
    story = Story()
    drive(Echo(story), Again(story, [3]))  # type: ignore[arg-type]
    orders = ["order, collector off"] * 3
    assert story.lines[:4] == [*orders, "rest"]
    assert story.lines[-1] == "end, collector on"


def test_the_collector_works_again_whatever_happens() -> None:
    story = Story()
    with pytest.raises(RuntimeError):
        drive(Echo(story, fails=True), Again(story, [3]))  # type: ignore[arg-type]
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        drive(Echo(story := Story()), Again(story, [1]))  # type: ignore[arg-type]
        assert not gc.isenabled()
    finally:
        gc.enable()


class Flood(Script):
    """Messages without a pause."""

    def receive(self, timeout: float) -> Iterator[Any]:
        self._batches.append(1)
        clock.sleep(0.005)
        return super().receive(timeout)


def test_under_a_flood_work_is_not_put_off_for_ever() -> None:
    story = Story()
    drive(Echo(story), Flood(story, []))  # type: ignore[arg-type]
    assert "rest" in story.lines and story.lines.index("rest") > 0


class Struck(Script):
    """Ctrl-C comes in the middle of every order."""

    def send(self, worker: int, body: Any, arrays: Any = EMPTY) -> None:
        signal.raise_signal(signal.SIGINT)
        super().send(worker, body, arrays)


def test_ctrl_c_ends_the_job_but_never_an_order_that_is_on_its_way() -> None:
    story = Story()
    with pytest.raises(KeyboardInterrupt):
        drive(Echo(story), Struck(story, [1]))  # type: ignore[arg-type]
    assert story.lines == ["order, collector off", "end, collector on"]


class Endless(Echo):
    """A hook that never returns."""

    def handle(self, event: Event, now: float) -> list[Command]:
        signal.raise_signal(signal.SIGINT)
        self._story.lines.append("Ctrl-C has to wait for the hook")
        return []


def test_ctrl_c_does_not_wait_for_a_hook() -> None:
    story = Story()
    with pytest.raises(KeyboardInterrupt):
        drive(Endless(story), Script(story, [1]))  # type: ignore[arg-type]
    assert story.lines == ["end, collector on"]


def test_ctrl_c_that_was_waiting_does_not_open_the_way_into_orders() -> None:
    story, job = Story(), list[JobDriver]()

    class Twice(Struck):
        def end_job(self) -> None:
            assert not job[0]._signals.open, "workers are told that the job is over, and nothing may raise meanwhile"
            super().end_job()

    job.append(JobDriver(Echo(story), Twice(story, [2]), None))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        job[0].run()
    assert story.lines == ["order, collector off", "end, collector on"]


def test_ctrl_c_does_not_wait_for_whoever_watches() -> None:
    def watch() -> None:
        signal.raise_signal(signal.SIGINT)
        story.lines.append("Ctrl-C has to wait for the display")

    story = Story()
    with pytest.raises(KeyboardInterrupt):
        drive(Echo(story), Script(story, []), watch)  # type: ignore[arg-type]
    assert story.lines == ["end, collector on"]


class Stream(Script):
    """As long as messages come, there is no end of what has arrived."""

    def receive(self, timeout: float) -> Iterator[Any]:
        for _ in range(3000):
            clock.sleep(0.001)
            self._batches = [1]
            yield from super().receive(timeout)
        pytest.fail("nothing else was done meanwhile")


class Alarm(Echo):
    """Done when its timer goes off."""

    def start(self, now: float) -> list[Command]:
        return [SetTimer(now + 0.02, Timer("policy"))]

    def handle(self, event: Event, now: float) -> list[Command]:
        return [Done()] if isinstance(event, Timer) else []


def test_under_a_stream_of_messages_timers_go_off() -> None:
    drive(Alarm(story := Story()), Stream(story, []))  # type: ignore[arg-type]


def test_under_a_stream_of_messages_a_job_can_be_told_to_stop() -> None:
    class Told(Echo):
        def handle(self, event: Event, now: float) -> list[Command]:
            return [Done()] if isinstance(event, Suspend) else []

    asked: list[float] = []

    def suspended() -> list[Event]:
        asked.append(clock.now())
        return [Suspend("interrupted")] if len(asked) > 1 else []

    drive(Told(story := Story()), Stream(story, []), ports=Ports(asks=[suspended]))  # type: ignore[arg-type]
