"""From a table as it is to a source of rows: label and features are found, columns surveyed, rows converted.

Never opens a file.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from flegel.configuration.active import active
from flegel.core.shard import Sparse
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.cache_folder import entry_folder
from flegel.datasets.rows.columnar_cache import columnar
from flegel.datasets.rows.memory import available
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.decide import decide, named_categories
from flegel.datasets.tables.object_table import ObjectTable
from flegel.datasets.tables.ratings import RatingsStream, find_rating_columns, has_names
from flegel.datasets.tables.report import column_report, ratings_report
from flegel.datasets.tables.second_pass import finish
from flegel.datasets.tables.stream import TreatedStream
from flegel.datasets.tables.survey import survey
from flegel.datasets.tables.treatment import Treatment, join_rows
from flegel.errors import UNDECODABLE, DataError
from flegel.wording import option

SURVEY = 4
"""Version of the decisions; raised when a survey of the same table would decide otherwise."""


class Decided(msgspec.Struct, frozen=True):
    """What a survey found out: the treatment, and the number of rows that were read."""

    treatment: Treatment
    rows: int


def open_treated(table: RawTable, options: Options) -> Source:
    """The rows of a table, encoded, with gaps treated. The source carries its treatment and what became of columns."""
    memory = isinstance(table, ObjectTable)
    found = _decided(table, options) if memory else _stored(table, options)
    how = found.treatment
    _check_memory(table, how, found.rows)
    stream = TreatedStream(table, how)
    source = _in_memory(stream) if memory else columnar(stream)
    source.treatment = how
    if stream.label is not None:
        source.classes = stream.label.categories or None
    source.report = column_report(table, how, found.rows, source.rows)
    return source


def open_ratings(table: RawTable, options: Options) -> Source:
    """Sparse rows of users, from a table of (user, item, rating)."""
    places = find_rating_columns(table, options)
    stream = RatingsStream(table, places, options.dtype or "float32")
    source = _in_memory(stream) if isinstance(table, ObjectTable) else columnar(stream)
    columns: list[str | int] = [table.names[k] if has_names(table) else k for k in places]
    source.treatment = Treatment(
        source.columns, source.names, sparse=True, dtype=stream.dtype.name, rating_columns=columns
    )
    assert isinstance(source, SparseSource)
    source.report = ratings_report(table, columns, source.rows, source.columns, int(source.matrix.indptr[-1]))
    return source


def _decided(table: RawTable, options: Options) -> Decided:
    """From a survey of all rows."""
    label, features = table.chosen(options)
    wanted = sorted({*features, *([] if label is None else [label])})
    found = survey(table, wanted, named_categories(table, label, options))
    rows = next(iter(found.values())).rows
    if not rows:
        raise DataError(f"{table.origin} has no rows; give a file with at least one.")
    gaps = any(column.missing for column in found.values())
    return Decided(finish(table, decide(table, found, label, features, options), gaps), rows)


def _stored(table: RawTable, options: Options) -> Decided:
    """From the cache folder, where the same file was surveyed for the same options; a new survey is stored there."""
    key = {
        "survey": SURVEY,
        "table": table.describe(),
        "options": options._asdict(),
        "settings": asdict(active().tables),
    }
    path = entry_folder(key).with_suffix(".json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Decided)
    except (OSError, *UNDECODABLE):
        pass
    found = _decided(table, options)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(found))
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)  # the next start surveys again; rows that cannot be stored are told later
    return found


def _check_memory(table: RawTable, how: Treatment, rows: int) -> None:
    size = rows * how.width * np.dtype(how.dtype).itemsize
    if not how.sparse and size > 1 << 30 and size > available():
        widest = max(how.columns, key=lambda column: column.width)
        raise DataError(
            f"{table.origin}: one-hot columns would make {how.width:,} features, {size / 2**30:,.0f} GB of dense rows; "
            f"use {option('categorical', 'ordinal')}, {option('drop', widest.name)}, or an algorithm that "
            "takes sparse rows."
        )


def _in_memory(stream: TreatedStream | RatingsStream) -> Source:
    """Rows of a Python object, in the memory of this process."""
    chunks = list(stream.chunks())
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    features = join_rows([chunk.features for chunk in chunks], stream.columns)
    joined = np.concatenate(labels) if labels else None
    given: dict[str, Any] = {"origin": stream.origin, "names": stream.names, "dtype": stream.dtype.name}
    if isinstance(features, Sparse):
        source = SparseSource(features, joined, **given)
        source.row_names = stream.row_names
        return source
    return ArraySource(features, joined, **given)
