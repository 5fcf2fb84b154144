"""Workers that do not start because the fork server is stopped: told early, replaced once, in `--worker-timeout`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from waiting import until

from flegel.errors import WorkerLost
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.local_cluster import HostCluster
from flegel.runtime.processes.starting_processes import LONGEST_STEP_SECONDS, StartingProcesses
from flegel.runtime.system.process_activity import Silence, activity

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="needs a fork server")


class OneServer:
    """A launcher of which nothing but its fork server is asked."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid

    def ancestor(self) -> int | None:
        return self.pid


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        assert until(lambda: (seen := activity(process.pid)) is not None and seen.state in "Tt")
        yield process
    finally:
        process.kill()
        process.wait()


def looks(starting: StartingProcesses, start: float, seconds: float) -> bool:
    """Whether a look within these seconds, ten of them each second, asks for another fork server."""
    return any(starting.look({0: None}, start + 0.1 * i) for i in range(round(10 * seconds)))  # type: ignore[dict-item]


def test_a_stopped_fork_server_is_told_of_halfway_and_replaced_once(stopped: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    starting = StartingProcesses(OneServer(stopped.pid), 10.0, said.append)  # type: ignore[arg-type]
    assert not looks(starting, 0.0, 4.9) and not said
    assert not looks(starting, 4.9, 1.0) and len(said) == 1
    assert f"process {stopped.pid} is stopped" in said[0] and "after 10 s" in said[0] and "timeout" in said[0]
    assert looks(starting, 5.9, 5.0) and len(said) == 2 and "in their place" in said[1]
    with pytest.raises(WorkerLost, match=rf"\[0\] have not started within 10 s, twice: process {stopped.pid}"):
        looks(starting, 20.0, 12.0)


def test_a_process_that_computes_is_not_silent_and_a_held_up_observer_counts_little(
    stopped: subprocess.Popen[bytes],
) -> None:
    silence = Silence(LONGEST_STEP_SECONDS)
    assert silence.look([stopped.pid], 0.0) == 0.0
    assert silence.look([stopped.pid], 0.5) == 0.5
    assert silence.look([stopped.pid], 500.0) == 0.5 + LONGEST_STEP_SECONDS  # this process was stopped meanwhile
    assert silence.look([stopped.pid, os.getpid()], 501.0) == 0.0  # this one computes


def test_nothing_is_known_of_processes_on_other_hosts() -> None:
    starting = StartingProcesses(OneServer(None), 1.0, pytest.fail)  # type: ignore[arg-type]
    assert not looks(starting, 0.0, 100.0)


@pytest.mark.processes
def test_workers_of_a_stopped_fork_server_come_from_another_one() -> None:
    said: list[str] = []
    cluster = HostCluster(2)
    try:
        cluster.launcher.open(cluster._mailbox.open())
        cluster.launcher.prepare_spare()
        first = cluster.launcher.ancestor()
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        cluster.start()
        cluster.wait_ready(1.0, said.append)
        assert cluster.registry.ready == {0, 1} and cluster.launcher.ancestor() != first
        assert any(f"process {first} is stopped" in text for text in said)
        assert activity(first) is None, "it was ended and reaped"
    finally:
        cluster.close()
