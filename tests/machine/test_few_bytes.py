"""Lossless byte planes in records, and the form of changes of θ that the measured link decides."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.errors import DecodeError
from flegel.machine.group.byte_planes import from_planes, planes_of
from flegel.machine.group.link_meter import UNMEASURED, LinkMeter, choose_wire
from flegel.machine.group.records import Contribution, _Frame, decode, encode

HEADER = Contribution("a", 1, 1, 1, 1.0, 1, settled=False)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i4", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 5)])
def test_arrays_come_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng()
    array = (100 * rng.normal(size=shape)).astype(dtype)
    _, (read,) = decode(encode(HEADER, [array], compress=True), Contribution)
    assert read.dtype == array.dtype and read.shape == shape and read.tobytes() == array.tobytes()


def test_special_numbers_are_kept() -> None:
    array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308] * 50)
    _, (read,) = decode(encode(HEADER, [array], compress=True), Contribution)
    assert read.tobytes() == array.tobytes()


def test_sums_of_whole_numbers_take_less_than_half_of_their_bytes() -> None:
    sums = np.random.default_rng().integers(0, 100_000, size=(40, 50)).astype(np.float64)
    assert len(encode(HEADER, [sums], compress=True)) < 0.5 * sums.nbytes


def test_noise_is_left_as_it_is() -> None:
    noise = np.frombuffer(np.random.default_rng().bytes(1 << 18), np.uint8)
    assert planes_of(noise) == [noise.tobytes()]


def test_planes_that_do_not_fit_are_refused() -> None:
    planes = planes_of(np.zeros(1000))
    wrong = [planes[:-1], [*planes, b"x"], [planes[0][:-3], *planes[1:]], [b"", *planes[1:]], [b"x" * 9, *planes[1:]]]
    for found in wrong:
        with pytest.raises(DecodeError):
            from_planes(found, np.dtype("<f8"), (1000,), 1000)
    with pytest.raises(DecodeError):
        from_planes(planes_of(np.zeros(2000)), np.dtype("<f8"), (1000,), 1000)


def test_a_few_bytes_never_claim_much_memory() -> None:
    import msgspec

    head = msgspec.msgpack.encode((HEADER, [_Frame("<f8", (1 << 40,), (20,) * 8)]))
    with pytest.raises(DecodeError, match="smaller than can be"):
        decode(b"FLG1" + len(head).to_bytes(4, "little") + head + bytes(160), Contribution)


def test_small_puts_tell_the_latency_and_large_ones_the_rate() -> None:
    meter = LinkMeter()
    assert meter.bytes_per_second == 0.0
    for _ in range(20):
        meter.put(400, 0.3)
        meter.put(1_000_000, 0.3 + 0.8)
    assert meter.bytes_per_second == pytest.approx(1_250_000)
    meter.put(1_000_000, 60.0)  # one slow call
    assert meter.bytes_per_second == pytest.approx(1_250_000)


MBIT = 125_000.0


@pytest.mark.parametrize(
    ("megabits", "wire"), [(0.0, UNMEASURED), (1.0, "int4"), (10.0, "int8"), (20.0, "bf16"), (100.0, "full")]
)
def test_the_most_exact_form_that_the_link_allows_is_taken(megabits: float, wire: str) -> None:
    """A million numbers every ten seconds: a second is allowed."""
    assert choose_wire(1_000_000, megabits * MBIT, 10.0).wire == wire


def test_a_link_at_the_limit_does_not_change_its_form_all_the_time() -> None:
    wires, wire = [], ""
    for factor in (0.9, 1.1) * 10:
        wire = choose_wire(1_000_000, factor * 16 * MBIT, 10.0, wire).wire
        wires.append(wire)
    assert len(set(wires[2:])) == 1
    assert choose_wire(1_000_000, 200 * MBIT, 10.0, "int4").wire == "full"


def test_the_reason_names_the_link() -> None:
    assert "Mbit/s" in choose_wire(1_000_000, 10 * MBIT, 10.0).reason
