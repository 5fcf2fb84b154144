"""The fork server: workers are told apart, ended, reported when they die, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from waiting import until

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="forks need pidfds")
DEADLINE = 240.0
NOBODY = b'{"address": "ipc://@flegel-nobody", "token": "t", "worker": 0, "incarnation": 0}\n'


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def test_a_worker_is_told_by_its_standard_input_and_ends_with_it(server: ForkServer) -> None:
    one, two = server.spawn(NOBODY), server.spawn(NOBODY)
    assert one.pid != two.pid
    assert psutil.Process(one.pid).ppid() == server.pid
    assert os.getsid(one.pid) == one.pid
    assert one.stdin is not None
    one.stdin.close()
    assert one.wait(DEADLINE) == 0
    assert two.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        two.wait(0.01)


def test_a_bad_configuration_gives_exit_code_2(server: ForkServer) -> None:
    assert server.spawn(b"{}\n").wait(DEADLINE) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_how_a_worker_ended_is_known(server: ForkServer, number: signal.Signals) -> None:
    worker = server.spawn(NOBODY)
    os.kill(worker.pid, number)
    assert worker.wait(DEADLINE) == -number
    worker.kill()  # has no effect


def test_ending_a_worker_that_was_not_forked_yet_waits_for_nothing(server: ForkServer) -> None:
    """As while the server imports a library."""
    assert server.spawn(NOBODY).pid
    os.kill(server.pid, signal.SIGSTOP)
    worker = server.spawn(NOBODY)
    worker.kill()
    assert worker.wait(0) == -signal.SIGKILL
    os.kill(server.pid, signal.SIGCONT)
    assert server.wait_until(lambda: worker.known_pid is not None and worker.pidfd is None, DEADLINE), "it is ended"


def test_the_server_has_one_thread_and_keeps_no_descriptors_of_its_workers(server: ForkServer) -> None:
    process = psutil.Process(server.pid)
    server.spawn(NOBODY).pid  # noqa: B018 - waits until it is up
    more = [server.spawn(NOBODY) for _ in range(5)]
    assert len({worker.pid for worker in more}) == 5
    assert process.num_threads() == 1
    files = process.num_fds()
    for _ in range(20):  # a worker reports its start, perhaps before the server has closed what it passed on
        assert server.spawn(NOBODY).pid
    assert until(lambda: process.num_fds() <= files + 1)


def test_more_workers_than_may_be_pending(server: ForkServer) -> None:
    children = [server.spawn(b"{}\n") for _ in range(fork_server.MAX_PENDING_REQUESTS + 10)]
    assert {worker.wait(DEADLINE) for worker in children} == {2}


def test_workers_end_with_their_server_even_when_they_are_stopped(server: ForkServer) -> None:
    worker = server.spawn(NOBODY)
    stopped = psutil.Process(worker.pid)
    worker.send_signal(signal.SIGSTOP)
    os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([stopped], timeout=DEADLINE)
    assert not stopped.is_running()
    assert worker.wait(DEADLINE) == -signal.SIGKILL
    assert not server.alive


def test_workers_do_not_share_the_state_of_the_random_generator(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(
        "import numpy as np\nfrom flegel import Algorithm\n"
        "class Draws(Algorithm):\n"
        "    def initParameter(self, sample, rng): return np.zeros(1)\n"
        "    def initState(self, points, columns, rng): return np.random.random((points, 1))\n"
        "    def updateDataPoint(self, dataPoint, parameter, iterationNum): return np.ones(1)\n"
        "    def updateParameter(self, aggregator, oldParameter): return oldParameter\n"
    )
    from flegel.runtime.job.find_algorithm import find_algorithm

    draws = find_algorithm(f"{tmp_path / 'draws.py'}:Draws")()
    result = flegel.run(draws, np.zeros((40, 1)), workers=2, sync="bsp", max_iterations=1, collect_state=True)
    assert result.state is not None
    assert len(np.unique(result.state)) == 40


def test_a_job_survives_the_loss_of_the_fork_server_and_of_all_its_workers() -> None:
    rows = np.random.default_rng(0).normal(size=(4000, 3))
    with flegel.LocalCluster(2) as cluster:
        lost: list[int] = []

        def watch(machine: object) -> None:
            if not lost and machine.iteration >= 3:  # type: ignore[attr-defined]
                assert cluster.launcher.server is not None
                lost.append(cluster.launcher.server.pid)
                os.kill(lost[0], signal.SIGKILL)
                os.waitid(os.P_PID, lost[0], os.WEXITED | os.WNOWAIT)  # before the other barriers, not after them

        result = flegel.run(  # so many that most are still to come when `watch` is called first, however quick they are
            KMeans(k=4), rows, sync="bsp", cluster=cluster, watch=watch, max_iterations=1000, tolerance=0.0
        )
        assert lost
        assert result.iterations == 1000
        assert cluster.launcher.server is not None
        assert cluster.launcher.server.pid != lost[0]


def test_a_prepared_server_that_was_never_used_ends_with_its_process() -> None:
    text = "import os; from flegel.runtime.processes import fork_server\n"
    text += "with fork_server.prepared():\n    print(fork_server._prepared[0].pid, flush=True); os._exit(0)"
    output = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=DEADLINE, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.wait_procs([psutil.Process(int(output.stdout))], timeout=DEADLINE)
    assert not psutil.pid_exists(int(output.stdout))


def test_a_prepared_server_is_used_or_closed() -> None:
    with fork_server.prepared():
        waiting = fork_server._prepared[0]
        with flegel.LocalCluster(1) as cluster:
            assert cluster.launcher.server is waiting
    with fork_server.prepared():
        left = fork_server._prepared[0].pid
    assert not psutil.pid_exists(left)
