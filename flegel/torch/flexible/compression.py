"""Sums over ranks in a quarter of the bytes: 8 bits a value, and what rounding leaves out is added the next time.

Every rank sends each other rank that one's part of the values, sums its own part in full precision, and sends the sum
to all, twice with 8 bits: 2·(n−1)/n bytes a value and rank, in place of 8·(n−1)/n. All ranks decode the same bytes, so
their weights stay equal bit for bit. Both roundings keep their remainder (error feedback; S. P. Karimireddy et al.,
2019): over many barriers the sum of what was sent differs from the true one by one rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

BLOCK_VALUES = 1024
"""That share a scale, so that one large gradient does not cost the others their precision; 4 bytes each, 0.4 %."""
LEAST_VALUES = 4096  # of a message: below, its latency costs more than its bytes
LEVELS = 127.0


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


class CompressedSum:
    """Sums the buckets of one module over the ranks of a group, compressed."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._group, self._ranks = group, ranks
        self._remainders: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def forget(self) -> None:
        """Buckets hold other parameters from now on."""
        self._remainders.clear()

    @staticmethod
    def fits(values: torch.Tensor) -> bool:
        return bool(values.dtype == torch.float32 and values.numel() >= LEAST_VALUES)

    def sum(self, bucket: int, values: torch.Tensor) -> None:
        """Sum a bucket over all ranks in place; returns when it is done."""
        whole = self._ranks * BLOCK_VALUES
        size = -(-values.numel() // whole) * whole
        part = size // self._ranks
        if (bucket, size) not in self._remainders:
            self._remainders[bucket, size] = (values.new_zeros(size), values.new_zeros(part))
        mine, summed = self._remainders[bucket, size]
        padded = torch.nn.functional.pad(values, (0, size - values.numel()))
        parts = [encode(one, left) for one, left in zip(padded.split(part), mine.split(part), strict=True)]
        sent, received = torch.cat(parts), torch.empty(len(parts) * parts[0].numel(), dtype=torch.uint8)
        received = received.to(sent.device)
        dist.all_to_all_single(received, sent, group=self._group)
        own = torch.stack([decode(one) for one in received.split(parts[0].numel())]).sum(dim=0)
        content = encode(own, summed)
        gathered = torch.empty(self._ranks * content.numel(), dtype=torch.uint8, device=content.device)
        dist.all_gather_into_tensor(gathered, content, group=self._group)
        total = torch.cat([decode(one) for one in gathered.split(content.numel())])
        values.copy_(total[: values.numel()])
