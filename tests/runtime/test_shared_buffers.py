"""Shared buffers: arrays are read where they were written, by workers that may still read them and by no others."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

import flegel
from flegel.errors import DecodeError
from flegel.job import AlgorithmRef
from flegel.messages import (
    Envelope,
    LoadShard,
    Report,
    ShardLoaded,
    SharedBufferRef,
    SharedMemoryRef,
    Train,
    TreeLayout,
    WorkerBeat,
)
from flegel.runtime.job.find_algorithm import find_algorithm
from flegel.runtime.transport import shared_buffers, shared_memory
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.shared_buffers import BufferWriter
from flegel.runtime.worker.process import identity

pytestmark = pytest.mark.skipif(not shared_memory.ANONYMOUS, reason="memory without a name is Linux's")

SIZE = 20_000  # numbers of θ
LOAD = LoadShard(AlgorithmRef("kmeans", {}), {}, 0, 1, 0, TreeLayout("array", ()), TreeLayout("Sums", ("a", "b")))
LOADED = ShardLoaded(10, 3, "compiled", "", 0.1, shared_buffers=True)


def theta(value: float) -> PackedArrays:
    return PackedArrays((np.full(SIZE, value),)).broadcast(lambda part: part)


def report(round_: int) -> Report:
    return Report(round_, 1, False, 0, 0, 0.0, 0.0, 0.0)


class Scene:
    """A coordinator's shared buffers and its workers, in one process."""

    def __init__(self, workers: int, size: int = SIZE) -> None:
        zero = (np.zeros(size), np.zeros((300, 70)), np.zeros(5, np.int64))
        made = shared_buffers.for_job(LOAD, PackedArrays(zero), workers)
        assert made is not None
        self.buffers, self.seats = made, dict[int, BufferWriter]()
        self.voices = {w: Sequencer("job", 0, w, 0) for w in range(workers)}
        for worker in range(workers):
            self.join(worker)

    def join(self, worker: int, life: int = 0) -> None:
        where = self.buffers.assign_slots(worker, identity(worker, life))
        assert where is not None
        self.seats[worker] = BufferWriter(where)
        self.buffers.hear(identity(worker, life), LOADED)

    def order(self, worker: int, round_: int, packed: PackedArrays) -> tuple[list[Any], Any]:
        body = Train(round_, 100)
        frames = self.voices[worker].wrap(body, self.buffers.order(worker, body, packed))
        return frames, decode([bytes(f) for f in frames], self.seats[worker].slots)[1][0]


def test_theta_is_read_where_it_was_written_and_cannot_be_changed_there() -> None:
    scene, packed = Scene(3), theta(7.0)
    for worker in range(3):
        frames, seen = scene.order(worker, 0, packed)
        assert len(frames) == 1 and len(bytes(frames[0])) < 200, "only a header travels"
        assert (seen == 7.0).all() and not seen.flags.writeable
    copies = [scene.order(worker, 0, packed)[1].ctypes.data % shared_memory.mmap.PAGESIZE for worker in range(3)]
    assert len(set(copies)) == 1, "one slot for all"


def test_reports_arrive_whole_and_the_last_two_stay() -> None:
    scene = Scene(1)
    rng, sent, got = np.random.default_rng(0), list[Any](), list[Any]()
    for number in range(4):
        sent.append((rng.random((300, 70)), rng.integers(0, 9, 5)))
        frames = scene.voices[0].wrap(report(number), scene.seats[0].put(PackedArrays(sent[-1])))
        assert len(frames) == 1 and len(bytes(frames[0])) < 300
        got.append(decode([bytes(f) for f in frames], scene.buffers.slots(identity(0, 0)))[1])
        for wanted, found in zip(sent[-2:], got[-2:], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_report_that_is_larger_than_announced_travels() -> None:
    large = PackedArrays((np.zeros((301, 70)), np.zeros(5)))
    assert Scene(1).seats[0].put(large) is large


def test_small_reports_travel_with_their_header() -> None:
    seat = Scene(1).seats[0]
    small = PackedArrays((np.zeros(10),))
    assert seat.put(small) is small


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.booleans())
def test_nobody_s_theta_is_overwritten(steps: list[tuple[int, bool]], short: bool) -> None:
    """Workers are ordered and report in any order, as under asp; what they may look at stays what it was."""
    scene = Scene(4)
    if short:
        scene.buffers._orders = scene.buffers._orders[:3]
    looking = dict[int, list[tuple[int, float, Any]]]()
    for round_, (worker, everybody) in enumerate(steps, 1):
        packed = theta(float(round_))
        for w in range(4) if everybody else (worker,):
            if looking.get(w):
                scene.buffers.hear(identity(w, 0), report(looking[w][-1][0]))
                del looking[w][:-1]
            frames, seen = scene.order(w, round_, packed)
            if len(frames) == 1:  # else it travelled, and is its own
                looking.setdefault(w, []).append((round_, float(round_), seen))
        for rounds in looking.values():
            for _, value, seen in rounds:
                assert (seen == value).all()


def test_where_all_rooms_are_taken_theta_travels() -> None:
    scene = Scene(1)
    travelled = [len(scene.order(0, round_, theta(float(round_)))[0]) > 1 for round_ in range(5)]
    assert travelled == [False] * 3 + [True] * 2
    scene.buffers.hear(identity(0, 0), report(2))
    assert [len(scene.order(0, 5, theta(1.0))[0]) > 1, len(scene.order(0, 6, theta(1.0))[0]) > 1] == [False, False]


def test_a_former_life_cannot_write_into_the_rooms_of_its_successor() -> None:
    scene = Scene(1)
    former = scene.seats[0]
    scene.join(0, life=1)
    fresh = scene.seats[0].put(PackedArrays((np.full((300, 70), 1.0), np.zeros(5, np.int64))))
    for _ in range(2):
        former.put(PackedArrays((np.full((300, 70), 666.0), np.zeros(5, np.int64))))
    frames = [bytes(f) for f in scene.voices[0].wrap(report(0), fresh)]
    assert (decode(frames, scene.buffers.slots(identity(0, 1)))[1][0] == 1.0).all()
    assert scene.buffers.slots(identity(0, 0)) == (), "and nobody reads what it writes"


def test_messages_that_name_no_room_are_refused() -> None:
    frames = [
        bytes(f) for f in Sequencer("job", 0, 0, 0).wrap(WorkerBeat(0), PackedArrays((np.zeros(SIZE),)).in_slot(1))
    ]
    small, large = memoryview(bytes(100)), memoryview(bytes(8 * SIZE))
    for slots in ((), (large,), (large, small)):
        with pytest.raises(DecodeError):
            decode(frames, slots)
    with pytest.raises(DecodeError):
        decode([*frames, b"more"], (large, large))
    assert decode(frames, (small, large))[1][0].size == SIZE
    assert Envelope("job", 0, 0, 0, 0, WorkerBeat(0)).slot == -1


@pytest.mark.parametrize("change", ["process", "kind", "shape"])
def test_a_board_that_cannot_be_opened_is_not_used(change: str) -> None:
    scene = Scene(1)
    where = scene.buffers.assign_slots(0, identity(0, 0))
    assert where is not None
    p = where.orders
    wrong = {
        "process": SharedMemoryRef(2**22 + 1, p.fd, "flegel-other", p.offset, p.dtype, p.shape),
        "kind": SharedMemoryRef(p.pid, p.fd, p.name, p.offset, "<f8", p.shape),
        "shape": SharedMemoryRef(p.pid, p.fd, p.name, p.offset, p.dtype, (p.shape[0] + 1, p.shape[1])),
    }[change]
    with pytest.raises((OSError, DecodeError)):
        BufferWriter(SharedBufferRef(wrong, where.reports))
    body, packed = Train(0, 1), theta(1.0)
    assert scene.buffers.order(0, body, packed) is packed, "a worker that has not said that it sees it gets θ itself"


def test_small_jobs_have_no_shared_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = PackedArrays((np.zeros(100),) * 3), PackedArrays((np.zeros(SIZE),) * 3)
    assert shared_buffers.for_job(LOAD, small, 4) is None
    assert shared_buffers.for_job(LOAD, large, 4) is not None
    monkeypatch.setenv(shared_buffers.SHARED_BUFFERS_VARIABLE, "off")
    assert shared_buffers.for_job(LOAD, large, 4) is None


def test_the_former_variable_works_and_names_the_new_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large = PackedArrays((np.zeros(SIZE),) * 3)
    monkeypatch.setenv("FLEGEL_BOARD", "off")
    assert shared_buffers.for_job(LOAD, large, 4) is None
    assert caplog.messages == ["FLEGEL_BOARD is deprecated; set FLEGEL_SHARED_BUFFERS instead."]
    monkeypatch.setenv("FLEGEL_SHARED_BUFFERS", "on")
    assert shared_buffers.for_job(LOAD, large, 4) is not None
    assert len(caplog.messages) == 1


@pytest.mark.processes
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_job_with_shared_buffers_is_the_same_job(sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4000, 60)).astype(np.float32)
    in_slot: list[int] = []
    post = shared_buffers.SharedBuffers._write

    def watched(self: shared_buffers.SharedBuffers, packed: PackedArrays) -> int:
        in_slot.append(post(self, packed))
        return in_slot[-1]

    monkeypatch.setattr(shared_buffers.SharedBuffers, "_write", watched)
    options: dict[str, Any] = {"workers": 3, "sync": sync, "max_iterations": 12, "tolerance": 0.0}
    on = flegel.run(find_algorithm("kmeans")(k=150), rows, **options)
    assert len(in_slot) >= 11 and min(in_slot) >= 0
    in_slot.clear()
    monkeypatch.setenv(shared_buffers.SHARED_BUFFERS_VARIABLE, "off")
    off = flegel.run(find_algorithm("kmeans")(k=150), rows, **options)
    assert not in_slot
    if sync == "bsp":
        assert all(np.array_equal(a, b) for a, b in zip(on.parameter, off.parameter, strict=True))
        assert on.objective == off.objective


@pytest.mark.processes
@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)], ids=["killed", "frozen"]
)
def test_a_worker_that_is_lost_takes_nobody_s_arrays_along(sent: signal.Signals, monkeypatch: Any) -> None:
    """Conservation laws are checked at every barrier; the next life of the worker has slots of its own. How good the
    model is at the end depends on when that life began, so it is compared with the data."""
    monkeypatch.setenv("FLEGEL_DEBUG", "1")
    rows = np.random.default_rng(3).normal(size=(6000, 60)).astype(np.float32)
    struck: list[int] = []

    def strike(machine: Any) -> None:
        if machine.iteration >= 5 and not struck:
            struck.append(cluster.registry.processes[1].pid)  # type: ignore[attr-defined]
            os.kill(struck[0], sent)

    algorithm = find_algorithm("kmeans")(k=150)
    with flegel.LocalCluster(3) as cluster:
        hit = flegel.run(
            algorithm, rows, cluster=cluster, watch=strike, worker_timeout=2.0 if sent == signal.SIGSTOP else 60.0,
            sync="fsp", interval="5ms", tolerance=0.0, max_iterations=200,
        )  # fmt: skip
    assert struck and len(hit.incidents) == 1
    anew = algorithm.evaluate(rows, None, hit.parameter)
    assert anew is not None
    assert hit.objective == pytest.approx(anew.objective, rel=0.03), "statistics of arrays that were whole"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_more_workers_do_not_take_more_open_files() -> None:
    zero, before = (np.zeros(SIZE), np.zeros((300, 70)), np.zeros(5)), open_files()
    made = shared_buffers.for_job(LOAD, PackedArrays(zero), 40)
    assert made is not None
    where = [made.assign_slots(worker, identity(worker, 0)) for worker in range(40)]
    places = [w.reports for w in where if w is not None]
    assert len({p.offset for p in places}) == 40 and open_files() - before <= 4
    again = made.assign_slots(7, identity(7, 1))
    assert again is not None and again.reports.name not in {p.name for p in places}


def test_where_no_more_files_can_be_opened_arrays_travel() -> None:
    zero, (soft, hard) = PackedArrays((np.zeros(SIZE),) * 3), resource.getrlimit(resource.RLIMIT_NOFILE)
    made = shared_buffers.for_job(LOAD, zero, 1)
    assert made is not None and made.assign_slots(0, identity(0, 0)) is not None
    room = os.dup(0)
    os.close(room)
    for more in (0, 1):  # of the two that it takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (room + more, hard))
        try:
            assert shared_buffers.for_job(LOAD, zero, 1) is None
            assert made.assign_slots(1, identity(1, 0)) is None
            assert (shared_memory.empty((3, 4), np.float64) == 0.0).all()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.dup(0) == room, "nothing stays open"
        os.close(room)


@pytest.mark.processes
def test_workers_let_go_of_the_board_when_the_job_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(3).normal(size=(500, 60)).astype(np.float32)
    in_slot: list[int] = []
    post = shared_buffers.SharedBuffers._write

    def watched(self: shared_buffers.SharedBuffers, packed: PackedArrays) -> int:
        in_slot.append(post(self, packed))
        return in_slot[-1]

    def lent() -> bool:
        pids = [process.pid for process in cluster.registry.processes.values()]  # type: ignore[attr-defined]
        return any("/memfd:flegel-" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)

    monkeypatch.setattr(shared_buffers.SharedBuffers, "_write", watched)
    with flegel.LocalCluster(2) as cluster:
        options: dict[str, Any] = {"sync": "bsp", "tolerance": 0.0, "max_iterations": 5}
        flegel.run(find_algorithm("kmeans")(k=150), rows, cluster=cluster, **options)
        assert min(in_slot) >= 0
        assert until(lambda: not lent())


@pytest.mark.processes
def test_a_report_to_the_board_of_a_job_that_was_broken_off_is_nobody_s_trouble(caplog: Any) -> None:
    """It arrives while the next job loads, whose shared buffers is another one, or none."""
    rows = np.random.default_rng(3).normal(size=(500, 60)).astype(np.float32)
    with flegel.LocalCluster(1) as cluster:
        cluster.new_job()
        voice = Sequencer(cluster._job, 0, 0, 0)
        late = [bytes(f) for f in voice.wrap(report(3), PackedArrays((np.zeros(SIZE),)).in_slot(1))]
        cluster.end_job()
        for job in ("the next one", "a worker of this one"):
            if job == "the next one":
                cluster.new_job()
            else:
                cluster._mailbox.begin_job(voice.job, 1)
            cluster.endpoint.receive = take_once(cluster.endpoint.receive, late)  # type: ignore[method-assign]
            assert not [m for m in cluster.receive(0.0) if isinstance(m[0].body, Report)]
            assert ("dropped a message" in caplog.text) == (job == "a worker of this one")
        small = flegel.run(find_algorithm("kmeans")(k=2), rows, cluster=cluster, sync="bsp", max_iterations=2)
    assert small.iterations == 2


def take_once(usual: Any, first: list[bytes]) -> Any:
    waiting = [first]
    return lambda socket: (identity(0, 0), waiting.pop()) if waiting else usual(socket)
