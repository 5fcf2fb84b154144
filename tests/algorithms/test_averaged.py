"""An objective that is a mean over points is declared as one: it is not scaled up while points are unseen."""

from __future__ import annotations

import numpy as np
import pytest

import flegel
from flegel.runtime.job.find_algorithm import find_algorithm

RNG = np.random.default_rng(0)
ROWS = np.abs(RNG.normal(size=(400, 4)))
LABELS = (ROWS[:, 0] + 0.3 * RNG.normal(size=400) > 0.7).astype(float)


@pytest.mark.parametrize("name", ["lr", "lr-gradient", "lr-local", "nmf-gradient", "kmeans"])
def test_rows_that_come_twice_double_a_sum_and_leave_a_mean(name: str) -> None:
    cls = find_algorithm(name)
    labels = LABELS if cls.accepts.supervised else None
    values = []
    for times in (1, 2):
        y = None if labels is None else np.tile(labels, times)
        found = flegel.run(
            name, np.tile(ROWS, (times, 1)), y, sync="bsp", workers=1, max_passes=10, seed=0, progress=False
        )
        values.append(found.objective)
    expected = 1.0 if cls.learning.averaged else 2.0
    assert values[1] / values[0] == pytest.approx(expected, rel=0.2)


def test_a_job_that_ends_before_all_was_seen_reports_a_loss_of_the_right_size() -> None:
    rows = RNG.normal(size=(60_000, 8)).astype(np.float32)
    labels = (rows[:, 0] + 0.5 * RNG.normal(size=60_000) > 0.8).astype(int)
    found = flegel.run("lr", rows, labels, workers=2, max_passes=3, seed=0, progress=False)
    early = [row["estimate"] for row in found.rows if row["objective"] is None and row["estimate"] is not None]
    assert all(0.1 < value < 1.0 for value in early), early
