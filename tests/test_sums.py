"""Sums by several threads: the same bits as by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from flegel.configuration.active import active
from flegel.core import parallel_sums
from flegel.core.parallel_sums import CACHED_NUMBERS, add_fields, copy_bytes
from flegel.core.pytree import Array

THREADED_FROM_NUMBERS = active().processors.threaded_sum_from_numbers


@pytest.mark.parametrize("shape", [(3,), (THREADED_FROM_NUMBERS + 7,), (THREADED_FROM_NUMBERS // 16, 20), (0,)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_same_bits_as_one_after_the_other(shape: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    extras = [rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9) for _ in range(count)]
    wanted, got = np.ones(shape), np.ones(shape)
    for extra in extras:
        wanted += extra
    add_fields([got], [extras])
    assert np.array_equal(wanted, got)


def test_several_arrays_that_are_large_together() -> None:
    rng = np.random.default_rng(0)
    shapes = [(THREADED_FROM_NUMBERS // 20, 20), (CACHED_NUMBERS,), (7,), (0,), (CACHED_NUMBERS + 1,)]
    columns = [[rng.normal(size=shape) for _ in range(4)] for shape in shapes]
    got = [np.ones(shape) for shape in shapes]
    add_fields(got, columns)
    for into, extras in zip(got, columns, strict=True):
        assert np.array_equal(into, np.ones(into.shape) + extras[0] + extras[1] + extras[2] + extras[3])


def test_arrays_that_do_not_lie_in_one_piece() -> None:
    extras = [np.arange(2.0 * THREADED_FROM_NUMBERS).reshape(2, -1).T[:, ::2] for _ in range(3)]
    into = np.zeros((THREADED_FROM_NUMBERS, 2))[:, :1]
    add_fields([into], [extras])
    assert np.array_equal(into, 3 * extras[0])


@pytest.mark.parametrize("size", [0, 5, 8 * THREADED_FROM_NUMBERS - 1, 8 * THREADED_FROM_NUMBERS + 13])
def test_copies_are_whole(size: int) -> None:
    source = np.arange(size, dtype=np.int64).astype(np.uint8)
    into = np.full(size + 2, 7, np.uint8)
    copy_bytes(into[1:-1], source)
    assert np.array_equal(into[1:-1], source) and into[0] == into[-1] == 7


def large_ones() -> list[Array]:
    return [np.full(THREADED_FROM_NUMBERS, 1.0) for _ in range(3)]


@pytest.mark.processes
def test_a_process_that_was_forked_adds_with_threads_of_its_own() -> None:
    add_fields([np.zeros(THREADED_FROM_NUMBERS)], [large_ones()])
    child = os.fork()
    if child == 0:
        into = np.zeros(THREADED_FROM_NUMBERS)
        signal.alarm(300)
        add_fields([into], [large_ones()])
        os._exit(0 if (into == 3.0).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.processes
def test_a_thread_that_outlives_the_main_one_can_still_add() -> None:
    code = (
        "import threading, numpy as np\n"
        "from flegel.configuration.active import active\n"
        "from flegel.core.parallel_sums import add_fields\n"
        "THREADED_FROM_NUMBERS = active().processors.threaded_sum_from_numbers\n"
        "def work():\n"
        "    threading.main_thread().join()\n"
        "    into = np.zeros(THREADED_FROM_NUMBERS)\n"
        "    add_fields([into], [[np.ones(THREADED_FROM_NUMBERS)] * 3])\n"
        "    print(into.min(), into.max())\n"
        "threading.Thread(target=work).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "3.0 3.0\n", done.stderr


def test_without_threads_the_sum_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    parallel_sums._hands.cache_clear()
    monkeypatch.setattr(parallel_sums.threading.Thread, "start", refuse)
    into = np.zeros(THREADED_FROM_NUMBERS)
    add_fields([into], [large_ones()])
    parallel_sums._hands.cache_clear()
    assert (into == 3.0).all()
