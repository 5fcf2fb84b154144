"""Nobody reads the output, the disk is full, training diverges: what was computed is kept, and the exit code tells."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_result_store import result
from typer.testing import CliRunner

import flegel
from flegel.cli.local_job import make_algorithm
from flegel.cli.main import app
from flegel.cluster.slave import coordinator_process
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.cluster.slave.coordinator_protocol import JobAssignment
from flegel.cluster.transport.protocol import ClusterJob
from flegel.errors import ExitCode, StorageError
from flegel.job import AlgorithmRef
from flegel.results.result import exit_code
from flegel.runtime.job import result_store
from flegel.runtime.system.standard_streams import LenientFile

MINE = """
import sys
import numpy as np
from flegel import Algorithm


class Runaway(Algorithm):
    def initParameter(self, sample, rng):
        return np.ones(1)

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        return np.ones(1)

    def updateParameter(self, aggregator, oldParameter):
        return oldParameter * 1e200

    def objective(self, aggregator, parameter):
        return float(parameter[0])


class Talks(Runaway):
    def initState(self, points, columns, rng):
        for _ in range(200):
            print("a hook that prints " * 50)
            print("and to the other stream", file=sys.stderr)
        return np.zeros((points, 1))

    def updateParameter(self, aggregator, oldParameter):
        print("again and again " * 100)
        return oldParameter
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    np.save("rows.npy", np.random.default_rng(0).normal(size=(200, 3)))
    Path("mine.py").write_text(MINE)
    return tmp_path


@pytest.mark.processes
def test_a_pipe_that_nobody_reads_does_not_stop_training(folder: Path) -> None:
    """`flegel submit … 2>&1 | head -1`, with hooks that print, on workers too."""
    words = "submit mine.py:Talks --data rows.npy --workers 2 --max-iterations 3 --json out.json --out model"
    command = f"({sys.executable} -m flegel.cli.main {words} 2>&1; echo $? > code) | head -1 > first"
    subprocess.run(["bash", "-c", command], check=True, timeout=300)
    assert (folder / "code").read_text() == "0\n"
    assert json.loads((folder / "out.json").read_text())["iterations"] == 3
    assert (folder / "model" / "model.json").is_file()


def test_output_to_a_full_disk_or_a_closed_pipe_is_dropped() -> None:
    read, write = os.pipe()
    os.close(read)
    raw = LenientFile(write, "wb")
    with io.TextIOWrapper(io.BufferedWriter(raw), write_through=True) as stream:
        print("nobody reads this", file=stream, flush=True)
        assert raw.broken
    with LenientFile(os.open("/dev/full", os.O_WRONLY), "wb") as full:
        assert full.write(b"no room") == 7 and full.broken


@pytest.mark.parametrize("closed", ["1", "2", "0"])
def test_closed_descriptors_get_no_other_file(closed: str, tmp_path: Path) -> None:
    code = (
        "from flegel.runtime.system.standard_streams import protect; protect('stdout', 'stderr'); import os, sys;"
        "sys.stderr.write('x'); sys.stdout.write('y'); sys.stdout.flush();"
        "opened = os.open('file', os.O_CREAT | os.O_WRONLY); os._exit(0 if opened > 2 else 9)"
    )
    script = f'exec "$0" -c "$1" {closed}>&-'
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(["bash", "-c", script, sys.executable, code], cwd=tmp_path, env=env, timeout=600, check=False)
    assert done.returncode == 0


def test_a_job_that_diverged_has_an_exit_code_of_its_own(folder: Path) -> None:
    words = "submit mine.py:Runaway --data rows.npy --workers 1 --max-iterations 9 --json out.json --out model"
    done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert done.exit_code == ExitCode.NOT_AS_ASKED == 3
    figures = json.loads(Path("out.json").read_text())
    assert figures["outcome"] == "diverged" and figures["reason"].startswith("diverged")
    assert exit_code("limit") == ExitCode.DONE


@pytest.mark.parametrize("where", ["home", "tmp", "nowhere"])
def test_a_full_disk_at_the_end_costs_the_place_and_not_the_model(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = result_store._write
    wanted = {"home": folder / "home", "tmp": folder / "tmp", "nowhere": folder / "none"}[where]
    monkeypatch.setattr(result_store.tempfile, "gettempdir", lambda: str(folder / "tmp"))

    def write(path: Path, content: bytes) -> None:
        if not path.is_relative_to(wanted):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(result_store, "_write", write)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        result_store.save_or_rescue(result(), folder / "model")
    assert not (folder / "model").exists()
    if where == "nowhere":
        assert "nothing was written there" in str(caught.value)
    else:
        (saved,) = wanted.rglob("model.npz")
        assert f"saved to {saved.parent} instead" in str(caught.value)
        assert result_store.load(saved.parent).parameters


def test_a_coordinator_of_a_cluster_rescues_its_result_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_store.tempfile, "gettempdir", lambda: str(folder / "tmp"))
    real = result_store._write

    def write_elsewhere(path: Path, content: bytes) -> None:
        if "jobs" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(result_store, "_write", write_elsewhere)
    spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {"k": 2}), "blobs")
    assignment = JobAssignment("job-7", 1, spec, "", 1, "127.0.0.1", str(folder / "jobs" / "result.1"), "", False)
    read, write = os.pipe()
    with pytest.raises(StorageError, match=r"was saved to .*job-7-.* instead") as caught:
        coordinator_process._saved(result(), assignment, CoordinatorPipe(write))
    os.close(read), os.close(write)
    assert socket.gethostname() in str(caught.value)
    assert list(folder.rglob("job-7-*/model.npz"))


def test_the_command_and_python_rescue_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is where the folder should be: it appeared while the job trained."""
    monkeypatch.setattr(result_store, "check_target", lambda path: None)
    (folder / "model").mkdir()
    (folder / "model" / "file").touch()
    words = "submit mine.py:Runaway --data rows.npy --workers 1 --max-iterations 1 --out model"
    done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert done.exit_code == 1 and "rescued" in done.stderr and "instead" in done.stderr
    with pytest.raises(StorageError, match=r"the result was saved to .*rescued"):
        flegel.run(make_algorithm("mine.py:Runaway", None), "rows.npy", workers=1, max_iterations=1, out="model")
