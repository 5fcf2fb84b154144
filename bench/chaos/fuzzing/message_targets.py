"""Objects of groups and windows of points, for the fuzzing program: what other groups and other workers send."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import msgspec
import numpy as np

from bench.chaos.fuzzing.mutation import NUMBERS, change_bytes
from bench.chaos.fuzzing.target import Target, accepted, change_packed
from flegel.core.shard import TILE, Sparse, make_shard
from flegel.errors import DecodeError
from flegel.machine.group import records
from flegel.machine.group.contributions import Contributions
from flegel.machine.group.data_form import DataForm
from flegel.machine.group.records import Contribution, Entry, MemberBeat, Package, RoundResult, digest_of
from flegel.machine.worker import window_codec
from flegel.messages import Window

SHAPES = [(), (0,), (1,), (0, 2**63), (2**62,), (-1,), (2**31, 2**33), (1, 1, 1), (2**64,), (0, 2**40, 2**40), (3,) * 9]


def message_targets() -> list[Target]:
    return [_objects(), _signed_objects(), *_windows()]


# -- objects of groups -------------------------------------------------------------------------------------


def _examples() -> list[tuple[type, bytes]]:
    entry = Entry("lyon", 7, "rounds/2/lyon.7", "0" * 64, 2)
    form = DataForm(3, (), (), "float64", "none", "")
    package = Package(1, "a:B", "", {}, {}, ("array", ()), form, "statistics", "", "3", "lyon")
    array = [np.arange(3.0), np.zeros((2, 2), np.float32)]
    return [
        (MemberBeat, records.encode(MemberBeat("lyon", 7, 1, "training", 2))),
        (Contribution, records.encode(Contribution("lyon", 7, 2, 2, 1.0, 3, False), array)),
        (RoundResult, records.encode(RoundResult(2, (entry,), False, 1, "lyon"), array)),
        (records.Current, records.encode(records.Current(4))),
        (Package, records.encode(package, array)),
        (records.StartRows, records.encode(records.StartRows("lyon", form), array)),
        (records.PackageRef, records.encode(records.PackageRef("0" * 64))),
    ]


def _change_object(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """As bytes, as a header, or as shapes that lie; the length of the header is made right again."""
    way = rng.random()
    if way < 0.3 or len(data) < 8:
        return change_bytes(data, rng, others)
    size = int.from_bytes(data[4:8], "little")
    head, body = data[8 : 8 + size], data[8 + size :]
    head = change_packed(head, rng) if way < 0.65 else _other_frames(head, rng)
    length = len(head) if rng.random() < 0.9 else rng.choice(NUMBERS) % 2**32
    return data[:4] + length.to_bytes(4, "little") + head + (body if rng.random() < 0.6 else rng.randbytes(8))


def _other_frames(head: bytes, rng: random.Random) -> bytes:
    try:
        header = msgpack.unpackb(head, strict_map_key=False)[0]
        frames = [
            [rng.choice(("<f8", "<i4", "|b1", "|O8", "")), list(rng.choice(SHAPES))] for _ in range(rng.randrange(4))
        ]
        return bytes(msgpack.packb([header, frames]))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, msgpack.UnpackException):
        return change_bytes(head, rng, [])


def _read_object(content: bytes) -> None:
    """By every kind of header, and as a contribution that a beat has announced."""
    for kind, _ in KINDS:
        try:
            records.decode(content, kind)
        except DecodeError as error:
            assert str(error)
    entry = Entry("lyon", 7, "rounds/2/lyon.7", digest_of(content), 2)
    Contributions([(3,), (2, 2)]).accept(entry, content)


KINDS: list[Any] = _examples()


def _objects() -> Target:
    modules = ("flegel/machine/group/records.py", "flegel/machine/group/contributions.py")
    return Target("objects of groups", [content for _, content in KINDS], _change_object, _read_object, modules)


def _signed_objects() -> Target:
    """Frames of signatures. What stands behind a right signature is read as all objects are."""
    from flegel.runtime.group.keys import PlainObjects, RefusedObject, SignedObjects

    frame = msgspec.msgpack.encode({"signer": "lyon", "signature": b"s" * 64, "nonce": b"n" * 12})
    seed = b"FLGS" + len(frame).to_bytes(4, "little") + frame + b"content"

    class Never:
        """A key whose signatures are never right."""

        def verify(self, signature: bytes, content: bytes) -> None:
            raise RefusedObject("its content is not what was signed")

    signed = SignedObjects("paris", None, {"lyon": Never()})

    def run(content: bytes) -> None:
        for seal in (signed, PlainObjects()):
            for key in ("members/lyon", "rounds/2/lyon.7", "current"):
                try:
                    seal.open(key, content)
                except (RefusedObject, ImportError):  # ImportError: without the library there are no keys
                    continue

    return Target("signed objects", [seed], _change_object, run, ("flegel/runtime/group/keys.py",))


# -- windows of points -------------------------------------------------------------------------------------


def _windows() -> list[Target]:
    rng = np.random.default_rng(0)
    dense, points = rng.normal(size=(2 * TILE, 3)), 2 * TILE
    state = np.zeros((points, 2))
    sparse = Sparse(np.arange(points + 1), np.arange(points) % 3, np.ones(points), 3)
    shards = {
        "rows": make_shard(dense, None, state.copy(), "rows"),
        "tiles": make_shard(dense, None, state.copy(), "tiles"),
        "sparse": make_shard(sparse, None, state.copy(), "rows"),
    }
    return [_window(name, shard) for name, shard in shards.items()]


def _window(name: str, native: Any) -> Target:
    whole = window_codec.pack(native)
    changes, _ = window_codec.pack_changes(native, native.state.copy())
    seeds = [
        _packed(Window(1, 0, (0, 1), native.points, 1), whole),
        _packed(Window(1, 0, (0, 1), native.points, 1, True), window_codec.pack_states(native)),
        _packed(Window(1, 0, (0, 1), native.points, 1, True, True), changes),
    ]

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        try:
            window, arrays = msgpack.unpackb(data)
            if rng.random() < 0.4:
                window["points"] = rng.choice([*NUMBERS[:12], native.points - 1, TILE])
            if arrays and rng.random() < 0.8:
                at = rng.randrange(len(arrays))
                arrays[at] = rng.choice(
                    (
                        ["<f8", [], bytes(8)], ["<i8", [0], b""], ["<f4", [1, 1], bytes(4)], ["|u1", [2], b"\xff\xff"],
                        ["<i8", [3], bytes(24)], ["<f8", [native.points, 2], bytes(16 * native.points)],
                        ["<i8", [native.points + 1], bytes(8 * native.points + 8)],
                        ["<i8", [native.points], b"\xff" * (8 * native.points)], arrays[rng.randrange(len(arrays))],
                    )
                )  # fmt: skip
            elif rng.random() < 0.5:
                del arrays[rng.randrange(len(arrays)) :]
            return bytes(msgpack.packb([window, arrays]))
        except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException):
            return rng.choice(seeds)

    def run(content: bytes) -> None:
        window, arrays = _unpacked(content)
        if window is not None:
            accepted(lambda: _placed(native, window, arrays))

    return Target(f"window of {name}", seeds, change, run, ("flegel/machine/worker/window_codec.py",))


def _placed(native: Any, window: Window, arrays: tuple[Any, ...]) -> None:
    """As a worker does that takes points over."""
    incoming = window_codec.unpack(window, arrays, 1)
    window_codec.check_states(incoming, native)
    if not window.copied:
        window_codec.MoveBuffer(native, native.points).place(window, arrays)
    elif incoming.which is not None:
        window_codec.put_states(native, incoming.which, incoming.state)


def _packed(window: Window, arrays: list[Any]) -> bytes:
    plain = [[a.dtype.str, list(a.shape), np.ascontiguousarray(a).tobytes()] for a in arrays]
    return bytes(msgpack.packb([msgspec.to_builtins(window), plain]))


def _unpacked(content: bytes) -> tuple[Window | None, tuple[Any, ...]]:
    """As the codec hands it on: a typed window, and arrays of numbers."""
    try:
        told, plain = msgpack.unpackb(content)
        window = msgspec.convert(told, Window)
        return window, tuple(np.frombuffer(data, kind).reshape(shape) for kind, shape, data in plain)
    except (ValueError, TypeError, msgspec.MsgspecError, msgpack.UnpackException):
        return None, ()
