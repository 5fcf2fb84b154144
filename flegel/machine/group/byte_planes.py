"""Arrays in fewer bytes, without loss: the n-th bytes of all numbers stand together, and are compressed. Pure.

Signs and exponents of numbers are alike, and so are the last bytes of sums of few digits; the bytes between are noise.
So each of these planes is compressed for itself, and left as it is where that saves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import DecodeError

FASTEST = 1
"""Level of zlib: higher ones take three times as long for 2 % (sums of k-means)."""
SAMPLED_BYTES = 1 << 16
"""Of a larger plane this much is tried first, so that noise costs little time: a millisecond for each."""


def planes_of(array: Array) -> list[bytes]:
    """One for each byte of a number, the lowest first; one that is as long as the array is not compressed."""
    numbers = np.ascontiguousarray(array).reshape(-1)
    if not numbers.size:
        return []
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    columns = little.view(np.uint8).reshape(numbers.size, numbers.dtype.itemsize)
    return [_smaller(columns[:, at].tobytes()) for at in range(numbers.dtype.itemsize)]


def _smaller(plane: bytes) -> bytes:
    sample = plane[:SAMPLED_BYTES]
    if len(sample) < len(plane) and len(zlib.compress(sample, FASTEST)) >= len(sample):
        return plane
    found = zlib.compress(plane, FASTEST)
    return found if len(found) < len(plane) else plane


def from_planes(planes: Sequence[bytes], dtype: np.dtype, shape: tuple[int, ...], count: int) -> Array:  # type: ignore[type-arg]
    """The array; raises `DecodeError` where planes are no such array. No more is unpacked than it takes."""
    if len(planes) != (dtype.itemsize if count else 0):
        raise DecodeError("an array has another number of byte planes")
    columns = np.empty((count, dtype.itemsize), np.uint8)
    for at, plane in enumerate(planes):
        columns[:, at] = np.frombuffer(plane if len(plane) == count else _unpacked(plane, count), np.uint8)
    return columns.view(dtype).reshape(shape)


def _unpacked(plane: bytes, count: int) -> bytes:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(plane, count)
    except zlib.error as error:
        raise DecodeError(f"an array cannot be unpacked ({error})") from None
    if len(found) != count or not reader.eof or reader.unused_data:
        raise DecodeError("an array is unpacked to another length")
    return found
