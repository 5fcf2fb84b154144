"""Split a data set into rows to train on and rows to follow the model on. Never evaluates anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets.dataset import Dataset, HeldOut
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.kept_rows import KeptRows, held_out_ids
from flegel.datasets.rows.keys import KeyedSource
from flegel.datasets.rows.source import Rows, Source
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.datasets.rows.weights import WeightedSource


def hold_out(data: Dataset, part: float, seed: int) -> Dataset:
    """The data set without the held-out rows, which it keeps as `held_out`."""
    ids = held_out_ids(data.rows, part, seed)
    held = HeldOut(data, ids)
    if not data.in_memory:
        source: Source = KeptRows(data.source, data.rows, part, seed)
    else:
        kept = data.source.pick(np.delete(np.arange(data.rows), ids))
        source = _in_memory(kept, data.source)
        if data.source.keyed:
            source = KeyedSource(source, np.delete(data.keys(), ids))
            source.treatment, source.report = data.source.treatment, data.source.report
    return replace(data, source=source, rows=data.rows - len(ids), held_out=held)


def _in_memory(rows: Rows, like: Source) -> Source:
    """These rows as a source of this process, with the names, classes and treatment of another one."""
    told: dict[str, Any] = {"origin": like.origin, "names": like.names, "classes": like.classes}
    if isinstance(rows.features, Sparse):
        made: Source = SparseSource(rows.features, rows.labels, **told)
    else:
        made = ArraySource(rows.features, rows.labels, **told)
    made = made if rows.weights is None else WeightedSource(made, rows.weights)
    made.treatment, made.report, made.label_values = like.treatment, like.report, like.label_values
    return made
