"""Changes of θ in few bytes: bfloat16, or integers of 8 or 4 bits with a scale for each block; θ in 16 bits. Pure.

What is rounded away of a change is not lost: a group counts as sent what others will read, so the rest stays in its own
θ and is part of its next change (error feedback). θ in a result has no such place for the rest, so an array is written
in 16 bits only where rounding it is far less than what the round changed. Statistics are never rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.group_options import WIRES

BLOCK = 256
"""Numbers that share a scale, part of the format: 4 bytes for 256 numbers are 1.6 % of 8 bits each."""
LEVELS = {"int8": 127, "int4": 7}
SHORT_LEVELS = 32767
"""Of numbers of 16 bits. Their scales are powers of two, so what was rounded once is written again as it is."""
SMALLEST_SCALE = 2.0**-126
"""The smallest float32 that is written with all of its digits."""


def packed(wire: str, arrays: Sequence[Array]) -> list[Array]:
    """Arrays as they are written: one for each, or codes and scales."""
    if wire == "full":
        return list(arrays)
    if wire == "bf16":
        return [_bf16(a) for a in arrays]
    return [part for a in arrays for part in _codes(a, LEVELS[wire])]


def unpacked(wire: str, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """What others read, in float64 (as written where it is `full`); raises `DecodeError` where parts do not fit."""
    if wire == "full":
        if [a.shape for a in parts] != list(shapes):
            raise DecodeError("it holds arrays of another shape than this job")
        return list(parts)
    each = 1 if wire == "bf16" else 2
    if wire not in WIRES or len(parts) != each * len(shapes):
        raise DecodeError(f"it is written as {wire[:16]!r}, with another number of parts")
    if wire == "bf16":
        return [_from_bf16(part, shape) for part, shape in zip(parts, shapes, strict=True)]
    pairs = zip(parts[::2], parts[1::2], shapes, strict=True)
    return [_from_codes(codes, scales, shape, LEVELS[wire]) for codes, scales, shape in pairs]


def _bf16(array: Array) -> Array:
    """The upper half of each float32, rounded to even, as pairs of bytes."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> 16) & 1))  # half of what is cut off; ties to even
    return np.asarray((rounded >> 16).astype("<u2").view(np.uint8))


def _from_bf16(part: Array, shape: tuple[int, ...]) -> Array:
    if part.dtype != np.uint8 or part.shape != (2 * math.prod(shape),):
        raise DecodeError("its numbers of 16 bits do not fit")
    bits = np.ascontiguousarray(part).view("<u2").astype(np.uint32) << 16
    return np.asarray(bits.view(np.float32).astype(np.float64).reshape(shape))


def _codes(array: Array, levels: int) -> tuple[Array, Array]:
    """Codes of all numbers, and the scale of each block: its largest number has the largest code."""
    flat = np.asarray(array, np.float64).reshape(-1)
    blocks = np.zeros((-(-flat.size // BLOCK), BLOCK))
    blocks.reshape(-1)[: flat.size] = flat
    scales = (np.abs(blocks).max(axis=1, initial=0.0) / levels).astype(np.float32)
    safe = np.where(scales > 0, scales, 1.0).astype(np.float64)
    codes = np.clip(np.rint(blocks / safe[:, None]), -levels, levels).astype(np.int8).reshape(-1)
    if levels > 7:
        return codes[: flat.size].view(np.uint8), scales
    nibbles = (codes + 8).astype(np.uint8)[: flat.size + flat.size % 2]
    return nibbles[::2] | (nibbles[1::2] << 4), scales


def _from_codes(codes: Array, scales: Array, shape: tuple[int, ...], levels: int) -> Array:
    count = math.prod(shape)
    length = count if levels > 7 else -(-count // 2)
    if codes.dtype != np.uint8 or codes.shape != (length,) or scales.dtype != np.float32:
        raise DecodeError("its codes do not fit")
    if scales.shape != (-(-count // BLOCK),):
        raise DecodeError("its scales do not fit")
    if levels > 7:
        numbers = np.ascontiguousarray(codes).view(np.int8).astype(np.float64)
    else:
        numbers = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1)[:count].astype(np.float64) - 8.0
    return np.asarray((numbers * np.repeat(scales.astype(np.float64), BLOCK)[:count]).reshape(shape))


def shortened(array: Array, since: Array, largest_rounding: float) -> list[Array]:
    """θ (or a velocity) as codes of 16 bits and a scale for each block; empty where rounding it would be more than this
    part of its change since the last result: then it is written as it is."""
    flat = np.asarray(array, np.float64).reshape(-1)
    if not flat.size or not np.isfinite(flat).all() or not np.isfinite(since).all():
        return []
    changed = float(np.linalg.norm(flat - np.asarray(since, np.float64).reshape(-1)))
    blocks = np.zeros((-(-flat.size // BLOCK), BLOCK))
    blocks.reshape(-1)[: flat.size] = flat
    largest = np.abs(blocks).max(axis=1) / SHORT_LEVELS
    exponents = np.ceil(np.log2(np.maximum(largest, SMALLEST_SCALE)))
    scales = np.where(largest > 0.0, np.exp2(exponents), 0.0).astype(np.float32)
    safe = np.where(scales > 0.0, scales, 1.0).astype(np.float64)
    codes = np.rint(blocks / safe[:, None]).clip(-SHORT_LEVELS, SHORT_LEVELS).astype("<i2").reshape(-1)[: flat.size]
    parts = [codes, scales]
    rounded = float(np.linalg.norm(_from_short(codes, scales, flat.shape) - flat))
    return parts if rounded <= largest_rounding * changed else []


def restored(short: Sequence[int], parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Arrays of a result, of which those with these numbers were shortened; raises `DecodeError` where parts do not
    fit. `shapes`: of θ; the velocity has the same."""
    if not short:
        return list(parts)
    count = len(parts) - len(short)
    if count not in (len(shapes), 2 * len(shapes)) or sorted(set(short)) != list(short) or short[0] < 0:
        raise DecodeError("its θ is written with another number of parts")
    rest, found = list(parts), list[Array]()
    for at in range(count):
        taken, rest = (rest[:2], rest[2:]) if at in short else (rest[:1], rest[1:])
        if len(taken) != 1 + (at in short):
            raise DecodeError("its θ is written with another number of parts")
        found.append(_from_short(taken[0], taken[1], shapes[at % len(shapes)]) if at in short else taken[0])
    if rest:
        raise DecodeError("its θ is written with another number of parts")
    return found


def _from_short(codes: Array, scales: Array, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if codes.dtype != np.dtype("<i2") or codes.shape != (count,):
        raise DecodeError("its codes do not fit")
    if scales.dtype != np.float32 or scales.shape != (-(-count // BLOCK),):
        raise DecodeError("its scales do not fit")
    return np.asarray((codes * np.repeat(scales.astype(np.float64), BLOCK)[:count]).reshape(shape))
