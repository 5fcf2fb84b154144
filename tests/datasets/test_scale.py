"""Scaling by merged moments is scaling by the moments of all rows, however they are spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flegel.core.shard import Sparse
from flegel.datasets.rows.scale import apply, empty_moments, merge, moments, scaling
from flegel.errors import UsageError
from tests.datasets.helpers import dense

tables = arrays(np.float64, st.tuples(st.integers(1, 60), st.just(3)), elements=st.floats(-1e6, 1e6, width=32))


@given(tables, st.lists(st.integers(0, 60), max_size=5))
def test_merged_moments_are_the_moments_of_all_rows(table: np.ndarray, cuts: list[int]) -> None:
    total = empty_moments(3)
    for part in np.split(table, sorted(min(c, len(table)) for c in cuts)):
        total = merge(total, moments(part))
    assert total.rows == len(table)
    assert np.allclose(total.mean, table.mean(axis=0), rtol=1e-9, atol=1e-9)
    assert np.allclose(total.squares, table.var(axis=0) * len(table), rtol=1e-7, atol=1e-3)
    assert np.array_equal(total.low, table.min(axis=0))
    assert np.array_equal(total.high, table.max(axis=0))


def test_standard_and_minmax_do_what_they_say() -> None:
    table = np.random.default_rng(0).normal(5, 3, (1000, 4)).astype(np.float32)
    table[:, 3] = 7.0
    whole = moments(table)
    standard = apply(table.copy(), scaling(whole, "standard"))
    assert np.allclose(standard[:, :3].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(standard[:, :3].std(axis=0), 1, atol=1e-5)
    assert np.allclose(standard[:, 3], 0)
    squeezed = apply(table.copy(), scaling(whole, "minmax"))
    assert np.allclose(squeezed[:, :3].min(axis=0), 0, atol=1e-6)
    assert np.allclose(squeezed[:, :3].max(axis=0), 1, atol=1e-6)
    assert np.array_equal(apply(table.copy(), scaling(whole, "none")), table)
    assert standard.dtype == np.float32
    with pytest.raises(UsageError, match="standard"):
        scaling(whole, "standrd")


def test_rows_that_may_not_be_written_are_copied() -> None:
    table = np.arange(6.0).reshape(3, 2)
    table.flags.writeable = False
    assert apply(table, scaling(moments(table), "minmax")).tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    assert table[2, 1] == 5.0


def test_sparse_moments_count_the_zeros_and_scaling_keeps_rows_sparse() -> None:
    rows = Sparse(np.array([0, 2, 2, 3]), np.array([0, 2, 0], np.int32), np.array([2.0, -4.0, 6.0]), 3)
    matrix = dense(rows)
    found = moments(rows)
    assert np.allclose(found.mean, matrix.mean(axis=0))
    assert np.allclose(found.squares / 3, matrix.var(axis=0))
    assert np.array_equal(found.low, matrix.min(axis=0))
    assert np.array_equal(found.high, matrix.max(axis=0))
    scaled = dense(apply(rows, scaling(found, "standard")))
    assert np.allclose(scaled[:, [0, 2]], matrix[:, [0, 2]] / matrix[:, [0, 2]].std(axis=0))
