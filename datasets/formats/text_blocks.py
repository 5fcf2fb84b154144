"""Finds blocks of whole lines in a text file, and counts their lines.

Reads with plain system calls instead of a memory map, so that pages of the file do not count as memory of the process.
Never parses.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.text_dialect import LINE_LIMIT
from flegel.errors import DataError

MIN_BLOCK, MAX_BLOCK, BLOCKS = (
    4 << 10,
    4 << 20,
    4096,
)  # bytes of a block of lines: at least, at most; and blocks of a file
_BYTES_SEARCHED_AT_ONCE = 1 << 16  # for the end of a line
_COUNT_BYTES = 1 << 18  # in which lines are counted at a time


class TextFile:
    """Bytes of an open file by position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = path.open("rb", buffering=0)
            self.size = os.fstat(self.file.fileno()).st_size
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; check the path.") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes from start to stop."""
        buffer = bytearray(stop - start)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, target: memoryview) -> None:
        while len(target):
            got = os.preadv(self.file.fileno(), [target], start)
            if not got:
                raise DataError(f"{self.path} became shorter while it was read; leave it unchanged while a job runs.")
            start += got
            target = target[got:]

    def next_line(self, at: int) -> int:
        """Where the first line after the line end at or behind `at` begins; the size where there is none."""
        while at < self.size:
            piece = os.pread(self.file.fileno(), _BYTES_SEARCHED_AT_ONCE, at)
            found = piece.find(b"\n")
            if found >= 0:
                return at + found + 1
            at += len(piece)
        return self.size

    def text_end(self, start: int) -> int:
        """The end of the last line that is not blank, its line end included."""
        end = self.size
        while end > start:
            first = max(start, end - _BYTES_SEARCHED_AT_ONCE)
            kept = self.read(first, end).rstrip(b"\r\n \t")
            if kept:
                return self.next_line(first + len(kept))
            end = first
        return start


def block_starts(file: TextFile, header: int, block: int, origin: str) -> tuple[Array, int]:
    """Byte offsets of the blocks and of the end (without trailing blank lines)."""
    end = file.text_end(header)
    starts = [header]
    at = header + block
    while at < end:
        at = file.next_line(at - 1)
        if at >= end:
            break
        if at - starts[-1] > LINE_LIMIT + block:
            raise DataError(f"{origin} has a line longer than {LINE_LIMIT:,} bytes; is this a table of numbers?")
        starts.append(at)
        at = max(at + 1, header + (((at - header) // block) + 1) * block)
    return np.array(starts, np.int64), end


def count_lines(file: TextFile, starts: Array, end: int) -> Array:
    """Lines in each block, counted by two threads (reads and NumPy release the GIL)."""
    stops = np.append(starts[1:], end).tolist()

    def count(first: int, last: int) -> list[int]:
        buffer = np.empty(_COUNT_BYTES, np.uint8)
        found = []
        for start, stop in zip(starts[first:last].tolist(), stops[first:last], strict=True):
            lines = 0
            for lo in range(start, stop, _COUNT_BYTES):
                part = buffer[: min(_COUNT_BYTES, stop - lo)]
                file.read_into(lo, part.data)
                lines += int(np.count_nonzero(part == 10))
            found.append(lines)
        return found

    step = max(1, len(starts) // 16)
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda first: count(first, first + step), range(0, len(starts), step))
        counts = np.array([lines for part in parts for lines in part], np.int64)
    if end and file.read(end - 1, end) != b"\n":
        counts[-1] += 1
    return counts
