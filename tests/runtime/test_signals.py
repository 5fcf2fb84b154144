"""Ctrl-C, SIGTERM and SIGKILL of `flegel submit`: the right exit code, and no process outlives the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import until

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.errors import Terminated
from flegel.runtime.job.compiler_thread import CompilerThread, compiled, compiling_for
from flegel.runtime.system import signals
from flegel.runtime.system.parent_death import process_starter
from flegel.runtime.system.signals import DeferredSignals

pytestmark = pytest.mark.processes


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job that would train for minutes, in the middle of it."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(4000, 5)))
    words = (
        "submit kmeans --data rows.npy --set k=6 --workers 2 --sync bsp --tolerance 0 --max-seconds 300 --out model "
        "--processes yes"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "flegel.cli.main", *words.split()],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "iteration" in line:
            break
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.stderr.close()
    process.wait(600)


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGKILL, -9, "")],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_no_worker_outlives_the_command(
    job: subprocess.Popen[str], tmp_path: Path, sent: signal.Signals, code: int, words: str
) -> None:
    workers = psutil.Process(job.pid).children(recursive=True)
    assert len(workers) == 3, "a fork server and its two"
    if sent == signal.SIGKILL:
        for process in workers[:2]:
            process.suspend()  # stopped, it cannot see that its standard input closes
    job.send_signal(sent)
    assert job.wait(timeout=240) == code
    _, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive
    assert job.stderr is not None
    said = job.stderr.read()
    assert words in said and "Traceback" not in said
    assert {p.name for p in tmp_path.iterdir()} == {"rows.npy"}, "nothing half-written"


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Which signals a handler of ours has seen."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_a_handler_waits_for_its_turn(handled: list[int]) -> None:
    with DeferredSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert handled == [], "the middle of a send is no place to raise an exception"
        signals.deliver()
        assert handled == [signal.SIGTERM]
        signals.deliver()
        assert handled == [signal.SIGTERM], "once"
        signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM] * 2, "at the end, at the latest"
    signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM] * 3, "and as before afterwards"


def test_code_of_the_user_s_can_be_interrupted(handled: list[int]) -> None:
    with DeferredSignals() as signals:
        signals.open = True
        signal.raise_signal(signal.SIGTERM)
        assert handled == [signal.SIGTERM]


def test_ctrl_c_comes_as_usual_and_the_system_s_own_handler_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), DeferredSignals() as signals:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            signal.raise_signal(signal.SIGINT)
            signals.deliver()
            pytest.fail("it was delivered")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("when", ["begin", "end"])
def test_what_one_handler_raises_does_not_silence_the_other_signal(
    handled: list[int], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C just when handlers are put in place, or put back: between the two of them."""
    first, second = (signal.SIGINT, signal.SIGTERM) if when == "end" else (signal.SIGTERM, signal.SIGINT)
    raising = signal.signal(first, signal.default_int_handler)
    noting = signal.signal(second, lambda number, _: handled.append(number))
    usual, calls = signal.signal, list[int]()

    def struck(number: int, handler: Any) -> Any:
        calls.append(number)
        if len(calls) == (2 if when == "begin" else 4):
            signal.raise_signal(first)
        return usual(number, handler)

    monkeypatch.setattr(signal, "signal", struck)
    try:
        with pytest.raises(KeyboardInterrupt), DeferredSignals():
            pass
        signal.raise_signal(second)
        assert handled == [second], "it is not kept for a turn that never comes"
    finally:
        usual(first, raising)
        usual(second, noting)


IMPORTED = """
import sys
from flegel.runtime.system.signals import terminate
terminate(15, sys._getframe().f_back)
body_was_run = True
"""
"""A module whose import is interrupted: the frame that called it belongs to Python's own code of imports."""


def test_sigterm_that_interrupts_an_import_is_raised_by_whoever_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised at once it may be lost: Python shows it as ignored, with a traceback, and goes on."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(signals, "_terminated", [])
    (tmp_path / "interrupted_import.py").write_text(IMPORTED)
    traced, went_on = sys.gettrace(), False

    def imports() -> None:
        nonlocal went_on
        import interrupted_import  # type: ignore[import-not-found]

        assert interrupted_import
        went_on = True

    with pytest.raises(Terminated):
        imports()
    assert sys.modules.pop("interrupted_import").body_was_run and not went_on
    assert sys.gettrace() is traced and signals._terminated == [15]
    with pytest.raises(Terminated):
        signals.terminate(15, sys._getframe())


def test_a_process_does_not_die_with_the_thread_that_asked_for_it() -> None:
    code = (
        "from flegel.runtime.system.parent_death import die_with_parent\n"
        "die_with_parent(); print('born', flush=True); print(input(), flush=True)"
    )
    words = [sys.executable, "-c", code]
    children: list[subprocess.Popen[bytes]] = []

    def ask() -> None:
        child = process_starter.start(lambda: subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert child.stdout is not None and child.stdout.readline() == b"born\n"
        children.append(child)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    said, _ = children[0].communicate(b"alive\n", timeout=240)
    assert said == b"alive\n"


def test_a_process_that_cannot_be_started_is_the_caller_s_error() -> None:
    with pytest.raises(FileNotFoundError):
        process_starter.start(lambda: subprocess.Popen(["/no/such/program"]))


def test_a_sigterm_whose_exception_was_lost_ends_the_job_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what a handler raises while it folds constants of a module that it compiles."""
    monkeypatch.setattr(signals, "_terminated", [])
    rows = np.random.default_rng(0).normal(size=(60, 5))
    seen: list[Any] = []
    with pytest.raises(Terminated):
        signals.terminate(signal.SIGTERM)
    with pytest.raises(Terminated):
        flegel.run(KMeans(k=6), rows, processes=False, watch=seen.append)
    assert not seen
    monkeypatch.setattr(signals, "_terminated", [])
    assert flegel.run(KMeans(k=6), rows, processes=False).converged


def test_a_job_that_is_interrupted_does_not_wait_for_its_compiler() -> None:
    begun, end = threading.Event(), threading.Event()

    def compiles() -> None:
        begun.set()
        end.wait()

    with pytest.raises(KeyboardInterrupt), CompilerThread(compiles):
        begun.wait()
        raise KeyboardInterrupt
    assert any(t.name == "compiler" for t in threading.enumerate()), "it finishes what others may need"
    end.set()
    done: list[bool] = []
    with CompilerThread(lambda: done.append(True)):
        pass
    assert done, "a job that ends as usual waits"


def test_ctrl_c_interrupts_whoever_waits_for_the_compiler_at_once() -> None:
    end, here = threading.Event(), threading.get_ident()

    def compiles() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end.wait()

    with pytest.raises(KeyboardInterrupt):
        compiled(compiles)
    assert compiling_for(here) != here, "it goes on"
    end.set()
    assert until(lambda: compiling_for(here) == here)


def test_what_compiles_in_a_thread_returns_and_raises_as_if_it_had_been_called() -> None:
    here = threading.get_ident()
    assert compiled(lambda: (compiling_for(here), 7)) != (here, 7)
    assert compiled(lambda: 7) == 7

    def fails() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        compiled(fails)


class Own(flegel.Algorithm):
    """A class of the user's."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(1)

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.ones(1)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator


def test_hooks_that_compile_are_compiled_outside_the_thread_that_gets_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[threading.Thread] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(threading.current_thread())
        raise flegel.UsageError("enough")

    monkeypatch.setattr("flegel.runtime.job.prepared_job.build_kernel", noted)
    with pytest.raises(flegel.UsageError, match="enough"):
        flegel.run(Own(), np.zeros((10, 2)), processes=False, max_iterations=1)
    assert seen and threading.main_thread() not in seen


def test_a_program_that_was_interrupted_ends_although_a_thread_compiles() -> None:
    code = (
        "import threading\n"
        "from flegel.runtime.job.compiler_thread import CompilerThread\n"
        "with CompilerThread(threading.Event().wait):\n"
        "    raise KeyboardInterrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130 and "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "Interrupted('stopped, as asked', 130)"])
def test_a_command_that_was_interrupted_ends_although_a_thread_compiles(raised: str) -> None:
    """Also where it was asked to stop, and did: a job that keeps checkpoints."""
    code = (
        "import threading\n"
        "from flegel.errors import Interrupted\n"
        "from flegel.runtime.job.compiler_thread import CompilerThread\n"
        "from flegel.terminal.reporting import errors_as_sentences\n"
        "with errors_as_sentences(), CompilerThread(threading.Event().wait):\n"
        f"    raise {raised}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr in ("flegel: interrupted.\n", "flegel: stopped, as asked\n")


def test_ctrl_c_while_a_program_imports_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extension modules that are interrupted while they are initialized may lose the exception and crash later."""
    usual = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    try:
        signals.imports_begin()
        signal.raise_signal(signal.SIGINT)
        assert ended == [130]
        signals.imports_are_over()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert ended == [130]
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup leaves it
        signals.imports_begin()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signals.imports_are_over()
        signal.signal(signal.SIGINT, usual)
