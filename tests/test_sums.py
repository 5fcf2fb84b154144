"""Sums by several threads: the same bits as by one."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.sums import LARGE, add_all


@pytest.mark.parametrize("shape", [(3,), (LARGE + 7,), (LARGE // 16, 20), (0,)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_same_bits_as_one_after_the_other(shape: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    extras = [rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9) for _ in range(count)]
    wanted, got = np.ones(shape), np.ones(shape)
    for extra in extras:
        wanted += extra
    add_all(got, extras)
    assert np.array_equal(wanted, got)


def test_arrays_that_do_not_lie_in_one_piece() -> None:
    extras = [np.arange(2.0 * LARGE).reshape(2, -1).T[:, ::2] for _ in range(3)]
    into = np.zeros((LARGE, 2))[:, :1]
    add_all(into, extras)
    assert np.array_equal(into, 3 * extras[0])
