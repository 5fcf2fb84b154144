"""A first job has the kernels of the others compiled: once, by one process, of which nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flegel.core import code_folder
from flegel.runtime.job import background_compiler, warm_code

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that die with their parent")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(code_folder, "code_folder", lambda: tmp_path)
    monkeypatch.setattr(code_folder, "is_lasting", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("FLEGEL_WARM", raising=False)
    return tmp_path


def test_a_cache_is_filled_once_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert background_compiler.wanted()
    with background_compiler._alone() as turn:
        assert turn is not None and not background_compiler.wanted()
    compiled: list[warm_code.Case] = []

    def compile_case(case: warm_code.Case) -> None:
        compiled.append(case)
        if case.name == "lr":
            raise ValueError("it is left to the job that needs it")

    turns = list(code_folder._turns)
    monkeypatch.setattr(code_folder, "_turns", turns)
    monkeypatch.setattr(warm_code, "compile_case", compile_case)
    background_compiler.fill()
    assert not background_compiler.wanted()
    first = compiled[: len(warm_code.own_kernels())]
    assert {(case.dtype, case.sparse) for case in first} == {("float64", False)}
    assert {case.name.partition(" ")[0] for case in first} == set(warm_code.own_kernels())
    assert {(c.dtype, c.sparse) for c in compiled} == {(d, s) for d in warm_code.DTYPES for s in (False, True)}


def test_it_is_not_wanted_where_it_would_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_WARM", "0")
    assert not background_compiler.wanted()
    monkeypatch.delenv("FLEGEL_WARM")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert not background_compiler.wanted(), "a single processor is the job's"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(code_folder, "is_lasting", lambda: False)
    assert not background_compiler.wanted(), "nobody would find the code"


@pytest.mark.processes
def test_nothing_stays_of_it(cache: Path) -> None:
    background_compiler.start()
    (process,) = background_compiler._asked
    background_compiler.start()
    assert background_compiler._asked == [process], "one at a time"
    background_compiler.stop()
    assert process.returncode == -signal.SIGKILL and not background_compiler._asked
    orphan = [sys.executable, "-m", "flegel.runtime.job.background_compiler", "1"]  # its parent is another process
    assert subprocess.run(orphan, env={**os.environ, "FLEGEL_CACHE": str(cache)}).returncode == 0
    assert not list(cache.rglob("full-*"))


def test_it_runs_where_no_other_thread_wants_the_processor() -> None:
    code = (
        "import contextlib, os\n"
        "with contextlib.suppress(PermissionError): os.nice(-5)\n"  # as somebody may have done to the parent
        "from flegel.runtime.job.background_compiler import _humble; _humble(os.getppid()); "
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "19"]
