"""Sends logs and results of attempts to the master, one piece at a time. Deletes nothing.

The master answers each piece with the number of bytes that it has, so a lost message is repaired by sending again from
there.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flegel.cluster.slave.attempts import Attempts, JobAttempt
from flegel.cluster.transport.protocol import FILE_CHUNK_BYTES, FileChunk

RESEND_PIECE_SECONDS = 5.0
"""Without an answer of the master for so long, a piece is sent again: it may have been lost with a connection."""

Send = Callable[[FileChunk, tuple[bytes, ...]], bool]


class FileShipping:
    """One piece of each attempt is under way at a time."""

    def __init__(self, slave: str, attempts: Attempts, send: Send) -> None:
        self._slave, self._attempts, self._send = slave, attempts, send

    def send_next(self, now: float) -> None:
        """Send the next piece of each attempt that has none under way."""
        for attempt in self._attempts:
            if attempt.sent_at is not None and now - attempt.sent_at < RESEND_PIECE_SECONDS:
                continue
            for file, size in attempt.files().items():
                offset = attempt.shipped.get(file, 0)
                if offset < size:
                    content = read_piece(attempt, file, offset)
                    if content is None:
                        attempt.shipped[file] = size
                        continue
                    chunk = FileChunk(self._slave, attempt.job, attempt.attempt, file, offset)
                    if self._send(chunk, (content,)):
                        attempt.sent_at = now
                    break

    def restart(self) -> None:
        """A new connection: what was under way is sent again."""
        for attempt in self._attempts:
            attempt.sent_at = None


def read_piece(attempt: JobAttempt, file: str, offset: int) -> bytes | None:
    """None where the file cannot be read; links and pipes are not followed."""
    if not file:
        return attempt.log.read(offset, FILE_CHUNK_BYTES)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        folder = os.open(attempt.result, flags | os.O_DIRECTORY)
        try:
            with os.fdopen(os.open(file, flags, dir_fd=folder), "rb") as stream:
                stream.seek(offset)
                return stream.read(FILE_CHUNK_BYTES)
        finally:
            os.close(folder)
    except OSError:
        return None
