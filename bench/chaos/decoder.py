"""Hostile bytes for the two decoders of the wire: whatever comes in, `DecodeError` is all that may come out.

Valid messages of every type are mutated as bytes (bits, cuts, repeats, splices, lengths that lie, deep nesting) and as
structures (something else in the place of any part, fields more, fewer and twice), some inputs are made from nothing.
Each input goes through the decoder of jobs (runtime/transport/codec.py) or through that of the server
(cluster/transport/framing.py). Recorded:
what came out, the slowest input per MiB, and the peak of memory, both of which have a limit. Appends a JSON line for
each batch; started again, it goes on where that file ends.

    python -m bench.chaos.decoder --inputs 10000000 --out decoder.jsonl
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
import tracemalloc
import typing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flegel import messages
from flegel.cluster.transport import framing, protocol
from flegel.cluster.transport.ordered_channel import MessageHeader
from flegel.cluster.transport.secure_server import Limits
from flegel.errors import DecodeError
from flegel.runtime.transport import codec

BATCH = 50_000
MAX_MEMORY = 100e6
MAX_SECONDS = 0.200  # for each MiB; what is smaller than 64 KiB counts as 64 KiB
MEMORY_EVERY = 20  # batches
LIMITS = Limits()
LARGEST = codec.MAX_HEADER_BYTES - 200  # of what fills a header, so that the whole is just not too long
VOCABULARY = framing.Vocabulary(protocol.RIGHTS)


def example(kind: Any, rng: random.Random, depth: int = 0) -> Any:
    """Some value of a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return example(rng.choice([int, str, float, list[int], dict[str, Any] if depth < 3 else str]), rng, depth + 1)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in msgspec.structs.fields(kind)]
        return kind(**{name: example(hints[name], rng, depth + 1) for name in names})
    if origin is not None and (origin is typing.Union or str(origin) == "<class 'types.UnionType'>"):
        return example(rng.choice(args), rng, depth + 1)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(example(args[0], rng, depth + 1) for _ in range(rng.randrange(3)))
        return tuple(example(a, rng, depth + 1) for a in args)
    if origin is list:
        return [example(args[0], rng, depth + 1) for _ in range(rng.randrange(3))]
    if origin is dict:
        return {example(args[0], rng): example(args[1], rng, depth + 1) for _ in range(rng.randrange(3))}
    return {
        int: rng.choice([0, 1, 7, 255, 70_000, 2**40]), str: rng.choice(["", "a", "name", "β" * 9]),
        bool: rng.random() < 0.5, float: rng.choice([0.0, 1.5, float("inf")]), bytes: b"xyz", type(None): None,
        dict: {}, list: [], tuple: (),
    }[kind]  # fmt: skip


def seeds(rng: random.Random) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Valid messages of every type: for the decoder of jobs, and for that of the server."""
    jobs, server_messages = [], []
    for kind in typing.get_args(messages.Body):
        for arrays in ([], [np.arange(3.0)], [np.zeros((2, 2), "f4"), np.arange(4)]):
            parcel = codec.PackedArrays(arrays)
            envelope = messages.Envelope("job", 1, 2, 3, 4, example(kind, rng), parcel.frames)
            jobs.append([bytes(memoryview(f).cast("B")) for f in codec.encode(envelope, parcel)])
    for kind in protocol.RIGHTS:
        body = msgspec.Raw(msgspec.msgpack.encode(example(kind, rng)))
        server_messages.append([msgspec.msgpack.encode(MessageHeader(1, 2, 3, 1, 0, body)), b"frame"])
    return jobs, server_messages


LIES = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd7\xff" + b"\xff" * 8,
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf8" + b"\x00" * 6, b"\xc1", b"\xa4\xff\xfe\xfd\xfc",
]  # fmt: skip
NESTS = [b"\x91", b"\x81\xa1a", b"\x92\xc0", b"\x81\x91", b"\x93\x01\x02"]
BULKS = [b"\x80", b"\x90", b"\xc0", b"\xa2ab", b"\xcd\xff\xff", b"\xca\x00\x00\x00\x00", b"\x81\xa1a\xc0", b"\x91\x90"]


def mutate(data: bytes, rng: random.Random, others: list[list[bytes]]) -> bytes:
    """One hostile change."""
    work = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place = rng.randrange(len(work) + 1)
        match rng.randrange(9):
            case 0 if work:
                work[rng.randrange(len(work))] ^= 1 << rng.randrange(8)
            case 1 if work:
                work[rng.randrange(len(work))] = rng.randrange(256)
            case 2:
                del work[place : place + rng.randrange(1, 9)]
            case 3:
                work[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                del work[place:]
            case 5:
                work[place:place] = rng.choice(LIES)
            case 6:
                other = rng.choice(rng.choice(others))
                work[place:] = other[rng.randrange(len(other) + 1) :]
            case 7:
                work[place:place] = rng.choice(NESTS) * rng.choice((3, 50, 2000))
            case 8:
                piece = bytes(work[place : place + rng.randrange(1, 30)])
                work[place:place] = piece * rng.randrange(1, 20)
    return bytes(work)


STRANGE: list[Any] = [
    None, True, -1, 2**63, -(2**63), 2**64 - 1, 0.0, float("nan"), float("-inf"), "", "\0", "type", "é" * 40, b"",
    b"\xff" * 30, [], {}, [[]], [None] * 40, {"": 0}, {"type": "LoadShard"}, {1: 2}, msgspec.msgpack.Ext(5, b"x"),
    msgspec.msgpack.Ext(-1, b"\xff" * 12),
]  # fmt: skip


def twist(data: bytes, rng: random.Random) -> bytes:
    """A header that is sound MessagePack, with something strange in the place of one of its parts."""
    outer = msgspec.msgpack.decode(data)
    inside, place = None, None
    here = outer
    while isinstance(here, list | dict) and here and rng.random() < 0.85:
        inside = here
        place = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        here = here[place]
    strange = rng.choice(STRANGE) if rng.random() < 0.8 else example(Any, rng)
    match inside, rng.randrange(4):
        case None, _:
            return msgspec.msgpack.encode(strange)
        case dict(), 0:
            del inside[place]
        case dict(), 1:
            inside[rng.choice(("more", "type", "body", "job"))] = strange
        case list(), 0:
            del inside[place]
        case list(), 1:
            inside.insert(place, strange)
        case _:
            inside[place] = strange
    return msgspec.msgpack.encode(outer)


def bulk(rng: random.Random, server: bool, unit: bytes = b"", size: int = 0) -> bytes:
    """A header of up to the largest size that is nothing but many small things, inside something that looks right."""
    unit = unit or rng.choice(BULKS)
    size = size or rng.choice((1 << 12, 1 << 16, 1 << 18, (1 << 20) - 200, 1 << 20, (1 << 20) + 1))
    count = size // len(unit)
    many = b"\xdd" + count.to_bytes(4, "big") + unit * count
    if server:
        body = b"\x82\xa4type" + tag(protocol.SubmitJob) + b"\xa4spec\x81\xa9algorithm\x81\xa5hyper\x81\xa1a"
        return b"\x96\x01\x00\x01\x01\x00" + body + many
    return b"\x97\xa1j\x00\x00\x00\x00" + b"\x82\xa4type" + tag(messages.LoadShard) + b"\xa6source\x81\xa1a" + many


def tag(kind: type[msgspec.Struct]) -> bytes:
    """The name of a message type as it is encoded."""
    return msgspec.msgpack.encode(kind.__struct_config__.tag)


def jobs_decoder(frames: list[bytes]) -> str:
    try:
        codec.decode(frames)
    except DecodeError:
        return "refused"
    return "decoded"


def server_decoder(frames: list[bytes]) -> str:
    try:
        header = framing.read_header(frames[0], LIMITS)
        VOCABULARY.decode(VOCABULARY.tag(header.body), header.body)
    except DecodeError:
        return "refused"
    return "decoded"


def make(rng: random.Random, pool: list[list[bytes]], server: bool) -> list[bytes]:
    """One input."""
    dice = rng.random()
    if dice < 0.0005:
        return [bulk(rng, server)]
    if dice < 0.05:
        return [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 4))]
    frames = list(rng.choice(pool))
    if dice < 0.2 and frames[0][0] != codec.PACKED_FIRST_BYTE:
        frames[0] = twist(frames[0], rng)
        return frames
    which = 0 if dice < 0.9 else rng.randrange(len(frames))
    frames[which] = mutate(frames[which], rng, pool)
    if dice > 0.98:
        frames = frames[: rng.randrange(1, len(frames) + 1)] + [rng.randbytes(8)] * rng.randrange(4)
    return frames


def batch(number: int, count: int, measure_memory: bool = False) -> dict[str, Any]:
    """So many inputs from the seed of that number; anything but `DecodeError` ends the program with the input."""
    rng = random.Random(number)
    jobs, server_messages = seeds(random.Random(number % 64))
    gc.freeze()  # what this program itself holds is not for the decoder to be looked through
    outcomes = {"decoded": 0, "refused": 0}
    slowest, which, largest = 0.0, 0, 0
    clock = time.thread_time  # of this thread: other programs on the machine do not count
    began = time.perf_counter()
    for at in range(count):
        server = rng.random() < 0.5
        frames = make(rng, server_messages if server else jobs, server)
        size = sum(map(len, frames))
        taken, decode = float("inf"), server_decoder if server else jobs_decoder
        try:
            for _ in range(3):  # slow is what is slow again; the processor itself is held up now and then
                start = clock()
                outcome = decode(frames)
                taken = min(taken, clock() - start)
                if taken <= MAX_SECONDS / 2 * max(size / 2**20, 1 / 16):
                    break
        except BaseException:
            print(
                f"the {'server' if server else 'job'} decoder let something else out, input: {frames!r}",
                file=sys.stderr,
            )
            raise
        outcomes[outcome] += 1
        slowest, which = max((slowest, which), (taken / max(size / 2**20, 1 / 16), at))
        largest = max(largest, size)
    found = {
        "batch": number,
        "inputs": count,
        **outcomes,
        "largest_bytes": largest,
        "seconds": time.perf_counter() - began,
    }
    found["slowest_seconds_per_mib"], found["slowest_input"] = slowest, which
    if measure_memory:
        found["peak_bytes"] = peak(number)
    return found


def peak(number: int) -> int:
    """The most memory that a large input takes, above what it is itself: the longest header that is not refused at
    once, full of each of the small things, for one decoder and then for the other."""
    rng, server = random.Random(number), bool(number // MEMORY_EVERY % 2)
    return max(traced([bulk(rng, server, unit, LARGEST)], server) for unit in BULKS)


def traced(frames: list[bytes], server: bool) -> int:
    """The peak of Python's memory while one input is decoded."""
    gc.collect()
    tracemalloc.start()
    try:
        (server_decoder if server else jobs_decoder)(frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=1_000_000)
    options.add_argument("--out", type=Path, default=Path("decoder.jsonl"))
    given = options.parse_args()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done, number = sum(line["inputs"] for line in lines), len(lines)
    with given.out.open("a") as stream:
        while done < given.inputs:
            found = batch(number, min(BATCH, given.inputs - done), measure_memory=number % MEMORY_EVERY == 0)
            found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            stream.write(json.dumps(found) + "\n")
            stream.flush()
            lines.append(found)
            done, number = done + found["inputs"], number + 1
    report = {
        "inputs": done,
        "decoded": sum(line["decoded"] for line in lines),
        "refused": sum(line["refused"] for line in lines),
        "slowest_seconds_per_mib": max(line["slowest_seconds_per_mib"] for line in lines),
        "peak_bytes": max(line.get("peak_bytes", 0) for line in lines),
        "largest_bytes": max(line["largest_bytes"] for line in lines),
    }
    print(json.dumps(report, indent=1))
    sys.exit(not (report["peak_bytes"] <= MAX_MEMORY and report["slowest_seconds_per_mib"] <= MAX_SECONDS))


if __name__ == "__main__":
    main()
