"""Jobs on real worker processes that stop and go on: to the last bit under bsp, never worse under fsp."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import flegel
import flegel.runtime.checkpoint.resume
from flegel.algorithms.clusters.auto_kmeans import AutoKMeans
from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans
from flegel.algorithms.clusters.kprototypes import KPrototypes
from flegel.algorithms.clusters.sized_kmeans import SizedKMeans
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.cli.main import app
from flegel.core import pytree
from flegel.errors import Interrupted, UsageError
from flegel.job import Job
from flegel.loading.class_source import same_code
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.machine.plain_data import freeze, thaw
from flegel.messages import TreeLayout
from flegel.plan.balance.planner import Balance, BalancePlan
from flegel.plan.termination import Termination, Verdict
from flegel.runtime.checkpoint.format import StoredJob
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.resume import changed, replace
from flegel.runtime.checkpoint.session import CheckpointWarning
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.job.find_algorithm import find_algorithm
from tests import needs
from tests.balance.test_processes import moving
from tests.checkpoint import random_algorithm
from tests.checkpoint.random_algorithm import Drawing
from tests.contributing import ByContribution, ByHidden

pytestmark = pytest.mark.processes

ALGORITHMS: dict[str, Any] = {
    "kmeans": lambda: KMeans(k=5),
    "gmm": lambda: GMM(k=3),
    "fcm": lambda: FCM(k=3),
    "sizedkmeans": lambda: SizedKMeans(k=3, size_min=900),
    "autokmeans": lambda: AutoKMeans(k_max=5),
    "bisectingkmeans": lambda: BisectingKMeans(k=4),
    "kprototypes": lambda: KPrototypes(k=3, categorical=[]),
    "lr": LR,
    "nmf": lambda: NMF(rank=3),
    "own": Drawing,
    "weights": lambda: KMeans(k=5),
    "contribution": lambda: ByContribution(k=4),
    "hidden": lambda: ByHidden(k=4),
}


def rows_for(name: str, points: np.ndarray) -> Any:
    if name == "lr":
        return points, (points[:, 0] + points[:, 1] > 0).astype(float)
    if name == "weights":
        return points, None, 1.0 + np.arange(len(points)) % 3
    return np.abs(points) if name == "nmf" else points


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Checkpoints that are faster asked for than written are no trouble here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "some checkpoints are left out")
        yield


@pytest.mark.parametrize("name", ALGORITHMS)
def test_under_bsp_a_resumed_job_takes_the_same_course_to_the_last_bit(name: str, cluster, points, tmp_path) -> None:
    data, make = rows_for(name, points), ALGORITHMS[name]
    options: dict[str, Any] = {"sync": "bsp", "workers": 2, "cluster": cluster, "tolerance": 0}
    whole = flegel.run(make(), data, max_iterations=12, **options)
    flegel.run(make(), data, max_iterations=5, checkpoint=tmp_path / "job", checkpoint_every=0.01, **options)
    for limit in (8, 12):  # stopped twice
        again = flegel.resume(tmp_path / "job", data=data, algorithm=make(), max_iterations=limit, cluster=cluster)
    assert again.iterations == whole.iterations == 12
    for mine, other in zip(pytree.flatten(again.parameter), pytree.flatten(whole.parameter), strict=True):
        assert np.array_equal(mine, other)
    assert [r["objective"] for r in again.rows] == [r["objective"] for r in whole.rows]
    assert [r["iteration"] for r in again.rows] == list(range(1, 13))
    if whole.state is not None:
        assert np.array_equal(again.state, whole.state)


def test_other_weights_are_other_data(cluster, points, tmp_path) -> None:
    weights = 1.0 + np.arange(len(points)) % 3
    options: dict[str, Any] = {"sync": "bsp", "workers": 2, "cluster": cluster, "tolerance": 0}
    stored: dict[str, Any] = {"checkpoint": tmp_path / "job", "checkpoint_every": 0.01}
    flegel.run(KMeans(k=5), (points, None, weights), max_iterations=3, **stored, **options)
    for other in ((points, None, weights[::-1].copy()), points):
        with pytest.raises(flegel.FlegelError, match=r"not the data|other data|differ"):
            flegel.resume(tmp_path / "job", data=other, algorithm=KMeans(k=5), max_iterations=5, cluster=cluster)


def test_checkpoints_of_workers_that_hold_the_parameters_go_on_to_the_same_bits(cluster, points, tmp_path) -> None:
    options: dict[str, Any] = {"sync": "bsp", "workers": 2, "cluster": cluster, "tolerance": 0}
    whole = flegel.run(KMeans(k=5), points, max_iterations=9, **options)
    stored: dict[str, Any] = {"checkpoint": tmp_path / "job", "checkpoint_every": 0.01, "topology": "allreduce"}
    flegel.run(KMeans(k=5), points, max_iterations=5, **stored, **options)
    again = flegel.resume(tmp_path / "job", data=points, algorithm=KMeans(k=5), max_iterations=9, cluster=cluster)
    for mine, other in zip(pytree.flatten(again.parameter), pytree.flatten(whole.parameter), strict=True):
        assert np.array_equal(mine, other)
    assert [r["objective"] for r in again.rows] == [r["objective"] for r in whole.rows]


def test_points_that_moved_are_where_they_were(cluster, tmp_path, monkeypatch) -> None:
    """By a plan of the test: what is measured of workers depends on the host."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(40_000, 6)) + 3 * rng.integers(3, size=(40_000, 1))
    np.save(tmp_path / "rows.npy", data)
    moving(monkeypatch, (0, 1, 3000), (0, 2, 2000))
    all_moved = Termination.judge
    monkeypatch.setattr(
        Termination, "judge", lambda *given: Verdict(False, "all has moved", "limit") if all_moved(*given) else None
    )
    first = flegel.run(
        KMeans(k=4), tmp_path / "rows.npy", sync="fsp", interval="2ms", workers=3, cluster=cluster, tolerance=0,
        checkpoint=tmp_path / "job", checkpoint_every=0.5, resting="off", balance="async",
        max_seconds=600,
    )  # fmt: skip
    monkeypatch.undo()
    assert first.balance["points"] > 4000, "points moved, in whole tiles"
    held = [w["points"] for w in first.worker]
    monkeypatch.setattr(Balance, "plan", lambda *_, **__: BalancePlan((), "nothing moves"))
    again = flegel.resume(tmp_path / "job", cluster=cluster, max_iterations=first.iterations + 100)
    parts = read(FolderStore(tmp_path / "job")).parts
    assert np.array_equal(np.sort(np.concatenate([p.ids for p in parts])), np.arange(len(data)))
    values = [r["objective"] for r in again.rows if r["objective"] is not None]
    assert len(again.rows) > len(first.rows) and (np.diff(values) <= 1e-9 * values[0]).all()
    assert [w["points"] for w in again.worker] == held and held[0] < len(data) / 3 - 4000, "nobody got points back"


@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers(workers: int, cluster, points, tmp_path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, points)
    options: dict[str, Any] = {"sync": "fsp", "interval": "1ms", "tolerance": 0, "cluster": cluster}
    first = flegel.run(KMeans(k=5), path, workers=2, max_iterations=60, checkpoint=tmp_path / "job", **options)
    again = flegel.resume(tmp_path / "job", workers=workers, max_iterations=100, cluster=cluster)
    assert len(again.worker) == workers and again.iterations == 100
    assert first.objective is not None and again.rows[60]["objective"] <= first.objective * (1 + 1e-9)
    assert all(r["objective"] is not None for r in again.rows[60:]), "every point came with its state"


def test_scaled_rows_go_on_without_another_survey(cluster, points, tmp_path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, points)
    options: dict[str, Any] = {"sync": "bsp", "scale": "standard", "tolerance": 0, "cluster": cluster}
    whole = flegel.run(KMeans(k=5), path, workers=2, max_iterations=9, **options)
    flegel.run(KMeans(k=5), path, workers=2, max_iterations=4, checkpoint=tmp_path / "job", **options)
    again = flegel.resume(tmp_path / "job", max_iterations=9, cluster=cluster)
    assert again.objective == whole.objective
    assert again.scaling is not None and np.array_equal(again.scaling[0], whole.scaling[0])


def test_a_finished_job_that_is_resumed_is_finished(cluster, points, tmp_path) -> None:
    done = flegel.run(KMeans(k=5), points, workers=2, cluster=cluster, checkpoint=tmp_path / "job")
    again = flegel.resume(tmp_path / "job", data=points, cluster=cluster)
    assert (again.reason, again.iterations, again.objective) == (done.reason, done.iterations, done.objective)


def test_what_does_not_fit_is_refused_in_a_sentence(cluster, points, tmp_path) -> None:
    place = tmp_path / "job"
    options: dict[str, Any] = {"workers": 2, "cluster": cluster, "max_iterations": 3, "checkpoint": place}
    flegel.run(Drawing(), points, **options)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": points}, "code inside the checkpoint"),
        ({"data": points, "algorithm": "kmeans"}, "KMeans is not Drawing of the checkpoint"),
        ({"data": points, "algorithm": Drawing(noise=0.5)}, "noise is 0.1 in the checkpoint and 0.5 now"),
        ({"data": points + 1e-9, "algorithm": Drawing()}, "is not the data of the checkpoint"),
        ({"algorithm": Drawing()}, "came from Python"),
        ({"data": points, "algorithm": Drawing(), "workers": 0}, "number of workers must be 1 to"),
    ]
    for given, words in cases:
        with pytest.raises(UsageError, match=words):
            flegel.resume(place, cluster=cluster, **given)
    with pytest.raises(UsageError, match="holds checkpoints of a job already"):
        flegel.run(Drawing(), points, **options)
    with pytest.raises(UsageError, match="more than 0 seconds"):
        flegel.run(Drawing(), points, checkpoint=tmp_path / "other", checkpoint_every=0.0)
    with pytest.raises(UsageError, match="holds no checkpoints"):
        flegel.resume(tmp_path)
    assert flegel.resume(place, data=points, trust_code=True, max_iterations=5, cluster=cluster).iterations == 5


def change_store(found: StoredJob, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """As if an earlier version of the algorithm had stored these arrays of the parameter store."""
    parts = found.state["parts"]
    store = thaw(parts["store"])
    parts["store"] = freeze(store | {name: change(store[name])})


def without_pace(found: StoredJob) -> None:
    found.record.parameter = TreeLayout("Factors", found.record.parameter.fields[:-1])
    change_store(found, "parameter", lambda arrays: arrays[:-1])


def without_the_last(found: StoredJob) -> None:
    found.record.statistics = TreeLayout("Sums", found.record.statistics.fields[:-1])
    change_store(found, "statistics", lambda arrays: arrays[:-1])


def shorter_counts(found: StoredJob) -> None:
    at = found.record.statistics.fields.index("counts")
    change_store(found, "statistics", lambda arrays: [*arrays[:at], arrays[at][1:], *arrays[at + 1 :]])


def narrower_states(found: StoredJob) -> None:
    found.parts = [replace_in(part, state=part.state[:, 1:]) for part in found.parts]


def flat_factors(found: StoredJob) -> None:
    change_store(found, "parameter", lambda arrays: [arrays[0].reshape(-1), *arrays[1:]])


def more_hyper(found: StoredJob) -> None:
    found.record.job.algorithm.hyper["momentum"] = 0.5


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        (without_pace, "θ had no pace there"),
        (without_the_last, "the statistics had no held there"),
        (shorter_counts, r"counts of the statistics had the shape \(5,\) there, and has \(6,\) here"),
        (narrower_states, "a point's state has 3 numbers there, and 4 here"),
        (flat_factors, r"of θ had the shape \(\d+,\) there, and has \(6, 3\) here"),
        (more_hyper, "NMF has no hyper-parameter 'momentum'"),
    ],
)
def test_a_checkpoint_of_another_version_of_the_algorithm_is_refused_in_a_sentence(
    earlier: Callable[[StoredJob], None], words: str, cluster, points, tmp_path, monkeypatch
) -> None:
    place, data = tmp_path / "job", np.abs(points[:200])
    options: dict[str, Any] = {"workers": 2, "cluster": cluster, "sync": "bsp", "tolerance": 0}
    flegel.run(NMF(rank=3), data, max_iterations=3, checkpoint=place, **options)
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    def read_earlier(store: Any) -> StoredJob:
        found = read(store)
        earlier(found)
        return found

    with monkeypatch.context() as patched, pytest.raises(UsageError, match=f"another version of NMF .*{words}"):
        patched.setattr(flegel.runtime.checkpoint.resume, "read", read_earlier)
        flegel.resume(place, data=data, cluster=cluster, max_iterations=5)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before, "nothing was lost"


def test_a_damaged_checkpoint_is_skipped_with_a_warning(cluster, points, tmp_path) -> None:
    place = tmp_path / "job"
    flegel.run(KMeans(k=5), points, workers=2, cluster=cluster, max_iterations=4, tolerance=0, checkpoint=place)
    flegel.resume(place, data=points, max_iterations=6, cluster=cluster)
    newest = sorted(place.glob("*.worker-1"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    with pytest.warns(CheckpointWarning, match=f"{newest.name[:11]} was skipped: {newest.name} is damaged"):
        again = flegel.resume(place, data=points, max_iterations=8, cluster=cluster, exact=True)
    assert again.iterations == 8


def test_the_command_finds_the_class_again_and_sees_that_it_changed(points, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path / "home"))
    np.save("rows.npy", points)
    source = Path(random_algorithm.__file__).read_text()
    Path("mine.py").write_text(source)
    words = (
        "submit mine.py:Drawing --data rows.npy --workers 2 --sync bsp --max-iterations 3 --no-save --checkpoint job"
    )
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    monkeypatch.chdir(tmp_path.parent)  # from anywhere
    done = CliRunner().invoke(app, f"resume {tmp_path}/job --max-iterations 6 --no-save --json -".split())
    assert done.exit_code == 0 and json.loads(done.stdout)["iterations"] == 6
    (tmp_path / "mine.py").write_text("\n\n" + source)
    stored = read(FolderStore(tmp_path / "job")).record.job.algorithm
    moved = find_algorithm(f"{tmp_path}/mine.py:Drawing")
    assert same_code(moved, stored), "the same code at another place of its file"
    (tmp_path / "mine.py").write_text(source.replace("0.3 *", "0.4 *"))
    refused = CliRunner().invoke(app, f"resume {tmp_path}/job --max-iterations 9 --no-save".split())
    assert refused.exit_code == 2 and "mine.py has changed since the checkpoint" in refused.stderr
    again = ["--algorithm", f"{tmp_path}/mine.py:Drawing"]
    refused = CliRunner().invoke(app, [*f"resume {tmp_path}/job --max-iterations 9 --no-save".split(), *again])
    assert refused.exit_code == 2 and "The code of Drawing has changed since the checkpoint" in refused.stderr


@pytest.fixture
def command(tmp_path: Path, points) -> Any:
    """Starts `flegel` in a folder with data; ends what is left of it."""
    np.save(tmp_path / "rows.npy", points)
    started: list[subprocess.Popen[str]] = []

    def start(words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "flegel.cli.main", *words.split()],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        process.stderr.close()
        process.wait(600)


FOREVER = (
    "submit kmeans --data rows.npy --set k=6 --workers 2 --tolerance 0 --max-seconds 300 --no-save --checkpoint job"
)


def until_training(process: subprocess.Popen[str], lines: int = 1) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines -= "iteration" in line and "interval" in line
        if not lines:
            return
    raise AssertionError("it never trained")


def test_sigterm_writes_a_last_checkpoint(command, tmp_path) -> None:
    process = command(f"{FOREVER} --sync asp")
    until_training(process)
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait(240) == 143
    assert "terminated; all workers were stopped, its checkpoint is of iteration" in said
    assert "flegel resume" in said and "it had come to" not in said and "Traceback" not in said
    found = read(FolderStore(tmp_path / "job"))
    assert found.manifest is not None and not found.skipped


def test_a_killed_coordinator_leaves_no_orphans_and_is_replaced_from_its_commit(command, cluster, tmp_path) -> None:
    process = command(f"{FOREVER} --sync fsp --checkpoint-every 200ms")
    until_training(process, lines=2)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 3, "a nest and its two"
    process.kill()
    process.wait(600)
    _, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive
    found = read(FolderStore(tmp_path / "job"))
    assert found.commit is not None and found.commit.objective is not None
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    seen: list[float] = []

    def watch(now: JobSnapshot) -> None:
        if now.iteration > found.commit.iteration and now.objective is not None:
            seen.append(now.objective)
            raise Interrupted("enough", 1)

    with pytest.raises(Interrupted):
        replace(tmp_path / "job", cluster=cluster, watch=watch)
    assert seen[0] <= found.commit.objective * (1 + 1e-9), "not worse than at that commit"
    again = flegel.resume(tmp_path / "copy", cluster=cluster, exact=True, max_iterations=found.commit.iteration + 5)
    assert again.objective <= found.commit.objective * (1 + 1e-9)


@pytest.mark.slow
@needs.programs("strace")
def test_a_disk_that_cannot_flush_does_not_stop_training(command, tmp_path) -> None:
    words = FOREVER.replace("--max-seconds 300", "--max-seconds 1") + " --sync bsp --checkpoint-every 200ms"
    inject = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=3+")
    process = command(words, inject)
    said = process.stderr.read()
    assert process.wait(600) == 0, said
    assert "could not be written" in said and "Input/output error" in said and "training goes on" in said
    found = read(FolderStore(tmp_path / "job"))
    assert found.manifest is None and found.commit is not None, "only commits, which do not wait for the disk"


def test_a_team_goes_on_with_another_number_of_threads_or_as_several_workers() -> None:
    team = Job(workers=1, threads=8)
    assert changed(team, {"threads": 2}) == Job(workers=1, threads=2)
    assert changed(team, {"workers": 4}) == Job(workers=4), "not four workers of eight threads each"
    assert changed(team, {"workers": 4, "threads": 2}) == Job(workers=4, threads=2)
    assert changed(Job(workers=2, threads=8), {"workers": 3}) == Job(workers=3, threads=8)
