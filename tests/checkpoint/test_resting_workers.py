"""That some workers rest is kept in checkpoints; resting can be switched off, and rows are scaled without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.job import request
from flegel.runtime.parts import resting

ROWS = 4096


def fast_first(devices: dict[int, str], workers: int, network: bool) -> dict[int, float]:
    """As if worker 0 had a GPU."""
    return {worker: 1.0 if worker else 200.0 for worker in range(workers)}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (request, resting):
        monkeypatch.setattr(module, "relative_speeds", fast_first)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", rng.normal(size=(ROWS, 4)) + 3 * rng.integers(3, size=(ROWS, 1)))
    return tmp_path / "rows.npy"


def train(rows: Path, **options: Any) -> flegel.Result:
    return flegel.run(KMeans(k=4, init="first"), rows, workers=3, processes=False, tolerance=0, **options)


def shares(result: flegel.Result) -> list[tuple[int, bool]]:
    return [(w["points"], bool(w.get("resting"))) for w in result.worker]


def test_a_resumed_job_goes_on_with_the_same_active_workers(rows: Path) -> None:
    place = rows.parent / "job"
    first = train(rows, max_iterations=6, checkpoint=place)
    assert shares(first) == [(ROWS, False), (0, True), (0, True)]
    assert [i["kind"] for i in first.incidents] == ["rest"] and "2 of 3 workers rest" in first.incidents[0]["why"]
    again = flegel.resume(place, max_iterations=12)
    assert shares(again) == shares(first) and again.iterations == 12 and not again.audit["problems"]
    assert again.incidents[0]["why"] == "2 of 3 workers rest, as when the job stopped"
    fewer = flegel.resume(place, max_iterations=16, workers=2)
    assert [w["points"] for w in fewer.worker] == [ROWS // 2] * 2 and not fewer.audit["problems"]


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_resting_can_be_switched_off_and_rows_can_be_scaled(rows: Path, scale: str) -> None:
    options = {"max_passes": 40, "scale": scale}  # enough to converge: rounds by time differ with the machine's load
    resting = train(rows, **options)
    assert shares(resting)[1:] == [(0, True), (0, True)]
    off = train(rows, **options, resting="off")
    assert all(points > 0 and not rests for points, rests in shares(off)) and not off.incidents
    assert resting.objective == pytest.approx(off.objective, rel=0.01)
