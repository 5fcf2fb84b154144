"""The rows that a job trains on, opened as its options say. Options of parts that cannot work are refused first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flegel.algorithm import Algorithm
from flegel.configuration.active import using
from flegel.datasets import Dataset, hold_out
from flegel.errors import UsageError
from flegel.job import Job
from flegel.runtime.job.parts import check_early
from flegel.runtime.job.request import open_job_data
from flegel.wording import option


def open_training_data(job: Job, data: Any, algorithm: Algorithm) -> Dataset:
    """The rows to train on, without those that `validate` holds out."""
    check_early(job)
    with using(job.settings):
        rows = open_job_data(job, data, algorithm)
    if not job.validate:
        return rows
    if type(algorithm).evaluate is Algorithm.evaluate:
        raise UsageError(
            f"{type(algorithm).__name__} defines no evaluate(features, labels, parameter), so {option('validate')} has "
            "nothing to follow on held-out rows."
        )
    return hold_out(rows, job.validate, job.seed)


def data_location(data: object) -> str:
    """A name or path that finds the same data from any folder; empty for rows that only Python has."""
    if not isinstance(data, str | Path):
        return ""
    path = Path(data).expanduser()
    return str(path.absolute()) if "://" not in str(data) and path.exists() else str(data)
