"""Sums with 8 bits: what rounding leaves out is never lost, also where ranks come and go. Real messages, in threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import needs

torch = needs.library("torch")

from flegel.torch.flexible.agreement import Broken
from flegel.torch.flexible.compression import BLOCK_VALUES, CompressedSum, decode, encode
from flegel.torch.flexible.connection import Connection

VALUES = 2 * BLOCK_VALUES + 100


class World:
    """Connected ranks, each with its side of a sum, and the true sum of all that counted."""

    def __init__(self) -> None:
        self.sides: list[CompressedSum] = []
        self.true = torch.zeros(VALUES, dtype=torch.float64)
        self.sent = torch.zeros(VALUES, dtype=torch.float64)

    def meet(self, sides: list[CompressedSum]) -> None:
        store, self.sides = torch.distributed.HashStore(), sides
        with ThreadPoolExecutor(len(sides)) as threads:
            connect = lambda rank: Connection(store, rank, len(sides), 120.0)  # noqa: E731
            self.connections = list(threads.map(connect, range(len(sides))))

    def sum(self, counts: bool = True) -> torch.Tensor:
        """One barrier; all ranks have the same bits afterwards."""
        values = [torch.randn(VALUES) * torch.linspace(0.01, 5.0, VALUES) for _ in self.sides]
        wanted = sum(one.double() for one in values)
        with ThreadPoolExecutor(len(self.sides)) as threads:
            list(threads.map(lambda side, one, way: side.sum(0, one, way), self.sides, values, self.connections))
        assert all(torch.equal(one, values[0]) for one in values), "bit for bit"
        if counts:
            for side in self.sides:
                side.count()
            self.true, self.sent = self.true + wanted, self.sent + values[0].double()
        return values[0]

    def left_out(self, sides: list[CompressedSum]) -> torch.Tensor:
        """What these ranks have still to send."""
        found = torch.zeros(VALUES, dtype=torch.float64)
        for side in sides:
            one = side._remainders[0]
            found += one.own[:VALUES].double()
            part = one.summed.numel()
            whole = torch.zeros(max(one.ranks * part, VALUES), dtype=torch.float64)
            whole[one.rank * part : (one.rank + 1) * part] = one.summed.double()
            found += whole[:VALUES]
        return found


def test_ranks_that_come_and_go_take_only_their_own_remainders_with_them() -> None:
    torch.manual_seed(0)
    world = World()
    first = [CompressedSum() for _ in range(3)]
    world.meet(first)
    for _ in range(5):
        world.sum()
    assert float((world.sent + world.left_out(first) - world.true).abs().max()) < 1e-3
    lost = world.left_out([first[1]])
    survivors = [first[2], first[0]]
    world.meet(survivors)  # another number of ranks, another order
    for _ in range(5):
        world.sum()
    assert float((world.sent + world.left_out(survivors) + lost - world.true).abs().max()) < 1e-3
    grown = [*survivors, CompressedSum(), CompressedSum()]
    world.meet(grown)
    for _ in range(5):
        world.sum()
    assert float((world.sent + world.left_out(grown) + lost - world.true).abs().max()) < 1e-3
    rounding = 5.0 * 4.0 * 4 / 127
    assert float((world.sent + lost - world.true).abs().max()) < 2 * rounding, "of 15 barriers, one rounding is missing"


def test_a_sum_that_does_not_count_leaves_remainders_as_they_were() -> None:
    torch.manual_seed(0)
    world = World()
    sides = [CompressedSum(), CompressedSum()]
    world.meet(sides)
    world.sum()
    before = [side._remainders[0].copy() for side in sides]
    world.sum(counts=False)
    for side, one in zip(sides, before, strict=True):
        assert torch.equal(side._remainders[0].own, one.own) and torch.equal(side._remainders[0].summed, one.summed)

    def lost() -> None:
        raise Broken("the generation was replaced")

    with pytest.raises(Broken):  # the other rank does not come
        sides[0].sum(0, torch.randn(VALUES), world.connections[0], lost)
    assert torch.equal(sides[0]._remainders[0].own, before[0].own)


def test_what_rounding_leaves_out_is_sent_the_next_time() -> None:
    torch.manual_seed(0)
    remainder, sent, true = torch.zeros(4 * BLOCK_VALUES), torch.zeros(4 * BLOCK_VALUES), torch.zeros(4 * BLOCK_VALUES)
    for _ in range(50):
        gradient = torch.randn(4 * BLOCK_VALUES) * torch.linspace(0.01, 5.0, 4 * BLOCK_VALUES)
        content = encode(gradient, remainder)
        assert content.dtype == torch.uint8 and content.numel() == 4 * (BLOCK_VALUES + 4), "a quarter of the bytes"
        sent += decode(content)
        true += gradient
    assert float((sent + remainder - true).abs().max()) < 1e-3
    rounding = 50 * 5.0 * 4.0 / 127
    assert float((sent - true).abs().max()) < rounding / 50, "of all 50, one rounding is missing"
    encode(torch.full((4 * BLOCK_VALUES,), float("nan")), remainder)
    assert bool(torch.isfinite(remainder).all()), "the next barrier begins anew"
