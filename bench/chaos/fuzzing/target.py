"""What a reader is to the fuzzing program: valid inputs, how they are changed, and how one is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from bench.chaos.fuzzing.mutation import change_bytes, change_tree
from flegel.errors import FlegelError

ROWS = np.random.default_rng(0).normal(size=(40, 3))
Change = Callable[[bytes, random.Random, list[bytes]], bytes]


@dataclass
class Target:
    """`seeds`: valid inputs. `change`: makes another input of one. `run`: interprets it."""

    name: str
    seeds: list[bytes]
    change: Change
    run: Callable[[bytes], None]
    modules: tuple[str, ...]
    """Files of the reader, from the root of the repository: coverage is told for these. They may hold the writer too,
    which is not run here."""


def accepted(call: Callable[[], Any]) -> None:
    """An answer, or an error of ours."""
    try:
        call()
    except FlegelError as error:
        assert str(error), "an error without a sentence"


def change_packed(inner: bytes, rng: random.Random) -> bytes:
    """MessagePack whose structure is changed."""
    try:
        return bytes(msgpack.packb(change_tree(msgpack.unpackb(inner, strict_map_key=False), rng)))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return change_bytes(inner, rng, [])
