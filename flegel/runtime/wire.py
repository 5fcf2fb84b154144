"""Messages to bytes and back: one MessagePack header, then the arrays as raw frames. Never pickle.

Everything is capped before it is decoded, and `decode` raises `DecodeError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from flegel.errors import DecodeError, UsageError
from flegel.messages import Body, Envelope, Frame
from flegel.share import NUMBERS
from flegel.tree import Array

MAX_HEADER = 8 << 20
MAX_FRAMES = 256
MAX_FRAME = 4 << 30
MAX_DIMENSIONS = 8
DTYPES = {name: np.dtype(name).itemsize for name in sorted(NUMBERS)}
PACK_BELOW = 32 << 10
"""Arrays of together at most so many bytes travel in the header's frame; larger ones are not worth the copy."""
PACKED = 0xC1
"""First byte of a frame that holds header and arrays. No MessagePack begins with it."""
ALIGNED = 8

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


class Parcel:
    """Arrays made ready once, to be sent to any number of workers. Small ones share a frame: frames cost more."""

    def __init__(self, arrays: Sequence[Array] = ()) -> None:
        for a in arrays:
            if a.dtype.str not in DTYPES:
                raise UsageError(f"Arrays of type {a.dtype} do not travel; use float32, float64 or integers.")
        self.frames = tuple(Frame(a.dtype.str, np.shape(a)) for a in arrays)
        ready = [np.ascontiguousarray(a) for a in arrays]
        self.packed = 0 < sum(a.nbytes for a in ready) <= PACK_BELOW
        self.parts: list[Any] = [b"".join(_padded(a) for a in ready)] if self.packed else ready

    def broadcast(self, share: Callable[[Any], Any]) -> Parcel:
        """Large parts put once into a form that can be sent any number of times (see frames.py)."""
        if not self.packed:
            self.parts = [share(part) for part in self.parts]
        return self


def _padded(array: Array) -> bytes:
    return array.tobytes() + bytes(-array.nbytes % ALIGNED)


EMPTY = Parcel()


def encode(envelope: Envelope, parcel: Parcel = EMPTY) -> list[Any]:
    """Frames for `send_multipart`; the envelope must describe the parcel (see `Numbered`).

    A packed message is one frame, because a frame costs both ends as much as some ten kilobytes of copying: the byte
    `PACKED`, three bytes with the length of the header, the header, and the arrays from an aligned place on.
    """
    header = _encoder.encode(envelope)
    if not parcel.packed:
        return [header, *parcel.parts]
    length = len(header)
    return [b"".join(((PACKED << 24 | length).to_bytes(4), header, bytes(-(length + 4) % ALIGNED), *parcel.parts))]


def decode(frames: Sequence[Any]) -> tuple[Envelope, tuple[Array, ...]]:
    """The message and its arrays, which are read-only views of the received bytes."""
    if not 1 <= len(frames) <= MAX_FRAMES + 1:
        raise DecodeError(f"A message has 1 to {MAX_FRAMES + 1} frames, not {len(frames)}.")
    first = memoryview(frames[0])
    packed = first.nbytes >= 4 and first[0] == PACKED
    length = first[1] << 16 | first[2] << 8 | first[3] if packed else first.nbytes
    header = first[4 : 4 + length] if packed else first
    if header.nbytes != length or length > MAX_HEADER:
        raise DecodeError(f"A header has at most {MAX_HEADER} bytes and all that it says, not {length}.")
    try:
        envelope = _decoder.decode(header)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise DecodeError(f"Not a message of ours: {error}.") from None
    if packed:
        return envelope, _cut(envelope, frames, length + 4 + -(length + 4) % ALIGNED)
    if not envelope.frames and len(frames) == 1:
        return envelope, ()
    return envelope, _arrays(envelope, frames[1:])


def _cut(envelope: Envelope, frames: Sequence[Any], start: int) -> tuple[Array, ...]:
    """Arrays that follow the header in its own frame."""
    places, size = _layout(envelope.frames)
    if len(frames) != 1 or memoryview(frames[0]).nbytes != start + size:
        raise DecodeError(f"Packed arrays of {size} bytes were announced and did not come in one frame.")
    whole = frames[0]
    return tuple([_readonly(place, whole, start + place.offset) for place in places])


def _arrays(envelope: Envelope, frames: Sequence[Any]) -> tuple[Array, ...]:
    """Arrays in a frame each."""
    places, _ = _layout(envelope.frames)
    if len(places) != len(frames):
        raise DecodeError(f"{len(places)} arrays were announced, {len(frames)} came.")
    for place, frame in zip(places, frames, strict=True):
        if memoryview(frame).nbytes != place.size:
            raise DecodeError(f"An array of {place.size} bytes was announced, {memoryview(frame).nbytes} came.")
    return tuple([_readonly(place, frame, 0) for place, frame in zip(places, frames, strict=True)])


class _Place(NamedTuple):
    """What an array is, and where it lies if arrays follow each other."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int
    offset: int


@lru_cache(maxsize=64)
def _layout(frames: tuple[Frame, ...]) -> tuple[tuple[_Place, ...], int]:
    """Places of arrays that lie one after the other, and their size together.

    Remembered, because all reports of a job look alike; the memory is bounded, whatever a stranger sends.
    """
    places, offset = [], 0
    for frame in frames:
        size = _size(frame)
        places.append(_Place(np.dtype(frame.dtype), frame.shape, size, offset))
        offset += size + -size % ALIGNED
    return tuple(places), offset


def _size(frame: Frame) -> int:
    """Bytes that an array of this description has; refuses what cannot be."""
    if frame.dtype not in DTYPES or len(frame.shape) > MAX_DIMENSIONS:
        raise DecodeError(f"Arrays of type {frame.dtype[:20]!r} and {len(frame.shape)} dimensions do not travel.")
    size = DTYPES[frame.dtype]
    for extent in frame.shape:
        if not 0 <= extent <= MAX_FRAME:
            raise DecodeError(f"An array cannot have an extent of {extent}.")
        size *= extent
        if size > MAX_FRAME:
            raise DecodeError(f"An array has at most {MAX_FRAME} bytes.")
    return size


def _readonly(place: _Place, frame: Any, offset: int) -> Array:
    if not place.size:
        return np.zeros(place.shape, place.dtype)
    array: Array = np.ndarray(place.shape, place.dtype, frame, offset)
    return array


class Numbered:
    """Wraps what one sender says into envelopes with increasing numbers."""

    def __init__(self, job: str, epoch: int, worker: int, incarnation: int) -> None:
        self.job, self.epoch, self.worker, self.incarnation = job, epoch, worker, incarnation
        self._next = 0

    def wrap(self, body: Body, parcel: Parcel = EMPTY) -> list[Any]:
        number = self._next
        self._next += 1
        envelope = Envelope(self.job, self.epoch, self.worker, self.incarnation, number, body, parcel.frames)
        return encode(envelope, parcel)
