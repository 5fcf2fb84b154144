"""Slices of reports on their way: units in which nothing has changed are left out, and no bit is lost."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.machine.server.unit_parts import fits, packed, unpacked

AXES = (0, 1)


def fields(units: int, used: list[int], value: float = 1.5) -> list[np.ndarray]:
    one, other = np.zeros((units, 3)), np.zeros((2, units), dtype=np.float32)
    one[used, 1] = value
    other[1, used[::2]] = value
    return [one, other]


@pytest.mark.parametrize(
    ("units", "used", "frames"),
    [(9, [], 0), (100, [7], 3), (100, [*range(0, 100, 5)], 3), (100, [*range(100)], 2), (100, [99], 3), (4, [1], 3)],
)  # fmt: skip
def test_only_changed_units_travel_and_come_back(units: int, used: list[int], frames: int) -> None:
    whole = fields(units, used)
    part = packed(whole, AXES)
    assert len(part) == frames
    assert fits(part, whole, AXES)
    for a, b in zip(whole, unpacked(part, [np.ones_like(a) for a in whole], AXES), strict=True):
        assert a.tobytes() == b.tobytes() and a.dtype == b.dtype


def test_minus_zero_travels() -> None:
    whole = fields(100, [3, 50], -0.0)
    assert [a.tobytes() for a in unpacked(packed(whole, AXES), whole, AXES)] == [a.tobytes() for a in whole]


@pytest.mark.parametrize("numbers", [[-1, 4], [4, 100], [4, 4], [5, 4]])
def test_numbers_outside_of_the_slice_are_refused(numbers: list[int]) -> None:
    whole = fields(100, [1, 2])
    part = packed(whole, AXES)
    assert not fits([np.array(numbers, dtype=np.int32), *part[1:]], whole, AXES)
    assert not fits([np.array([1.0, 2.0]), *part[1:]], whole, AXES)
    assert not fits([part[0], part[1][:1], part[2]], whole, AXES)
