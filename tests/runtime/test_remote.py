"""Workers over TCP with CURVE: the same results as on one host, no forged sender, nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import zmq

import flegel
from bench.common.remote_cluster import RemoteCluster
from flegel import LocalCluster
from flegel.core.shard import Sparse
from flegel.errors import ProtocolError, UsageError
from flegel.machine.balance.part import BalancePart
from flegel.messages import Hello
from flegel.runtime import clock
from flegel.runtime.processes.worker_processes import launch
from flegel.runtime.system.exit_codes import DISCONNECTED_EXIT_CODE
from flegel.runtime.transport import job_sockets, remote_arrays
from flegel.runtime.transport.codec import Sequencer
from flegel.runtime.transport.curve import KeyPair, new_key_pair, secure_dialer
from flegel.runtime.transport.shared_memory import open_shared
from flegel.runtime.worker import process
from flegel.runtime.worker.process import WorkerConfig, identity
from flegel.runtime.worker.row_sources import SharedRows, open_rows, reorder
from tests.balance.test_processes import MOVES, moving, run


class Watched(RemoteCluster):
    """Keeps the configuration of each worker, for tests that try to abuse it."""

    def __init__(self, workers: int) -> None:
        self.configs: list[WorkerConfig] = []
        self.pids: list[int] = []
        super().__init__(workers, start=self._watched)

    def _watched(self, config: WorkerConfig) -> subprocess.Popen[bytes]:
        self.configs.append(config)
        process = launch(config)
        self.pids.append(process.pid)
        return process


@pytest.fixture(scope="module")
def remote() -> Iterator[Watched]:
    with Watched(workers=3) as warm:
        yield warm


@pytest.mark.processes
def test_bsp_gives_the_same_bits_as_on_one_host(cluster: LocalCluster, remote: Watched, points: np.ndarray) -> None:
    options: dict[str, Any] = {"workers": 3, "sync": "bsp", "max_iterations": 12, "tolerance": 0, "seed": 3}
    here = flegel.run("kmeans", points, cluster=cluster, **options)
    there = flegel.run("kmeans", points, cluster=remote, **options)
    assert here.objective == there.objective
    for name, values in here.parameters.items():
        assert np.array_equal(values, there.parameters[name]), name
    assert [r["objective"] for r in here.rows] == [r["objective"] for r in there.rows]


@pytest.mark.processes
def test_workers_read_a_file_themselves(
    cluster: LocalCluster, remote: Watched, points: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "points.npy", points, allow_pickle=False)
    options: dict[str, Any] = {"workers": 3, "sync": "bsp", "max_iterations": 3, "tolerance": 0}
    here, there = (flegel.run("kmeans", tmp_path / "points.npy", cluster=c, **options) for c in (cluster, remote))
    assert here.objective == there.objective


@pytest.mark.processes
def test_points_move_between_hosts_and_the_statistics_hold(
    remote: Watched, monkeypatch: pytest.MonkeyPatch, points: np.ndarray
) -> None:
    data = np.tile(points, (10, 1)) + np.random.default_rng(1).normal(size=(30_000, 6)) * 0.1
    moving(monkeypatch, *MOVES)
    result, machine = run("kmeans", data, remote, sync="fsp")
    assert machine.part(BalancePart).control.migrations.points >= 5000
    z, total, origin = result.state[:, 0], machine.store.statistics, machine.parameter.origin
    assert np.array_equal(np.bincount(z, minlength=10), total.counts)
    for j in range(10):
        assert np.allclose(total.sums[j], (data[z == j] - origin).sum(axis=0), rtol=1e-10, atol=1e-8)
    values = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values))


@pytest.mark.processes
def test_secrets_are_not_where_others_can_read_them(remote: Watched) -> None:
    for config, pid in zip(remote.configs, remote.pids, strict=True):
        assert config.keys is not None
        for file in ("cmdline", "environ"):
            shown = Path(f"/proc/{pid}/{file}").read_bytes()
            for pair in (config.keys.own, config.keys.between):
                assert pair.secret.encode() not in shown


def hellos(remote: RemoteCluster, seconds: float) -> list[Any]:
    until, got = clock.now() + seconds, []
    while clock.now() < until:
        got += [envelope.body for envelope, _ in remote.receive(0.05)]
    return [body for body in got if isinstance(body, Hello)]


@pytest.mark.processes
@pytest.mark.parametrize("who", ["nobody", "a stranger", "the job's key", "another worker", "another's name"])
def test_nobody_can_send_in_the_name_of_a_worker(remote: Watched, who: str) -> None:
    config, other = remote.configs[0], remote.configs[1]
    assert config.keys is not None and other.keys is not None
    pairs: dict[str, KeyPair | None] = {
        "nobody": None, "a stranger": new_key_pair(), "the job's key": config.keys.between,
        "another worker": other.keys.own, "another's name": other.keys.own,
    }  # fmt: skip
    context: zmq.Context[Any] = zmq.Context()
    forger = context.socket(zmq.DEALER)
    name = identity(7, 0) if who == "another's name" else identity(config.worker, config.incarnation) + b"x"
    forger.setsockopt(zmq.IDENTITY, name)
    pair = pairs[who]
    if pair is not None:
        secure_dialer(forger, pair, config.keys.server)
    forger.connect(config.address)
    sequencer = Sequencer(remote.token, 0, config.worker, config.incarnation)
    for _ in range(20):
        forger.send_multipart(sequencer.wrap(Hello(1, "forged")), zmq.NOBLOCK)
    try:
        assert hellos(remote, 0.5) == []
    finally:
        context.destroy(0)


@pytest.mark.processes
def test_a_former_incarnation_may_not_connect(remote: Watched) -> None:
    with Watched(workers=1) as single:
        first = single.configs[0]
        process = single.registry.processes[0]
        process.kill()
        process.wait()
        single.start()
        single.wait_ready()
        assert first.keys is not None and first.keys.own.public not in single.endpoint.senders
        assert set(single.endpoint.senders.values()) == {identity(0, 1)}


def test_a_worker_watches_its_connection_from_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[bool] = []

    def watch(self: process.ConnectionMonitor, line: zmq.Socket[bytes]) -> None:
        dialled.append(bool(line.getsockopt(zmq.LAST_ENDPOINT)))

    monkeypatch.setattr(process.ConnectionMonitor, "__init__", watch)
    keys = job_sockets.JobKeys(new_key_pair(), new_key_pair().public, new_key_pair())
    made = process.WorkerLoop(WorkerConfig("tcp://127.0.0.1:1", "t", 0, 0, keys))
    assert made._socket.getsockopt(zmq.LAST_ENDPOINT)
    made._trainer.quit()
    made._socket.close(linger=0)
    made._sockets.close()
    assert dialled == [False]


@pytest.mark.processes
def test_a_worker_whose_coordinator_vanished_ends(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = Watched(workers=1)
    try:
        cluster.start()
        cluster.wait_ready()
        cluster.endpoint.close()  # as when its host is gone; the worker's standard input stays open
        assert cluster.registry.processes[0].wait(240) == DISCONNECTED_EXIT_CODE
    finally:
        cluster.registry.ready.clear()
        cluster.close()
    assert "connection to the coordinator broke" in capfd.readouterr().err


@pytest.mark.processes
def test_a_worker_reads_its_configuration_from_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes(msgspec.json.encode(WorkerConfig("tcp://127.0.0.1:1", "t", 0, 0)))
    file.chmod(0o644)
    words = [sys.executable, "-m", "flegel.runtime.worker.process", str(file)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and "Others can read" in done.stderr and "Traceback" not in done.stderr
    file.chmod(0o600)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr  # its standard input is closed, so it ends at once


# -- arrays of another host ----------------------------------------------------------------------------------------


class Served(NamedTuple):
    """A server of arrays, and how a reader of the same job reaches it."""

    server: remote_arrays.ArrayServer
    dial: remote_arrays.Dial


@pytest.fixture(params=["keys", "one host"])
def array_server(request: pytest.FixtureRequest) -> Iterator[Served]:
    between = new_key_pair()
    keys = job_sockets.JobKeys(new_key_pair(), new_key_pair().public, between) if request.param == "keys" else None
    ours, readers = job_sockets.JobSockets(keys), job_sockets.JobSockets(keys)
    server = remote_arrays.ArrayServer(ours, "tcp://127.0.0.1:1")
    yield Served(server, readers.dial)
    server.close()
    ours.close()
    readers.close()


def test_indexing_a_remote_array_is_indexing_the_array(array_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_arrays, "ANSWER_BYTES", 1000)
    values = np.random.default_rng(0).normal(size=(500, 3))
    served = remote_arrays.ServedArray(array_server.server, values.shape, values.dtype)
    served.array[...] = values
    there = remote_arrays.RemoteArray(served.describe(), array_server.dial)
    assert len(there) == 500 and there.dtype == values.dtype
    for which in (
        slice(None),
        slice(10, 400),
        slice(490, 600),
        slice(5, 5),
        slice(0, 100, 7),
        [3, 499, 0],
        values[:, 0] > 0,
    ):
        np.testing.assert_array_equal(there[which], values[which])
    assert np.array_equal(there[7], values[7]) and np.array_equal(there[-1], values[-1])
    np.testing.assert_array_equal(np.asarray(there), values)
    assert not there[:].flags.writeable, "as arrays in shared memory are, or kernels would be compiled a second time"
    with pytest.raises(IndexError):
        there[500]
    with pytest.raises(ProtocolError, match="no such data"):
        there[[3, 500]]
    served.close()
    with pytest.raises(ProtocolError, match="no such array"):
        there[:]


def test_shards_of_dense_and_sparse_rows_are_read_remotely(array_server: Served) -> None:
    rng = np.random.default_rng(0)
    dense, labels = rng.normal(size=(90, 4)), rng.normal(size=90)
    indptr = np.arange(0, 181, 2)
    sparse = Sparse(indptr, np.tile([1, 3], 90), rng.normal(size=180), 5)
    owners = [np.arange(0, 90, 2), np.arange(1, 90, 2)]
    for features in (dense, sparse):
        rows = SharedRows(features, labels, owners, partial(remote_arrays.ServedArray, array_server.server))
        for index, mine in enumerate(owners):
            got = open_rows(rows.describe(), index, 2, 0, open_array=partial(open_shared, dial=array_server.dial))
            assert np.array_equal(got.ids, mine) and np.array_equal(got.labels, labels[mine])
            if isinstance(features, Sparse):
                for a, b in zip(got.features, reorder(features, mine), strict=True):
                    assert np.array_equal(a, b)
            else:
                assert np.array_equal(got.features, dense[mine])
        rows.close()


def test_many_readers_at_once(array_server: Served) -> None:
    served = remote_arrays.ServedArray(array_server.server, (200_000, 8), np.dtype("f8"))
    served.array[...] = np.arange(1_600_000.0).reshape(200_000, 8)
    sums: list[float] = []
    readers = [
        threading.Thread(
            target=lambda: sums.append(remote_arrays.RemoteArray(served.describe(), array_server.dial)[:].sum())
        )
        for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(240)
    assert sums == [served.array.sum()] * 4


def test_a_reader_without_the_jobs_key_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_arrays, "ANSWER_TIMEOUT_SECONDS", 0.5)
    own = job_sockets.JobSockets(job_sockets.JobKeys(new_key_pair(), new_key_pair().public, new_key_pair()))
    server = remote_arrays.ArrayServer(own, "tcp://127.0.0.1:1")
    served = remote_arrays.ServedArray(server, (10,), np.dtype("f8"))
    try:
        for between in (new_key_pair(), KeyPair(own.keys.between.public, new_key_pair().secret)):  # type: ignore[union-attr]
            stranger = job_sockets.JobSockets(job_sockets.JobKeys(new_key_pair(), new_key_pair().public, between))
            with pytest.raises(flegel.FlegelError, match="did not come"):
                remote_arrays.RemoteArray(served.describe(), stranger.dial)[:]
            stranger.close()
    finally:
        server.close()
        own.close()


OTHER_USER = """
import os, sys, zmq
from flegel.runtime.transport.job_sockets import bind_here
context = zmq.Context()
router = context.socket(zmq.ROUTER)
address = bind_here(router)
own_user = int(sys.argv[1]) == os.getuid()
child = os.fork()
if child == 0:
    os.setuid(int(sys.argv[1]))
    own = zmq.Context()
    socket = own.socket(zmq.DEALER)
    socket.connect(address)
    socket.send(b"hello")
    socket.poll(60_000 if own_user else 700)
    os._exit(0)
came, ended = 0, False
while not came and not ended:  # its own user waits until the message has come, another one gives up
    ended = os.waitpid(child, os.WNOHANG)[0] == child
    came = router.poll(100)
if not ended:
    os.kill(child, 9)
    os.waitpid(child, 0)
sys.exit(7 if came else 0)
"""


@pytest.mark.skipif(not job_sockets.ABSTRACT, reason="local sockets have files here")
def test_another_user_of_this_host_cannot_open_a_local_socket() -> None:
    import os

    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    tries = {user: subprocess.run([sys.executable, "-c", OTHER_USER, str(user)], timeout=600, check=False).returncode
             for user in (os.getuid(), 65534)}  # fmt: skip
    assert tries == {os.getuid(): 7, 65534: 0}


def test_a_key_of_the_wrong_length_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        job_sockets.JobSockets(job_sockets.JobKeys(new_key_pair(), "abc", new_key_pair())).to_coordinator(
            "tcp://127.0.0.1:1", b"x"
        )
