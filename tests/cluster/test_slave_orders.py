"""Orders that a slave should never get, and data that it should not let its jobs read."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flegel.cluster.master.daemon import MasterDaemon
from flegel.cluster.master.message_budget import fitted, listed, size
from flegel.cluster.slave import child_processes
from flegel.cluster.slave import daemon as slave_daemon
from flegel.cluster.slave.attempts import JobAttempt
from flegel.cluster.slave.daemon import SlaveDaemon
from flegel.cluster.slave.data_access import why_refused
from flegel.cluster.slave.file_shipping import read_piece
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.transport import protocol
from flegel.cluster.transport.secure_server import listen
from flegel.errors import DecodeError, Terminated, UsageError
from flegel.job import AlgorithmRef
from flegel.runtime.system import signals


class FakeClient:
    """A connection to a master that records what is sent and delivers what it is given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.inbox: list[Any] = []
        self.channel = self
        self.pending = 0
        self.address, self.trouble, self.answered = "tcp://head:7077", "nobody answers there.", False
        self.heard_at: float | None = None

    def send(self, body: Any, frames: Any = ()) -> None:
        self.sent.append(body)

    def receive(self, timeout: float) -> Iterator[tuple[Any, tuple[bytes, ...]]]:
        while self.inbox:
            order, frames = self.inbox.pop(0)
            if isinstance(order, Exception):
                raise order
            yield order, frames

    def drain(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlaveDaemon]:
    """In this process, whose own children and orphans it must leave alone."""
    for name in ("measure_and_reap", "kill_leftovers"):
        monkeypatch.setattr(child_processes, name, lambda *_: 0)
    monkeypatch.setattr(slave_daemon, "adopt_orphans", lambda: None)
    (tmp_path / "data").mkdir()
    settings = SlaveSettings("s0", 2, "127.0.0.1", tmp_path / "slave", 1 << 30, 1.0, (tmp_path / "data",))
    client = FakeClient()
    made = SlaveDaemon(settings, lambda: client)  # type: ignore[arg-type,return-value]
    made._connect(1.0)
    yield made
    made._close()


def spec(data: str = "blobs", code: str = "") -> protocol.ClusterJob:
    return protocol.ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), data, code=code)


def beat(slave: SlaveDaemon) -> protocol.SlaveBeat:
    slave._beat()
    client: Any = slave._client
    found = client.sent[-1]
    assert isinstance(found, protocol.SlaveBeat)
    return found


def test_a_slave_says_once_that_nobody_answers_and_once_that_somebody_does(
    slave: SlaveDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client: Any = slave._client
    for now in (0.0, slave._complain_at, slave._complain_at, 1e9):
        slave._report_connection(now)
    assert caplog.messages == ["no connection to tcp://head:7077 yet, still trying: nobody answers there."]
    client.answered, client.heard_at = True, 1e9
    for later in (0.0, 1.0, 3.0, 4.0):
        slave._report_connection(1e9 + later)
    assert caplog.messages[1:] == ["the master at tcp://head:7077 answers"]
    slave._report_connection(1e9 + 60.0)
    slave._report_connection(1e9 + 61.0)
    client.heard_at = 1e9 + 62.0
    slave._report_connection(1e9 + 62.0)
    silent, again = caplog.messages[2:]
    assert "has not answered for 15 s" in silent and again == "the master at tcp://head:7077 answers again"


def test_a_slave_that_is_refused_does_not_say_that_the_master_answers(
    slave: SlaveDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client: Any = slave._client
    client.answered, client.heard_at = True, 10.0
    slave._report_connection(10.0)
    slave._refused("A slave named s0 is running already; choose another --name.", 11.0)
    slave._report_connection(15.0)
    assert caplog.messages == ["A slave named s0 is running already; choose another --name."]


def test_a_second_slave_in_one_folder_is_told_of_name_and_folder(slave: SlaveDaemon) -> None:
    with pytest.raises(UsageError, match="give a second slave on this host a --name of its own"):
        SlaveDaemon(slave._settings, FakeClient)  # type: ignore[arg-type]


def test_no_order_ends_a_slave(slave: SlaveDaemon, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level("INFO")

    def breaks(*_: Any) -> None:
        raise ZeroDivisionError("as it may happen")

    monkeypatch.setattr(slave.processes, "_spawn", breaks)
    source = b"\xff\xfe"
    client: Any = slave._client
    client.inbox = [
        (protocol.LaunchCoordinator("one", 1, spec(), 1), ()),
        (protocol.LaunchWorker("two", 1, 0, 0, "config", data="blobs"), ()),
        (protocol.LaunchCoordinator("../three", 1, spec(), 1), ()),
        (protocol.LaunchCoordinator("four", 1, spec(code=hashlib.sha256(source).hexdigest()), 1), (source,)),
        (DecodeError("There is no message 'Denied'."), ()),
        (protocol.LaunchCoordinator("five", 1, spec(code="0"), 1), (b"x",)),
    ]
    slave._receive_orders()
    slave._receive_orders()
    said = caplog.text
    assert (
        "LaunchCoordinator one: slave s0 could not execute it: ZeroDivisionError" in said
        and "was not understood" in said
    )
    ends = {part.job: part for part in beat(slave).processes}
    assert {job: (part.alive, part.outcome) for job, part in ends.items()} == {
        "one": (False, "failed"), "two": (False, "lost"), "four": (False, "failed"), "five": (False, "failed"),
    }  # fmt: skip
    assert "ZeroDivisionError" in ends["two"].why and ends["two"].fault and "not UTF-8" in ends["four"].why


def test_data_outside_of_the_folders_are_refused_on_every_slave(slave: SlaveDaemon, tmp_path: Path) -> None:
    outside = str(tmp_path / "data" / ".." / "x.csv")
    slave._handle(protocol.LaunchCoordinator("one", 1, spec(outside), 1), ())
    slave._handle(protocol.LaunchWorker("two", 1, 0, 0, "config", data=outside), ())
    processes = beat(slave).processes
    assert [(p.alive, p.job) for p in processes] == [(False, "one"), (False, "two")]
    assert all("files are read from" in p.why for p in processes)


def test_where_a_name_ends_is_what_counts(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "sub", outside):
        folder.mkdir(parents=True)
        (folder / "x.csv").write_text("1,2\n")
    (inside / "link").symlink_to(outside)
    (inside / "link.csv").symlink_to(outside / "x.csv")
    (inside / "good.csv").symlink_to(inside / "sub" / "x.csv")
    folders = [inside]
    for name in (
        "blobs", "blobs:1e6", "higgs:200_000", "https://example.org/x.csv", "s3://bucket/../x", f"{inside}/sub/x.csv",
        f"{inside}/good.csv", f"file://{inside}/sub/x.csv", f"{inside}/sub/*.csv", f"{inside}/sub/../sub/x.csv",
        f"{inside}", f"{inside}/not-there.csv",
    ):  # fmt: skip
        assert why_refused(name, folders) == "", name
    for name in (
        f"{outside}/x.csv", f"{inside}/../out/x.csv", f"{inside}/sub/../../out/x.csv", "a/../../x", "a/b.csv", "x.csv",
        "./x.csv", "../x", "~/x.csv", "~nobody-of-that-name/x", f"file://{outside}/x.csv", f"FILE://{outside}/x.csv",
        f"file://{inside}/../out/x.csv", "file://x.csv", f"{inside}/link/x.csv", f"{inside}/link.csv",
        f"{inside}/*.csv", f"{inside}/*/x.csv", f"{inside}/**/x.csv", f"{inside}/link/../out/x.csv",
        f"{inside}-more/x", "", "\0", "/",
    ):  # fmt: skip
        assert why_refused(name, folders), name
        assert why_refused(name, []) == ""


def test_a_result_has_plain_files_only(slave: SlaveDaemon, tmp_path: Path) -> None:
    import os

    attempt: JobAttempt = slave.attempts.open("one", 1)
    attempt.ended[-1, 0] = protocol.ProcessStatus("one", 1, -1, alive=False, outcome="done")
    attempt.result.mkdir(parents=True)
    (attempt.result / "model.npz").write_bytes(b"x")
    (attempt.result / "link.npz").symlink_to("/etc/passwd")
    (attempt.result / "bad name").write_bytes(b"x")
    (attempt.result / "folder").mkdir()
    os.mkfifo(attempt.result / "pipe")
    assert set(attempt.files()) == {"", "model.npz"}
    assert read_piece(attempt, "model.npz", 0) == b"x"
    assert read_piece(attempt, "link.npz", 0) is None


def coordinator(job: str, workers: int, snapshot: int = 0) -> protocol.CoordinatorStatus:
    wanted = dict.fromkeys(range(workers), 0)
    return protocol.CoordinatorStatus(job, 1, wanted, dict.fromkeys(wanted, "b" * 500), snapshot={"x": "y" * snapshot})


@pytest.mark.parametrize("jobs", [1, 3, 40])
def test_a_beat_fits_whatever_jobs_want(jobs: int) -> None:
    most = 1 << 20
    processes = tuple(protocol.ProcessStatus(f"j{n}", 1, w) for n in range(jobs) for w in range(1024 // jobs))
    found = fitted(
        protocol.SlaveBeat(
            "s0",
            "boot",
            8,
            "h",
            processes=processes,
            coordinators=tuple(coordinator(f"j{n}", 1024) for n in range(jobs)),
        ),
        most,
    )
    assert size(found) <= most and found.processes == processes
    for each in found.coordinators:
        assert len(each.wanted) == 1024 and len(each.configs) >= min(most // 2 // jobs // 520, 1024)
    small = protocol.SlaveBeat("s0", "boot", 8, "h", coordinators=(coordinator("a", 20, 100),))
    assert fitted(small, most).coordinators[0] == coordinator("a", 20, 100)


def test_what_is_for_people_goes_first() -> None:
    dead = tuple(
        protocol.ProcessStatus(f"j{n}", 1, -1, alive=False, outcome="failed", why="w" * 2000, trace="t" * 20_000)
        for n in range(60)
    )
    found = fitted(
        protocol.SlaveBeat("s0", "boot", 8, "h", processes=dead, coordinators=(coordinator("a", 2, 2 << 20),)), 1 << 20
    )
    assert size(found) <= 1 << 20 and len(found.processes) == 60 and found.coordinators[0].wanted == {0: 0, 1: 0}
    with pytest.raises(UsageError, match="fewer --slots"):
        fitted(protocol.SlaveBeat("s0", "boot", 8, "h", processes=dead), 1000)


def test_a_long_list_of_jobs_has_the_newest() -> None:
    jobs = tuple(
        protocol.JobView(f"j{n}", "ann", "failed", "kmeans", "blobs", 0, 1, 0.0, trace="t" * 20_000, reason="r" * 2000)
        for n in range(3000)
    )
    found = listed(jobs, 900 << 10)
    assert size(found) <= 1 << 20 and len(found) > 1500 and found[-1].job == "j2999"
    assert [job.job for job in found] == [job.job for job in jobs[-len(found) :]]


def test_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "MAX_LOG_BYTES", 10_000)
    log = child_processes.JobLog(tmp_path / "log")
    for _ in range(100):
        log.write("worker 0", b"x" * 1000)
    content = log.read(0, 1 << 20)
    assert log.length < 10_000 and content.endswith(b"the log is full; later output is dropped\n")
    log.close()


def test_a_signal_that_was_lost_while_the_daemon_was_imported_ends_it(
    slave: SlaveDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler raises while Python compiles a module is dropped: the daemon would run for ever."""
    monkeypatch.setattr(signals, "_terminated", [signal.SIGTERM])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with pytest.raises(Terminated):
        slave.run()
    with listen("tcp://127.0.0.1:0", protocol.RIGHTS, insecure=True) as server, pytest.raises(Terminated):
        MasterDaemon(server, tmp_path / "master").run()
