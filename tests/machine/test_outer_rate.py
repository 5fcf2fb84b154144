"""How long the step of all groups is, as their number and weights go."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.errors import UsageError
from flegel.group_options import check_outer
from flegel.machine.group.outer_step import outer_step


def stepped(kind: str, *changes: tuple[float, float]) -> float:
    """Where a number goes from 0; visits and change of each group."""
    made = [(visits, [np.array([change])]) for visits, change in changes]
    return float(outer_step(kind, [np.zeros(1)], [], made)[0][0][0])


@pytest.mark.parametrize(
    ("kind", "changes", "ends_at"),
    [
        ("mean:2", [(1.0, 1.0), (1.0, 3.0)], 4.0),
        ("mean:9", [(1.0, 1.0), (1.0, 3.0)], 4.0),  # the sum of the changes, no more
        ("mean:0.5", [(1.0, 1.0), (1.0, 3.0)], 1.0),
        ("mean:2", [(5.0, 1.0)], 1.0),  # a group that trains alone
        ("mean:2", [(5.0, 1.0), (0.0, 0.0)], 1.0),  # beside one that rests
        ("mean", [(5.0, 1.0), (0.0, 0.0)], 1.0),
        ("visits:2", [(3.0, 1.0), (1.0, 3.0)], 1.5 * 16 / 10),  # 1.6 groups by their weights
        ("mean:2", [(0.0, 1.0), (0.0, 3.0)], 2.0),  # all rest: what rounding has left is put together as it is
        ("nesterov:0.5", [(1.0, 2.0)], 0.5 * 1.9 * 2.0),
    ],
)
def test_a_rate_makes_the_step_longer_but_not_longer_than_the_sum(
    kind: str, changes: list[tuple[float, float]], ends_at: float
) -> None:
    assert stepped(kind, *changes) == pytest.approx(ends_at, rel=1e-12)


@pytest.mark.parametrize("value", ["mean:0", "mean:", "auto:2", "visits:-1", "mean:nan", "mean:101", "median"])
def test_rates_that_mean_nothing_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"known|a rate such as 1\.5"):
        check_outer(value, f"--outer {value}")
