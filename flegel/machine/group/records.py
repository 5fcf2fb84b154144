"""What groups write into their bucket, as bytes: beats, contributions, results, `current`, the training package. Pure.

Names of objects (design section 12):

    job                                the training package by its hash; written once
    package/<sha256>                   source, hyper-parameters, θ(0), form
    starts/<group>                     means of parts of its rows, from which θ(0) is made
    members/<group>                    the status of a group, in every beat; replaced by compare-and-swap
    rounds/<round>/<group>.<life>      what a group contributes to a round
    rounds/<round>/result              who is in the round, and the new θ; written once
    current                            the newest round that has a result; replaced by compare-and-swap
    ends/<group>                       statistics of all rows of a group under the last θ

An object is a MessagePack header and the arrays behind it. Sizes are checked before anything is made; nothing is run.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UNDECODABLE, DecodeError
from flegel.machine.group.byte_planes import from_planes, planes_of
from flegel.machine.group.data_form import DataForm

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RECORD_DTYPES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|u1", "|b1")
MAX_RECORD_HEADER_BYTES = 16 << 20  # of a record of another group
MAX_RECORD_DIMENSIONS = 8  # of an array in it
MAX_RECORD_SHAPE = 1 << 48
"""Product of all dimensions that are not 0: NumPy refuses empty arrays, too, whose other dimensions exceed 63 bits."""
RECORD_MARK = b"FLG1"
MAX_DEFLATED = 1100
"""Bytes that one byte can stand for: zlib reaches 1,032. So what is unpacked stays in proportion to what was read."""

CURRENT, PACKAGE_POINTER, MEMBERS, STARTS, ENDS = "current", "job", "members/", "starts/", "ends/"
MAX_BEAT_BYTES = 64 << 10  # bytes of a beat, of `current` and of `job`: some hundred, and the names of objects


class MemberBeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group as it is now. Everything that others must know of it, so that a lost beat loses nothing."""

    group: str
    life: int
    """Grows from one process of a group to the next."""
    beat: int
    """Grows with every beat of a life: whoever sees it change knows that the group lives, whatever its clock says."""
    state: str
    """loading, training, resting (converged), stalled (it waits in vain for the bucket), finished (its statistics
    stay), left (they go) or excluded."""
    round: int
    """The round that is open for it: it has applied the result of the one before."""
    sent: str = ""
    """The object with its contribution, until it knows that a result counts it; empty while there is none."""
    digest: str = ""
    sent_round: int = 0
    """The round that was open for it when it made this contribution."""
    visits: float = 0.0
    """That this contribution holds."""
    withheld: int = 0
    """The round to which it sends nothing, because its model is not good enough."""
    commits: int = 0
    workers: int = 0
    load: float = 0.0
    address: str = ""
    lacks: tuple[str, ...] = ()
    """Objects that this group needs and cannot read; who knows their content writes them again."""
    package: str = ""
    """Hash of the package that it trains with: statistics of two packages must not be added."""


class Contribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of what a group sends: its statistics, or the change of θ since the result of the round before."""

    group: str
    life: int
    round: int
    fields: int
    """How many of the arrays are statistics or changes; θ of the group follows them."""
    visits: float
    points: int
    settled: bool
    """The group is at rest, and was so before the last result with the same objective."""
    objective: float | None = None
    commits: int = 0
    package: str = ""
    wire: str = "full"
    """How changes of θ are written (`wire.py`)."""
    fragment: int = -1
    """Of θ that it changes (`fragments.py`); -1: all."""
    changed: tuple[float, ...] = ()
    """By how much this group has changed each fragment, where there are several."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contribution that is part of a round."""

    group: str
    life: int
    key: str
    digest: str
    round: int
    """In which it was made; an earlier one where it was late, or the group was absent or has finished since."""
    settled: bool = False


class RoundResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of the one result of a round: who is in it. Behind it θ and velocity, where θ is exchanged."""

    round: int
    entries: tuple[Entry, ...]
    final: bool = False
    """Every group is at rest: training is over."""
    fields: int = 0
    by: str = ""
    package: str = ""
    """Hash of the package of the training that it belongs to."""
    counted: tuple[tuple[str, int, int], ...] = ()
    """Of every group that ever contributed: life and round of its last contribution that a result counted. A group that
    skips results knows by this what of its own is counted, and nobody counts anything twice."""
    why: str = ""
    """Why the round ended, where a quorum ended it."""
    fragments: tuple[int, ...] = ()
    """Of θ whose new values follow, in this order; then their velocities, where the outer optimizer has any."""
    exchanged_in: tuple[int, ...] = ()
    """The round in which each fragment was exchanged last, this one included; 0: it never was."""
    next_fragment: int = 0
    """Of the round after this one."""
    sizes: tuple[tuple[str, int, float, float, int], ...] = ()
    """Group, fragment, and what is known of the sizes of its changes (`outliers.py`)."""
    outliers: tuple[tuple[str, str], ...] = ()
    """Groups whose changes were outliers, and what was done to them."""
    short: tuple[int, ...] = ()
    """Of θ and its velocities, the arrays that are written in 16 bits (`wire.py`), as two parts each."""

    def counted_of(self, group: str) -> tuple[int, int]:
        """Life and round of the last contribution of a group that was counted; (0, 0) where there is none."""
        return next(((life, round_) for name, life, round_ in self.counted if name == group), (0, 0))

    def life_of(self, group: str) -> int | None:
        return next((entry.life for entry in self.entries if entry.group == group), None)


class Current(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest round with a result, and the hash of the package of its training: an earlier one is not joined."""

    round: int
    package: str = ""


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a joiner needs: the algorithm by source, θ(0) and its form behind the header, and how groups exchange."""

    format: int
    algorithm: str
    """Name of the class, with its module where it is built in."""
    source: str
    """Source text of the class; empty where it is built in."""
    hyper: dict[str, Any]
    """Hyper-parameters with which θ(0) was made: as given, with what hooks have filled in."""
    submitted: dict[str, Any]
    """Hyper-parameters as they were given, before any hook ran: groups must agree in them."""
    parameter: tuple[str, tuple[str, ...]]
    """Name and fields of θ."""
    data: DataForm
    """Where columns are scaled, the last two arrays are shift and factor of each."""
    exchange: str
    """What groups exchange: statistics or parameters."""
    outer: str
    """How changes of θ are applied (`--outer`); empty where statistics are exchanged."""
    every: str
    """How often groups exchange (`--every`)."""
    made_by: str
    """Name of the group that wrote the package."""
    statistics_bytes: int = 0
    """What the statistics of one group take: a joiner must hold those of all."""
    after: str = ""
    """Hash of the package of the earlier training in this bucket that this one begins after; empty for the first."""
    quorum: str = "all"
    """How many contributions end a round (`--quorum`)."""
    fragments: int = 1
    """Parts of θ that are exchanged one at a time (`--fragments`)."""
    outliers: str = "keep"
    """What is done to changes that are outliers (`--outliers`)."""


class StartRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of the means and weights by which a group takes part in θ(0); the two arrays follow."""

    group: str
    data: DataForm
    after: str = ""
    """As in `Package`: means for an earlier training are not used."""


class EndStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of the statistics of one pass over all rows of a group under the θ of the last result, which follow."""

    group: str
    life: int
    round: int


class PackageRef(msgspec.Struct, frozen=True):
    """The object `job`. Fields of later versions are ignored, so that a group of another one can say what differs."""

    sha256: str
    format: int = 0
    """Of all objects of the training."""
    version: str = ""
    """Of the Flegel that wrote it."""


Header = TypeVar(
    "Header", MemberBeat, Contribution, RoundResult, Current, Package, PackageRef, StartRows, EndStatistics
)


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: str
    shape: tuple[int, ...]
    planes: tuple[int, ...] = ()
    """Bytes of each byte plane (`byte_planes.py`); empty: the array is written as it is."""


_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(tuple[kind, list[_Frame]])  # type: ignore[valid-type]
    for kind in Header.__constraints__
}
"""Made here, once: msgspec crashes where two threads decode a record with records in it for the first time."""


def contribution_key(round_: int, group: str, life: int) -> str:
    return f"rounds/{round_}/{group}.{life:x}"


def result_key(round_: int) -> str:
    return f"rounds/{round_}/result"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encode(header: msgspec.Struct, arrays: Sequence[Array] = (), compress: bool = False) -> bytes:
    """The same record gives the same bytes; with `compress`, the same version of zlib does."""
    frames, bodies = list[_Frame](), list[bytes]()
    for array in (np.asarray(a, order="C") for a in arrays):
        kind = array.dtype.newbyteorder("<").str if array.dtype.itemsize > 1 else array.dtype.str
        planes = planes_of(array) if compress else []
        frames.append(_Frame(kind, array.shape, tuple(len(plane) for plane in planes)))
        bodies += planes or [array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()]
    head = msgspec.msgpack.encode((header, frames))
    return b"".join([RECORD_MARK, len(head).to_bytes(4, "little"), head, *bodies])


def decode(content: bytes, kind: type[Header]) -> tuple[Header, list[Array]]:
    """Header and arrays, which are read-only; raises `DecodeError` alone."""
    if content[:4] != RECORD_MARK or len(content) < 8:  # mark and length of the header, 4 bytes each
        raise DecodeError("this is no object of a group")
    size = int.from_bytes(content[4:8], "little")
    if size > MAX_RECORD_HEADER_BYTES or 8 + size > len(content):
        raise DecodeError("its header does not fit")
    try:
        header, frames = _DECODERS[kind].decode(content[8 : 8 + size])
    except UNDECODABLE as error:
        raise DecodeError(f"its header is damaged ({error})") from None
    arrays: list[Array] = []
    at = 8 + size
    for frame in frames:
        array, at = _array(frame, content, at)
        arrays.append(array)
    if at != len(content):
        raise DecodeError("something follows its arrays")
    return header, arrays


def _array(frame: _Frame, content: bytes, at: int) -> tuple[Array, int]:
    """The array of a frame that begins at this byte, and where it ends."""
    if frame.kind not in RECORD_DTYPES or len(frame.shape) > MAX_RECORD_DIMENSIONS:
        raise DecodeError("it holds an array of an unknown kind")
    dtype = np.dtype(frame.kind)
    if min(frame.shape, default=0) < 0 or math.prod(n or 1 for n in frame.shape) > MAX_RECORD_SHAPE:
        raise DecodeError("it holds an array of a shape that cannot be")
    count = math.prod(frame.shape)
    if min(frame.planes, default=0) < 0:
        raise DecodeError("it holds an array of a shape that cannot be")
    length = sum(frame.planes) if frame.planes else count * dtype.itemsize
    if length > len(content) - at:
        raise DecodeError("an array is cut off")
    if not frame.planes:
        return np.frombuffer(content, dtype, count, at).reshape(frame.shape), at + length
    if count > MAX_DEFLATED * max(frame.planes):
        raise DecodeError("an array is packed smaller than can be")
    ends = [at + n for n in itertools.accumulate(frame.planes)]
    planes = [content[end - n : end] for end, n in zip(ends, frame.planes, strict=True)]
    array = from_planes(planes, dtype, frame.shape, count)
    array.flags.writeable = False
    return array, at + length


def finite(arrays: Sequence[Array]) -> bool:
    return all(bool(np.isfinite(a).all()) for a in arrays)


def within(arrays: Sequence[Array], largest: float) -> bool:
    """Whether all numbers are finite, and none is beyond this absolute value."""
    return all(not a.size or (-largest <= float(a.min()) and float(a.max()) <= largest) for a in arrays)
