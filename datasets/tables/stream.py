"""Treated rows of a table: read in order, converted once in the columnar cache, from which every worker reads its part.

The description names the table and carries the treatment, so other hosts convert their copy of the file alike. Decides
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.source import Chunk, Description, Stream
from flegel.datasets.tables.columns import RawTable, table_from
from flegel.datasets.tables.treatment import Treatment, label_values
from flegel.errors import DataError
from flegel.wording import option


class TreatedStream(Stream):
    """A table with its treatment, whose columns have the names of the table's."""

    kind = "treated"

    def __init__(self, table: RawTable, how: Treatment) -> None:
        self.table, self.how = table, how
        self.places = [table.names.index(column.name) for column in how.inputs]
        self.label = next((column for column in how.columns if column.use == "label"), None)
        self.columns, self.dtype, self.sparse = how.width, np.dtype(how.dtype), how.sparse
        self.names, self.labelled, self.origin = how.feature_names, self.label is not None, table.origin

    def chunks(self) -> Iterator[Chunk]:
        """Encode the table chunk by chunk, without the rows that have no label or, with missing='drop', a gap."""
        start = 0
        given = [*self.places, *([] if self.label is None else [self.table.names.index(self.label.name)])]
        some = False
        for raws in self.table.chunks(given):
            first = start
            start += len(raws[0].values)

            def where(row: int, first: int = first) -> str:
                return self.table.row_name(first + row)

            labels: Array | None = None
            if self.label is not None:
                labels = label_values(self.label, raws[-1], where)
                kept = ~np.isnan(labels)
                if not kept.all():
                    raws = [raw._replace(values=raw.values[kept]) for raw in raws]
                    labels = labels[kept]
            drop = self.how.missing == "drop"
            features, complete = self.how.encode(raws[: len(self.places)], where, self.origin, drop=drop)
            if labels is not None and not complete.all():
                labels = labels[complete]
            if complete.any():
                some = True
                yield Chunk(features, labels)
        if start and not some:
            raise DataError(
                f"{self.origin}: every row has a gap, so {option('missing', 'drop')} leaves none; use "
                f"{option('missing', 'mean')}."
            )

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "table": self.table.describe(),
            "treatment": msgspec.to_builtins(self.how),
        }

    @classmethod
    def from_description(cls, description: Description) -> TreatedStream:
        how: Any = msgspec.convert(description["treatment"], Treatment)
        return cls(table_from(description["table"]), how)
