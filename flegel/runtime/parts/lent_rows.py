"""Many rows of the caller that are not copied: each worker of this host fetches its own out of the caller's array."""

from __future__ import annotations

from typing import Any

from flegel.errors import FlegelError, OutOfReach, UsageError
from flegel.runtime.job.part import Part
from flegel.runtime.job.rows_of_job import shared_rows
from flegel.runtime.transport import process_memory
from flegel.runtime.worker.rows_in_place import lend_rows, suits


class LentRows(Part):
    """Rows stay where they are until the job ends; where workers cannot read them after all, they are copied."""

    _lent = False

    def source(self) -> dict[str, Any] | None:
        """None where the rows have to be copied. Workers of a resumed job have those that they had, in any order."""
        request, data = self.request, self.request.data
        if self.running.owners or data.sparse or data.source.keyed:
            return None
        if not suits(data.rows, data.columns, data.dtype.itemsize, request.partition):
            return None
        found = data.in_place()
        rows = data.read() if found is None else found
        rows = rows._replace(labels=request.algorithm.accepts.kept_labels(rows.labels))
        lent = lend_rows(rows, request.partition, self.running.cluster.lend_array)
        if lent is None:
            return None
        self._lent = True
        self.running.ending.callback(lent.close)
        return lent.describe()

    def recovers(self, error: FlegelError) -> bool:
        """Workers notice values that are not finite; here the first of all is named. Rows out of reach are copied."""
        if self._lent and isinstance(error, UsageError):
            self.request.data.read()
        if not self._lent or not isinstance(error, OutOfReach):
            return False
        process_memory.remember_refusal()
        if any(part.forbids_retraining for part in self.running.parts):
            return False
        self._lent = False
        self.running.source = shared_rows(self.running)
        return True
