"""A `Result` from the files that a job on a cluster has left. Trains nothing, and runs no code that came with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flegel.algorithm import Algorithm
from flegel.datasets import Dataset, Scaling
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json
from flegel.results.prediction import TrainingRows
from flegel.results.result import Result
from flegel.runtime.job import result_store

FIELDS_COPIED_FROM_JSON = (
    "dataset",
    "sync",
    "workers",
    "seed",
    "converged",
    "reason",
    "objective",
    "iterations",
    "seconds",
    "load_seconds",
    "worker",
    "utilization",
    "placement",
    "outcome",
    "kernel",
    "warnings",
    "description",
    "metrics",
    "validation",
    "classes",
    "balance",
    "incidents",
    "audit",
)
"""Fields of `Result` that are read from `result.json` without conversion."""


def read_result(folder: Path, algorithm: Algorithm, rows: Dataset | None = None) -> Result:
    """The result in a folder. `rows` are those of training where this process had them: classes and the treatment of
    columns are then theirs, because the cluster saw plain numbers."""
    model = result_store.load(folder, algorithm=algorithm)
    figures = read_json(folder / "result.json")
    with damage_as(f"The result in {folder} is damaged"):
        return _result(folder, algorithm, figures, model, rows)


def _result(
    folder: Path, algorithm: Algorithm, figures: dict[str, Any], model: result_store.Model, rows: Dataset | None
) -> Result:
    """The fields of a `Result` from the model, `result.json` and the trace of a folder."""
    known: dict[str, Any] = {name: figures[name] for name in FIELDS_COPIED_FROM_JSON}
    scaling = None if model.scaling is None else Scaling(*model.scaling)
    treatment = model.treatment
    if rows is not None:
        known["classes"], treatment = rows.classes, rows.treatment.scaled_by(scaling)
        known["dataset"] = rows.summary()
    return Result(
        algorithm=algorithm,
        name=figures["algorithm"],
        rows=result_store.read_trace(folder),
        parameter=model.parameter,
        staleness={int(age): count for age, count in figures["staleness"].items()},
        abandoned=figures.get("abandoned", 0),
        scaling=model.scaling,
        treatment=treatment,
        state=model.state,
        training=None if rows is None else TrainingRows(rows, scaling),
        **known,
    )
