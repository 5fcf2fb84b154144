"""Bytes that are lent to PyArrow's readers of text, and the wait until its threads have let go of them.

These readers read ahead in a thread, and may decode in another, also with `use_threads=False`. A thread that drops a
reference to an object of Python while the interpreter ends is ended in the middle of C++ code, which aborts the
process: exit code 134 after all work was done. So who lends bytes waits after reading until all are free.
"""

from __future__ import annotations

import codecs
import time
import weakref
from collections.abc import Callable
from typing import IO

import numpy as np

from flegel.core.pytree import Array

LONGEST_WAIT_SECONDS = 2.0
"""A thread that keeps a reference for longer is not just about to drop it."""
SECONDS_BETWEEN_LOOKS = 1e-4  # a thread needs about as long to drop what it read


class _Readable:
    """What PyArrow takes for a file: it prefers `read_buffer` to `read`."""

    closed = False

    def __init__(self, read_buffer: Callable[[int], Array]) -> None:
        self.read_buffer = read_buffer


class Loan:
    """What was lent to one reader."""

    def __init__(self) -> None:
        self._lent: list[weakref.ref[Array] | weakref.ref[_Readable]] = []

    def block(self, data: bytes | memoryview) -> Array:
        """The same bytes as an array: unlike bytes it can be watched."""
        lent = np.frombuffer(data, np.uint8)
        self._lent = [each for each in self._lent if each() is not None] + [weakref.ref(lent)]
        return lent

    def file(self, file: IO[bytes], encoding: str) -> _Readable:
        """Its text as UTF-8."""
        decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)()

        def read(size: int) -> Array:
            data = file.read(size)
            if decoder is None:
                return self.block(data)
            while not (text := decoder.decode(data, final=not data)) and data:
                data = file.read(size)  # so far a part of one character
            return self.block(text.encode())

        lent = _Readable(read)
        self._lent.append(weakref.ref(lent))
        return lent

    def wait(self) -> None:
        """Until nothing is lent any more. The reader itself must be gone."""
        limit = time.monotonic() + LONGEST_WAIT_SECONDS
        while any(each() is not None for each in self._lent) and time.monotonic() < limit:
            time.sleep(SECONDS_BETWEEN_LOOKS)
