"""Peers with valid keys and bad intentions: no message of the right type may end the master or leave its folder."""

from __future__ import annotations

import hashlib
import random
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flegel.cluster.master.client_requests import MAX_WAITING_JOBS_PER_USER
from flegel.cluster.master.daemon import MasterDaemon
from flegel.cluster.master.facts import FAILED, RUNNING
from flegel.cluster.transport import protocol
from flegel.cluster.transport.secure_server import ANYBODY, Received, Sender
from flegel.errors import StorageError
from flegel.job import AlgorithmRef
from flegel.runtime import clock

NUMBERS = [0, 1, -1, 2, 7, 1024, 10**6, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1]
WORDS = ["", "a", "n1", "n2", "kmeans-1", "../x", "..", "/etc/passwd", "a" * 100, "\0", "β", "%s", "{0}", "-", ".x"]
FLOATS = [0.0, 1.5, -1.0, 1e308, float("inf"), float("nan")]


class RecordingServer:
    """A server socket that only records what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed: set[int] = set()
        """Sessions whose connection is closed."""

    def send(self, to: Sender, body: msgspec.Struct, frames: Any = ()) -> None:
        msgspec.msgpack.encode(body)
        self.sent.append((body, frames))

    def reachable(self, to: Sender) -> bool:
        return to.session not in self.closed


def extreme(kind: Any, rng: random.Random, names: list[str]) -> Any:
    """A value of a type, as odd as that type allows."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return extreme(rng.choice([int, str, float, list[int]]), rng, names)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        fields = [f.name for f in msgspec.structs.fields(kind) if f.required or rng.random() < 0.5]
        return kind(**{name: extreme(hints[name], rng, names) for name in fields})
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        return extreme(rng.choice(args), rng, names)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(extreme(args[0], rng, names) for _ in range(rng.randrange(3)))
    if origin is tuple:
        return tuple(extreme(a, rng, names) for a in args)
    if origin is list:
        return [extreme(args[0], rng, names) for _ in range(rng.randrange(3))]
    if origin is dict:
        return {extreme(args[0], rng, names): extreme(args[1], rng, names) for _ in range(rng.randrange(3))}
    plain = {
        int: rng.choice(NUMBERS), str: rng.choice(names), float: rng.choice(FLOATS), bool: rng.random() < 0.5,
        bytes: b"x", type(None): None, dict: {},
    }  # fmt: skip
    return plain[kind]


SUBMIT, NODE, OTHER, READ = (
    Sender("k1", "submit", "ann", 1), Sender("k2", "slave", "n1", 1), Sender("k3", "slave", "n2", 1),
    Sender("k4", "read", "bob", 1),
)  # fmt: skip


def fail(what: str, error: Exception) -> None:
    """A mistake of the master is survived, and yet it is one."""
    raise AssertionError(what) from error


def with_a_job(folder: Path) -> tuple[MasterDaemon, Any]:
    """A master with two slaves, and one job on the first of them."""
    master = MasterDaemon(RecordingServer(), folder)  # type: ignore[arg-type]
    master._report_failure = fail  # type: ignore[method-assign]
    for sender in (NODE, OTHER):
        slots = 4 if sender is NODE else 0
        master._handle(
            Received(sender, protocol.SlaveBeat(sender.name, "boot", slots, "127.0.0.1", memory=1 << 40), ())
        )
    spec = protocol.ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "higgs:1000", workers=1)
    master._handle(Received(SUBMIT, protocol.SubmitJob("ticket-0001", spec), ()))
    (job,) = master._machine.table.of_state(RUNNING)
    assert job.last_slave == "n1"
    return master, job


@pytest.fixture
def running(tmp_path: Path) -> tuple[MasterDaemon, Any]:
    return with_a_job(tmp_path / "home")


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_no_message_of_the_right_type_ends_the_master(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng, outer = random.Random(seed), tmp_path_factory.mktemp("outer")
    master, job = with_a_job(outer / "home")
    names = [*WORDS, job.id, "n1", "boot", "ticket-0001", "ticket-0002", f"{job.attempt}.n1"]
    senders = {"submit": [SUBMIT], "slave": [NODE, OTHER], "read": [READ]}
    for _ in range(40):
        kind = rng.choice(list(protocol.RIGHTS))
        try:
            body = msgspec.msgpack.decode(msgspec.msgpack.encode(extreme(kind, rng, names)), type=kind)
        except (msgspec.MsgspecError, OverflowError):
            continue  # cannot be encoded at all
        sender = rng.choice(senders[rng.choice(protocol.RIGHTS[kind])])
        if rng.random() < 0.1:
            sender = Sender("", ANYBODY, "", 1)
        frames = tuple(b"z" * rng.choice((0, 5, protocol.FILE_CHUNK_BYTES + 1)) for _ in range(rng.randrange(3)))
        master._handle(Received(sender, body, frames))
        if rng.random() < 0.1:
            master._execute(master._machine.tick(clock.now() + rng.choice((0, 1, 100))))
    assert [p.name for p in outer.iterdir()] == ["home"], "something was written outside of the master's folder"
    assert master._machine.table.jobs, "the job is lost"
    master._journal.close()


@pytest.mark.parametrize("offset", NUMBERS)
def test_reading_from_any_offset_is_answered(running: tuple[MasterDaemon, Any], offset: int) -> None:
    master, job = running
    master._handle(Received(NODE, protocol.FileChunk("n1", job.id, job.attempt, "", 0), (b"hello",)))
    server: Any = master.server
    before = len(server.sent)
    master._handle(Received(READ, protocol.ReadFile(job.id, "", f"{job.attempt}.n1", offset=offset), ()))
    ((answer, frames),) = server.sent[before:]
    assert isinstance(answer, protocol.FileContent) and answer.size == 5
    assert frames[0] == b"hello"[max(min(offset, 5), 0) :]


def test_only_the_slave_of_the_coordinator_hands_in_the_result(
    running: tuple[MasterDaemon, Any], tmp_path: Path
) -> None:
    master, job = running
    for sender in (OTHER, NODE):
        chunk = protocol.FileChunk(sender.name, job.id, job.attempt, "model.npz", 0)
        master._handle(Received(sender, chunk, (sender.name.encode(),)))
        impostor = protocol.FileChunk("n1", job.id, job.attempt, "other.npz", 0)
        master._handle(Received(OTHER, impostor, (b"forged",)))
    written = {p.name: p.read_bytes() for p in (tmp_path / "home").rglob("*.npz")}
    assert written == {"model.npz": b"n1"}


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", ".x", "a/b", "\0"])
def test_names_of_files_stay_in_their_folder(running: tuple[MasterDaemon, Any], tmp_path: Path, name: str) -> None:
    master, job = running
    before = {p for p in tmp_path.rglob("*") if "evil" in p.name}
    master._handle(Received(NODE, protocol.FileChunk("n1", job.id, job.attempt, name, 0), (b"x",)))
    master._handle(Received(READ, protocol.ReadFile(job.id, name), ()))
    master._handle(Received(READ, protocol.ReadFile(job.id, "", name), ()))
    answers = [body for body, _ in master.server.sent[-2:]]  # type: ignore[attr-defined]
    assert all(isinstance(a, protocol.Denied) for a in answers)
    assert before == {p for p in tmp_path.rglob("*") if "evil" in p.name} == set()


def test_a_mistake_of_the_master_is_told_and_does_not_end_it(
    running: tuple[MasterDaemon, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    master, job = running
    del master._report_failure  # type: ignore[method-assign]
    server: Any = master.server
    spec = msgspec.structs.replace(job.spec, name="second")
    schedule = master._machine._lifecycle.schedule

    def breaks() -> None:
        raise ZeroDivisionError("as it may happen")

    monkeypatch.setattr(master._machine._lifecycle, "schedule", breaks)
    master._handle(Received(SUBMIT, protocol.SubmitJob("ticket-0002", spec, number=7), ()))
    (answer, _) = server.sent[-1]
    assert isinstance(answer, protocol.Denied) and answer.number == 7 and not answer.usage
    assert "ZeroDivisionError: as it may happen" in answer.text
    said = caplog.text
    assert "SubmitJob of ann failed" in said and "in breaks" in said
    before = len(server.sent)
    for sender in (NODE, OTHER):
        master._handle(Received(sender, protocol.SlaveBeat(sender.name, "boot", 4, "127.0.0.1"), ()))
    master._tick(clock.now())
    assert not [body for body, _ in server.sent[before:] if isinstance(body, protocol.Denied)], "slaves get no answers"
    monkeypatch.setattr(master._machine._lifecycle, "schedule", schedule)
    master._handle(Received(SUBMIT, protocol.SubmitJob("ticket-0002", spec, number=8), ()))
    (accepted,) = [body for body, _ in server.sent if getattr(body, "number", 0) == 8]
    assert accepted == protocol.Accepted("second", "was submitted before", number=8), "half of it was recorded"
    master._journal.close()
    again = MasterDaemon(RecordingServer(), master._folder)  # type: ignore[arg-type]
    assert set(again._machine.table.jobs) == {job.id, "second"}
    again._journal.close()


def test_a_journal_that_fails_ends_the_master(running: tuple[MasterDaemon, Any]) -> None:
    master, job = running
    master._journal._broken = True
    with pytest.raises(StorageError, match="must be started again"):
        master._handle(Received(SUBMIT, protocol.CancelJob(job.id), ()))


def test_a_job_whose_source_is_gone_fails_and_the_master_goes_on(tmp_path: Path) -> None:
    master, _ = with_a_job(tmp_path)
    source = b"class A: pass"
    spec = protocol.ClusterJob(
        AlgorithmRef("m:A", {}), "blobs", code=hashlib.sha256(source).hexdigest(), name="mine", workers=8
    )
    master._handle(Received(SUBMIT, protocol.SubmitJob("ticket-0002", spec), (source,)))
    (tmp_path / "code" / spec.code).unlink()
    master._handle(Received(NODE, protocol.SlaveBeat("n1", "boot", 16, "127.0.0.1"), ()))
    job = master._machine.table.jobs["mine"]
    assert job.state == FAILED and "cannot send LaunchCoordinator" in job.why


def test_no_more_than_some_jobs_of_a_user_may_wait(running: tuple[MasterDaemon, Any]) -> None:
    master, job = running
    server: Any = master.server
    spec = msgspec.structs.replace(job.spec, workers=1000)

    def submit(sender: Sender, number: int) -> Any:
        master._handle(Received(sender, protocol.SubmitJob(f"ticket-{sender.name}-{number:05}", spec), ()))
        return server.sent[-1][0]

    for number in range(MAX_WAITING_JOBS_PER_USER):
        assert isinstance(submit(SUBMIT, number), protocol.Accepted)
    assert f"no more than {MAX_WAITING_JOBS_PER_USER} may" in submit(SUBMIT, MAX_WAITING_JOBS_PER_USER).text
    assert isinstance(submit(SUBMIT, 0), protocol.Accepted), "the same ticket is the same job, also then"
    assert isinstance(submit(Sender("k5", "submit", "cecil", 1), 0), protocol.Accepted), "others have their own number"
    master._handle(Received(SUBMIT, protocol.CancelJob(job.id), ()))
    master._handle(Received(SUBMIT, protocol.ResumeJob(job.id), ()))
    assert "are waiting already" in server.sent[-1][0].text


def test_a_description_that_is_too_long_is_refused(running: tuple[MasterDaemon, Any]) -> None:
    master, job = running
    algorithm = AlgorithmRef(job.spec.algorithm.name, {"init": "x" * protocol.MAX_JOB_SPEC_BYTES})
    spec = msgspec.structs.replace(job.spec, algorithm=algorithm)
    master._handle(Received(SUBMIT, protocol.SubmitJob("ticket-0002", spec), ()))
    assert "The description of the job takes" in master.server.sent[-1][0].text  # type: ignore[attr-defined]
