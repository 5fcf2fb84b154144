"""Launches: keys, slaves and master are made for one launch, and nothing is left of it. Real processes of this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.local import LocalLaunch
from flegel.cluster.launch.mpi import MpiPlacer, read_hostfile
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.cluster.launch.ray import fitting
from flegel.cluster.launch.slurm import SlurmPlacer
from flegel.cluster.launch.slurm_script import SlurmScript
from flegel.cluster.launch.spark import reason_of
from flegel.cluster.transport import keys
from flegel.errors import FlegelError, UsageError
from flegel.runtime.transport.curve import new_key_pair

SPHERICAL = f"{Path(__file__).resolve().parents[2] / 'docs' / 'examples' / 'spherical.py'}:Spherical"
PAIR = new_key_pair()
TICKET = SlaveTicket("mpi-0", "abcd", "tcp://h:1", PAIR.public, PAIR)


def test_a_ticket_survives_its_way_and_shows_no_secret() -> None:
    line = tickets.encode(TICKET)
    assert tickets.decode(line) == TICKET and line.count(b"\n") == 1
    assert PAIR.secret not in repr(TICKET)
    with pytest.raises(UsageError) as refused:
        tickets.decode(line.replace(b'"name"', b'"nom"'))
    assert PAIR.secret not in str(refused.value)


def test_commands_of_launchers_hold_no_secret(tmp_path: Path) -> None:
    for placer in (
        MpiPlacer(["n1", "n2"], "mpiexec --oversubscribe"),
        SlurmPlacer({"partition": "p", "exclusive": ""}, 4),
    ):
        words = " ".join(placer.command(TICKET))
        assert PAIR.secret not in words and PAIR.public not in words
        assert words.endswith("-m flegel.cluster.launch.processes.slave_process")
    assert "--partition=p --exclusive " in words and "--cpus-per-task=4" in words


def test_mpi_hosts_are_used_in_turn_as_often_as_they_have_slots(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 slots=2 # large\n\nn2\n")
    placer = MpiPlacer(read_hostfile(tmp_path / "hosts"), "mpiexec")
    assert [placer.command(TICKET)[2] for _ in range(4)] == ["n1", "n1", "n2", "n1"]
    with pytest.raises(UsageError, match="no file"):
        read_hostfile(tmp_path / "absent")


def test_a_script_for_slurm_asks_for_a_signal_requeues_and_quotes_what_it_runs() -> None:
    words = ["submit", "kmeans", "--data", "my points.csv", "--set", "seed=%a"]
    options = {"time": "2:00:00", "exclusive": ""}
    text = SlurmScript(words, 4, 8, array="0-9%2", options=options, warning=90, checkpoints="/shared/kept").text()
    lines = text.splitlines()
    assert {"#SBATCH --nodes=4", "#SBATCH --cpus-per-task=8", "#SBATCH --signal=B:USR1@90", "#SBATCH --requeue",
            "#SBATCH --array=0-9%2", "#SBATCH --time=2:00:00", "#SBATCH --exclusive"} <= set(lines)  # fmt: skip
    command = next(line for line in lines if " launch slurm " in line and not line.startswith("#"))
    assert """--data 'my points.csv' --set seed="$SLURM_ARRAY_TASK_ID" --checkpoint "$state" &""" in command
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    for wrong, why in ((["jobs"], "one job"), ([*words, "--checkpoint", "x"], "omit it"), ([], "one job")):
        with pytest.raises(UsageError, match=why):
            SlurmScript(wrong, 4).text()
    with pytest.raises(UsageError, match="sets signal itself"):
        SlurmScript(words, 4, options={"signal": "TERM"}).text()


def wait_until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.1)


def runs(process: psutil.Process) -> bool:
    """A process that has ended counts as ended, also before anybody has asked for its exit code."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalLaunch]:
    with LocalLaunch(slaves=2) as launched:
        yield launched
        slaves = [process.pid for process in launched._placer._commands.values()]  # type: ignore[attr-defined]
    assert not launched.home.exists(), "the folder with the keys is gone"
    assert not list(Path(tempfile.gettempdir()).glob(f"flegel-*{launched.launch_id}*"))
    assert slaves and not [pid for pid in slaves if psutil.pid_exists(pid)]


@pytest.mark.processes
def test_a_job_on_a_launched_cluster_ends_where_it_ends_locally(cluster: LocalLaunch) -> None:
    there = flegel.run(KMeans(k=4, init="first"), "blobs:4000", cluster=cluster, workers=2, sync="bsp")
    here = flegel.run(KMeans(k=4, init="first"), "blobs:4000", workers=2, sync="bsp")
    assert there.objective == here.objective and there.iterations == here.iterations
    assert np.array_equal(there.parameters["centroids"], here.parameters["centroids"])


@pytest.mark.slow
@pytest.mark.processes
def test_rows_of_this_process_reach_the_slaves_and_their_files_are_removed(
    cluster: LocalLaunch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(200, 3)), rng.normal(size=(200, 3)) + 9.0])
    cluster.staging = tmp_path
    job = cluster.submit("lr", (X, ["left"] * 200 + ["right"] * 200), workers=2)
    result = job.result(timeout=600)
    assert list(result.class_names) == ["left", "right"]
    assert (result.predict(X) == np.repeat(["left", "right"], 200)).all() and (result.labels[:3] == "left").all()
    assert not list(tmp_path.iterdir())
    assert job.done() and job.state == "done" and not job.cancel() and job.logs()


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_slave_is_replaced_and_its_key_revoked(cluster: LocalLaunch) -> None:
    endless = {"tolerance": 0.0, "max_seconds": 600.0, "straggler": "all:20ms/500"}
    job = cluster.submit(KMeans(k=4, init="first"), "blobs:4000", workers=2, sync="bsp", **endless)
    limit = time.monotonic() + 100
    while (seen := job.progress()) is None or not seen.iteration:
        assert time.monotonic() < limit
        time.sleep(0.1)
    place = job.view().place
    victim = next(slave.name for slave in cluster.slaves() if slave.name != place)
    public = cluster._tickets[victim].pair.public
    process = next(p for name, p in cluster._placer._commands.items() if name == victim)  # type: ignore[attr-defined]
    process.kill()
    while victim not in cluster.lost or sum(s.state == "here" for s in cluster.slaves()) < 2:
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert keys.KeyRegistry(cluster.home / "keys").find(public) is None
    while not (seen := job.progress()) or not seen.incidents:
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert job.cancel()
    assert isinstance(job.exception(timeout=600), FlegelError) and job.state == "cancelled"


@pytest.mark.slow
@pytest.mark.processes
def test_a_suspended_job_continues_from_its_folder_when_it_is_submitted_again(
    cluster: LocalLaunch, tmp_path: Path
) -> None:
    """As a requeued job of Slurm does; under bsp the result is that of a job that was never stopped, bit for bit."""
    same = {"workers": 2, "sync": "bsp", "tolerance": 0.0, "max_iterations": 40, "straggler": "all:20ms/500"}
    for algorithm in (KMeans(k=4, init="first"), SPHERICAL):
        place = tmp_path / type(algorithm).__name__
        job = cluster.submit(algorithm, "blobs:4000", checkpoint=place, **same)
        wait_until(lambda: (seen := job.progress()) is not None and seen.iteration > 1)  # noqa: B023
        job.suspend()
        assert "its checkpoint is of iteration" in str(job.exception(timeout=600)) and job.state == "cancelled"
        again = cluster.submit(algorithm, "blobs:4000", checkpoint=place, **same)
        there, here = again.result(timeout=600), flegel.run(algorithm, "blobs:4000", **same)
        assert "going on from the checkpoint of iteration" in "".join(again.logs())
        assert there.objective == here.objective and there.iterations == 40
    other = cluster.submit(KMeans(k=5), "blobs:4000", checkpoint=place, **same).exception(timeout=600)
    assert isinstance(other, UsageError) and "is not Spherical of the checkpoint" in str(other)


@pytest.mark.slow
@pytest.mark.processes
def test_a_slave_that_scale_removes_is_not_replaced_and_its_key_is_revoked(cluster: LocalLaunch) -> None:
    def here() -> int:
        return sum(slave.state == "here" for slave in cluster.slaves())

    lost = dict(cluster.lost)
    cluster.scale(3)
    wait_until(lambda: here() == 3)
    newest = list(cluster._tickets)[-1]
    public, placed = cluster._tickets[newest].pair.public, cluster._count
    cluster.scale(2)
    wait_until(lambda: keys.KeyRegistry(cluster.home / "keys").find(public) is None)
    with cluster._placing:
        assert cluster._count == placed and cluster.lost == lost and newest not in cluster._tickets
    wait_until(lambda: here() == 2)


@pytest.mark.processes
def test_no_secret_is_in_arguments_or_environment(cluster: LocalLaunch) -> None:
    secrets = [pair.pair.secret.encode() for pair in cluster._tickets.values()]
    secrets.append(keys.load("master", cluster.home / "keys").secret.encode())
    for process in psutil.Process().children(recursive=True):
        for file in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{process.pid}/{file}").read_bytes()
            except OSError:
                continue
            assert not [each for each in secrets if each in content]
    assert (cluster.home.stat().st_mode & 0o077) == 0


def test_wrong_use_is_told_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="at least one slave"):
        LocalLaunch(slaves=0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launch_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "FLEGEL_HOME": str(tmp_path / "home")}
    words = ["launch", "local", "--", "submit", "kmeans", "--data", "blobs:20000", "--set", "k=3", "--workers", "2"]
    words += ["--tolerance", "0", "--straggler", "all:20ms/500", "--max-seconds", "600", "--no-save"]
    with (tmp_path / "log").open("wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "flegel", *words], env=environment, stderr=log, start_new_session=True
        )
    while b"is running" not in (tmp_path / "log").read_bytes():
        assert command.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
    everything = psutil.Process(command.pid).children(recursive=True)
    os.killpg(command.pid, number)
    assert command.wait(600) != 0
    _, alive = psutil.wait_procs(everything, timeout=600)
    assert not alive and not list(tmp_path.glob("flegel-*"))


PROGRAM = """
import time
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.local import LocalLaunch
cluster = LocalLaunch(slaves=2)
endless = {"tolerance": 0.0, "max_seconds": 600.0, "straggler": "all:20ms/500"}
job = cluster.submit(KMeans(k=3, init="first"), "blobs:4000", workers=2, sync="bsp", **endless)
while (seen := job.progress()) is None or not seen.iteration:
    time.sleep(0.1)
print("trains", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_a_signal_ends_leaves_no_slave_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    """It has no handler of its own, so nothing of it runs after the signal: slaves and master notice by their pipes."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "FLEGEL_HOME": str(tmp_path / "home")}
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline() == b"trains\n"
    everything = psutil.Process(program.pid).children(recursive=True)
    assert len(everything) >= 5, "a master, two slaves, a coordinator and workers"
    program.send_signal(number)
    assert program.wait(600) == -number
    program.stdout.close()
    wait_until(lambda: not any(map(runs, everything)))
    assert not list(tmp_path.glob("flegel-*")), "folders of slaves, and that of the launch with its keys"


def test_a_master_that_cannot_listen_is_reported_with_its_reason() -> None:
    with pytest.raises(FlegelError, match=r"did not start at 192.0.2.77: .+"):
        LocalLaunch(slaves=1, host="192.0.2.77")


def test_slaves_are_counted_that_fit_on_nodes_of_ray() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    assert fitting(nodes, {"CPU": 2}) == 4 and fitting(nodes, {"CPU": 2, "GPU": 1}) == 1
    assert fitting(nodes, {"CPU": 0}) == fitting([], {"CPU": 1}) == 0


def test_reports_of_spark_are_told_in_one_line() -> None:
    missing = "An error occurred\n: org.apache.spark.SparkException: Job aborted\nTraceback\n"
    missing += "ModuleNotFoundError: No module named 'flegel'\n\tat org.apache.spark.X\n"
    assert reason_of(missing).startswith("ModuleNotFoundError: No module named 'flegel'; PYSPARK_PYTHON must name")
    assert reason_of("Job 3 cancelled\n\tat x") == "Job 3 cancelled" and reason_of("") == "it gave no reason"
