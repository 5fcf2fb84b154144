"""What trackers recorded, read back with their own libraries, against the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.callbacks import MlflowWriter, TensorBoardWriter, WandbWriter
from flegel.callbacks.callback import Callback
from tests import needs


def train(*callbacks: Callback) -> list[dict[str, Any]]:
    rows = np.random.default_rng(0).normal(size=(2000, 4)).astype("float32")
    result = flegel.run(KMeans(k=3), rows, workers=2, sync="bsp", tolerance=0, max_iterations=12, callbacks=callbacks)
    return result.rows


@pytest.mark.processes
def test_tensorboard_reads_back_the_trace(tmp_path: Path) -> None:
    needs.library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = train(TensorBoardWriter(tmp_path / "tb"))
    events = EventAccumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0})
    events.Reload()
    read = {event.step: event.value for event in events.Scalars("objective")}
    assert read == {r["iteration"]: float(np.float32(r["objective"])) for r in rows if r["objective"] is not None}
    assert len(events.Scalars("visits")) == len(rows)


@pytest.mark.processes
def test_mlflow_reads_back_the_trace_from_sqlite(tmp_path: Path) -> None:
    needs.library("mlflow")
    needs.library("sqlalchemy")
    from mlflow import MlflowClient

    writer = MlflowWriter(tmp_path / "runs.db")
    rows = train(writer)
    client = MlflowClient(tracking_uri=writer.address)
    read = {m.step: m.value for m in client.get_metric_history(writer.run_id, "objective")}
    assert read == {r["iteration"]: r["objective"] for r in rows if r["objective"] is not None}
    run = client.get_run(writer.run_id)
    assert run.info.status == "FINISHED" and run.data.params["hyper.k"] == "3" and run.data.tags["reason"]


@pytest.mark.processes
def test_wandb_gets_every_barrier_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = needs.library("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for wait in ("WANDB__SERVICE_WAIT", "WANDB_INIT_TIMEOUT"):  # seconds for a process of its own to start
        monkeypatch.setenv(wait, "300")
    logged: list[tuple[int, float]] = []
    real = wandb.init

    def spying(**settings: Any) -> Any:
        run = real(**settings)
        log = run.log

        def noting(data: dict[str, float], step: int) -> None:
            logged.append((step, data["visits"]))
            log(data, step=step)

        run.log = noting
        return run

    monkeypatch.setattr(wandb, "init", spying)
    rows = train(WandbWriter("flegel-test"))
    assert [step for step, _ in logged] == [r["iteration"] for r in rows]
    assert list(tmp_path.rglob("*.wandb"))
