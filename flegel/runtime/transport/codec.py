"""Messages to bytes and back: one MessagePack header, then the arrays as raw frames. Never pickle.

Everything is capped before it is decoded, and `decode` raises `DecodeError` and nothing else.
"""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import NUMBERS
from flegel.errors import DecodeError, UsageError
from flegel.messages import NO_FRAMES, Body, Envelope, FrameSpec

MAX_HEADER_BYTES = 1 << 20  # decoded, hostile bytes take up to eighty times their size
MAX_FRAMES = 256  # of a message
MAX_FRAME_BYTES = 4 << 30  # of an array
MAX_EMPTY_ARRAY_BYTES = (2 << 30) - 1
"""Product of the other extents of an array with an extent of 0; NumPy refuses larger ones."""
MAX_DIMENSIONS = 8  # of an array
DTYPES = {name: np.dtype(name).itemsize for name in sorted(NUMBERS)}
PACKED_UP_TO_BYTES = 32 << 10
"""Arrays of together at most so many bytes travel in the header's frame; larger ones are not worth the copy."""
PACKED_FIRST_BYTE = 0xC1
"""First byte of a frame that holds header and arrays. No MessagePack begins with it."""
PACKED_PREFIX_BYTES = 4  # bytes: that one, and the length of the header
ARRAY_ALIGNMENT_BYTES = 8  # of arrays inside of a frame

_BAD = (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError, MemoryError)

Some = TypeVar("Some")
ATTACHED_ARRAY_TYPE = 1
"""Extension type of MessagePack: in the place of an array inside a message, such as a hyper-parameter. Its bytes are a
`FrameSpec`; the array itself is a frame behind all others, the first one last."""


class _Attachments(threading.local):
    """Arrays inside the message that this thread encodes or decodes."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.frames: list[Any] = []


_attachments = _Attachments()


def _attach(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray) or value.dtype.str not in DTYPES:
        _attachments.arrays = []
        raise UsageError(f"A {type(value).__name__} does not travel; use numbers, text, or arrays of numbers.")
    _attachments.arrays.append(np.asarray(value, order="C"))
    return msgspec.msgpack.Ext(ATTACHED_ARRAY_TYPE, msgspec.msgpack.encode(FrameSpec(value.dtype.str, value.shape)))


def _attached(code: int, data: memoryview) -> Array:
    """An array of its own, which may be written to, as where it came from."""
    if code != ATTACHED_ARRAY_TYPE or len(_attachments.frames) < 2:
        raise DecodeError("An array inside a message was announced and did not come.")
    spec = unpack(_attached_spec, bytes(data))
    size, frame = _size(spec), memoryview(_attachments.frames.pop())
    if frame.nbytes != size:
        raise DecodeError(f"An array of {size} bytes was announced, {frame.nbytes} came.")
    return np.ndarray(spec.shape, np.dtype(spec.dtype), frame).copy() if size else np.zeros(spec.shape, spec.dtype)


_encoder = msgspec.msgpack.Encoder(enc_hook=_attach)
_decoder = msgspec.msgpack.Decoder(Envelope, ext_hook=_attached)
_attached_spec = msgspec.msgpack.Decoder(FrameSpec)
_describer = msgspec.msgpack.Decoder(tuple[FrameSpec, ...])
_prefix = struct.Struct(">I").unpack_from


class PackedArrays:
    """Arrays made ready once, to be sent to any number of workers. Small ones share a frame: frames cost more."""

    slot = -1
    """The slot of the shared buffers (shared_buffers.py) that holds them; -1: they travel with the message."""

    def __init__(self, arrays: Sequence[Array] = ()) -> None:
        """Describe arrays for the header of a message; raises `UsageError` for types that do not travel."""
        for a in arrays:
            if a.dtype.str not in DTYPES:
                raise UsageError(f"Arrays of type {a.dtype} do not travel; use float32, float64 or integers.")
        described = [FrameSpec(a.dtype.str, np.shape(a)) for a in arrays]
        self.frames = msgspec.Raw(_encoder.encode(described)) if described else NO_FRAMES
        self.given = arrays
        self.arrays = [np.asarray(a, order="C") for a in arrays]
        self.packed = 0 < sum(a.nbytes for a in self.arrays) <= PACKED_UP_TO_BYTES
        """In the frame of the header."""
        self._parts: list[Any] | None = None
        self._share_frame: Callable[[Any], Any] | None = None

    @property
    def parts(self) -> list[Any]:
        """The arrays as frames of a message."""
        if self._parts is None:
            together = len(self.arrays) > 1 and sum(a.nbytes for a in self.arrays) <= PACKED_UP_TO_BYTES
            ready: list[Any] = [b"".join(map(_padded, self.arrays))] if together else list(self.arrays)
            self._parts = ready if self._share_frame is None else [self._share_frame(part) for part in ready]
        return self._parts

    @property
    def nbytes(self) -> int:
        """Bytes that they take on shared buffers."""
        return padded_size(self.arrays)

    def broadcast(self, share_frame: Callable[[Any], Any]) -> PackedArrays:
        """These arrays, prepared to be sent to several workers: `share_frame` makes each frame once (zmq_frames.py),
        and only the header is new for each message."""
        self.packed, self._share_frame = False, share_frame
        return self

    def write(self, buffer: Array, copy: Callable[[Array, Array], None] = np.copyto) -> None:
        """Write the arrays one after the other into `buffer`."""
        offset = 0
        for a in self.arrays:
            copy(buffer[offset : offset + a.nbytes], a.reshape(-1).view(np.uint8))
            offset += a.nbytes + -a.nbytes % ARRAY_ALIGNMENT_BYTES

    def in_slot(self, slot: int) -> PackedArrays:
        """The same arrays, which were written to this slot."""
        there = PackedArrays()
        there.frames, there.slot, there._parts = self.frames, slot, []
        return there


def padded_size(arrays: Sequence[Array]) -> int:
    """Bytes of arrays that lie one after the other."""
    return sum([a.nbytes + -a.nbytes % ARRAY_ALIGNMENT_BYTES for a in arrays])


def _padded(part: Array | bytes) -> bytes:
    raw = part if isinstance(part, bytes) else part.tobytes()
    return raw + bytes(-len(raw) % ARRAY_ALIGNMENT_BYTES)


EMPTY = PackedArrays()


def encode(envelope: Envelope, packed_arrays: PackedArrays = EMPTY) -> list[Any]:
    """Frames for `send_multipart`; the envelope must describe the message's arrays (see `Sequencer`).

    A packed message is one frame, because a frame costs both ends as much as some ten kilobytes of copying: the byte
    `PACKED_FIRST_BYTE`, three bytes with the length of the header, the header, and the arrays from an aligned place
    on. What goes to many is not copied for each of them, so there small arrays share a frame behind the header's.
    """
    header, attached = _encoder.encode(envelope), _attachments.arrays
    if attached:
        _attachments.arrays = []
        attached.reverse()
    if len(header) > MAX_HEADER_BYTES:
        raise UsageError(
            f"A {type(envelope.body).__name__} of {len(header)} bytes is too long, {MAX_HEADER_BYTES} is the most; "
            "keep large constants out of the algorithm's source: an array belongs in a hyper-parameter."
        )
    if not packed_arrays.packed:
        return [header, *packed_arrays.parts, *attached]
    length = len(header)
    start = (PACKED_FIRST_BYTE << 24 | length).to_bytes(4)
    together = b"".join(
        (start, header, bytes(-(length + 4) % ARRAY_ALIGNMENT_BYTES), *map(_padded, packed_arrays.parts))
    )
    return [together, *attached]


def unpack(decoder: msgspec.msgpack.Decoder[Some], data: Any) -> Some:
    """What the bytes say; `DecodeError` whatever is wrong with them.

    The garbage collector rests meanwhile: it would look again and again through what a long message brings.
    """
    rests = gc.isenabled() and memoryview(data).nbytes > active().transport.collector_rests_above_bytes
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


def decode(frames: Sequence[Any], slots: Sequence[memoryview] = ()) -> tuple[Envelope, tuple[Array, ...]]:
    """The message and its arrays: read-only and aligned, views of the received bytes where those lie well.

    `slots` are those of shared buffers that the sender may have written to.
    """
    if not 1 <= len(frames) <= MAX_FRAMES + 1:
        raise DecodeError(f"A message has 1 to {MAX_FRAMES + 1} frames, not {len(frames)}.")
    whole = frames[0] if type(frames[0]) is memoryview else memoryview(frames[0])
    size = length = whole.nbytes
    packed = size >= PACKED_PREFIX_BYTES and (mark := _prefix(whole)[0]) >> 24 == PACKED_FIRST_BYTE
    if packed:
        length = mark & 0xFFFFFF
    if length > MAX_HEADER_BYTES or (packed and length > size - PACKED_PREFIX_BYTES):
        raise DecodeError(f"A header has at most {MAX_HEADER_BYTES} bytes and all that it says, not {length}.")
    start = length + PACKED_PREFIX_BYTES
    if len(frames) > 1:
        frames = _attachments.frames = list(frames)  # decoding takes away what is attached
    else:
        _attachments.frames = []
    envelope = unpack(_decoder, whole[PACKED_PREFIX_BYTES:start] if packed else whole)
    if not packed and len(frames) == 1 and envelope.frames == NO_FRAMES and envelope.slot < 0:
        return envelope, ()
    layout = _layout(bytes(envelope.frames))
    if envelope.slot >= 0:
        if packed or len(frames) != 1 or envelope.slot >= len(slots) or layout.size > slots[envelope.slot].nbytes:
            raise MissingSharedBuffer(layout.size, envelope)
        return envelope, _in_slot(layout, slots[envelope.slot])
    if not packed:
        return envelope, _arrays(layout, frames[1:])
    start += -start % ARRAY_ALIGNMENT_BYTES
    if len(frames) != 1 or size != start + layout.size or layout.record is None:
        raise DecodeError(f"Packed arrays of {layout.size} bytes were announced and did not come in one frame.")
    return envelope, _cut(layout.record, whole, start)


class MissingSharedBuffer(DecodeError):
    """Arrays that are said to be on shared buffers, and are not on this one; they may be on that of another `job`."""

    def __init__(self, size: int, envelope: Envelope) -> None:
        super().__init__(f"Arrays of {size} bytes were said to be in slot {envelope.slot}, and are not.")
        self.job = envelope.job


class _Layout(NamedTuple):
    """Arrays that lie one after the other: each of them, all of them as one record, and their bytes together."""

    places: tuple[tuple[np.dtype[Any], tuple[int, ...], int], ...]
    """Type, shape and bytes."""
    record: np.dtype[Any] | None
    """None where they are too large to be packed."""
    size: int


@lru_cache(maxsize=64)
def _layout(described: bytes) -> _Layout:
    """Remembered, because all reports of a job look alike; the memory is bounded, whatever a stranger sends."""
    frames = unpack(_describer, described)
    if len(frames) > MAX_FRAMES:
        raise DecodeError(f"A message has at most {MAX_FRAMES} arrays, not {len(frames)}.")
    places, offsets, offset = [], [], 0
    for frame in frames:
        size = _size(frame)
        places.append((np.dtype(frame.dtype), frame.shape, size))
        offsets.append(offset)
        offset += size + -size % ARRAY_ALIGNMENT_BYTES
    if offset > PACKED_UP_TO_BYTES + ARRAY_ALIGNMENT_BYTES * MAX_FRAMES:
        return _Layout(tuple(places), None, offset)
    record: Any = {"names": [str(n) for n in range(len(places))], "offsets": offsets, "itemsize": offset}
    record["formats"] = [place[:2] for place in places]
    return _Layout(tuple(places), np.dtype(record, align=True), offset)


def _cut(described: np.dtype[Any], whole: memoryview, start: int) -> tuple[Array, ...]:
    """Arrays that share a frame. One record, then its fields: cheaper than array by array."""
    record: Array = np.ndarray((), described, whole, start)
    if not record.flags.aligned:
        record = record.copy()
        record.flags.writeable = False
    return tuple([record[name] for name in described.names or ()])


def _in_slot(layout: _Layout, buffer: memoryview) -> tuple[Array, ...]:
    """Arrays that lie one after the other in a slot of shared buffers."""
    arrays, offset = [], 0
    for dtype, shape, size in layout.places:
        arrays.append(np.ndarray(shape, dtype, buffer, offset) if size else np.zeros(shape, dtype))
        arrays[-1].flags.writeable = False
        offset += size + -size % ARRAY_ALIGNMENT_BYTES
    return tuple(arrays)


def _arrays(layout: _Layout, frames: Sequence[Any]) -> tuple[Array, ...]:
    """Arrays in a frame each, or several that share one."""
    if len(frames) == 1 < len(layout.places):
        whole = memoryview(frames[0]).toreadonly()
        if layout.record is None or whole.nbytes != layout.size:
            raise DecodeError(f"Arrays of together {layout.size} bytes were announced, {whole.nbytes} came.")
        return _cut(layout.record, whole, 0)
    if len(layout.places) != len(frames):
        raise DecodeError(f"{len(layout.places)} arrays were announced, {len(frames)} came.")
    arrays = []
    for (dtype, shape, size), frame in zip(layout.places, frames, strict=True):
        if memoryview(frame).nbytes != size:
            raise DecodeError(f"An array of {size} bytes was announced, {memoryview(frame).nbytes} came.")
        array: Array = np.ndarray(shape, dtype, frame) if size else np.zeros(shape, dtype)
        arrays.append(array if array.flags.aligned else array.copy())
        arrays[-1].flags.writeable = False
    return tuple(arrays)


def _size(frame: FrameSpec) -> int:
    """Bytes that an array of this description has; refuses what cannot be."""
    if frame.dtype not in DTYPES or len(frame.shape) > MAX_DIMENSIONS:
        raise DecodeError(f"Arrays of type {frame.dtype[:20]!r} and {len(frame.shape)} dimensions do not travel.")
    empty = 0 in frame.shape
    most = MAX_EMPTY_ARRAY_BYTES if empty else MAX_FRAME_BYTES
    size = DTYPES[frame.dtype]
    for extent in frame.shape:
        size *= max(extent, 1)
        if extent < 0 or size > most:
            raise DecodeError(f"An array has at most {most} bytes and no negative extent.")
    return 0 if empty else size


class Sequencer:
    """Wraps what one sender says into envelopes with increasing numbers."""

    def __init__(self, job: str, epoch: int, worker: int, incarnation: int) -> None:
        self.job, self.epoch, self.worker, self.incarnation = job, epoch, worker, incarnation
        self._next_number = 0

    def wrap(self, body: Body, packed_arrays: PackedArrays = EMPTY) -> list[Any]:
        number = self._next_number
        self._next_number += 1
        fence = (self.job, self.epoch, self.worker, self.incarnation, number)
        envelope = Envelope(*fence, body, packed_arrays.frames, packed_arrays.slot)
        return encode(envelope, packed_arrays)
