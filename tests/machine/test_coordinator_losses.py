"""The coordinator loses workers, on virtual time: deaths, silence, hooks that do not return, limits."""

from __future__ import annotations

import msgspec
import pytest
from scene import Scene, done, stops, timers, trains

from flegel.errors import ProtocolError, WorkerLost
from flegel.job import Criteria
from flegel.machine.coordinator.events import (
    EvictWorker,
    Note,
    ScaleTo,
    Send,
    StartWorker,
    Timeouts,
    WorkerDied,
    WorkerJoined,
)
from flegel.messages import CLASS_MODULE_CODE, ShardLoaded, WorkerBeat


def test_a_newcomer_that_never_starts_disturbs_nobody():
    scene = Scene(workers=2, sync="bsp")
    scene.loaded(1.0)
    assert StartWorker(2) in scene.machine.handle(ScaleTo(3), 1.1)
    said = scene.machine.handle(WorkerDied(2, "could not be started"), 1.2)
    assert said == [
        EvictWorker(2, "could not be started"),
        Note("worker 2 could not be started before it was of use"),
    ]
    scene.report(0, 2.0)
    assert sorted(trains(scene.report(1, 2.0))) == [0, 1]


@pytest.mark.parametrize(("devices", "joins_on"), [((), "cpu"), (("cuda:0", "cuda:1"), "cuda:1")])
def test_a_worker_that_joins_gets_a_device_of_all_and_not_that_of_another_worker(
    devices: tuple[str, ...], joins_on: str
) -> None:
    """Also where the first worker, whose load the others' resembles, computes on a GPU of its own."""
    scene = Scene(workers=3, devices=devices)
    membership = scene.machine.membership
    membership.loads[0] = msgspec.structs.replace(membership.loads[0], device="cuda:0")
    scene.loaded(1.0)
    scene.machine.handle(ScaleTo(4), 1.1)
    (sent,) = scene.machine.handle(WorkerJoined(3), 1.2)
    assert isinstance(sent, Send) and sent.body.index == 3 and sent.body.device == joins_on


def test_a_dead_worker_is_replaced_and_the_others_are_called_to_commit() -> None:
    scene = Scene()
    scene.loaded()
    said = scene.machine.handle(WorkerDied(1, "was killed by SIGKILL"), 2.0)
    assert done(said) is None
    assert [c.worker for c in said if isinstance(c, EvictWorker)] == [1]
    assert [c.worker for c in said if isinstance(c, StartWorker)] == [1]
    assert stops(said) == {0: 0}


def test_the_last_worker_cannot_be_done_without() -> None:
    scene = Scene(workers=1, replace=False)
    scene.loaded()
    error = done(scene.machine.handle(WorkerDied(0, "was killed by SIGKILL"), 2.0)).error
    assert isinstance(error, WorkerLost)
    assert "Worker 0 was killed by SIGKILL in round 0, and no worker is left" in str(error)


def test_crashes_at_the_same_place_are_the_fault_of_the_code() -> None:
    scene = Scene(workers=2)
    scene.loaded()
    for crash in range(2):
        assert done(scene.machine.handle(WorkerDied(1, "was killed by SIGSEGV", fault=True), 2.0 + crash)) is None
        scene.machine.handle(WorkerJoined(1), 2.1 + crash)
    error = done(scene.machine.handle(WorkerDied(1, "was killed by SIGSEGV", fault=True), 5.0)).error
    assert isinstance(error, WorkerLost) and "SIGSEGV" in str(error) and "updateDataPoint" in str(error)


def test_a_trainer_that_does_not_get_on_ends_the_job_although_its_process_beats() -> None:
    scene = Scene(timeouts=Timeouts(hook=10.0))
    scene.loaded(now=1.0)
    for now in range(2, 30):
        scene.say(0, WorkerBeat(now, "updateDataPoint"), float(now))
        scene.say(1, WorkerBeat(7, "updateDataPoint"), float(now))
        error = done(scene.timer("watch", float(now)))
        if error is not None:
            break
    assert isinstance(error.error, ProtocolError) and now == 13
    assert "Worker 1" in str(error.error) and "does updateDataPoint return?" in str(error.error)


def test_a_hook_that_does_not_return_while_a_share_is_loaded_ends_the_job_by_its_name() -> None:
    scene = Scene(workers=2, timeouts=Timeouts(hook=10.0))
    scene.start()
    scene.say(0, ShardLoaded(10, 3, "compiled", "", 0.1), 1.0)
    for now in range(2, 30):
        scene.say(0, WorkerBeat(0), float(now))
        scene.say(1, WorkerBeat(0, "initState" if now > 4 else ""), float(now))
        error = done(scene.timer("watch", float(now)))
        if error is not None:
            break
    assert isinstance(error.error, ProtocolError) and now == 16, "ten seconds from the beat that named the hook"
    assert "Worker 1" in str(error.error) and "in initState for" in str(error.error)
    assert "hook_timeout=" in str(error.error) and "the loading phase" in str(error.error)


def test_the_module_of_a_class_may_take_longer_because_it_imports_libraries() -> None:
    scene = Scene(workers=1, timeouts=Timeouts(hook=10.0))
    scene.start()
    for now in range(2, 80):
        scene.say(0, WorkerBeat(0, CLASS_MODULE_CODE), float(now))
        error = done(scene.timer("watch", float(now)))
        if error is not None:
            break
    assert isinstance(error.error, ProtocolError) and now == 43, "forty seconds from the first beat that named it"
    assert "has been in the module of the class" in str(error.error)


def test_reading_and_compiling_take_as_long_as_they_take() -> None:
    scene = Scene(workers=1, timeouts=Timeouts(hook=10.0, load=600.0))
    scene.start()
    for now in range(2, 500):
        scene.say(0, WorkerBeat(0), float(now))
        assert done(scene.timer("watch", float(now))) is None


def test_hooks_that_return_in_time_may_follow_one_another() -> None:
    scene = Scene(workers=1, timeouts=Timeouts(hook=10.0))
    scene.start()
    for now in range(2, 100):
        scene.say(0, WorkerBeat(0, ("initState", "kernel", "aggregate")[now // 8 % 3]), float(now))
        assert done(scene.timer("watch", float(now))) is None


def test_a_hook_that_silences_its_worker_while_it_loads_is_not_tried_for_ever() -> None:
    scene = Scene(workers=1, timeouts=Timeouts(silence=10.0))
    scene.start()
    now, ends = 0.0, None
    while ends is None and now < 100:
        now += 1.0
        said = scene.timer("watch", now)
        ends = done(said)
        for hired in [c for c in said if isinstance(c, StartWorker)]:
            scene.machine.handle(WorkerJoined(hired.worker), now)
    assert ends is not None and isinstance(ends.error, WorkerLost) and now < 40
    assert "silent" in str(ends.error) and "initState" in str(ends.error)


def test_silence_is_noticed_and_named() -> None:
    scene = Scene(timeouts=Timeouts(silence=30.0))
    scene.loaded(now=1.0)
    scene.say(0, WorkerBeat(5), 25.0)
    assert not done(scene.timer("watch", 31.0))
    (gone,) = [c for c in scene.timer("watch", 32.0) if isinstance(c, EvictWorker)]
    assert gone.worker == 1 and gone.why == "has been silent for 31 s"


def test_a_worker_that_was_frozen_for_a_while_is_not_taken_for_one_that_does_not_get_on() -> None:
    scene = Scene(timeouts=Timeouts(silence=30.0, hook=10.0))
    scene.loaded(now=1.0)
    for now in (2, 3, *range(15, 18)):  # no beat for twelve seconds, then some before the kernel has come round
        scene.say(0, WorkerBeat(now, "updateDataPoint"), float(now))
        scene.say(1, WorkerBeat(7, "updateDataPoint"), float(now))
        assert done(scene.timer("watch", float(now))) is None


def test_nobody_is_blamed_for_silence_while_the_coordinator_itself_was_held_up() -> None:
    scene = Scene(timeouts=Timeouts(silence=10.0))
    scene.loaded(now=1.0)
    scene.timer("watch", 2.0)
    assert not [c for c in scene.timer("watch", 60.0) if isinstance(c, EvictWorker)], "a hook took a minute"
    said = [c for now in range(61, 72) for c in scene.timer("watch", float(now))]
    assert [c.worker for c in said if isinstance(c, EvictWorker)] == [0, 1], "but now they had their time to speak"


def test_a_beat_is_a_sign_of_life() -> None:
    scene = Scene(timeouts=Timeouts(silence=30.0))
    scene.loaded(now=1.0)
    for now in range(2, 100):
        scene.say(0, WorkerBeat(now), float(now))
        scene.say(1, WorkerBeat(now), float(now))
        assert done(scene.timer("watch", float(now))) is None


def test_a_worker_that_never_commits_after_the_signal_is_named_with_its_round() -> None:
    scene = Scene(sync="fsp", interval=0.5, timeouts=Timeouts(silence=1e9, report=60.0))
    scene.loaded(now=1.0)
    scene.timer("policy", 1.5, tag=0)
    scene.report(0, 1.6, visits=5, exhausted=False)
    assert not done(scene.timer("watch", 61.0))
    error = done(scene.timer("watch", 62.0)).error
    assert isinstance(error, ProtocolError)
    assert "Worker 1 did not commit" in str(error) and "round 0" in str(error)


def test_a_worker_that_never_loads_is_named() -> None:
    scene = Scene(timeouts=Timeouts(silence=1e9, load=600.0))
    scene.start(0.0)
    scene.say(0, ShardLoaded(10, 3, "compiled", "", 0.1), 1.0)
    assert not done(scene.timer("watch", 600.0))
    error = done(scene.timer("watch", 601.0)).error
    assert isinstance(error, ProtocolError) and "Worker 1 did not load" in str(error)


def test_a_long_pass_without_a_signal_is_no_fault() -> None:
    scene = Scene(timeouts=Timeouts(silence=1e9, report=60.0))
    scene.loaded(now=1.0)
    assert not done(scene.timer("watch", 10_000.0)), "bsp asks for a whole pass, however long that takes"


def test_the_watch_sets_itself_again() -> None:
    scene = Scene()
    assert timers(scene.start(0.0))["watch"] == 1.0
    assert timers(scene.timer("watch", 1.0))["watch"] == 2.0


def test_the_limit_does_not_change_a_verdict_that_was_reached_before() -> None:
    scene = Scene(workers=1, criteria=Criteria(max_iterations=1, max_seconds=3.0, tolerance=0), collect=True)
    scene.loaded(now=1.0)
    scene.report(0, 2.0)
    scene.timer("limit", 4.0)
    assert scene.machine.verdict is not None and scene.machine.verdict.reason == "reached 1 iterations"
