"""Point primitives agree with NumPy for all lengths and precisions, compiled or not; borrowing is harmless."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import user_classes as users
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from test_compile import ROWS, prepare, two_passes

from flegel import check_algorithm
from flegel.algorithm import Algorithm
from flegel.algorithms.points import add_to, dot, nearest, squared_distance
from flegel.algorithms.simd import emit
from flegel.algorithms.simd.rows import first_lane, squared_distances
from flegel.core import pytree
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import Kernels
from flegel.runtime.backends.numba import compiler as compiling
from flegel.runtime.backends.numba.kernels import build_kernel

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "clusters.py"
PRECISIONS = ("float32", "float64")


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("clusters", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["clusters"] = module
    spec.loader.exec_module(module)
    return module


CLUSTERS = load_example().Clusters


@st.composite
def point_and_rows(draw: Any, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers make every sum exact, so ties are ties; others test the rounding."""
    length, count = draw(st.integers(1, 70)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    one, two = draw(st.sampled_from(PRECISIONS)), draw(st.sampled_from(PRECISIONS))
    if whole:
        x, rows = rng.integers(-2, 3, size=length), rng.integers(-2, 3, size=(count, length))
        rows[rng.integers(count)] = rows[rng.integers(count)]
    else:
        x, rows = rng.normal(size=length), rng.normal(size=(count, length))
    return x.astype(one), rows.astype(two)


@settings(deadline=None, max_examples=300)
@given(point_and_rows(whole=True))
def test_of_equally_near_rows_the_first_is_nearest(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, rows = data
    distances = ((x.astype(float) - rows) ** 2).sum(axis=1)
    assert nearest(x, rows) == distances.argmin()
    assert [squared_distance(x, row) for row in rows] == distances.tolist()
    assert [dot(x, row) for row in rows] == (rows.astype(float) @ x.astype(float)).tolist()


@settings(deadline=None, max_examples=200)
@given(point_and_rows(whole=False))
def test_sums_are_as_exact_as_the_wider_precision(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, rows = data
    close = 1e-5 if x.dtype == rows.dtype == np.float32 else 1e-13
    distances = ((x.astype(float) - rows) ** 2).sum(axis=1)
    assert distances[nearest(x, rows)] <= distances.min() * (1 + close)
    np.testing.assert_allclose(squared_distance(x, rows[0]), distances[0], rtol=close)
    scale = float(np.abs(x.astype(float) * rows[0]).sum())
    np.testing.assert_allclose(dot(x, rows[0]), x.astype(float) @ rows[0], atol=close * scale, rtol=0)


@settings(deadline=None, max_examples=50)
@given(point_and_rows(whole=False), st.sampled_from([1.0, -1.0, 0.25]))
def test_add_to_adds_in_place(data: tuple[np.ndarray, np.ndarray], weight: float) -> None:
    x, rows = data
    want = rows[-1] + weight * x.astype(float)
    add_to(rows[-1], x, weight)
    np.testing.assert_allclose(rows[-1], want, rtol=1e-6 if rows.dtype == np.float32 else 1e-15, atol=1e-7)


def test_arrays_that_vectors_cannot_read_give_the_same() -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(-9, 9, size=(21, 60))
    for x, rows in (
        (wide[0], wide),
        (wide[0, ::2].astype("f4"), wide[:, ::2].astype("f4", order="F")),
        (wide[0].astype("f8")[::3], np.repeat(wide[:, ::3], 2, axis=1).astype("f4")[:, ::2]),
    ):
        distances = ((x.astype(float) - rows) ** 2).sum(axis=1)
        assert nearest(x, rows[1:]) == distances[1:].argmin()
        assert squared_distance(x, rows[5]) == distances[5]
        assert dot(x, rows[5]) == x.astype(float) @ rows[5].astype(float)


def test_lengths_that_do_not_fit_are_refused_before_anything_is_read() -> None:
    x = np.ones(5, np.float32)
    with pytest.raises(ValueError, match="as many columns"):
        nearest(x, np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match="not empty"):
        nearest(x, np.ones((0, 5), np.float32))
    for function in (squared_distance, dot, add_to):
        with pytest.raises(ValueError, match="same length"):
            function(x, x[:4])


def test_a_distance_that_is_not_a_number_is_never_the_nearest() -> None:
    rows = np.ones((11, 9), np.float32)
    rows[:7, 3] = np.nan
    assert nearest(np.zeros(9, np.float32), rows) == 7
    assert nearest(np.zeros(9, np.float32), rows[:7]) == 0


@pytest.mark.parametrize("register", [16, 32, 64])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_wider_registers_give_the_same_sums(register: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "VECTOR_BYTES", register)

    @njit
    def distances(x, rows, out):  # type: ignore[no-untyped-def]
        for j in range(8):
            out[0, j] = first_lane(squared_distances(x, rows, j, 1)[0])
        out[1, 0] = first_lane(squared_distances(x, rows, 0, 8)[0])
        out[1, 1] = first_lane(squared_distances(x, rows, 2, 2)[0])
        out[1, 2] = first_lane(squared_distances(x, rows, 4, 4)[0])

    rng = np.random.default_rng(0)
    for length in range(4, 140):
        x, rows = rng.integers(-9, 9, size=length).astype(dtype), rng.integers(-9, 9, size=(8, length)).astype(dtype)
        out, want = np.zeros((2, 8)), ((x - rows) ** 2).sum(axis=1)
        distances(x, rows, out)
        assert out[0].tolist() == want.tolist()
        assert out[1, :3].tolist() == want[[0, 2, 4]].tolist()


# -- in a user's class --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_a_class_with_primitives_is_compiled_and_does_what_its_hooks_say(dtype: str) -> None:
    rows = np.random.default_rng(1).normal(size=(97, 13)).astype(dtype)
    built, fast, share = two_passes(CLUSTERS(k=11), "fast", rows)
    _, plain, reference = two_passes(CLUSTERS(k=11), None, rows)
    assert built is not None and built.kind == "compiled", built.note
    np.testing.assert_array_equal(share.state, reference.state, "the same code decides in both modes")
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 1e-12)


def test_the_example_keeps_all_promises() -> None:
    assert check_algorithm(CLUSTERS(k=3))


class SeesTheta(CLUSTERS):  # type: ignore[misc, valid-type]
    """Remembers in which precision θ came."""

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        dataPoint.state[0] = parameter.itemsize
        return users.Bin(0, 0)

    def aggregate(self, target: Any, change: Any) -> None:
        target.counts[0] += 1.0


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_theta_comes_in_the_precision_that_the_class_asks_for(
    dtype: str, interpret: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CLUSTERS, "kernels", Kernels(narrow_parameter=narrow))
    algorithm = SeesTheta(k=2)
    share, parameter, zero = prepare(algorithm, np.ones((5, 4), dtype))
    built = build_kernel(algorithm, share, parameter, zero, interpret)
    assert built.kind == ("interpreted" if interpret else "compiled"), built.note
    built.kernel(share, parameter, zero, 0, 5, 0, new_flag())
    assert set(share.state.ravel()) == {4 if narrow and dtype == "float32" else 8}
    assert parameter.dtype == np.float64, "the engine's own θ is untouched"


BORROWERS = [CLUSTERS(k=5), users.DenseMean(), users.FunctionalMean(), users.InPlaceMean(), users.HaltsWhenLarge()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", BORROWERS, ids=str)
def test_borrowed_arrays_change_no_result_and_leave_no_owner_behind(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lent, _ = two_passes(algorithm, "fast")
    share, parameter, zero = prepare(algorithm, ROWS.copy())
    built = build_kernel(algorithm, share, parameter, zero)
    assert built.kind == "compiled", built.note
    flag = new_flag()
    arrays = [share.features, share.labels, share.state, share.halted, flag, *_arrays(parameter), *_arrays(zero)]
    gc.collect()
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(100):
        built.kernel(share, parameter, zero, 0, share.points, 0, flag)
    assert [sys.getrefcount(array) for array in arrays] == before
    owning = compiling.TEMPLATE.replace("    {borrowing}\n", "")
    assert owning != compiling.TEMPLATE
    monkeypatch.setattr(compiling, "TEMPLATE", owning)
    _, owned, _ = two_passes(algorithm, "fast")
    for a, b in zip(lent, owned, strict=True):
        np.testing.assert_array_equal(a, b)


def _arrays(value: Any) -> list[Any]:
    return list(value) if pytree.is_bundle(value) else [value]


def test_the_key_of_compiled_code_covers_the_files_behind_a_primitive() -> None:
    text = compiling._class_text(CLUSTERS)
    for part in ("def nearest(", "def least_of(", "def emit_fma("):
        assert part in text


CHILD = """
import sys
sys.path.insert(0, {folder!r})
import test_points
from test_compile import prepare, build_kernel
algorithm = test_points.CLUSTERS(k=3)
share, parameter, zero = prepare(algorithm)
built = build_kernel(algorithm, share, parameter, zero)
(block,) = [m.block for n, m in sys.modules.items() if n.startswith("flegel_block_")]
print(built.kind, sum(block.stats.cache_hits.values()), sum(block.stats.cache_misses.values()))
"""


@pytest.mark.slow  # `test_compile` has the same without primitives; this one compiles for ten seconds
def test_a_second_process_loads_a_class_with_primitives(tmp_path: Path) -> None:
    environment = {**os.environ, "FLEGEL_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", CHILD.format(folder=str(Path(__file__).parent))]
    said = [
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True).stdout.split()
        for _ in range(2)
    ]
    assert said == [["compiled", "0", "1"], ["compiled", "1", "0"]]
