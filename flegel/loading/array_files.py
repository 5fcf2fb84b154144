"""Arrays from `.npy` and `.npz` files that somebody else may have written. Never unpickles.

Only the members that are asked for are read. Of each one its type, its shape and its size are checked against each
other and against a limit before a byte of it is unpacked: an array of numbers has exactly the bytes that its header
announces. Members that are stored as they are cannot be larger than their file; compressed ones may unpack to
`MAX_UNPACKED_BYTES` bytes together, because 1 MiB of them can unpack to 1 GiB.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Collection
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from flegel.errors import FlegelError, StorageError
from flegel.loading.damage import damage_as
from flegel.loading.regular_files import open_regular

MAX_UNPACKED_BYTES = 256 << 20
"""Bytes that the compressed members of a file may unpack to, together."""
MAX_ARCHIVE_MEMBERS = 10_000  # of a file of several arrays
MAX_ARRAY_HEADER_BYTES = 64 << 10  # of the header of one array
MAX_ARRAY_DIMENSIONS = 32  # of an array: NumPy had no more
ZIP_ENCRYPTED_FLAG = 0x1  # of a member, by the ZIP format


def read_npy(path: str | os.PathLike[str], error: type[FlegelError] = StorageError) -> npt.NDArray[Any]:
    """The one array of a `.npy` file."""
    with open_regular(path, error) as (stream, size), damage_as(f"{os.fspath(path)} is no array of numbers", error):
        return _array(stream, size)


def read_npz(
    path: str | os.PathLike[str],
    wanted: Collection[str],
    optional: Collection[str] = (),
    error: type[FlegelError] = StorageError,
) -> dict[str, npt.NDArray[Any]]:
    """Read these members of an `.npz` file, and those of `optional` that it has."""
    text = f"{os.fspath(path)} is no file of arrays"
    with open_regular(path, error) as (stream, _), damage_as(text, error), zipfile.ZipFile(stream) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()[:MAX_ARCHIVE_MEMBERS]}
        missing = [name for name in wanted if name not in members]
        if missing:
            raise error(f"{os.fspath(path)} is damaged: it lacks {', '.join(sorted(missing))[:200]}.")
        chosen = [name for name in (*wanted, *optional) if name in members]
        _check_sizes({name: members[name] for name in chosen})
        found: dict[str, npt.NDArray[Any]] = {}
        for name in chosen:
            with archive.open(members[name]) as member:
                found[name] = _array(member, members[name].file_size)
        return found


def check_zip_member(info: zipfile.ZipInfo) -> None:
    """Raise `ValueError` for a member that cannot be read safely: Python's reader never ends where one by bzip2 or LZMA
    is cut off."""
    if info.flag_bits & ZIP_ENCRYPTED_FLAG:
        raise ValueError(f"{info.filename} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{info.filename} is compressed by a method that is not known here ({info.compress_type}); use deflate"
        )


def _check_sizes(members: dict[str, zipfile.ZipInfo]) -> None:
    """Refuse archives whose sizes contradict each other or that would unpack to too many bytes."""
    inflated = 0
    for name, info in members.items():
        check_zip_member(info)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            inflated += info.file_size
        elif info.file_size != info.compress_size:
            raise ValueError(f"the sizes of {name} contradict each other")
    if inflated > MAX_UNPACKED_BYTES:
        raise ValueError(f"it would unpack to {inflated} bytes; at most {MAX_UNPACKED_BYTES} are accepted")


def _array(stream: Any, size: int) -> npt.NDArray[Any]:
    """One array of `size` bytes with its header. All of it is read, so that a checksum of the stream is checked."""
    shape, fortran, dtype, header = _header(stream)
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or dtype.subdtype is not None:
        raise ValueError(f"it holds {dtype} values, not real numbers of at most 64 bits")
    if len(shape) > MAX_ARRAY_DIMENSIONS or any(not isinstance(n, int) or n < 0 for n in shape):
        raise ValueError(f"it has the shape {str(shape)[:80]}")
    count = math.prod(shape)
    if count * dtype.itemsize != size - header:
        raise ValueError(f"shape and type ask for {count * dtype.itemsize} bytes, and there are {size - header}")
    content = bytearray(count * dtype.itemsize)
    _fill(stream, memoryview(content))
    if stream.read(1):
        raise ValueError("it is longer than its header says")
    array: npt.NDArray[Any] = np.frombuffer(content, dtype)
    array = array.reshape(shape, order="F" if fortran else "C")
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type, and bytes of the header. Its text is a literal, which NumPy parses within a limit."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"it has version {version} of the format")
    length = int.from_bytes(_take(stream, 2 if version == (1, 0) else 4), "little")
    if length > MAX_ARRAY_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes")
    width = 2 if version == (1, 0) else 4
    text = length.to_bytes(width, "little") + _take(stream, length)
    if b"(" * 50 in text.replace(b" ", b"") or b"[" * 50 in text.replace(b" ", b""):
        raise ValueError("its header is nested")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(text), max_header_size=MAX_ARRAY_HEADER_BYTES)
    return shape, fortran, dtype, 6 + 2 + width + length


def _take(stream: BinaryIO, count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise ValueError("it ends in its header")
    return content


def _fill(stream: BinaryIO, target: memoryview) -> None:
    """Read until `target` is full; an error where the stream ends before."""
    at = 0
    while at < len(target):
        piece = stream.read(min(len(target) - at, 8 << 20))
        if not piece:
            raise ValueError("it ends before its last number")
        target[at : at + len(piece)] = piece
        at += len(piece)
