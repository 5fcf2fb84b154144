"""The wire: every message survives the round trip, and bytes that are no message raise `DecodeError` only."""

from __future__ import annotations

import ast
import contextlib
import math
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flegel.errors import DecodeError, UsageError
from flegel.job import AlgorithmRef
from flegel.messages import (
    NO_FRAMES,
    Answer,
    Envelope,
    Exit,
    FetchStates,
    FrameSpec,
    Hello,
    LoadShard,
    Order,
    ReleaseJob,
    Report,
    ShardLoaded,
    States,
    Stop,
    Train,
    TreeLayout,
    WorkerBeat,
    WorkerFailed,
)
from flegel.runtime.transport import zmq_frames
from flegel.runtime.transport.codec import DTYPES, PACKED_UP_TO_BYTES, PackedArrays, Sequencer, decode, encode
from tests.source_trees import nodes

PACKAGE = Path(__file__).resolve().parents[2] / "flegel"

text = st.text(max_size=20)
number = st.integers(0, 2**40)
seconds = st.floats(0, 1e6)
form = st.builds(TreeLayout, text, st.lists(text, max_size=4).map(tuple))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | text | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
bodies = st.one_of(
    st.builds(
        LoadShard,
        st.builds(AlgorithmRef, text, st.dictionaries(text, plain, max_size=3), text),
        st.dictionaries(text, plain, max_size=3),
        number,
        number,
        number,
        form,
        form,
        st.booleans(),
    ),
    st.builds(Train, number, number, st.none() | seconds),
    st.builds(Stop, number),
    st.sampled_from([FetchStates(), ReleaseJob(), Exit(), States()]),
    st.builds(Hello, number, text),
    st.builds(ShardLoaded, number, number, text, text, seconds),
    st.builds(Report, number, number, st.booleans(), number, number, seconds, seconds, seconds),
    st.builds(WorkerBeat, number),
    st.builds(WorkerFailed, text, st.integers(-1, 2**40), text, text, st.booleans()),
)
arrays = st.lists(
    hnp.arrays(
        st.sampled_from(sorted(DTYPES)).map(np.dtype),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    max_size=4,
)
envelopes = st.builds(Envelope, text, number, number, number, number, bodies)


def sent(envelope: Envelope, values: list[np.ndarray]) -> list[bytes]:
    """The frames as a socket would hand them over."""
    return [f.tobytes() if isinstance(f, np.ndarray) else bytes(f) for f in frames_of(envelope, values)]


def described(*frames: FrameSpec) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(frames))


def frames_of(envelope: Envelope, values: list[np.ndarray]) -> list[Any]:
    packed = PackedArrays(values)
    return encode(msgspec.structs.replace(envelope, frames=packed.frames), packed)


@given(envelopes, arrays)
def test_every_message_survives_the_round_trip(envelope: Envelope, values: list[np.ndarray]) -> None:
    back, got = decode(sent(envelope, values))
    assert back.body == envelope.body
    assert msgspec.structs.replace(back, frames=NO_FRAMES) == envelope
    assert len(got) == len(values)
    for a, b in zip(got, values, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


@given(envelopes)
def test_another_msgpack_reader_understands_the_header(envelope: Envelope) -> None:
    header = msgpack.unpackb(sent(envelope, [])[0], strict_map_key=False)
    assert header[:5] == [
        envelope.job, envelope.epoch, envelope.worker, envelope.incarnation, envelope.sequence,
    ]  # fmt: skip
    assert header[5]["type"] == type(envelope.body).__name__
    assert set(header[5]) == {"type", *envelope.body.__struct_fields__}


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_arbitrary_bytes_raise_only_decode_errors(frames: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        decode(frames)


@settings(max_examples=300)
@given(envelopes, arrays, st.data())
def test_damaged_messages_decode_or_raise_decode_errors(
    envelope: Envelope, values: list[np.ndarray], data: st.DataObject
) -> None:
    frames = [bytearray(frame) for frame in sent(envelope, values)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        match data.draw(st.sampled_from(["flip", "cut", "grow", "drop"])):
            case "flip" if frame:
                frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
            case "cut":
                del frame[data.draw(st.integers(0, len(frame))) :]
            case "grow":
                frame.extend(data.draw(st.binary(max_size=5)))
            case "drop" if len(frames) > 1:
                frames.pop()
    with contextlib.suppress(DecodeError):
        decode([bytes(frame) for frame in frames])


@pytest.mark.parametrize(
    "header",
    [
        b"\x9f" * 200_000,  # arrays in arrays
        b"\x81\xa1a" * 200_000,  # maps in maps
        b"\xdd\xff\xff\xff\xff",  # an array that says it has 4 billion members
        b"\xdb\xff\xff\xff\xff",  # a string of 4 GB that is not there
        b"",
    ],
)
def test_hostile_headers_are_refused_without_harm(header: bytes) -> None:
    with pytest.raises(DecodeError):
        decode([header])


def envelope_with(frames: list[list[Any]], body: dict[str, Any] | None = None) -> bytes:
    return msgpack.packb(["job", 0, 0, 0, 0, body or {"type": "WorkerBeat", "visits": 1}, frames])


def test_the_envelope_of_these_tests_is_one_that_is_read() -> None:
    """Those that follow damage one place of it each, which must be why it is refused."""
    envelope, (array,) = decode([envelope_with([["<f8", [2, 0, 3]]]), b""])
    assert isinstance(envelope.body, WorkerBeat) and array.shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("frame", "payload"),
    [
        (["<f8", [2]], b"x" * 15),
        (["<f8", [-1]], b"x" * 8),
        (["<f8", [2**62, 2**62]], b""),
        (["<f8", [0, 2**62]], b"x"),
        (["|u1", [0, 2**31]], b""),
        (["<f8", [0, 2**32, 2**32, 2**32]], b""),
        (["|O", [1]], b"x" * 8),
        (["<U4", [1]], b"x" * 16),
        (["nonsense", [1]], b"x"),
        (["<f8", [1] * 40], b"x" * 8),
    ],
)
def test_arrays_that_do_not_fit_their_description_are_refused(frame: list[Any], payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode([envelope_with([frame]), payload])


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Obey", "visits": 1},
        {"type": "WorkerBeat", "visits": 1, "more": 2},
        {"type": "WorkerBeat", "visits": "many"},
        {"type": "WorkerBeat"},
        {"visits": 1},
    ],
)
def test_the_vocabulary_is_closed(body: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode([envelope_with([], body)])


def test_every_message_is_an_order_an_answer_or_goes_between_workers() -> None:
    from flegel import messages, server_messages

    said = {
        cls
        for module, base in ((messages, messages._Message), (server_messages, server_messages._ServerMessage))
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, base) and not cls.__subclasses__()
    }
    assert said == {*Order.__args__, *Answer.__args__, *messages.PeerMessage.__args__}


def test_every_order_has_a_case_where_it_arrives() -> None:
    """An order that none names would be dropped without a word."""
    places = ("machine/worker/worker.py", "machine/worker/replica.py", "machine/server/server.py")
    cases = {
        node.cls.id
        for place in places
        for node in nodes(PACKAGE / place)
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name)
    }
    in_process = {"ServeJob", "ServerMap"}  # `_join_servers` and `_order_of_servers` of runtime/worker/process.py
    assert {cls.__name__ for cls in Order.__args__} - in_process <= cases


def test_received_arrays_cannot_be_written_to() -> None:
    _, (array,) = decode(sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), [np.zeros(3)]))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


@pytest.mark.parametrize("value", [np.zeros(2, complex), np.array(["a"]), np.array([None]), np.zeros(2, ">f8")])
def test_arrays_that_cannot_travel_are_refused_by_the_sender(value: np.ndarray) -> None:
    with pytest.raises(UsageError, match="do not travel"):
        PackedArrays([value])


def test_arrays_in_any_memory_order_arrive_as_they_were() -> None:
    values = [np.arange(12.0).reshape(3, 4).T, np.arange(10.0)[::3], np.asfortranarray(np.eye(3))]
    _, got = decode(sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), values))
    for a, b in zip(got, values, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [1, PACKED_UP_TO_BYTES // 8])
def test_small_arrays_share_the_frame_of_the_header_and_large_ones_do_not(size: int) -> None:
    values = [np.arange(float(size)), np.arange(3.0)]
    frames = sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), values)
    assert len(frames) == (1 if size == 1 else 3)
    for a, b in zip(decode(frames)[1], values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_packed_frame_of_the_wrong_size_is_refused() -> None:
    (packed,) = sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), [np.arange(2.0), np.arange(3.0)])
    for wrong in (packed[:-1], packed + b"x", packed[:4], packed[:3], b"\xc1", b"\xc1\xff\xff\xff" + packed[4:]):
        with pytest.raises(DecodeError):
            decode([wrong])
    with pytest.raises(DecodeError):
        decode([packed, b"x"])


def test_packed_arrays_of_any_types_lie_well() -> None:
    values = [np.arange(3, dtype="f4"), np.arange(5.0), np.arange(7, dtype="i1"), np.arange(2), np.zeros((0, 3))]
    _, got = decode(sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), values))
    for a, b in zip(got, values, strict=True):
        assert a.flags.aligned and a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("numbers", [5, PACKED_UP_TO_BYTES])
@pytest.mark.parametrize("shift", range(8))
def test_arrays_are_aligned_and_read_only_wherever_the_received_bytes_lie(numbers: int, shift: int) -> None:
    values = [np.arange(float(numbers)), np.arange(6.0).reshape(2, 3)]
    received = []
    for frame in sent(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), values):
        memory = bytearray(shift) + bytes(frame)
        received.append(memoryview(memory)[shift:].toreadonly())
    for a, b in zip(decode(received)[1], values, strict=True):
        assert a.flags.aligned and a.flags.c_contiguous and not a.flags.writeable
        np.testing.assert_array_equal(a, b)


def test_a_packed_frame_larger_than_senders_pack_is_refused() -> None:
    count = PACKED_UP_TO_BYTES  # eight times the bytes that are packed
    envelope = Envelope("j", 0, 0, 0, 0, WorkerBeat(0), described(FrameSpec("<f8", (count,))))
    header = msgspec.msgpack.encode(envelope)
    start = (0xC1 << 24 | len(header)).to_bytes(4) + header
    with pytest.raises(DecodeError, match="one frame"):
        decode([start + bytes(-len(start) % 8) + bytes(8 * count)])


def test_what_goes_to_many_is_what_goes_to_one() -> None:
    for values in ([np.arange(5.0)], [np.arange(20_000.0), np.arange(3.0)], [np.arange(5.0), np.arange(3, dtype="i1")]):
        packed = PackedArrays(values).broadcast(zmq_frames.shared)
        values[0] = values[0] + 1  # what was made ready does not follow
        for worker in range(3):
            _, got = decode([bytes(f) for f in Sequencer("j", 0, worker, 0).wrap(WorkerBeat(0), packed)])
            np.testing.assert_array_equal(got[0], values[0] - 1)
            assert len(got) == len(values) and all(a.flags.aligned and not a.flags.writeable for a in got)


def test_small_arrays_that_go_to_many_share_a_frame_behind_the_header() -> None:
    packed = PackedArrays([np.arange(5.0), np.arange(3.0)]).broadcast(zmq_frames.shared)
    header, shared = (bytes(f) for f in Sequencer("j", 0, 0, 0).wrap(WorkerBeat(0), packed))
    for wrong in (shared[:-1], shared + bytes(8), b""):
        with pytest.raises(DecodeError, match="64 bytes"):
            decode([header, wrong])
    with pytest.raises(DecodeError):
        decode([header])


def test_more_arrays_than_travel_are_refused() -> None:
    envelope = Envelope("j", 0, 0, 0, 0, WorkerBeat(0), described(*[FrameSpec("<f8", (1,))] * 257))
    with pytest.raises(DecodeError, match="at most 256"):
        decode([msgspec.msgpack.encode(envelope), bytes(8 * 257)])


def test_what_a_sender_says_is_numbered() -> None:
    voice = Sequencer("job", 1, 2, 3)
    numbers = [decode([bytes(f) for f in voice.wrap(WorkerBeat(0))])[0].sequence for _ in range(3)]
    assert numbers == [0, 1, 2]


def test_special_numbers_travel() -> None:
    envelope = Envelope("j", 0, 0, 0, 0, Train(0, 1, math.inf))
    assert decode(sent(envelope, []))[0].body == Train(0, 1, math.inf)
    assert msgspec.msgpack.decode(sent(envelope, [])[0])[5]["seconds"] == math.inf


def test_a_real_socket_carries_arrays_of_every_shape() -> None:
    context = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    try:
        one.bind("inproc://wire")
        other.connect("inproc://wire")
        values = [np.zeros((3, 0), "f4"), np.array(2.5), np.arange(6).reshape(2, 3).T, np.zeros(0)]
        zmq_frames.send(one, frames_of(Envelope("j", 0, 0, 0, 0, WorkerBeat(0)), values))
        _, got = decode(zmq_frames.receive(other))
        with pytest.raises(zmq.Again):
            zmq_frames.receive(other)
        for a, b in zip(got, values, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and a.flags.aligned
            np.testing.assert_array_equal(a, b)
    finally:
        one.close(0)
        other.close(0)
        context.term()
