"""Hostile bytes: `DecodeError` and nothing else, and no more memory than a message may cost."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.cluster.transport.framing import Limits, write_body
from flegel.cluster.transport.protocol import ScaleJob
from flegel.errors import UsageError
from flegel.messages import Envelope, WorkerFailed
from flegel.runtime.transport import codec

PATH = Path(__file__).resolve().parents[2] / "bench" / "chaos" / "decoder.py"
spec = importlib.util.spec_from_file_location("chaos_decoder", PATH)
assert spec is not None and spec.loader is not None
fuzz: Any = importlib.util.module_from_spec(spec)
sys.modules["chaos_decoder"] = fuzz
spec.loader.exec_module(fuzz)

JOBS, SERVER = fuzz.seeds(random.Random(0))
DECODERS = [(fuzz.jobs_decoder, JOBS), (fuzz.server_decoder, SERVER)]


def test_unharmed_messages_of_every_type_are_decoded() -> None:
    for decoder, pool in DECODERS:
        assert {decoder(frames) for frames in pool} == {"decoded"}


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_bytes_from_nowhere(frames: list[bytes]) -> None:
    for decoder, _ in DECODERS:
        assert decoder(frames) in ("decoded", "refused")


@given(st.integers(0, 2**32), st.sampled_from(DECODERS))
def test_messages_that_were_tampered_with(seed: int, target: Any) -> None:
    (decoder, pool), rng = target, random.Random(seed)
    for _ in range(20):
        assert decoder(fuzz.make(rng, pool, decoder is fuzz.server_decoder)) in ("decoded", "refused")


def test_thousands_of_mutants() -> None:
    found = fuzz.batch(12345, 5000)
    assert found["decoded"] + found["refused"] == 5000 and found["decoded"] > 50 and found["refused"] > 2500


@pytest.mark.parametrize(("server", "unit"), [(False, b"\x81\xa1a\xc0"), (True, b"\x91\x90")])
def test_the_worst_of_the_largest_headers_take_little_memory(server: bool, unit: bytes) -> None:
    frames = [fuzz.bulk(random.Random(0), server, unit, codec.MAX_HEADER_BYTES - 200)]
    assert codec.MAX_HEADER_BYTES // 2 * 30 < fuzz.traced(frames, server) <= fuzz.MAX_MEMORY


def test_a_header_that_is_too_long_is_refused_by_its_sender() -> None:
    long = WorkerFailed("here", 0, "x" * codec.MAX_HEADER_BYTES, "")
    with pytest.raises(UsageError, match="too long"):
        codec.encode(Envelope("j", 0, 0, 0, 0, long))


def test_a_whole_number_that_no_message_holds_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="A ScaleJob holds a whole number beyond 64 bits"):
        write_body(ScaleJob("kmeans-1", workers=10**20), (), Limits())
