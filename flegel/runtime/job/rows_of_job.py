"""How workers read their rows: each its own part of the data, or copies of rows that only this process has."""

from __future__ import annotations

from typing import Any

from flegel.declarations.accepts import RowHooks
from flegel.declarations.optional import hook
from flegel.runtime.job.part import JobRun
from flegel.runtime.job.request import Request
from flegel.runtime.worker.row_sources import SharedRows


def partition_source(request: Request) -> dict[str, Any]:
    """The source of rows that each worker reads by itself, its own partition of the data set; no process holds all."""
    return {"kind": "dataset", "description": request.data.describe(), "partition": request.partition}


def with_keys(running: JobRun, source: dict[str, Any]) -> dict[str, Any]:
    """The source with the key of each row, where rows of one key stay together; workers look up those of theirs."""
    request = running.request
    if not request.data.source.keyed:
        return source
    running.keys = request.data.keys()
    shared = running.cluster.new_array(running.keys.shape, running.keys.dtype)
    shared.array[...] = running.keys
    running.ending.callback(shared.close)
    return {**source, "keys": shared.describe()}


def shared_rows(running: JobRun) -> dict[str, Any]:
    """Rows that only this process has are copied to where all workers can read them, until the job ends."""
    request = running.request
    whole = request.data.read()
    labels = request.algorithm.accepts.kept_labels(whole.labels)
    owned = running.owners or request.data.owners(request.workers, request.partition, request.job.seed)
    unit = running.scaling is None and hook(request.algorithm, RowHooks.unit_rows)()  # workers scale first
    rows = SharedRows(whole.features, labels, owned, running.cluster.new_array, whole.weights, unit)
    running.ending.callback(rows.close)
    return rows.describe()
