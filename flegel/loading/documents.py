"""JSON documents and lists of MessagePack records that somebody else may have written. Never runs anything."""

from __future__ import annotations

import json
import os
from typing import Any

import msgpack

from flegel.errors import FlegelError, StorageError
from flegel.loading.damage import damage_as
from flegel.loading.regular_files import MAX_DOCUMENT_BYTES, open_regular, read_regular

MAX_RECORDS_FILE_BYTES = 4 << 30
"""Bytes of a file of records; they are unpacked one by one."""
MAX_RECORD_BYTES = 16 << 20
"""Bytes of one record."""


def read_json(path: str | os.PathLike[str], error: type[FlegelError] = StorageError) -> dict[str, Any]:
    """A JSON document whose top is an object."""
    content = read_regular(path, MAX_DOCUMENT_BYTES, error)
    with damage_as(f"{os.fspath(path)} is no JSON document", error):
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
        return found


def read_records(path: str | os.PathLike[str], error: type[FlegelError] = StorageError) -> list[dict[str, Any]]:
    """MessagePack records, each a map with words as keys; numbers that are not finite stay as they are."""
    with open_regular(path, error) as (stream, size), damage_as(f"{os.fspath(path)} is no trace", error):
        if size > MAX_RECORDS_FILE_BYTES:
            raise ValueError(f"it has {size} bytes; at most {MAX_RECORDS_FILE_BYTES} are expected")
        unpacker = msgpack.Unpacker(stream, raw=False, max_buffer_size=MAX_RECORD_BYTES)
        found, whole = [], 0
        for row in unpacker:
            whole = unpacker.tell()
            if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
                raise ValueError("a line of it is no record")
            found.append(row)
        if whole != size:
            raise ValueError("it ends in the middle of a record")
        return found
