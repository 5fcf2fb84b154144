"""Sums over ranks in a quarter of the bytes: 8 bits a value, and what rounding leaves out is added the next time.

Every rank sends each other rank that one's part of the values, sums its own part in full precision, and sends the sum
to all, twice with 8 bits: 2·(n−1)/n bytes a value and rank, in place of 8·(n−1)/n. All ranks decode the same bytes, so
their weights stay equal bit for bit. Both roundings keep their remainder (error feedback; S. P. Karimireddy et al.,
2019): over many barriers the sum of what was sent differs from the true one by one rounding. Remainders change once the
sum counts on all ranks, and survive a change of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flegel.torch.flexible.rank_settings import rank_settings

BLOCK_VALUES = 1024
"""That share a scale, so that one large gradient does not cost the others their precision; 4 bytes each, 0.4 %."""
LEVELS = 127.0  # of int8, on each side of 0


def encode(values: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Whole blocks as bytes, with what was left out the last time; `remainder` becomes what is left out now."""
    wanted = values + remainder
    blocks = wanted.view(-1, BLOCK_VALUES)
    scales = blocks.abs().amax(dim=1, keepdim=True) / LEVELS
    codes = torch.round(blocks / torch.where(scales > 0.0, scales, 1.0)).clamp_(-LEVELS, LEVELS).to(torch.int8)
    left = blocks - codes * scales
    # gradients that are not finite make the scale so as well: the sum is not finite either, and nothing is kept of it
    remainder.copy_(torch.nan_to_num(left, 0.0, 0.0, 0.0).view(-1))
    return torch.cat([codes.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])


def decode(content: torch.Tensor) -> torch.Tensor:
    """The values of one message."""
    blocks = content.numel() // (BLOCK_VALUES + 4)
    codes = content[: blocks * BLOCK_VALUES].view(torch.int8).view(blocks, BLOCK_VALUES)
    scales = content[blocks * BLOCK_VALUES :].clone().view(torch.float32).view(blocks, 1)
    return (codes * scales).view(-1)


class Messages(Protocol):
    """Between the ranks of a group or of a generation; both collectives are under way until they are waited for."""

    rank: int
    ranks: int

    def device(self, values: torch.Tensor) -> torch.device:
        """Where bytes must lie to be sent, for values that lie here."""

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Any: ...

    def all_gather(self, gathered: torch.Tensor, content: torch.Tensor) -> Any: ...

    def wait(self, works: Sequence[Any], check: Callable[[], None]) -> None: ...


@dataclass
class Remainder:
    """What roundings of one message have left out on this rank."""

    rank: int
    ranks: int
    own: torch.Tensor
    """Of what this rank has sent; a whole number of blocks for each rank."""
    summed: torch.Tensor
    """Of the sum of the part that this rank adds up."""

    def for_ranks(self, rank: int, ranks: int, size: int) -> Remainder:
        """The same after a change of ranks: other parts are this rank's to add up, so what it has left out of the sum
        of its part becomes part of what it sends."""
        if (rank, ranks, size) == (self.rank, self.ranks, self.own.numel()):
            return self
        own, part = self.own.clone(), self.summed.numel()
        own[self.rank * part : (self.rank + 1) * part] += self.summed
        own = torch.nn.functional.pad(own, (0, max(0, size - own.numel())))[:size]
        return Remainder(rank, ranks, own, self.summed.new_zeros(size // ranks))

    def copy(self) -> Remainder:
        return Remainder(self.rank, self.ranks, self.own.clone(), self.summed.clone())


class CompressedSum:
    """Sums the messages of one module over ranks, compressed."""

    def __init__(self) -> None:
        self._remainders: dict[int, Remainder] = {}
        self._next: dict[int, Remainder] = {}
        """Of sums that do not count yet."""

    def forget(self) -> None:
        """Messages hold other parameters from now on, or this rank begins anew."""
        self._remainders.clear()
        self._next.clear()

    def count(self) -> None:
        """The latest sums count on all ranks."""
        self._remainders.update(self._next)
        self._next.clear()

    @staticmethod
    def fits(values: torch.Tensor) -> bool:
        return bool(values.dtype == torch.float32 and values.numel() >= rank_settings().compressed_from_values)

    def sum(
        self, number: int, values: torch.Tensor, messages: Messages, check: Callable[[], None] = lambda: None
    ) -> None:
        """Sum the message of this number over all ranks in place; returns when it is done. `check` raises once waiting
        is of no use: then nothing has changed but `values`."""
        rank, ranks = messages.rank, messages.ranks
        whole = ranks * BLOCK_VALUES
        size = -(-values.numel() // whole) * whole
        part = size // ranks
        known = self._remainders.get(number)
        if known is None:
            known = Remainder(rank, ranks, values.new_zeros(size), values.new_zeros(part))
        left = self._next[number] = known.for_ranks(rank, ranks, size).copy()
        padded = torch.nn.functional.pad(values, (0, size - values.numel()))
        device = messages.device(values)
        parts = [encode(one, own).to(device) for one, own in zip(padded.split(part), left.own.split(part), strict=True)]
        sent = torch.cat(parts)
        received = torch.empty_like(sent)
        messages.wait([messages.all_to_all(received, sent)], check)
        bytes_each = parts[0].numel()
        mine = torch.stack([decode(one.to(values.device)) for one in received.split(bytes_each)]).sum(dim=0)
        content = encode(mine, left.summed).to(device)
        gathered = torch.empty(ranks * content.numel(), dtype=torch.uint8, device=device)
        messages.wait([messages.all_gather(gathered, content)], check)
        total = torch.cat([decode(one.to(values.device)) for one in gathered.split(content.numel())])
        values.copy_(total[: values.numel()])
