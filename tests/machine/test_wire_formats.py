"""Changes of θ in few bytes: what others read, its size, and that nothing is lost over several rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.sites.bucket import BucketFaults
from bench.sites.world import SiteScenario, SiteWorld
from flegel.errors import DecodeError
from flegel.machine.group.exchange import GroupExchange
from flegel.machine.group.wire import packed, unpacked

SHAPES = [(37, 11), (5,), (), (0, 3), (513,)]
STEPS = {"bf16": 2.0**-8, "int8": 0.5 / 127, "int4": 0.5 / 7}
"""Largest error of a number, as a part of the largest of its block."""


def changes(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(1e-3 * rng.normal(size=shape)) for shape in SHAPES]


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4"])
def test_what_is_read_is_near_what_was_written_and_written_again_the_same(wire: str) -> None:
    sent = changes()
    read = unpacked(wire, packed(wire, sent), SHAPES)
    for one, other in zip(sent, read, strict=True):
        assert other.shape == one.shape
        assert np.abs(one - other).max(initial=0.0) <= 1.01 * STEPS[wire] * np.abs(one).max(initial=0.0)
    again = unpacked(wire, packed(wire, read), SHAPES)
    assert all(np.array_equal(a, b) for a, b in zip(read, again, strict=True))


def test_bytes_of_a_number() -> None:
    large = [np.random.default_rng(1).normal(size=100_000)]
    sizes = {wire: sum(a.nbytes for a in packed(wire, large)) / 100_000 for wire in ("full", "bf16", "int8", "int4")}
    assert sizes == pytest.approx({"full": 8.0, "bf16": 2.0, "int8": 1.0156, "int4": 0.5156}, abs=1e-3)


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4", "int2"])
def test_parts_that_do_not_fit_are_refused(wire: str) -> None:
    good = packed(wire, changes()) if wire != "int2" else []
    for wrong in (good[:-1], [*good, np.zeros(3)], [a[:-1] for a in good], [a.astype(np.float64) for a in good]):
        with pytest.raises(DecodeError):
            unpacked(wire, wrong, SHAPES)


@pytest.mark.parametrize("wire", ["int8", "int4", "bf16"])
def test_what_is_rounded_away_is_sent_later(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups at rest after the same number of steps, every step is in θ but for the last rounding."""
    exchange = GroupExchange.__init__

    def rounded(self: GroupExchange, *rest: Any, **more: Any) -> None:
        exchange(self, *rest, wire=wire, **more)

    monkeypatch.setattr(GroupExchange, "__init__", rounded)
    world = SiteWorld(0, SiteScenario("parameters", 2, 3, BucketFaults(), (), (), (0.0, 0.0), (0.1, 0.13)))
    world.run_until(20.0)
    for site in world.sites.values():
        own, sent = float(site.store.parameter[site.index]), float(site.exchange._base[0][site.index])
        # `mean` halves what each group did; what is not in the result is what was done since, and one rounding.
        assert abs(own - sent) < 12 and sent == pytest.approx(site.commits / 2, rel=0.15)
