"""Vector values: what each operation of `flegel.algorithms.simd.vectors` gives, against NumPy."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from flegel.algorithms.simd.buffers import flat, new_row, new_table
from flegel.algorithms.simd.math import exp, log
from flegel.algorithms.simd.registers import TWO_REGISTERS
from flegel.algorithms.simd.vectors import (
    any_lane,
    bit_count,
    bits,
    fma,
    fma_each,
    lane_count,
    least_each,
    least_lane,
    load,
    loads,
    lowest_bit,
    maximum,
    minimum,
    outer_each,
    root,
    splats,
    spread,
    square_each,
    store,
    store_each,
    strided,
    sum_squares,
    to_int32,
    total,
    where,
    widen,
)
from flegel.core.borrowed_arrays import borrowed, hold
from flegel.core.shard import pack_tiles, unpack_tiles
from tests.source_trees import nodes

BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def _operators(x, y, out):  # type: ignore[no-untyped-def]
    a, b = load(x, 0, 16), load(y, 0, 16)
    store(out, 0, a + b)
    store(out, 16, a - 2.0)
    store(out, 32, 3 * a / b)
    store(out, 48, where(a < b, minimum(a, b), maximum(a, b) * 10))
    store(out, 64, fma(a, b, spread(1, a)))
    return total(a), any_lane(a > 1e9), any_lane(a != b)


@BOTH
def test_operators_are_numpys(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 16)).astype(dtype)
    out = np.empty((5, 16), dtype)
    summed, large, differ = _operators(x, y, out)
    expected = [x + y, x - 2, 3 * x / y, np.where(x < y, x, x * 10), x * y + 1]
    np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype is np.float32 else 1e-14)
    assert summed == pytest.approx(x.sum(dtype=np.float64), rel=1e-5, abs=1e-5)
    assert (large, differ) == (False, True)


@njit
def _tiles(x, out):  # type: ignore[no-untyped-def]
    zeros = loads(out, 0, 0, 6, 8)
    store_each(out, 0, 8, outer_each(loads(x, 0, 8, 2, 8), loads(x, 16, 8, 3, 8), zeros))
    store_each(out, 48, 8, fma_each(load(x, 0, 8), splats(x, 40, 3, 8), splats(x, 43, 3, 8)))
    ones = splats(x, 44, 3, 8)
    store_each(out, 72, 8, square_each(load(x, 0, 8), splats(x, 40, 3, 8), splats(x, 43, 3, 8), ones))
    store(out, 96, sum_squares(splats(x, 40, 3, 8), load(x, 0, 8)))


@BOTH
def test_register_tiles_are_small_matrix_products(dtype: Any) -> None:
    x = np.random.default_rng(1).normal(size=48).astype(dtype)
    out = np.zeros(104, dtype)
    _tiles(x, out)
    rows, first = x[:40].reshape(5, 8), x[:8]
    outer = np.stack([rows[i] * rows[2 + j] for i in range(2) for j in range(3)])
    each = np.stack([first * x[40 + j] + x[43 + j] for j in range(3)])
    squares = each**2 + x[44:47, None]
    expected = np.concatenate([outer.ravel(), each.ravel(), squares.ravel(), first + (x[40:43] ** 2).sum()])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@njit
def _least(values, out, which):  # type: ignore[no-untyped-def]
    zero = spread(0, load(values, 0, 8))
    least, place = spread(np.inf, zero), zero
    for group in range(3):
        least, place = least_each(loads(values, group * 40, 8, 5, 8), group * 5, least, place)
    store(out, 0, least)
    store(which, 0, to_int32(place))


@BOTH
def test_the_running_minimum_keeps_the_earliest_of_equals(dtype: Any) -> None:
    values = np.random.default_rng(2).integers(0, 6, size=(15, 8)).astype(dtype)
    out, which = np.empty(8, dtype), np.empty(8, np.int32)
    _least(values, out, which)
    np.testing.assert_array_equal(out, values.min(axis=0))
    np.testing.assert_array_equal(which, values.argmin(axis=0))


@njit
def _functions(x, e, logarithm):  # type: ignore[no-untyped-def]
    for at in range(0, x.size, lane_count(x, TWO_REGISTERS)):
        v = load(x, at, TWO_REGISTERS)
        store(e, at, exp(v))
        store(logarithm, at, log(v))


@BOTH
def test_exp_and_log_to_two_units_in_the_last_place(dtype: Any) -> None:
    most = 87.0 if dtype is np.float32 else 700.0
    x = np.concatenate([np.linspace(-most, most, 8192), np.random.default_rng(3).normal(size=8192)]).astype(dtype)
    x[x == 0] = 1
    e, logarithm = np.empty_like(x), np.empty_like(x)
    _functions(x, e, logarithm)
    unit = np.finfo(dtype).eps
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(e, exact, rtol=2 * unit + 2e-16)
    positive = x > 0
    exact = np.log(x[positive].astype(np.float64))
    np.testing.assert_allclose(logarithm[positive], exact, rtol=2.5 * unit, atol=unit * 1e-3)


@BOTH
def test_exp_at_the_edges(dtype: Any) -> None:
    x = np.ones(64, dtype)
    x[:5] = [0, -np.inf, -1e4, 1e4, np.nan]
    e = np.empty_like(x)
    _functions(x, e, np.empty_like(x))
    assert e[0] == 1
    assert (e[1:3] == 0).all()
    assert np.isfinite(e[3]) and e[3] > 1e38
    assert np.isnan(e[4])


@njit
def _widened(x):  # type: ignore[no-untyped-def]
    return total(widen(load(x, 0, 8)))


def test_widening_adds_in_float64() -> None:
    x = np.array([1e8, 1, 1, 1, 1, 1, 1, 1], np.float32)
    assert _widened(x) == 1e8 + 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize(("points", "columns"), [(1, 1), (64, 3), (65, 2), (200, 7), (3, 0)])
def test_tiles_hold_rows_and_give_them_back(dtype: Any, points: int, columns: int) -> None:
    rows = np.arange(points * columns).reshape(points, columns).astype(dtype)
    packed = pack_tiles(rows)
    assert packed.shape == (-(-points // 64), columns, 64)
    assert packed.ctypes.data % 64 == 0 or not packed.size
    np.testing.assert_array_equal(unpack_tiles(packed, points), rows)
    assert (packed[-1, :, (points - 1) % 64 + 1 :] == 0).all()


@njit
def _buffers(table):
    row, square = new_row(table, 5), new_table(table, 2, 3)
    row[:] = 1
    square[:] = 2
    square[1, 2] = table[0, 1]
    return row, square, flat(table)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buffers_are_arrays_and_flat_views_share_memory(dtype):
    table = np.arange(6, dtype=dtype).reshape(2, 3)
    row, square, view = _buffers(table)
    assert (row == np.ones(5)).all() and row.dtype == table.dtype
    assert square.tolist() == [[2, 2, 2], [2, 2, 1]] and square.flags.c_contiguous
    assert view.tolist() == table.reshape(-1).tolist() and np.shares_memory(view, table)


@njit
def _picked(x, out):  # type: ignore[no-untyped-def]
    store(out, 0, strided(x, 1, 3, 8))
    found = bits(load(x, 0, 16) > 8.0)
    return found, lowest_bit(found)


@BOTH
def test_numbers_apart_and_comparisons_as_bits(dtype: Any) -> None:
    x, out = np.arange(32).astype(dtype), np.empty(8, dtype)
    found, lowest = _picked(x, out)
    np.testing.assert_array_equal(out, x[1:25:3])
    assert (found, lowest) == (0xFE00, 9)


@njit
def _across(x, out):  # type: ignore[no-untyped-def]
    a = load(x, 0, 16)
    store(out, 0, root(a))
    return least_lane(a), bit_count(bits(a > 0.5))


@BOTH
def test_roots_the_least_lane_and_the_number_of_bits(dtype: Any) -> None:
    x, out = np.random.default_rng(8).random(16).astype(dtype), np.empty(16, dtype)
    least, count = _across(x, out)
    assert np.array_equal(out, np.sqrt(x)) and least == x.min() and count == (x > 0.5).sum()


@njit
def _borrowed_memory(like, count):  # type: ignore[no-untyped-def]
    """Whether another array gets the memory of one of which only a borrowed one is in use."""
    mine = new_row(like, count)
    lent, again = borrowed(mine), False
    for _ in range(3):
        other = new_row(like, count)
        again = again or lent.ctypes.data == other.ctypes.data
    hold((mine,))
    return again


def test_an_array_that_is_held_keeps_its_memory() -> None:
    assert not any(_borrowed_memory(np.zeros(1), count) for count in (16, 64, 4096, 1 << 20))


def _names(calls: list[ast.Call], function: str) -> set[str]:
    """Variables that appear among the arguments of calls of this function."""
    return {
        node.id
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == function
        for argument in call.args
        for node in ast.walk(argument)
        if isinstance(node, ast.Name)
    }


def _made(function: ast.FunctionDef) -> set[str]:
    """Variables of the function that are given arrays of its own."""
    assignments = [statement for statement in ast.walk(function) if isinstance(statement, ast.Assign)]
    return {
        node.id
        for statement in assignments
        if any(maker in ast.unparse(statement.value) for maker in ("new_row(", "new_table("))
        for target in statement.targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name)
    }


OTHER_PARTS = (ast.For, ast.While, ast.FunctionDef)
"""What is borrowed inside a loop is held by it, because its next round borrows it again."""


def test_kernels_hold_the_arrays_that_they_make_and_lend() -> None:
    """Else they are freed before the loop that uses them, and another thread may be given their memory."""
    root = Path(__file__).parents[2]
    seen = 0
    for path in (root / "algorithms").rglob("*.py"):
        for function in nodes(path):
            if isinstance(function, ast.FunctionDef):
                before_loops = [part for part in function.body if not isinstance(part, OTHER_PARTS)]
                calls = [n for part in before_loops for n in ast.walk(part) if isinstance(n, ast.Call)]
                lent = _names(calls, "borrowed") & _made(function)
                assert lent <= _names(calls, "hold"), f"{path.name}, {function.name}: not held"
                seen += bool(lent)
    assert seen, "the kernel for wide rows lends its arrays"
