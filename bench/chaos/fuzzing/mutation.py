"""Hostile changes of bytes and of structures. Knows no target."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from typing import Any

NUMBERS = [0, 1, -1, 2, 7, 127, 255, 65_535, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 10**30]
STRANGE: list[Any] = [
    None, True, 0.0, -1.5, float("nan"), float("inf"), 1e308, "", "\0", "é" * 40, "../../etc/passwd", "O", "<f8", "|V8",
    "(1000000,)f8", [], {}, [[]], [None] * 30, {"": 0}, {"type": "x"}, "x" * 5000, [0] * 5000,
]  # fmt: skip


NOT_UTF8 = (b"\xc3\x28", b"\xff", b"\xed\xa0\x80", b"\x00")


def change_bytes(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few changes without regard for any structure."""
    work = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place = rng.randrange(len(work) + 1)
        match rng.randrange(9):
            case 0 if work:
                work[rng.randrange(len(work))] ^= 1 << rng.randrange(8)
            case 1 if work:
                work[rng.randrange(len(work))] = rng.choice((0, 255, 128, rng.randrange(256)))
            case 2:
                del work[place : place + rng.choice((1, 4, 64, 1024))]
            case 3:
                work[place:place] = rng.randbytes(rng.choice((1, 4, 64)))
            case 4:
                del work[place:]
            case 5 if others:
                other = rng.choice(others)
                work[place:] = other[rng.randrange(len(other) + 1) :]
            case 6:
                piece = bytes(work[place : place + rng.randrange(1, 30)])
                work[place:place] = piece * rng.randrange(1, 50)
            case 7:
                kind = rng.choice(("<I", "<Q", ">I", ">H", "<H"))
                value = rng.choice(NUMBERS) & (2 ** (8 * struct.calcsize(kind)) - 1)
                work[place : place + struct.calcsize(kind)] = struct.pack(kind, value)
            case 8:
                work[place:place] = rng.choice((b"[", b"{", b"(", b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff")) * (
                    rng.choice((1, 100, 20_000))
                )
    return bytes(work)


def change_tree(tree: Any, rng: random.Random) -> Any:
    """Something else in the place of one part; or a part missing, twice, or deep inside of itself."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        name = rng.choice(list(tree))
        made = dict(tree)
        if rng.random() < 0.1:
            del made[name]
        elif rng.random() < 0.05:
            made[rng.choice(("extra", "", "__class__"))] = rng.choice(STRANGE)
        else:
            made[name] = change_tree(made[name], rng)
        return made
    if isinstance(tree, list | tuple) and tree and rng.random() < 0.85:
        items, at = list(tree), rng.randrange(len(tree))
        if rng.random() < 0.1:
            del items[at]
        elif rng.random() < 0.1:
            items.insert(at, items[at])
        else:
            items[at] = change_tree(items[at], rng)
        return items
    if rng.random() < 0.02:
        for _ in range(rng.choice((10, 300, 3000))):
            tree = [tree]
        return tree
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.6:
        return rng.choice(NUMBERS)
    if isinstance(tree, bytes):
        return change_bytes(tree, rng, [])
    return rng.choice(STRANGE)


def change_json(data: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            tree = change_tree(tree, rng)
        text = json.dumps(tree).encode()
        place = rng.randrange(len(text) + 1)
        return text if rng.random() < 0.9 else text[:place] + rng.choice(NOT_UTF8) + text[place:]
    except (ValueError, RecursionError):
        return data


def change_zip(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """An archive whose members are changed, missing, compressed, bombs, or lie about themselves."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()[:50]}
    except (ValueError, OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError):
        return change_bytes(data, rng, others)
    name = rng.choice(list(members)) if members else "x.npy"
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    match rng.randrange(5):
        case 0:
            members[name] = change_bytes(members.get(name, b""), rng, [])
        case 1:
            members.pop(name, None)
        case 2:
            members[rng.choice((name, "other.npy"))] = bytes(rng.choice((1 << 10, 1 << 20, 64 << 20)))
            method = zipfile.ZIP_DEFLATED
        case 3:
            head = members.get(name, b"")
            members[name] = head.replace(b"'shape': (", b"'shape': (%d, " % rng.choice((0, 2, 10**9, 2**62)), 1)
        case 4:
            members[name] = members.get(name, b"").replace(b"<f8", rng.choice((b"|O8", b"<U9", b">f8", b"|V8")), 1)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    made = target.getvalue()
    return change_bytes(made, rng, others) if rng.random() < 0.3 else made
