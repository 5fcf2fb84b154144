"""The master's journal: an append-only file of facts, each with its length and checksum.

A fact counts when `append` returns: it has then been flushed to the disk. A crash in the middle of a write leaves a
torn tail, which the next start finds by its checksum and removes; nothing before it is touched. `compact` writes the
table of jobs as one record into a new file and renames it over the old one, so one whole journal exists at any time.
Damage before the tail is not repaired: the master refuses to start and says where.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flegel.cluster.master.facts import Fact, JobTable, JobTableSnapshot, restore, snapshot
from flegel.errors import UNDECODABLE, StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.loading.regular_files import read_regular

JOURNAL_FORMAT = 2
"""Changes with the records; a journal of another format is refused."""
JOURNAL_HEADER = b"flegel journal %d\n" % JOURNAL_FORMAT
_ANY_FORMAT = re.compile(rb"flegel journal (\d+)\n")
_RECORD_HEADER = struct.Struct("<II")
RESTORE_ADVICE = "Restore it from a copy, or move it away to start with an empty one."
MAX_RECORD_BYTES = 64 << 20
"""A length above it is damage; a table of 1,000 jobs takes some MB."""
MAX_JOURNAL_BYTES = 1 << 30
"""A larger file is refused before it is read into memory."""
COMPACT_ABOVE_BYTES = 4 << 20
"""Of facts since the last snapshot, after which the journal is compacted: reading 4 MiB takes a tenth of a second."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Fact | JobTableSnapshot)


def frame(record: Fact | JobTableSnapshot) -> bytes:
    """Length, checksum, bytes."""
    content = _encoder.encode(record)
    return _RECORD_HEADER.pack(len(content), zlib.crc32(content)) + content


def read(content: bytes) -> tuple[JobTable, int]:
    """The table, and how many bytes of `content` are whole; raises where damage is before the tail."""
    if not content.startswith(JOURNAL_HEADER):
        if JOURNAL_HEADER.startswith(content):
            return JobTable(), 0  # the very first write was torn
        other = _ANY_FORMAT.match(content)
        if other is not None:
            raise StorageError(
                f"The journal has format {int(other[1])}, but this version reads format {JOURNAL_FORMAT} only; finish "
                "its jobs with the version that wrote it, then move the file away."
            )
        raise StorageError(f"This is no journal of a Flegel master. {RESTORE_ADVICE}")
    table, offset = JobTable(), len(JOURNAL_HEADER)
    while offset < len(content):
        record, end = _next(content, offset)
        if record is None:
            if _whole_record_after(content, offset):
                raise StorageError(
                    f"The journal is damaged at byte {offset}, and there are good records after it. {RESTORE_ADVICE}"
                )
            break
        with damage_as(f"The record at byte {offset} does not fit those before it, though its checksum is right"):
            if isinstance(record, JobTableSnapshot):
                table = restore(record)
            else:
                table.apply(record)
        offset = end
    return table, offset


def _next(content: bytes, offset: int) -> tuple[Fact | JobTableSnapshot | None, int]:
    """The record at this offset and where it ends; None where its bytes are not whole or not valid."""
    if offset + _RECORD_HEADER.size > len(content):
        return None, offset
    size, checksum = _RECORD_HEADER.unpack_from(content, offset)
    end = offset + _RECORD_HEADER.size + size
    if size > MAX_RECORD_BYTES or end > len(content):
        return None, offset
    body = content[offset + _RECORD_HEADER.size : end]
    if zlib.crc32(body) != checksum:
        return None, offset
    try:
        return _decoder.decode(body), end
    except UNDECODABLE:
        return None, offset


def _whole_record_after(content: bytes, offset: int) -> bool:
    """Does the damaged record's own length lead to a good one? Then it is not a torn tail."""
    if offset + _RECORD_HEADER.size > len(content):
        return False
    end = offset + _RECORD_HEADER.size + _RECORD_HEADER.unpack_from(content, offset)[0]
    return end < len(content) and _next(content, end)[0] is not None


class Journal:
    """An open journal; one process at a time."""

    def __init__(self, path: Path) -> None:
        """Lock and read the journal, remove a torn tail, and open it for appending; creates it where there is none."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"Cannot use {path.parent}: {error.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(f"Another master uses {path.parent}; stop it first, or choose another --folder.") from None
        self._scratch = path.with_suffix(".new")
        self._scratch.unlink(missing_ok=True)
        try:
            content = read_regular(path, MAX_JOURNAL_BYTES) if path.exists() else b""
            self.table, self._good = read(content)
        except StorageError as error:
            os.close(self._lock)
            raise StorageError(f"{path}: {error}") from None
        # `_good`: bytes of the file that hold whole records, where the next one is written.
        self.cut = len(content) - self._good
        """Bytes of a torn tail that were cut off."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self.cut:
            os.ftruncate(self._fd, self._good)
        if self._good == 0:
            self._write(JOURNAL_HEADER)
            self._good = len(JOURNAL_HEADER)
        os.fsync(self._fd)
        _flush_folder(path.parent)
        self._compacted = self._good
        """`_good` at the start, or after the last compaction, also a failed one: `COMPACT_ABOVE_BYTES` more, and the
        journal is compacted."""
        self._broken = False

    def append(self, facts: Iterable[Fact]) -> None:
        """Write facts to the disk, where they are when this returns. The caller must have applied them to `table`."""
        content = b"".join(map(frame, facts))
        if not content:
            return
        if self._broken:
            raise StorageError(f"An earlier write to {self._path} failed; the master must be started again.")
        try:
            self._write(content)
            os.fsync(self._fd)
        except OSError as error:
            self._broken = True  # what the disk holds is unknown now; the next start will read it
            raise StorageError(f"Could not write to {self._path}: {error.strerror}.") from None
        self._good += len(content)
        if self._good - self._compacted > COMPACT_ABOVE_BYTES:
            self.compact()

    def _write(self, content: bytes) -> None:
        view, offset = memoryview(content), self._good
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def compact(self) -> None:
        """The table as one record in a new file, which then replaces the old one."""
        content = JOURNAL_HEADER + frame(snapshot(self.table))
        if len(content) > MAX_RECORD_BYTES:  # more than would be read again: keep the facts
            self._compacted = self._good
            return
        fd = os.open(self._scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # `_write` writes to `_fd` from byte `_good` on: here to the new file from its beginning.
        old, self._fd, good, self._good = self._fd, fd, self._good, 0
        try:
            self._write(content)
            os.fsync(fd)
            self._scratch.replace(self._path)
        except OSError:  # the disk may be full: the old file is intact, and compaction is tried again later
            os.close(fd)
            self._fd, self._good, self._compacted = old, good, good
            self._scratch.unlink(missing_ok=True)
            return
        os.close(old)
        _flush_folder(self._path.parent)
        self._good = self._compacted = len(content)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
