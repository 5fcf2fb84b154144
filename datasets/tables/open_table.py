"""From a table as it is to a source of rows: label and features are found, columns surveyed, rows converted.

`open_treated` is the whole way; `read_with` takes the treatment of a model instead of a survey. Never opens a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets.columnar_cache import columnar
from flegel.datasets.formats.arrays import ArraySource
from flegel.datasets.formats.sparse_arrays import SparseSource
from flegel.datasets.formats.text_dialect import find_column
from flegel.datasets.options import Options
from flegel.datasets.source import Chunk, Rows, Source, concatenate_sparse
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.decide import decide, fill_values
from flegel.datasets.tables.object_table import ObjectTable
from flegel.datasets.tables.report import column_report
from flegel.datasets.tables.stream import TreatedStream
from flegel.datasets.tables.survey import survey
from flegel.datasets.tables.treatment import Say, Treatment
from flegel.errors import DataError, UsageError


def chosen_columns(table: RawTable, options: Options) -> tuple[int | None, list[int]]:
    """The label and the features of a table, by position."""
    width, names = len(table.names), table.names if table.named else None
    label = None
    if options.label is not None:
        label = find_column(options.label, names, width, table.origin, "label column")
    features = list(range(width))
    if options.columns is not None:
        features = [find_column(c, names, width, table.origin, "column") for c in options.columns]
    left_out = {find_column(c, names, width, table.origin, "column") for c in options.drop or ()}
    if label in left_out:
        raise UsageError(f"--drop leaves out the label column {table.names[label or 0]!r}; omit one of both.")
    features = [k for k in features if k != label and k not in left_out]
    if not features:
        raise DataError(f"{table.origin} has no column of features left; choose some with --columns.")
    return label, features


def open_treated(table: RawTable, options: Options) -> Source:
    """The rows of a table, encoded, with gaps treated. The source carries its treatment and what became of columns."""
    label, features = chosen_columns(table, options)
    found = survey(table, sorted({*features, *([] if label is None else [label])}))
    rows = next(iter(found.values())).rows
    if not rows:
        raise DataError(f"{table.origin} has no rows; give a file with at least one.")
    how = fill_values(table, decide(table, found, label, features, options))
    stream = TreatedStream(table, how)
    source = _in_memory(stream) if isinstance(table, ObjectTable) else columnar(stream)
    source.treatment = how
    if stream.label is not None:
        source.classes = stream.label.categories or None
    source.report = column_report(table, how, rows, source.rows)
    return source


def _in_memory(stream: TreatedStream) -> Source:
    """Rows of a Python object, in the memory of this process."""
    features, labels = gather(list(stream.chunks()), stream.how)
    given: dict[str, Any] = {"origin": stream.origin, "names": stream.names, "dtype": stream.dtype.name}
    if isinstance(features, Sparse):
        return SparseSource(features, labels, **given)
    return ArraySource(features, labels, **given)


def gather(chunks: Sequence[Chunk], how: Treatment) -> Chunk:
    """Chunks one after the other."""
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    joined = np.concatenate(labels) if labels else None
    if how.sparse:
        parts = [Rows(chunk.features, None, np.empty(0, np.int64)) for chunk in chunks]
        return Chunk(concatenate_sparse(parts, how.width).features, joined)
    dense = [chunk.features for chunk in chunks if isinstance(chunk.features, np.ndarray)]
    return Chunk(dense[0] if len(dense) == 1 else np.concatenate(dense), joined)


def _row_name(table: RawTable, first: int, row: int) -> str:
    return table.row_name(first + row)


def read_with(table: RawTable, how: Treatment, say: Say | None = None) -> Chunk:
    """All rows of a table as a model wants them, unscaled."""
    places = how.places(table)
    chunks = []
    start = 0
    for raws in table.chunks(places):
        first = start
        features, _ = how.encode(raws, partial(_row_name, table, first), table.origin, say)
        chunks.append(Chunk(features, None))
        start += len(raws[0].values)
    if not chunks:
        raise DataError(f"{table.origin} has no rows; give a file with at least one.")
    return gather(chunks, how)
