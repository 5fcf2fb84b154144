"""What a hook may do besides returning a value: write into its arguments, never return, exit, fork, return nonsense.

Each is one sentence with the name of the hook, and nothing goes on wrongly or silently.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import broken_hooks as broken
import numpy as np
import psutil
import pytest

import flegel
from flegel.core import pytree
from flegel.errors import AlgorithmError, Terminated
from flegel.job import AlgorithmRef, Job
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold
from flegel.runtime.job import prepared_job
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request
from flegel.runtime.parts.hook_watch import HookWatch
from flegel.runtime.system.signals import DeferredSignals

ROWS = np.random.default_rng(0).normal(size=(300, 3))


def hooked(hook: str, body: Callable[..., Any]) -> flegel.Algorithm:
    """`Sound` with one hook that does something else."""
    return type("Odd", (broken.Sound,), {hook: body})()  # type: ignore[no-any-return]


def fold(algorithm: flegel.Algorithm) -> Any:
    store = LocalStore(algorithm, np.zeros(1), np.zeros(1))
    return store.fold(Fold(0, [0], [np.ones(1)], "round 7"))


def prepare(algorithm: flegel.Algorithm) -> PreparedJob:
    job = Job(AlgorithmRef("x:Y", {}), "rows")
    return PreparedJob(Request(algorithm, flegel.datasets.open_data(ROWS), job), None)


# -- arguments that are written into -----------------------------------------------------------------------


def write_first(self: Any, first: Any, *_: Any) -> Any:
    first[0] = 5.0
    return first


def write_second(self: Any, first: Any, second: Any, *_: Any) -> Any:
    second += 1.0
    return second


@pytest.mark.parametrize(
    ("hook", "body"),
    [("updateParameter", write_first), ("updateParameter", write_second), ("objective", write_first)],
)
def test_a_hook_that_writes_into_what_it_was_given_fails(hook: str, body: Any) -> None:
    with pytest.raises(AlgorithmError, match=rf"{hook} raised ValueError.*round 7; hooks get read-only arrays"):
        fold(hooked(hook, body))


def test_a_termination_check_that_writes_fails_too() -> None:
    with pytest.raises(AlgorithmError, match=r"terminationCheck raised ValueError.*read-only"):
        call_hook(hooked("terminationCheck", write_first), "round 1", "terminationCheck", np.ones(2), 1)


def write_parameter(self: Any, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
    parameter[0] += 1.0
    return np.ones(1)


@pytest.mark.parametrize("own", [False, True], ids=["default initAggregator", "its own"])
def test_a_point_that_writes_into_the_parameter_is_found_before_training(own: bool) -> None:
    algorithm = hooked("updateDataPoint", write_parameter)
    if own:
        type(algorithm).initAggregator = lambda self, sample, parameter: np.zeros(1)  # type: ignore[method-assign]
    with pytest.raises(AlgorithmError, match=r"updateDataPoint raised ValueError.*read-only"):
        prepare(algorithm)


def test_fields_without_dimensions_and_whole_bundles_are_read_only() -> None:
    from tests.runtime.user_classes import Sums

    shown = pytree.present(pytree.read_only(Sums(np.ones(2), np.array(3.0))))
    assert shown.count == 3.0 and not shown.sums.flags.writeable
    assert pytree.flatten(Sums(np.ones(2), 1.0))[0].flags.writeable, "the engine's own arrays stay as they are"


# -- values ------------------------------------------------------------------------------------------------

VALUES: list[tuple[str, Any, str]] = [
    ("updateParameter", "text", r"updateParameter returned 'text' \(str\) in round 7; expected an array"),
    ("updateParameter", None, r"updateParameter returned None \(NoneType\)"),
    ("updateParameter", {"w": np.ones(1)}, "updateParameter returned a dict in round 7; use an array.*NamedTuple"),
    ("updateParameter", [[1.0], [1.0, 2.0]], "updateParameter returned .* expected an array"),
    ("updateParameter", np.array(["a"]), "updateParameter returned an array of <U1"),
    ("updateParameter", lambda: 1, "updateParameter returned <function"),
    ("updateParameter", np.ones((2, 2)), "updateParameter returned θ in another shape"),
    ("objective", "low", r"objective returned 'low' \(str\) in round 7; expected a number, or None"),
    ("objective", [1.0], "objective returned .* expected a number"),
    ("objective", np.ones(3), r"objective returned an array of float64 of shape \(3,\)"),
    ("objective", True, "objective returned True"),
    ("objective", 1j, "objective returned 1j"),
]


@pytest.mark.parametrize(("hook", "value", "words"), VALUES, ids=lambda v: str(v)[:24])
def test_a_value_of_the_wrong_kind_is_one_sentence(hook: str, value: Any, words: str) -> None:
    with pytest.raises(AlgorithmError, match=words):
        fold(hooked(hook, lambda self, *_: value))


@pytest.mark.parametrize("value", [{"w": np.zeros(2)}, "text", None, object()])
def test_a_first_parameter_of_the_wrong_kind_is_one_sentence(value: Any) -> None:
    with pytest.raises(AlgorithmError, match=r"initParameter returned .*an array, or a NamedTuple of arrays"):
        prepare(hooked("initParameter", lambda self, *_: value))


def test_other_answers_are_checked_as_well() -> None:
    with pytest.raises(AlgorithmError, match="terminationCheck returned an array"):
        hook_values.truth(np.ones(2), "terminationCheck", "round 1")
    with pytest.raises(AlgorithmError, match="optimality returned 'near'"):
        hook_values.number("near", "optimality", "round 1")
    with pytest.raises(AlgorithmError, match="warnings returned 7"):
        hook_values.texts(7, "warnings")
    assert hook_values.truth(None, "h", "p") is False and hook_values.number(np.float32(2), "h", "p") == 2.0
    assert hook_values.texts("one", "h") == ["one"] and hook_values.number(np.ones(1), "h", "p") == 1.0


# -- hooks that do not return ------------------------------------------------------------------------------


def stubborn(self: Any, *_: Any) -> Any:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(1000)


def busy(self: Any, *_: Any) -> Any:
    while True:
        pass


@pytest.mark.parametrize("body", [lambda self, *_: time.sleep(10_000), stubborn, busy], ids=["sleep", "catch", "loop"])
def test_a_hook_of_the_coordinator_that_does_not_return_is_ended(body: Any) -> None:
    algorithm = hooked("updateParameter", body)
    with (
        HookWatch(algorithm, 1.0),
        pytest.raises(AlgorithmError, match=r"updateParameter has not returned in time .*hook_timeout="),
    ):
        fold(algorithm)


def test_a_hook_that_was_ended_is_not_interrupted_again_while_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, again = hooked("updateParameter", busy), []

    def slow(error: BaseException) -> str:
        watch._interrupted_hook = (watch._hooks_entered, 9.0)
        watch._interrupt()
        again.append(1)
        return ""

    monkeypatch.setattr("flegel.params.hooks.own_traceback", slow)
    with HookWatch(algorithm, 1.0) as watch, pytest.raises(AlgorithmError, match="has not returned in time"):
        fold(algorithm)
    assert again == [1]


def test_a_hook_in_another_thread_is_ended_at_its_next_line() -> None:
    algorithm, caught = hooked("objective", busy), []

    def job() -> None:
        with HookWatch(algorithm, 1.0):
            try:
                fold(algorithm)
            except AlgorithmError as error:
                caught.append(str(error))

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    thread.join(600)
    assert caught and "objective has not returned in time" in caught[0]


def test_hooks_that_return_are_left_alone_and_everything_is_as_before() -> None:
    before = (signal.getsignal(signal.SIGURG), os._exit)
    algorithm = broken.Sound()
    with HookWatch(algorithm, 3.0):  # on a busy machine a hook may be kept waiting for a part of that
        fold(algorithm)
        time.sleep(3.1)  # not in a hook
        fold(algorithm)
    assert (signal.getsignal(signal.SIGURG), os._exit) == before


@pytest.mark.parametrize("module", ["numba.core.dispatcher", "llvmlite.binding.executionengine"])
def test_a_compilation_is_not_interrupted(module: str) -> None:
    """An exception inside llvmlite's callbacks leaves a function that no later call can use."""
    compiler: dict[str, Any] = {"__name__": module, "sleep": time.sleep}
    exec("def compiled(): sleep(1.0)", compiler)

    def compiles(self: Any, aggregator: Any, old: Any) -> Any:
        compiler["compiled"]()
        return aggregator * 1.0

    algorithm = hooked("updateParameter", compiles)
    with HookWatch(algorithm, 0.3):
        assert fold(algorithm) is not None


# -- exits and forks ---------------------------------------------------------------------------------------


class Odd(BaseException):
    pass


def leave(self: Any, *_: Any) -> Any:
    raise Odd("as it may happen")


EXITS: dict[str, Any] = {
    "sys.exit(0)": lambda self, *_: sys.exit(0),
    "sys.exit('text')": lambda self, *_: sys.exit("text"),
    "os._exit(0)": lambda self, *_: os._exit(0),
    "BaseException": leave,
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("hook", ["updateParameter", "objective"])
def test_an_exit_in_a_hook_is_a_failure(how: str, hook: str) -> None:
    algorithm = hooked(hook, EXITS[how])
    with HookWatch(algorithm, 30.0), pytest.raises(AlgorithmError, match=f"{hook} (called sys.exit|raised Odd)"):
        fold(algorithm)


def test_a_request_to_terminate_is_no_exit_of_the_hook() -> None:
    def told(self: Any, *_: Any) -> Any:
        raise Terminated(143)

    with pytest.raises(Terminated):
        fold(hooked("updateParameter", told))


def test_a_child_that_returns_from_a_hook_is_ended() -> None:
    children: list[int] = []

    def forks(self: Any, aggregator: Any, old: Any) -> Any:
        pid = os.fork()
        if pid:
            children.append(pid)
        return aggregator * 1.0

    algorithm = hooked("updateParameter", forks)
    with HookWatch(algorithm, 30.0):
        fold(algorithm)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 1


class Daemonizes(broken.Sound):
    """Leaves a grandchild behind, in a session of its own, on each worker; and a child that comes back."""

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        if points > 1 and os.environ.get("FLEGEL_TEST_PARENT") != str(os.getpid()):
            subprocess.run(["sh", "-c", "setsid sleep 98765 & exit 0"], check=True)
            os.fork()
        return np.zeros((points, 1))


@pytest.mark.processes
def test_what_hooks_of_workers_have_started_ends_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_TEST_PARENT", str(os.getpid()))
    with flegel.LocalCluster(workers=2) as cluster:
        done = flegel.run(Daemonizes(), ROWS, cluster=cluster, workers=2, sync="bsp", max_iterations=3)
        assert done.iterations == 3
        left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "98765"]]
        _, alive = psutil.wait_procs(left, timeout=600)
        assert not alive, "they ended with the job, while the cluster is still open"
        workers = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        names = {p.pid for p in workers} & {p.pid for p in cluster.registry.processes.values()}  # type: ignore[attr-defined]
        assert len(names) == 2, "the workers themselves are still there"


# -- signals while foreign code runs -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_in_a_callback_of_the_compiler_is_not_lost(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler raises in a ctypes callback is printed and ignored; so handlers wait until compiling is over."""

    def stop(*_: object) -> None:
        raise Terminated(143)

    def compile_(*_: Any, **__: Any) -> Any:
        kind = ctypes.CFUNCTYPE(None)
        kind(lambda: os.kill(os.getpid(), number))()
        return prepared_job.Built(None, "compiled")  # type: ignore[arg-type]

    monkeypatch.setattr(prepared_job, "build_kernel", compile_)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(Terminated):
            prepare(broken.Sound()).compile()
    finally:
        signal.signal(number, before)


def test_a_third_signal_does_not_wait() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with DeferredSignals():
            for expected in (0, 0, 1):
                os.kill(os.getpid(), signal.SIGTERM)
                assert len(came) == expected
        assert len(came) == 3
    finally:
        signal.signal(signal.SIGTERM, before)
