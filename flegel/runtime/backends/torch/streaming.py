"""Rows of a shard that do not fit into the memory of a device: they come in parts, one ahead of the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from flegel.configuration.active import active
from flegel.core.shard import TILE


class PinnedRows:
    """Memory of the host that the device reads by itself while the processor goes on. Where the system refuses to pin
    it, copies work all the same, at half the speed or less."""

    def __init__(self, values: Any, device: torch.device) -> None:
        self._pinned: int | None = None
        if device.type != "cuda" or not values.nbytes or not values.flags.c_contiguous:
            return
        address = address_of(values)
        if int(torch.cuda.cudart().cudaHostRegister(address, values.nbytes, 0)) == 0:
            self._pinned = address

    def release(self) -> None:
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = None


class _Memory:
    """The memory of a contiguous array, said to be writeable; keeps the array alive."""

    def __init__(self, values: Any) -> None:
        self._values = values
        self.__array_interface__ = {**values.__array_interface__, "data": (address_of(values), False)}


def address_of(values: Any) -> int:
    """Where the memory of an array begins."""
    return int(values.__array_interface__["data"][0])


def writeable_view(values: Any) -> Any:
    """The same memory for `torch.from_numpy`, which warns about arrays that are read-only. Nobody may write to it:
    it is read by copies to the device. A copy in its place would cost ten times the transfer, most of it new pages."""
    if values.flags.writeable or not values.size:
        return values if values.flags.writeable else values.copy()
    return np.asarray(_Memory(values))


def rows_of_a_part(columns: int, itemsize: int) -> int:
    """Whole tiles."""
    return max(active().gpu.streamed_bytes // max(columns * itemsize, 1) // TILE, 1) * TILE


def parts_ahead(
    parts: list[slice], bring: Callable[[slice], torch.Tensor], device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Each part with its rows on the device; the next part is on its way meanwhile, on a stream of its own."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begun(part: slice) -> tuple[torch.Tensor, Any]:
        aside: AbstractContextManager[Any] = torch.cuda.stream(stream) if stream is not None else nullcontext()
        with aside:
            rows = bring(part)
            return rows, stream.record_event() if stream is not None else None

    coming = begun(parts[0]) if parts else None
    for number, part in enumerate(parts):
        assert coming is not None
        rows, arrived = coming
        coming = begun(parts[number + 1]) if number + 1 < len(parts) else None
        if arrived is not None:
            here = torch.cuda.current_stream(device)
            here.wait_event(arrived)
            rows.record_stream(here)
        yield part, rows
