"""Messages to bytes and back: one MessagePack header, then the arrays as raw frames. Never pickle.

Everything is capped before it is decoded, and `decode` raises `DecodeError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from flegel.errors import DecodeError, UsageError
from flegel.messages import Body, Envelope, Frame
from flegel.tree import Array

MAX_HEADER = 8 << 20
MAX_FRAMES = 256
MAX_FRAME = 4 << 30
MAX_DIMENSIONS = 8
DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<u8", "<u4", "|u1", "|i1", "<i2", "<u2", "|b1"})

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope, arrays: Sequence[Array] = ()) -> list[Any]:
    """Frames for `send_multipart`. Arrays are sent as they lie in memory; they must be C-ordered."""
    if not arrays:
        return [_encoder.encode(envelope)]
    for a in arrays:
        if a.dtype.str not in DTYPES:
            raise UsageError(f"Arrays of type {a.dtype} do not travel; use float32, float64 or integers.")
    ready = [np.ascontiguousarray(a) for a in arrays]
    described = msgspec.structs.replace(envelope, frames=tuple(Frame(a.dtype.str, np.shape(a)) for a in arrays))
    return [_encoder.encode(described), *ready]


def decode(frames: Sequence[Any]) -> tuple[Envelope, tuple[Array, ...]]:
    """The message and its arrays, which are read-only views of the received bytes."""
    if not 1 <= len(frames) <= MAX_FRAMES + 1:
        raise DecodeError(f"A message has 1 to {MAX_FRAMES + 1} frames, not {len(frames)}.")
    views = [memoryview(f) for f in frames]
    if views[0].nbytes > MAX_HEADER:
        raise DecodeError(f"A header has at most {MAX_HEADER} bytes, not {views[0].nbytes}.")
    try:
        envelope = _decoder.decode(views[0])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise DecodeError(f"Not a message of ours: {error}.") from None
    if len(envelope.frames) != len(views) - 1:
        raise DecodeError(f"{len(envelope.frames)} arrays were announced, {len(views) - 1} came.")
    return envelope, tuple(_array(f, v) for f, v in zip(envelope.frames, views[1:], strict=True))


def _array(frame: Frame, view: memoryview) -> Array:
    if frame.dtype not in DTYPES or len(frame.shape) > MAX_DIMENSIONS:
        raise DecodeError(f"Arrays of type {frame.dtype[:20]!r} and {len(frame.shape)} dimensions do not travel.")
    size = int(np.dtype(frame.dtype).itemsize)
    for extent in frame.shape:
        if not 0 <= extent <= MAX_FRAME:
            raise DecodeError(f"An array cannot have an extent of {extent}.")
        size *= extent
        if size > MAX_FRAME:
            raise DecodeError(f"An array has at most {MAX_FRAME} bytes.")
    if size != view.nbytes:
        raise DecodeError(f"An array of {size} bytes was announced, {view.nbytes} came.")
    return np.frombuffer(view, dtype=frame.dtype).reshape(frame.shape)


class Numbered:
    """Wraps what one sender says into envelopes with increasing numbers."""

    def __init__(self, job: str, epoch: int, worker: int, incarnation: int) -> None:
        self.job, self.epoch, self.worker, self.incarnation = job, epoch, worker, incarnation
        self._next = 0

    def wrap(self, body: Body, arrays: Sequence[Array] = ()) -> list[Any]:
        envelope = Envelope(self.job, self.epoch, self.worker, self.incarnation, self._next, body)
        self._next += 1
        return encode(envelope, arrays)
