"""Daemons that are frozen, clocks that jump, second slaves of a name: nothing that is healthy is given up.

Everything here is decided on given times; no test sleeps for a freeze.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flegel.cluster.client import Client
from flegel.cluster.master.actions import Caller
from flegel.cluster.master.daemon import MasterDaemon
from flegel.cluster.master.facts import RUNNING
from flegel.cluster.slave import child_processes
from flegel.cluster.slave.coordinator_deadlines import CoordinatorDeadlines
from flegel.cluster.slave.daemon import SlaveDaemon
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.transport import keys, protocol, secure_client
from flegel.cluster.transport.protocol import CancelJob, Denied, SlaveBeat, SlaveRefused
from flegel.cluster.transport.secure_client import SecureClient, dial
from flegel.cluster.transport.secure_server import IDLE_SESSION_SECONDS, Received, Sender, _Peer, listen
from flegel.configuration.active import active
from flegel.core.own_pauses import Deadline, OwnPauses
from flegel.errors import FlegelError, UsageError
from flegel.job import AlgorithmRef
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.coordinator.liveness import Liveness
from flegel.messages import WorkerBeat
from flegel.runtime import clock
from flegel.runtime.system.exit_codes import DISCONNECTED_EXIT_CODE, describe_exit
from flegel.runtime.system.process_activity import is_stopped
from tests.cluster.simulated_cluster import SimulatedCluster
from tests.cluster.test_hostile import RecordingServer
from tests.cluster.test_master_machine import settled_cluster, turn
from tests.cluster.test_secure_server import Ask, Host, answers, host, until

__all__ = ["host"]

FREEZES = (1.0, 5.0, 9.0, 20.0, 60.0, 3600.0)


def attempts(simulated: SimulatedCluster) -> list[int]:
    return [job.attempt for job in simulated.master.table.jobs.values()]


# -- the master --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", FREEZES)
def test_a_master_that_was_frozen_gives_up_nobody(seconds: float) -> None:
    simulated = settled_cluster(jobs=2)
    simulated.freeze_master(seconds)
    turn(simulated, times=20)
    assert attempts(simulated) == [1, 1]


def test_a_slave_that_died_while_the_master_was_frozen_is_lost_a_lease_later() -> None:
    simulated = settled_cluster(jobs=2)
    victim = next(n for n, s in simulated.slaves.items() if any(p[2] == -1 for p in s.living()))
    simulated.kill_slave(victim)
    simulated.freeze_master(60.0)
    assert attempts(simulated) == [1, 1]
    simulated.tick(active().cluster.slave_silence_seconds + 1)
    assert any(job.state != RUNNING for job in simulated.master.table.jobs.values())


@pytest.mark.parametrize("seconds", [1.0, 5.0, 9.0, 20.0])
def test_a_slave_that_is_frozen_keeps_its_jobs_and_gets_no_new_ones(seconds: float) -> None:
    simulated = settled_cluster(jobs=1, workers=1)
    frozen = next(n for n, s in simulated.slaves.items() if s.living())
    simulated.slaves[frozen].frozen = True
    simulated.tick(seconds)
    (other,) = set(simulated.slaves) - {frozen}
    simulated.beat(other)
    simulated.submit("ticket-new", 3, "bob")
    turn(simulated, times=1)
    assert (
        seconds <= active().cluster.slave_silence_seconds
        or simulated.master.view(simulated.master.find("kmeans-2")).state == "queued"
    )
    simulated.slaves[frozen].frozen = False
    simulated.settle()
    assert attempts(simulated)[0] == 1


@pytest.mark.parametrize("gone", ["frozen", "cut"])
def test_a_slave_that_stays_away_is_lost_in_the_end(gone: str) -> None:
    simulated = settled_cluster(jobs=1)
    for slave in simulated.slaves.values():
        setattr(slave, gone, True)
    simulated.tick(active().cluster.frozen_slave_seconds + 1)
    assert all(job.state != RUNNING for job in simulated.master.table.jobs.values())
    simulated.settle()


# -- coordinators, workers, slaves, clients ----------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5.0, 9.0, 20.0, 60.0, 3600.0])
def test_a_coordinator_that_was_frozen_finds_nobody_silent_stuck_or_late(seconds: float) -> None:
    liveness = Liveness(Timeouts(silence=10.0, hook=30.0))
    liveness.expect_all((0, 1), 0.0)
    now = 0.0
    for _ in range(20):
        now += 1.0
        liveness.look(now)
        for worker in (0, 1):
            liveness.hear(worker, WorkerBeat(1, "updateDataPoint"), now)
    now += seconds
    liveness.look(now)
    assert liveness.silent(now) == [] and liveness.stuck("round 1", now) is None
    late = liveness.overdue(now, [lambda worker, waited: "late" if waited > 30.0 else ""])
    assert late is None, "what was asked before the freeze has its time still"


@pytest.mark.parametrize("seconds", [40.0, 3600.0])
def test_time_in_which_a_coordinator_was_stopped_is_no_time_of_a_hook(seconds: float) -> None:
    deadlines = CoordinatorDeadlines(max_seconds=50.0, hook_timeout=30.0)
    deadlines.phase_changed("training", "", 0.0)
    deadlines.progress_seen(1.0)
    assert deadlines.exceeded(1.0 + seconds)
    now = 1.0
    while now < 1.0 + min(seconds, active().cluster.excused_seconds):
        now += 0.5
        deadlines.excuse(0.5, now)
    assert deadlines.exceeded(now) == ""
    assert deadlines.exceeded(now + 31.0), "a hook that holds it up afterwards is found"


def test_a_process_that_is_stopped_for_ever_is_not_excused_for_ever() -> None:
    deadlines = CoordinatorDeadlines(hook_timeout=30.0)
    deadlines.phase_changed("training", "", 0.0)
    now = 0.0
    while not deadlines.exceeded(now):
        now += 0.5
        deadlines.excuse(0.5, now)
        assert now < 2 * active().cluster.excused_seconds


def test_a_clock_that_goes_back_is_no_pause() -> None:
    pauses = OwnPauses(3.0)
    assert [pauses.look(now) for now in (100.0, 101.0, 111.0, 50.0, 51.0)] == [0.0, 0.0, 10.0, 0.0, 0.0]


def test_a_worker_that_lost_its_coordinator_is_not_at_fault() -> None:
    assert describe_exit(DISCONNECTED_EXIT_CODE)[1] is False and describe_exit(1)[1] is True


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_clock_that_jumps_by_an_hour_locks_nobody_out(host: Host, monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    with host.client("submit") as client:
        client.send(Ask(1))
        assert [body.n for body, _ in answers(client, 1)] == [1]
        name = next(iter(host.server._peers))
    host.server._forget(name)
    real = clock.microseconds
    monkeypatch.setattr(clock, "microseconds", lambda: real() + jump * 1_000_000)
    monkeypatch.setattr(secure_client, "_floors", {})
    with host.client("submit") as client:
        client.send(Ask(2))
        assert [body.n for body, _ in answers(client, 1)] == [2]


def test_a_conversation_that_was_forgotten_goes_on_under_a_new_number(host: Host) -> None:
    with host.client("submit") as client:
        client.send(Ask(1))
        assert [body.n for body, _ in answers(client, 1)] == [1]
        former = client.session
        until(lambda: not client.channel.pending, client)
        host.server._forget(next(iter(host.server._peers)))
        for n in (2, 3):
            client.send(Ask(n))
            assert [body.n for body, _ in answers(client, 1)] == [n]
        assert client.session > former
    assert [body.n for _, body, _ in host.got] == [1, 2, 3], "each message was delivered once"


# -- expiry by a clock of one's own: looks on given times -----------------------------------------------------


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the code under test reads; tests move it."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    return now


@pytest.mark.parametrize("jump", [61.0, 3601.0, 86400.0])
def test_a_server_whose_clock_jumps_forgets_no_conversation(time: list[float], jump: float) -> None:
    with listen("tcp://127.0.0.1:0", {Ask: ["submit"]}, insecure=True) as server:
        server._peers[("k", 1)] = _Peer(Sender("k", "submit", "n", 1), time[0], 10, 1000)
        server._expire(time[0])
        time[0] += jump
        server._expire(time[0])
        assert list(server._peers) == [("k", 1)]
        quiet = 0.0
        while server._peers:
            assert quiet <= IDLE_SESSION_SECONDS + 30.0, "one that stays silent is forgotten in the end"
            time[0], quiet = time[0] + 10.1, quiet + 10.1
            server._expire(time[0])
        assert quiet > IDLE_SESSION_SECONDS - 30.0


@pytest.mark.parametrize("jump", [5.0, 60.0, 3600.0])
def test_a_deadline_is_not_used_up_by_an_own_pause(jump: float) -> None:
    deadline = Deadline(10.0, 100.0)
    assert not any(deadline.passed(100.0 + n) for n in range(6))
    later = [deadline.passed(105.0 + jump + n) for n in range(7)]
    assert later == [False] * 5 + [True] * 2, "five of ten seconds were left"


@pytest.mark.parametrize("jump", [61.0, 3600.0])
def test_a_slave_whose_clock_jumps_does_not_call_itself_abandoned(jump: float) -> None:
    slave = SlaveDaemon.__new__(SlaveDaemon)
    slave._settings = SlaveSettings("s", 1, "127.0.0.1", Path("x"), 1 << 30, 10.0, abandon=60.0)
    slave._client, slave._stopping, slave._heard_at = None, False, 100.0
    slave._drain_until, slave._refused_at, slave._pauses = 130.0, None, OwnPauses(3.0)
    now = 100.0
    for step in (1.0, jump, 1.0):
        now += step
        slave._excuse(slave._pauses.look(now), now)
        slave._end_if_abandoned(now)
    assert not slave._stopping and slave._drain_until == 130.0 + jump
    for _ in range(60):
        now += 1.0
        slave._excuse(slave._pauses.look(now), now)
        slave._end_if_abandoned(now)
    assert slave._stopping, "a master that stays silent is given up"


def test_a_frozen_master_is_called_stopped_and_not_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listening socket of a process that is stopped: the kernel accepts, and nobody answers."""
    import socket

    monkeypatch.setattr(secure_client, "FROZEN_HANDSHAKE_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        pair = keys.create("submit", tmp_path)
        with (
            dial(address, [protocol.Accepted], pair=pair, server=keys.create("master", tmp_path).public) as client,
            pytest.raises(FlegelError, match="may be stopped or overloaded"),
        ):
            client.wait_ready(1.0)


def test_a_peer_whose_process_has_ended_is_told_from_one_that_is_frozen(tmp_path: Path) -> None:
    pair, registry = keys.first_start(tmp_path), keys.KeyRegistry(tmp_path)
    with listen("tcp://127.0.0.1:0", {Ask: ["submit"]}, pair=pair, registry=registry) as server:
        client = dial(server.address, [Ask], pair=keys.load("submit", tmp_path), server=pair.public)
        client.send(Ask(1))
        (received,) = _received(server, client)
        assert server.reachable(received.sender), "it says nothing, and its connection is open"
        client.close()
        until(lambda: not server.reachable(received.sender))


def _received(server: Any, client: SecureClient) -> list[Received]:
    found: list[Received] = []
    deadline = clock.now() + 60
    while not found and clock.now() < deadline:
        list(client.receive(0.01))
        found += server.receive(0.05)
    return found


# -- names -------------------------------------------------------------------------------------------------


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterDaemon]:
    made = MasterDaemon(RecordingServer(), tmp_path / "master")  # type: ignore[arg-type]
    yield made
    made._journal.close()


def test_a_second_slave_of_a_name_is_refused_and_the_first_keeps_its_jobs(master: MasterDaemon) -> None:
    first, second = Sender("k", "slave", "n", 1), Sender("k", "slave", "n", 2)
    server: Any = master.server
    master._handle(Received(first, SlaveBeat("n1", "boot-1", 4, "10.0.0.1"), ()))
    master._handle(Received(second, SlaveBeat("n1", "boot-2", 4, "10.0.0.2"), ()))
    assert master._machine.slaves["n1"].beat.boot == "boot-1"
    (refusal,) = [body for body, _ in server.sent if isinstance(body, SlaveRefused)]
    assert "10.0.0.1 is running already" in refusal.why
    server.closed.add(1)  # the first one is killed
    master._handle(Received(second, SlaveBeat("n1", "boot-2", 4, "10.0.0.2"), ()))
    assert master._machine.slaves["n1"].beat.boot == "boot-2"


def test_rights_to_a_job_belong_to_the_key_and_not_to_its_name() -> None:
    simulated = SimulatedCluster()
    spec = protocol.ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs")
    owner, namesake = Caller("ann", key="a" * 64), Caller("ann", key="b" * 64)
    simulated.do(simulated.master.request_received(owner, protocol.SubmitJob("ticket-1", spec), simulated.now))
    (job,) = simulated.master.table.jobs
    denied = simulated.do(simulated.master.request_received(namesake, CancelJob(job), simulated.now))
    assert isinstance(denied, Denied) and "belongs to ann (key aaaaaaaa…)" in denied.text
    assert not isinstance(simulated.do(simulated.master.request_received(owner, CancelJob(job), simulated.now)), Denied)


def test_names_that_are_taken_or_reserved_are_refused(tmp_path: Path) -> None:
    keys.first_start(tmp_path)
    registry = keys.KeyRegistry(tmp_path)
    registry.add("a" * 64, "submit", "ann")
    registry.add("a" * 64, "read", "ann")  # the same key may change its role
    for name in ("ann", "local-submit", "local-slave", "this-host", "aaaaaaaa"):
        with pytest.raises(UsageError, match="choose another --name"):
            registry.add("b" * 64, "submit", name)


def test_the_administrator_is_known_by_key_and_an_older_folder_is_brought_up_to_date(tmp_path: Path) -> None:
    keys.first_start(tmp_path)
    own = keys.load("submit", tmp_path).public
    registry = keys.KeyRegistry(tmp_path)
    registry.write(keys.KeyEntry(own, "submit", "local-submit"))  # as earlier versions wrote it
    registry.write(keys.KeyEntry("c" * 64, "submit", "local-submit"))  # and a namesake, written by hand
    keys.first_start(tmp_path)
    admins = [entry.key for entry in keys.KeyRegistry(tmp_path).entries() if entry.admin]
    assert admins == [own]


def test_a_stopped_process_is_seen_as_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    child = child_processes.ChildProcess(("j", 1, -1, 0), process, os.pidfd_open(process.pid), 0, None, None)  # type: ignore[arg-type]
    try:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: _measured(child).stopped)
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: not _measured(child).stopped)
    finally:
        process.kill()
        process.wait()
        os.close(child.pidfd)


def _measured(child: child_processes.ChildProcess) -> child_processes.ChildProcess:
    child.stopped = is_stopped(child.process.pid)
    return child


def test_a_client_that_was_frozen_still_takes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pauses of 40 s are more than an answer may take, and none of it is the master's fault."""
    time = [0.0]

    class Line:
        def send(self, request: Any, frames: Any) -> None:
            self.number = request.number

        def receive(self, timeout: float) -> Iterator[Any]:
            time[0] += 40.0
            if time[0] > 150.0:
                yield protocol.Accepted("j", number=self.number), ()

    monkeypatch.setattr(clock, "now", lambda: time[0])
    client = Client.__new__(Client)
    client._number, client._connection, client.address = 1, Line(), "tcp://x:1"  # type: ignore[assignment]
    assert client._ask(CancelJob("j"), protocol.Accepted)[0].job == "j"
