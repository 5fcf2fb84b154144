"""Workers as forks of a nest: told apart, ended, missed, and never left behind."""

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

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="forks need pidfds")
DEADLINE = 60.0
NOBODY = b'{"address": "ipc://@flegel-nobody", "token": "t", "worker": 0, "incarnation": 0}\n'


@pytest.fixture
def home() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def test_a_worker_is_told_by_its_standard_input_and_ends_with_it(home: ForkServer) -> None:
    one, two = home.hatch(NOBODY), home.hatch(NOBODY)
    assert one.pid != two.pid
    assert psutil.Process(one.pid).ppid() == home.pid
    assert os.getsid(one.pid) == one.pid
    assert one.stdin is not None
    one.stdin.close()
    assert one.wait(DEADLINE) == 0
    assert two.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        two.wait(0.01)


def test_a_bad_birth_is_an_exit_code(home: ForkServer) -> None:
    assert home.hatch(b"{}\n").wait(DEADLINE) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_how_a_worker_ended_is_known(home: ForkServer, number: signal.Signals) -> None:
    worker = home.hatch(NOBODY)
    os.kill(worker.pid, number)
    assert worker.wait(DEADLINE) == -number
    worker.kill()  # nobody is hit


def test_the_nest_has_one_thread_and_holds_nothing_of_its_workers(home: ForkServer) -> None:
    alone = psutil.Process(home.pid)
    home.hatch(NOBODY).pid  # noqa: B018 - waits until it is up
    more = [home.hatch(NOBODY) for _ in range(5)]
    assert len({worker.pid for worker in more}) == 5
    assert alone.num_threads() == 1
    files = alone.num_fds()
    for _ in range(20):  # a worker says itself that it is born, perhaps before the nest has closed what it passed on
        assert home.hatch(NOBODY).pid
    assert alone.num_fds() <= files + 1


def test_more_workers_than_may_be_under_way(home: ForkServer) -> None:
    brood = [home.hatch(b"{}\n") for _ in range(fork_server.UNDER_WAY + 10)]
    assert {worker.wait(DEADLINE) for worker in brood} == {2}


def test_workers_end_with_their_nest_even_when_they_are_stopped(home: ForkServer) -> None:
    worker = home.hatch(NOBODY)
    stopped = psutil.Process(worker.pid)
    worker.send_signal(signal.SIGSTOP)
    os.kill(home.pid, signal.SIGKILL)
    psutil.wait_procs([stopped], timeout=DEADLINE)
    assert not stopped.is_running()
    assert worker.wait(DEADLINE) == -signal.SIGKILL
    assert not home.alive


def test_workers_do_not_throw_the_same_dice(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text(
        "import numpy as np\nfrom flegel import Algorithm\n"
        "class Dice(Algorithm):\n"
        "    def initParameter(self, sample, rng): return np.zeros(1)\n"
        "    def initState(self, points, columns, rng): return np.random.random((points, 1))\n"
        "    def updateDataPoint(self, dataPoint, parameter, iterationNum): return np.ones(1)\n"
        "    def updateParameter(self, aggregator, oldParameter): return oldParameter\n"
    )
    from flegel.runtime.job.find_algorithm import find_algorithm

    dice = find_algorithm(f"{tmp_path / 'dice.py'}:Dice")()
    result = flegel.run(dice, np.zeros((40, 1)), workers=2, sync="bsp", max_iterations=1, collect_state=True)
    assert result.state is not None
    assert len(np.unique(result.state)) == 40


def test_a_job_survives_the_loss_of_the_nest_and_of_all_its_workers() -> None:
    rows = np.random.default_rng(0).normal(size=(4000, 3))
    with flegel.LocalCluster(2) as cluster:
        lost: list[int] = []

        def watch(machine: object) -> None:
            if not lost and machine.iteration >= 3:  # type: ignore[attr-defined]
                assert cluster._nest is not None
                lost.append(cluster._nest.pid)
                os.kill(lost[0], signal.SIGKILL)
                os.waitid(os.P_PID, lost[0], os.WEXITED | os.WNOWAIT)  # before the other barriers, not after them

        result = flegel.run(  # so many that most are still to come when `watch` is called first, however quick they are
            KMeans(k=4), rows, sync="bsp", cluster=cluster, watch=watch, max_iterations=1000, tolerance=0.0
        )
        assert lost
        assert result.iterations == 1000
        assert cluster._nest is not None
        assert cluster._nest.pid != lost[0]


def test_a_nest_that_was_prepared_and_never_used_ends_even_if_the_process_cannot_say_so() -> None:
    text = "import os; from flegel.runtime import nest\n"
    text += "with nest.prepared():\n    print(nest._early[0].pid, flush=True); os._exit(0)"
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=DEADLINE, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.wait_procs([psutil.Process(int(said.stdout))], timeout=DEADLINE)
    assert not psutil.pid_exists(int(said.stdout))


def test_a_nest_that_was_prepared_is_taken_or_left() -> None:
    with fork_server.prepared():
        early = fork_server._early[0]
        with flegel.LocalCluster(1) as cluster:
            assert cluster._nest is early
    with fork_server.prepared():
        left = fork_server._early[0].pid
    assert not psutil.pid_exists(left)
