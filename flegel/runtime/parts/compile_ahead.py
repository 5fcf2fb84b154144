"""A process that compiles the kernel of a job while its rows are read, where the cache has no code.

Where memory is scarce it compiles before a row is read: its memory is free again when blocks of rows need it.
"""

from __future__ import annotations

import json
import sys

from flegel.algorithms import BUILTINS
from flegel.configuration.active import active
from flegel.datasets.rows import memory
from flegel.loading.class_source import reference
from flegel.runtime.backends.numba.compile_turns import COMPILER_BYTES
from flegel.runtime.backends.numba.compiler_process import CompilerProcess
from flegel.runtime.job.part import Part
from flegel.runtime.job.placement import has_code

ROOM_BYTES = 1 << 30
"""With so much memory free beside that of a compiler, rows are read while it works."""


class CompileAhead(Part):
    """The kernel is awaited by whoever compiles next, and found in the cache."""

    def open(self) -> None:
        self._compiler = self._start()
        if self._compiler is not None:
            self.running.ending.callback(self._compiler.close)
            if memory.available() < COMPILER_BYTES + ROOM_BYTES:
                self.request.observers.phase("compiling")
                self._compiler.wait()

    def started(self) -> None:
        self.running.prepared.compiler = self._compiler

    def _start(self) -> CompilerProcess | None:
        """A process that compiles the kernel while data are read: for large data and built-in algorithms whose code is
        not in the cache."""
        request, data, ref = self.request, self.request.data, reference(self.request.algorithm)
        large = data.rows * data.columns >= active().processors.compile_ahead_numbers and sys.platform == "linux"
        if not large or not ref.builtin or request.algorithm.kernels.backend or has_code(request):
            return None
        name = next((name for name, home in BUILTINS.items() if home == ref.name), None)
        if name is None:
            return None
        try:
            return CompilerProcess(
                json.dumps([name, request.algorithm.hyper(), data.dtype.name, data.sparse, data.weighted])
            )
        except (TypeError, OSError):  # a hyper-parameter is an array, or there is no room for a process
            return None
