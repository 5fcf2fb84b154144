"""Write one point, get the block: compiled and interpreted loops mean the same, for every way of writing a hook."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import user_classes as users

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import own_traceback
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.numba.kernels import Built, build_kernel

ROWS = np.random.default_rng(1).normal(size=(97, 3))
LABELS = np.random.default_rng(2).integers(0, 3, size=97).astype(float)


def prepare(algorithm: Algorithm, rows: Any = ROWS, layout: str | None = None) -> tuple[Shard, Any, Any]:
    labels = algorithm.accepts.kept_labels(LABELS)
    points = len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)
    columns = rows.columns if isinstance(rows, Sparse) else rows.shape[1]
    sample = Sample(rows, labels, points, columns)
    parameter = pytree.read_only(pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0))))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(parameter)))
    state = algorithm.initState(points, columns, np.random.default_rng(0))
    return make_shard(rows, labels, state, layout or algorithm.kernels.layout), parameter, zero


def two_passes(
    algorithm: Algorithm, kind: str | None, rows: Any = ROWS
) -> tuple[Built | None, list[np.ndarray], Shard]:
    """Statistics after two passes with θ made new in between; `kind` None is the interpreted specification."""
    share, parameter, zero = prepare(algorithm, rows, "rows" if kind is None else None)
    built = None if kind is None else build_kernel(algorithm, share, parameter, zero)
    kernel = interpreted(algorithm) if built is None else built.kernel
    total = pytree.copy(zero)
    for iteration in range(2):
        assert kernel(share, parameter, total, 0, share.points, iteration, new_flag()) == share.points
        made = algorithm.updateParameter(pytree.present(total), pytree.present(parameter))
        parameter = pytree.read_only(pytree.as_doubles(made))
    return built, [*pytree.flatten(total), *pytree.flatten(parameter)], share


CLASSES = [
    users.DenseMean(),
    users.FunctionalMean(),
    users.InPlaceMean(),
    users.Histogram(),
    users.Histogram(bins=3, low=-1.0, high=1.0, wrap=True, title="three"),
    users.HaltsWhenLarge(threshold=0.25),
    users.HaltsAtOnce(),
    users.ClassMeans(),
    KMeans(k=4, init="first"),
]


CASES = [*((algorithm, "float64") for algorithm in CLASSES), (CLASSES[0], "float32"), (CLASSES[-1], "float32")]


@pytest.mark.parametrize(("algorithm", "dtype"), CASES, ids=str)
def test_the_compiled_block_does_what_the_hooks_say(algorithm: Algorithm, dtype: str) -> None:
    rows = ROWS.astype(dtype)
    built, fast, share = two_passes(algorithm, "fast", rows)
    _, plain, reference = two_passes(algorithm, None, rows)
    assert built is not None and built.kind in ("compiled", "hand-written"), built.note
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-6)
    np.testing.assert_allclose(share.state_rows(), reference.state_rows(), rtol=1e-6)
    np.testing.assert_array_equal(share.halted, reference.halted)


def test_points_that_voted_are_left_out() -> None:
    _, (_sums, count, *_), share = two_passes(users.HaltsWhenLarge(threshold=0.25), "fast")
    large = int((ROWS[:, 0] > 0.25).sum())
    assert share.halted.sum() == large
    assert count == large + 2 * (len(ROWS) - large), "once, against twice for the others"


def test_what_numba_cannot_compile_runs_interpreted_and_says_why() -> None:
    share, parameter, zero = prepare(users.Uncompilable())
    built = build_kernel(users.Uncompilable(), share, parameter, zero)
    assert built.kind == "interpreted" and built.note
    _, odd, _ = two_passes(users.Uncompilable(), "any")
    _, plain, _ = two_passes(users.DenseMean(), None)
    for a, b in zip(odd, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_stop_flag_stops_both_loops_at_once() -> None:
    share, parameter, zero = prepare(users.DenseMean())
    built = build_kernel(users.DenseMean(), share, parameter, zero)
    flag = new_flag()
    flag[0] = 1
    for kernel in (built.kernel, interpreted(users.DenseMean())):
        total = pytree.copy(zero)
        assert kernel(share, parameter, total, 5, share.points, 0, flag) == 5
        assert not any(np.any(a) for a in pytree.flatten(total))


def test_compiled_code_that_raises_shows_the_users_own_line() -> None:
    rows = ROWS.copy()
    rows[41, 0] = 2000.0
    algorithm = users.RaisesAtLargePoint()
    share, parameter, zero = prepare(algorithm, rows)
    built = build_kernel(algorithm, share, parameter, zero)
    assert built.kind == "compiled"
    with pytest.raises(ValueError, match="a point is too large") as caught:
        built.kernel(share, parameter, pytree.copy(zero), 0, share.points, 0, new_flag())
    trace = own_traceback(caught.value)
    line = next(
        i for i, text in enumerate(Path(users.__file__).read_text().splitlines(), 1) if "raise ValueError" in text
    )
    assert f'{users.__file__}", line {line}' in trace
    assert 'raise ValueError("a point is too large")' in trace


def test_a_zero_divisor_gives_infinity_compiled_and_interpreted() -> None:
    rows = ROWS.copy()
    rows[3, 0] = 0.0
    with np.errstate(divide="ignore"):
        _, plain, _ = two_passes(users.Inverse(), None, rows)
    built, fast, _ = two_passes(users.Inverse(), "fast", rows)
    assert built is not None and built.kind == "compiled"
    assert np.isinf(plain[0][0])
    np.testing.assert_allclose(fast[0], plain[0])


def test_a_helper_from_a_neighbouring_file_is_compiled_and_its_changes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flegel.runtime.backends.numba import compiler as compiling

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keys = []
    for gain in (2.0, 3.0):
        (tmp_path / "neighbour.py").write_text(f"def gain(x):\n    return {gain} * x\n")
        sys.modules.pop("neighbour", None)
        importlib.invalidate_caches()
        import neighbour

        assert neighbour.gain(1.0) == gain
        cls = type("Made", (users.DenseMean,), {"__module__": "borrowing"})
        borrowing = types.ModuleType("borrowing")
        borrowing.__dict__.update(gain=neighbour.gain, __flegel_source__="the same text")
        monkeypatch.setitem(sys.modules, "borrowing", borrowing)
        keys.append(compiling._class_text(cls))
    assert keys[0] != keys[1]


CHILD = """
import sys, numpy as np
sys.path.insert(0, {folder!r})
import numba
from numba.core.dispatcher import Dispatcher
made = []
original = Dispatcher.compile
def compile(self, sig):
    made.append(self)
    return original(self, sig)
Dispatcher.compile = compile
import test_compile, user_classes
share, parameter, zero = test_compile.prepare(user_classes.DenseMean())
built = test_compile.build_kernel(user_classes.DenseMean(), share, parameter, zero)
blocks = {{d for d in made if d.py_func.__name__ == "block"}}
(block,) = blocks
hits, misses = sum(block.stats.cache_hits.values()), sum(block.stats.cache_misses.values())
others = len(set(made)) - 1
print(built.kind, hits, misses, others)
"""


def test_a_second_process_finds_the_compiled_code_in_the_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "FLEGEL_CACHE": str(tmp_path)}
    script = CHILD.format(folder=str(Path(__file__).parent))
    said = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=240, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0][:3] == ["compiled", "0", "1"]
    assert said[1] == ["compiled", "1", "0", "0"], "loaded whole: neither the block nor the hooks are compiled again"
