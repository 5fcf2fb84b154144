"""Jobs of this host are noted where `flegel top` finds them, for their user alone, and nothing stays of them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cli.main import app
from flegel.cli.options import DEFAULT_MASTER
from flegel.cluster import client
from flegel.runtime.job import running_jobs
from flegel.runtime.job.observers import JobSeen, PhaseBegan
from flegel.runtime.job.running_jobs import RunningJob, announced_as_running, running
from tests.observability.test_metrics import SEEN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "jobs"
    monkeypatch.setattr(running_jobs, "folders", lambda: [tmp_path / "absent" / "jobs", place])
    return place


def test_a_job_is_seen_while_it_runs_and_never_afterwards(folder: Path) -> None:
    seen: list[list[RunningJob]] = []
    rows = np.random.default_rng(0).normal(size=(200, 2))
    flegel.run(KMeans(k=2), rows, workers=1, processes="no", phase=lambda name, hook: seen.append(running()))
    assert {(job.pid, job.algorithm, job.workers) for jobs in seen for job in jobs} == {(os.getpid(), "kmeans", 1)}
    assert {"reading", "init", "compiling"} <= {job.phase for jobs in seen for job in jobs}
    assert running() == [] and not folder.exists()


def test_a_job_that_raises_is_not_noted_any_more(folder: Path) -> None:
    with pytest.raises(flegel.FlegelError):
        flegel.run(KMeans(k=20), np.eye(9), workers=1, processes="no")
    assert not folder.exists()


def test_a_job_that_begins_while_another_one_ends_is_noted(folder: Path) -> None:
    with announced_as_running("kmeans", "", 1) as first:
        assert folder.stat().st_mode & 0o077 == 0
        first.remove()
        first.see(PhaseBegan("compiling"))
        assert [job.phase for job in running()] == ["compiling"]


def test_what_a_killed_process_left_is_removed_by_who_looks_next(folder: Path) -> None:
    with announced_as_running("kmeans", "points.csv", 2):
        (own,) = folder.iterdir()
        job = msgspec.msgpack.decode(own.read_bytes(), type=RunningJob)
        gone = 2**22 + 1  # beyond the largest number of a process
        (folder / f"{gone}-1.job").write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(job, pid=gone)))
        (folder / f"{gone}-2.new").write_bytes(b"half")
        another = msgspec.structs.replace(job, born=job.born + 1)  # the number was used again
        (folder / f"{os.getpid()}-99.job").write_bytes(msgspec.msgpack.encode(another))
        assert [found.name for found in running()] == [job.name]
        assert list(folder.iterdir()) == [own]


def test_whatever_else_lies_in_the_folder_neither_blocks_nor_hides_a_job(folder: Path) -> None:
    own = f"{os.getpid()}"
    with announced_as_running("kmeans", "points.csv", 2):
        os.mkfifo(folder / f"{own}-7.job")
        (folder / "²-1.job").write_bytes(b"")
        (folder / f"{own}-8.job").write_bytes(b"\x81\xa1z" + b"\x91" * 200_000)
        (folder / f"{own}-9.job").symlink_to(folder / "absent")
        (folder / "dir").mkdir()
        assert [job.algorithm for job in running()] == ["kmeans"]


def test_a_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with announced_as_running("kmeans", "", 1):
        assert running() == [] and list(folder.iterdir()) == []


def test_top_shows_jobs_of_this_host_and_says_that_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "listens", lambda address: False)
    nothing = CliRunner().invoke(app, ["top"])
    assert nothing.exit_code == 0
    assert nothing.output.splitlines() == [
        "no jobs of yours on this host",
        f"no cluster: nothing listens at {DEFAULT_MASTER}",
    ]
    with announced_as_running("kmeans", "points.csv", 4) as note:
        note.see(JobSeen(SEEN))
        shown = CliRunner().invoke(app, ["top", "--once"]).output
    assert shown.startswith("1 job of yours on this host")
    (line,) = [line.split() for line in shown.splitlines() if line.startswith("kmeans-")]
    assert line[:4] == [f"kmeans-{os.getpid()}", SEEN.phase, "4", str(SEEN.iteration)]


def test_a_master_that_was_named_and_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "listens", lambda address: False)
    monkeypatch.setenv("FLEGEL_CONFIG", str(tmp_path))
    done = CliRunner().invoke(app, ["top", "--master", "tcp://127.0.0.1:1"], env={"HOME": str(tmp_path)})
    assert done.exit_code == 1 and "Nothing listens at tcp://127.0.0.1:1" in done.output
