"""Messages to bytes and back: one MessagePack header, then the arrays as raw frames. Never pickle.

Everything is capped before it is decoded, and `decode` raises `DecodeError` and nothing else.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from flegel.errors import DecodeError, UsageError
from flegel.messages import Body, Envelope, Frame
from flegel.share import NUMBERS
from flegel.tree import Array

MAX_HEADER = 1 << 20  # decoded, hostile bytes take up to eighty times their size
MAX_FRAMES = 256
MAX_FRAME = 4 << 30
MAX_DIMENSIONS = 8
DTYPES = {name: np.dtype(name).itemsize for name in sorted(NUMBERS)}
PACK_BELOW = 64 << 10
"""Arrays of together at most so many bytes travel in one frame; larger ones are not worth the copy."""

QUIET_ABOVE = 4 << 10
_BAD = (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError, MemoryError)

Some = TypeVar("Some")
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
        self.packed = len(ready) > 1 and sum(a.nbytes for a in ready) <= PACK_BELOW
        self.parts: list[Any] = [b"".join(a.tobytes() for a in ready)] if self.packed else ready


EMPTY = Parcel()


def encode(envelope: Envelope, parcel: Parcel = EMPTY) -> list[Any]:
    """Frames for `send_multipart`; the envelope must describe the parcel (see `Numbered`)."""
    header = _encoder.encode(envelope)
    if len(header) > MAX_HEADER:
        raise UsageError(
            f"A {type(envelope.body).__name__} of {len(header)} bytes is too long, {MAX_HEADER} is the most; "
            "keep large constants out of the algorithm's source."
        )
    return [header, *parcel.parts]


def unpack(decoder: msgspec.msgpack.Decoder[Some], data: Any) -> Some:
    """What the bytes say; `DecodeError` whatever is wrong with them.

    The garbage collector rests meanwhile: it would look again and again through what a long message brings.
    """
    rests = memoryview(data).nbytes > QUIET_ABOVE and gc.isenabled()
    if rests:
        gc.disable()
    try:
        return decoder.decode(data)
    except _BAD as error:
        why = str(error)[:200] or type(error).__name__
        raise DecodeError(f"Not a message of ours: {why}.") from None
    finally:
        if rests:
            gc.enable()


def decode(frames: Sequence[Any]) -> tuple[Envelope, tuple[Array, ...]]:
    """The message and its arrays, which are read-only views of the received bytes."""
    if not 1 <= len(frames) <= MAX_FRAMES + 1:
        raise DecodeError(f"A message has 1 to {MAX_FRAMES + 1} frames, not {len(frames)}.")
    header = memoryview(frames[0])
    if header.nbytes > MAX_HEADER:
        raise DecodeError(f"A header has at most {MAX_HEADER} bytes, not {header.nbytes}.")
    envelope = unpack(_decoder, header)
    views = [memoryview(f) for f in frames[1:]]
    sizes = [_size(frame) for frame in envelope.frames]
    if envelope.packed:
        views = _cut(views, sizes)
    if len(sizes) != len(views):
        raise DecodeError(f"{len(sizes)} arrays were announced, {len(views)} came.")
    return envelope, tuple(map(_array, envelope.frames, sizes, views))


def _cut(views: list[memoryview], sizes: list[int]) -> list[memoryview]:
    """The one frame of packed arrays in its pieces."""
    if len(views) != 1 or views[0].nbytes != sum(sizes):
        raise DecodeError(f"Packed arrays of {sum(sizes)} bytes were announced and did not come in one frame.")
    ends = itertools.accumulate(sizes)
    return [views[0][end - size : end] for end, size in zip(ends, sizes, strict=True)]


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


def _array(frame: Frame, size: int, view: memoryview) -> Array:
    if size != view.nbytes:
        raise DecodeError(f"An array of {size} bytes was announced, {view.nbytes} came.")
    return np.frombuffer(view, dtype=frame.dtype).reshape(frame.shape)


class Numbered:
    """Wraps what one sender says into envelopes with increasing numbers."""

    def __init__(self, job: str, epoch: int, worker: int, incarnation: int) -> None:
        self.job, self.epoch, self.worker, self.incarnation = job, epoch, worker, incarnation
        self._next = 0

    def wrap(self, body: Body, parcel: Parcel = EMPTY) -> list[Any]:
        number = self._next
        self._next += 1
        envelope = Envelope(
            self.job, self.epoch, self.worker, self.incarnation, number, body, parcel.frames, parcel.packed
        )
        return encode(envelope, parcel)
