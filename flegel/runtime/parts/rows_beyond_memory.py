"""Rows that exceed the memory that is free: freed memory goes back at once, and worker processes have room or are
refused before one of them is started.

What the kernel ends for lack of memory tells nobody why; a sentence does.
"""

from __future__ import annotations

from flegel.datasets.rows import memory
from flegel.errors import UsageError
from flegel.runtime.job.part import Part
from flegel.runtime.system.freed_memory import return_freed_memory

FORK_SERVER_BYTES = 30 << 20  # private memory of the process that starts workers
WORKER_BYTES = 96 << 20
"""Private memory of a worker process that lays rows out in a scratch file: some 50 MB are NumPy and PyArrow, the rest
numbers of rows, decoded columns, and a window of rows or a row group of up to 32 MB."""


class RowsBeyondMemory(Part):
    """Asked for where rows lie in files."""

    def open(self) -> None:
        data = self.request.data
        size = data.rows * data.columns * data.dtype.itemsize
        self._exceed = not data.sparse and memory.exceeds_memory(size)
        if self._exceed:
            return_freed_memory()

    def started(self) -> None:
        choice, workers = self.running.job_cluster.choice, self.request.workers
        if not self._exceed or workers < 2 or self.request.cluster is not None:
            return
        if choice is not None and choice.kind == "threads":
            return
        needed, free = FORK_SERVER_BYTES + workers * WORKER_BYTES, memory.available()
        if free < needed:
            raise UsageError(
                f"{workers} worker processes take up to {needed >> 20} MB beside the rows, which exceed memory; "
                f"{free >> 20} MB are free within the limits of this process and its container. Take fewer workers, or "
                "give no number: threads of one process take less."
            )
