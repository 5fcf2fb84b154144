"""Master and slaves as real processes: jobs come home, survive their daemons, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon_cluster import DaemonCluster
from poison import EXPECTED, poison
from typer.testing import CliRunner, Result

from flegel.algorithms.kmeans import KMeans
from flegel.cli.main import app
from flegel.cluster.client import Client
from flegel.cluster.transport.protocol import JobView
from flegel.errors import UsageError
from flegel.runtime.job.result_store import load
from flegel.runtime.system.confinement import why_impossible

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonCluster]:
    with DaemonCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
        cluster.no_orphans()


@pytest.fixture
def client(cluster: DaemonCluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def endless(cluster: DaemonCluster, client: Client, **more: object) -> str:
    """A job that trains until it is cancelled, and rests most of the time, so that others have the processors."""
    return cluster.submit(
        KMeans(k=4, init="first"), "blobs:4000", client,
        tolerance=0.0, max_seconds=600.0, straggler="all:20ms/500", **more,
    )  # fmt: skip


def flegel(cluster: DaemonCluster, *words: str, folder: Path) -> Result:
    """The program in this process, which has read everything already."""
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, words, env=cluster.environment)


def test_a_job_from_the_command_line_and_its_result_at_home(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    words = "submit kmeans --data blobs:4000 --set k=3 --workers 2 --sync bsp --name first --json result.json"
    done = flegel(cluster, *words.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    assert "saved to runs/kmeans-blobs-001" in done.output
    assert "--trust-code" not in done.output, "the class is built in"
    assert '"workers": 2' in (tmp_path / "result.json").read_text()
    cluster.until(lambda: not list(cluster.folder.glob("s*/jobs/first")), "a job that is done leaves nothing")
    saved = {p.name for p in (tmp_path / "runs" / "kmeans-blobs-001").iterdir()}
    assert saved == {"model.json", "model.npz", "result.json", "trace.msgpack"}
    assert "coordinator | " in flegel(cluster, "logs", "first", folder=tmp_path).output
    assert "first" in flegel(cluster, "jobs", folder=tmp_path).output
    assert re.search(r"ended +20\d\d-\d\d-\d\dT", flegel(cluster, "status", "first", folder=tmp_path).output)


def test_a_gate_judges_the_workers_of_a_cluster(cluster: DaemonCluster, client: Client, tmp_path: Path) -> None:
    """The second half of the rows, those of worker 1, have the wrong labels."""
    rng = np.random.default_rng(0)
    for name, rows in (("rows", 800), ("gate", 200)):
        x = rng.normal(size=(rows, 3))
        y = (x.sum(axis=1) > 0).astype(int)
        y[400:] = 1 - y[400:]
        table = np.column_stack([x, y])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,c,y", comments="", fmt="%.6g")
    words = "submit lr --data rows.csv --label y --workers 2 --sync bsp --partition contiguous --max-iterations 30"
    gate = "--gate 0.7 --gate-data gate.csv --gate-failures 2 --json result.json"
    done = flegel(cluster, *words.split(" "), *gate.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    assert '"kind": "excluded"' in (tmp_path / "result.json").read_text()


def test_a_job_without_numbers_has_one_team_on_each_slave(cluster: DaemonCluster, tmp_path: Path) -> None:
    words = "submit kmeans --data blobs:4000 --set k=3 --sync bsp --name team --json result.json"
    done = flegel(cluster, *words.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    told = json.loads((tmp_path / "result.json").read_text())
    assert (told["workers"], told["threads"]) == (2, 2)


@pytest.mark.slow
def test_a_table_with_text_and_gaps_is_treated_alike_on_every_host(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    rows = [f"{k % 5},{'' if k % 10 == 3 else k % 7},{'red' if k % 2 else 'blue'},{'uv'[k % 2]}" for k in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,colour,kind", *rows]))
    words = "submit kmeans --data t.csv --label kind --missing mean --drop a --set k=2 --workers 2 --out m --name table"
    done = flegel(cluster, *words.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    assert "t.csv: 400 rows, 4 columns → 3 features" in flegel(cluster, "logs", "table", folder=tmp_path).output
    (tmp_path / "new.csv").write_text("colour,b\nred,\ngreen,1\n")
    found = flegel(cluster, "predict", "m", "--data", "new.csv", folder=tmp_path)
    assert found.exit_code == 0 and "1 row has a value in column 'colour'" in found.output


@pytest.mark.slow
def test_weights_of_a_file_count_on_every_host(cluster: DaemonCluster, client: Client, tmp_path: Path) -> None:
    rows = [(k % 5 + 20 * (k % 2), k % 7, 1 + k % 3) for k in range(400)]
    (tmp_path / "w.csv").write_text("\n".join(["a,b,often", *(",".join(map(str, row)) for row in rows)]))
    words = "submit kmeans --data w.csv --weight often --set k=2 --workers 2 --sync bsp --out weighed --name weighed"
    done = flegel(cluster, *words.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    table = np.array(rows, float)
    halves = [table[table[:, 0] < 10], table[table[:, 0] >= 10]]
    wanted = [np.average(half[:, :2], axis=0, weights=half[:, 2]) for half in halves]
    found = load(tmp_path / "weighed").parameters["centroids"]
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], wanted, rtol=1e-9)


def test_a_file_that_slaves_cannot_see_is_refused_with_a_sentence(cluster: DaemonCluster, client: Client) -> None:
    job = cluster.submit(KMeans(k=2), "/nowhere/points.csv", client, workers=1)
    view = cluster.wait(client, job, "failed")
    assert "/nowhere/points.csv does not exist" in view.reason and view.usage


def test_two_jobs_at_once_survive_the_death_of_the_master(cluster: DaemonCluster, client: Client) -> None:
    jobs = [endless(cluster, client, workers=n, ticket=f"two-at-once-{n}", worker_timeout=60.0) for n in (1, 2)]
    for job in jobs:
        cluster.training(client, job)
    before = {p.pid for p in cluster.processes()}
    cluster.kill_master()
    cluster.start_master()
    same = endless(cluster, client, workers=1, ticket="two-at-once-1", worker_timeout=60.0)
    assert same == jobs[0], "the same ticket, the same job"
    for job in jobs:
        view = cluster.training(client, job)
        assert (view.state, view.attempt) == ("running", 1)
    assert {p.pid for p in cluster.processes()} == before, "no process ended, none was started"
    cluster.until(lambda: sum(slave.used for slave in client.slaves()) == 3, "both slaves have come to the new master")
    third = endless(cluster, client, workers=2)
    assert client.job(third).state == "queued"
    cluster.until(lambda: "waits for 2 free slots; 1 of 4 are free" in client.job(third).reason, "it says why it waits")
    for job in [*jobs, third]:
        client.cancel(job)
        assert client.job(job).state == "cancelled"
    cluster.no_orphans()


def spread(cluster: DaemonCluster, client: Client) -> str:
    """A job with a worker on each slave. Where the load of the host made it otherwise, another one."""
    jobs: list[str] = []

    def there() -> bool:
        cluster.until(lambda: not any(slave.used for slave in client.slaves()), "all slots are free")
        jobs.append(endless(cluster, client, workers=2, worker_timeout=60.0))  # a busy host's new worker is not lost
        if set(cluster.training(client, jobs[-1]).slots) == set(cluster.slaves):
            return True
        client.cancel(jobs[-1])
        return False

    cluster.until(there, "the two workers are spread over the two slaves")
    return jobs[-1]


def workers_of(client: Client, job: str) -> set[int]:
    return {int(worker["id"]) for worker in client.job(job).snapshot.get("workers", [])}


def test_a_job_goes_on_when_a_slave_of_its_workers_is_killed_and_when_it_is_scaled(
    cluster: DaemonCluster, client: Client
) -> None:
    job = spread(cluster, client)
    view = client.job(job)
    other = next(name for name in view.slots if name != view.place)
    cluster.kill_slave(other)
    cluster.until(lambda: client.job(job).slots == {view.place: 2}, "its worker has a slot on the other slave")
    cluster.until(lambda: workers_of(client, job) == {0, 1}, "and trains there")
    assert client.job(job).attempt == 1
    cluster.start_slave(other)
    cluster.until(lambda: len(client.slaves()) == 2, "the slave is back")
    assert "from 2 to 3 workers" in client.scale(job, 3)
    cluster.until(lambda: workers_of(client, job) == {0, 1, 2}, "a third worker trains")
    client.scale(job, 1)
    cluster.until(lambda: sum(client.job(job).slots.values()) == 1, "two workers have left")
    client.cancel(job)
    cluster.no_orphans()


class ServedJob:
    """An endless job whose number of servers `flegel scale JOB --servers N` changes."""

    def __init__(self, cluster: DaemonCluster, client: Client, folder: Path, **given: int) -> None:
        self._cluster, self._client, self._folder = cluster, client, folder
        self.name = endless(cluster, client, worker_timeout=60.0, **given)
        cluster.training(client, self.name)

    def scale(self, count: int) -> set[int]:
        """Returns the processes that were there before."""
        before = {process.pid for process in self._cluster.processes()}
        said = flegel(self._cluster, "scale", self.name, "--servers", str(count), folder=self._folder)
        assert said.exit_code == 0 and f"to {count} server" in said.output, said.output
        return before

    def newcomer(self, before: set[int]) -> int:
        """The youngest process that was not there before."""

        def new() -> set[int]:
            return {process.pid for process in self._cluster.processes()} - before

        self._cluster.until(new, "a process has come")
        return max(new())

    def trains_with(self, servers: int, workers: int = 1) -> bool:
        seen = self._client.job(self.name).snapshot
        served = dict(seen.get("servers") or {})
        there = served.get("wanted") == servers == len(served.get("servers", ()))
        return there and len(seen.get("workers", ())) == workers

    def end(self) -> None:
        """It trains on in its first attempt; then it is cancelled."""
        at = int(self._client.job(self.name).snapshot["iteration"])
        self._cluster.until(
            lambda: int(self._client.job(self.name).snapshot["iteration"]) > at + 3, "the job trains on"
        )
        seen = self._client.job(self.name)
        assert seen.state == "running" and seen.attempt == 1
        self._client.cancel(self.name)
        said = flegel(self._cluster, "scale", self.name, "--servers", "2", folder=self._folder)
        assert "is cancelled" in said.output
        self._cluster.no_orphans()


def test_a_server_that_is_killed_when_it_joins_is_replaced_and_all_leave_again_but_one(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    job = ServedJob(cluster, client, tmp_path, workers=1, servers=1)
    os.kill(job.newcomer(job.scale(2)), signal.SIGKILL)
    cluster.until(lambda: job.trains_with(2), "another has come in its place")
    job.scale(1)
    cluster.until(lambda: job.trains_with(1), "it has left")
    job.end()


def test_servers_scaled_in_quick_succession_come_and_go_while_a_worker_is_killed(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    """1 to 2 to 1 to 2, none of which is waited for."""
    job = ServedJob(cluster, client, tmp_path, workers=1, servers=1)
    before = {process.pid for process in cluster.processes()}
    client.scale(job.name, 2)
    cluster.until(lambda: job.trains_with(1, workers=2), "a second worker trains")
    worker = job.newcomer(before)
    job.scale(2)
    os.kill(worker, signal.SIGKILL)
    job.scale(1)
    job.scale(2)
    cluster.until(lambda: job.trains_with(2, workers=2), "two servers, and two workers again")
    job.end()


@pytest.mark.slow
def test_a_job_starts_again_elsewhere_when_the_slave_of_its_coordinator_is_killed(
    cluster: DaemonCluster, client: Client
) -> None:
    """By default this is left to the master's machine, whose slaves die at any moment."""
    job = endless(cluster, client, workers=1)
    view = cluster.training(client, job)
    (other,) = set(cluster.slaves) - {view.place}
    cluster.kill_slave(view.place)
    cluster.until(lambda: client.job(job).attempt == 2, "there is a second attempt")
    assert cluster.training(client, job).place == other
    client.cancel(job)
    cluster.start_slave(view.place)
    cluster.until(lambda: len(client.slaves()) == 2, "the slave is back")
    cluster.no_orphans()


def coordinator_pid(cluster: DaemonCluster, view: JobView) -> int:
    """The process of a job's coordinator: it holds the place of the checkpoints."""
    place = str(cluster.folder / view.place / "jobs" / view.job / "checkpoints")
    (found,) = [p.pid for p in cluster.processes() if any(f.path.startswith(place) for f in p.open_files())]
    return found


def test_a_job_whose_coordinator_is_killed_goes_on_from_its_last_commit(cluster: DaemonCluster, client: Client) -> None:
    job = endless(cluster, client, workers=2, worker_timeout=60.0, replace=False)
    view = cluster.training(client, job)
    cluster.until(lambda: client.job(job).snapshot.get("iteration", 0) > 5, "it gets on")
    first = {p.pid for p in cluster.processes()}
    os.kill(coordinator_pid(cluster, view), signal.SIGKILL)
    cluster.until(lambda: client.job(job).attempt == 2, "there is a second attempt")
    cluster.training(client, job)
    cluster.until(lambda: "going on from the commit" in "\n".join(client.log(job)), "its log has come")
    going = re.search(r"going on from the commit of iteration (\d+)", "\n".join(client.log(job)))
    assert going and int(going[1]) > 0, cluster.logs()
    cluster.until(lambda: not first & {p.pid for p in cluster.processes()}, "processes of the first attempt have ended")
    client.cancel(job)
    cluster.no_orphans()


TALKING = """import logging
import numpy as np
from flegel import Algorithm

class Talking(Algorithm):
    def initParameter(self, sample, rng):
        return np.zeros(1)

    def initState(self, points, columns, rng):
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        print("a hook prints")
        logging.getLogger("mine").info("a hook logs")
        return np.ones(1)

    def updateParameter(self, aggregator, oldParameter):
        logging.getLogger("mine").info("the coordinator logs")
        return aggregator * 1.0
"""


def test_what_hooks_print_and_log_is_in_the_log_of_the_job(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "talking.py").write_text(TALKING, encoding="utf-8")
    words = "submit talking.py:Talking --data blobs:20 --workers 1 --sync bsp --max-iterations 1 --name talking"
    done = flegel(cluster, *words.split(" "), folder=tmp_path)
    assert done.exit_code == 0, done.output + cluster.logs()
    lines = list(client.log("talking"))
    for source, text in [
        ("worker 0", "a hook prints"),
        ("worker 0", "a hook logs"),
        ("coordinator", "the coordinator logs"),
    ]:
        assert any(line.endswith(f"{source} | {text}") for line in lines), lines


def test_attach_shows_a_job_and_ctrl_c_leaves_it_running(
    cluster: DaemonCluster, client: Client, tmp_path: Path
) -> None:
    job = endless(cluster, client, workers=1)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "flegel.cli.main", "attach", job],
        env=cluster.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watcher.stderr is not None
    for line in watcher.stderr:
        if "iteration" in line:
            break
    watcher.send_signal(signal.SIGINT)
    said = watcher.stderr.read()
    assert watcher.wait(600) == 130
    watcher.stderr.close()
    assert "detached; the job goes on" in said
    assert client.job(job).state == "running"
    client.cancel(job)


POISON = [
    ("initParameter", "segfault", "anywhere"),
    ("updateDataPoint", "exit", "worker"),
    ("updateParameter", "loop", "anywhere"),
    ("initState", "bomb", "worker"),
    ("initState", "loop", "worker"),
    ("initParameter", "interrupt", "anywhere"),
    ("module", "raise", "anywhere"),
    ("objective", "daemon", "anywhere"),
    ("initParameter", "spy", "anywhere"),
    ("initState", "spy", "worker"),
]


def test_poison_fails_with_its_cause_and_harms_nobody(cluster: DaemonCluster, client: Client) -> None:
    neighbour = endless(cluster, client, workers=1)
    cluster.training(client, neighbour)
    ids = {process.pid for process in cluster.slaves.values()}
    jobs = {client.submit(*poison(*kind)): kind for kind in POISON}
    for job, kind in jobs.items():
        view = cluster.wait(client, job, "failed")
        assert EXPECTED[kind[1]] in view.reason, (kind, view, cluster.logs())
        assert kind[1] != "spy" or "[]" in view.reason or why_impossible(), "keys are hidden unless the host forbids it"
    assert client.job(neighbour).state == "running" and client.job(neighbour).attempt == 1
    assert {process.pid for process in cluster.slaves.values() if process.poll() is None} == ids
    client.cancel(neighbour)
    cluster.no_orphans()
    for name in cluster.slaves:
        cluster.until(
            lambda name=name: not [p for p in (cluster.folder / name / "jobs").glob("*/*") if p.name != "checkpoints"],
            "the slave has tidied up",
        )


def heaps_of_threads(pid: int) -> list[str]:
    """glibc reserves 64 MB for the heap of a thread, aligned: the beginning can be written, the rest not yet."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    spans = {words[1]: dict[int, int]() for words in maps}
    for words in maps:
        if len(words) == 5:
            start, end = (int(x, 16) for x in words[0].split("-"))
            spans[words[1]][start] = end
    ends = set(spans.get("---p", {}).values())
    return [hex(s) for s in spans["rw-p"] if s % (64 << 20) == 0 and s + (64 << 20) in ends]


HEAP_OF_A_THREAD = """
import ctypes, sys, threading
done, over = threading.Event(), threading.Event()
allocate = lambda: (ctypes.CDLL(None).malloc(100), done.set(), over.wait())
threading.Thread(target=allocate, daemon=True).start()
done.wait()
print("allocated", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, without heaps of threads")
def test_the_heap_of_a_thread_would_be_found() -> None:
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    words = [sys.executable, "-c", HEAP_OF_A_THREAD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert heaps_of_threads(process.pid)


def test_no_thread_of_a_daemon_has_a_heap_of_its_own(cluster: DaemonCluster) -> None:
    assert cluster.master is not None
    for daemon in (cluster.master, *cluster.slaves.values()):
        assert not heaps_of_threads(daemon.pid)


def test_a_slave_that_is_terminated_drains(cluster: DaemonCluster, client: Client) -> None:
    cluster.start_slave("guest", "--drain", "5")
    cluster.until(lambda: "guest" in {s.name for s in client.slaves()}, "the guest has come")
    cluster.slaves["guest"].terminate()
    assert cluster.slaves.pop("guest").wait(600) == 0, cluster.logs()
    cluster.until(lambda: "guest" not in {s.name for s in client.slaves()}, "the guest has gone")


def test_wrong_words_get_a_sentence(cluster: DaemonCluster, client: Client, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no job 'nobody'"):
        client.cancel("nobody")
    for words, sentence in [
        (["submit", "kmeans", "--data", "blobs", "--memory", "2 apples"], "no limit of memory"),
        (["submit", "kmeans", "--data", "blobs", "--name", "../x"], "is no name for a job"),
        (["submit", "kmeans", "--data", "blobs", "--master", "local", "--detach"], "give --master"),
        (["cancel", "nobody"], "There is no job 'nobody'"),
    ]:
        done = flegel(cluster, *words, folder=tmp_path)
        assert done.exit_code == 2 and sentence in done.output, done.output
    assert os.listdir(tmp_path) == []  # noqa: PTH208
