"""A kernel over points in the memory of a device: rows that lie there, their states, statistics. Knows no algorithm.

Rows are brought to the device when they are first trained, and stay: a point's features never change. Of a shard that
does not fit, the first rows stay and the others come anew in each pass (`streaming.py`). States live on the device and
are copied to the shard when somebody is going to read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard
from flegel.errors import UsageError
from flegel.runtime.backends.torch.program import BlockProgram
from flegel.runtime.backends.torch.streaming import (
    PinnedRows,
    address_of,
    parts_ahead,
    rows_of_a_part,
    writeable_view,
)
from flegel.wording import option


@dataclass
class DeviceShard:
    """The copy of a shard on a device, as rows."""

    shard: Shard
    features: Any
    """Of the first rows, or of all."""
    labels: Any
    state: Any
    here: Array
    """By tile: its states have been brought, and its rows if they stay."""
    newer: bool = False
    """States here have changed since they were last fetched."""
    pinned: PinnedRows | None = None
    """The rows in the memory of the host, where some of them come anew in each pass."""

    @property
    def staying(self) -> int:
        """Rows that stay on the device."""
        return len(self.features)


def _starts(start: int, end: int, size: int) -> Iterator[int]:
    """Of parts that end where tiles do, but for the last."""
    while start < end:
        yield start
        start += size - start % TILE


def _bytes_of(array: Any) -> int:
    return int(array.dtype.itemsize)


class TorchKernel:
    """One algorithm on one device of torch."""

    kind, note, library, grid, room, overhead, abandoned = "torch", "", "", 1, 0, 0.0, 0

    def __init__(self, program: BlockProgram, shard: Shard, parameter: Tree, empty: Tree, device: torch.device) -> None:
        """Prepare the program, and bring the shard to the device, as far as it fits, while the job loads."""
        rules = active().gpu
        self.device = str(device)
        self.least_points = rules.first_points_per_call if device.type == "cuda" else TILE
        self._program, self._place = program, device
        self._parameter = parameter
        self._sums = [torch.zeros(a.shape, dtype=torch.float64, device=device) for a in pytree.flatten(empty)]
        self._shards: dict[int, DeviceShard] = {}
        program.set_parameter(parameter)
        self._warm(shard)
        if device.type == "cuda":
            with self._memory_for(shard):
                self._bring(shard, 0, shard.points)  # while the job is loaded, not in the first round
            size = shard.columns * _bytes_of(shard.features) + 8 + shard.state.shape[1] * shard.state.itemsize
            self.room = shard.points + int(rules.memory_share_for_points * torch.cuda.mem_get_info(device)[0] / size)

    def _warm(self, shard: Shard) -> None:
        """Compile and load what the program needs, on a copy of a few points."""
        if not shard.points:
            return
        rows = slice(0, min(TILE, shard.points))
        features, state = (self._rows(a, 0, 1, shard, rows) for a in (shard.features, shard.state))
        labels = torch.from_numpy(np.array(shard.labels[rows], np.float64)).to(self._place)
        self._program.visit(features, labels, state, [torch.zeros_like(total) for total in self._sums], 0)

    # -- θ and statistics ----------------------------------------------------------------------------------

    def set_parameter(self, arrays: Sequence[Array]) -> None:
        self._parameter = pytree.unflatten(self._parameter, [np.array(a) for a in arrays])
        self._program.set_parameter(self._parameter)

    def clear_statistics(self) -> None:
        for total in self._sums:
            total.zero_()

    def add_statistics(self, arrays: Sequence[Array]) -> None:
        for total, extra in zip(self._sums, arrays, strict=True):
            total += torch.from_numpy(np.array(extra)).to(self._place)

    def statistics(self) -> tuple[Array, ...]:
        return tuple(total.cpu().numpy() for total in self._sums)

    # -- training ------------------------------------------------------------------------------------------

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, shard.points)
        if flag[0]:
            return start
        with self._memory_for(shard):
            held = self._bring(shard, start, end)
            held.newer = True
            stay = max(min(end, held.staying), start)
            done = self._visit_staying(held, start, stay, iteration, flag)
            return self._visit_streamed(held, done, end, iteration, flag) if done == stay else done

    def _visit_staying(self, held: DeviceShard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Rows on the device, block by block; where it stopped."""
        size = self._program.block(held.shard.columns)
        for at in range(start, end, size):
            if flag[0]:
                return at
            self._visit(held, slice(at, min(at + size, end)), held.features[at : min(at + size, end)], iteration)
        return end

    def _visit_streamed(self, held: DeviceShard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Rows in the memory of the host, part by part; where it stopped."""
        shard, features = held.shard, held.shard.features
        size = rows_of_a_part(shard.columns, _bytes_of(features))
        parts = [slice(at, min(at + size - at % TILE, end)) for at in _starts(start, end, size)]

        def bring(part: slice) -> torch.Tensor:
            lo, hi = part.start // TILE, -(-part.stop // TILE)
            rows = slice(lo * TILE, min(hi * TILE, shard.points))
            return self._rows(features, lo, hi, shard, rows)[part.start - rows.start : part.stop - rows.start]

        for part, rows in parts_ahead(parts, bring, self._place):
            if flag[0]:
                return int(part.start)
            self._visit(held, part, rows, iteration)
        return end

    def _visit(self, held: DeviceShard, part: slice, rows: Any, iteration: int) -> None:
        self._program.visit(rows, held.labels[part], held.state[part], self._sums, iteration)
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)  # the flag is looked at when the work is done, not queued

    @contextmanager
    def _memory_for(self, shard: Shard) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise UsageError(
                f"There is not enough memory on {self.device} for {shard.points} points of {shard.columns} columns; "
                f"use more workers, a smaller share ({option('partition')}), or processors."
            ) from None

    def _bring(self, shard: Shard, start: int, end: int) -> DeviceShard:
        """The copy of a shard on the device, with the tiles of points start … end-1 up to date."""
        held = self._shards.get(id(shard))
        if held is None:
            held = self._shards[id(shard)] = self._room(shard)
        first, last = start // TILE, -(-end // TILE)
        missing = first + np.flatnonzero(~held.here[first:last])
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else ():
            lo, hi = int(run[0]), int(run[-1]) + 1  # not what lies between: its states are newer here than in the shard
            rows = slice(lo * TILE, min(hi * TILE, shard.points))
            stay = min(rows.stop, held.staying)
            if rows.start < stay:
                kept = slice(rows.start, stay)
                held.features[kept] = self._rows(shard.features, lo, -(-stay // TILE), shard, kept)
            held.labels[rows] = torch.from_numpy(np.array(shard.labels[rows], np.float64)).to(self._place)
            held.state[rows] = self._rows(shard.state, lo, hi, shard, rows)
            held.here[lo:hi] = True
        return held

    def _room(self, shard: Shard) -> DeviceShard:
        """Room for a shard on the device: part of one that is there already, or new; rows that do not fit stay in
        pinned memory of the host."""
        features: Any = shard.features
        width = shard.state.shape[1]
        whole = self._whole_of(shard)
        if whole is not None:
            held, rows = whole
            state = self._rows(shard.state, 0, shard.tiles, shard, slice(0, shard.points)).clone()
            return DeviceShard(shard, held.features[rows], held.labels[rows], state, np.ones(shard.tiles, bool))
        kinds = [torch.from_numpy(np.zeros(0, a.dtype)).dtype for a in (features, shard.state)]
        labels = torch.empty(shard.points, dtype=torch.float64, device=self._place)
        state = torch.empty((shard.points, width), dtype=kinds[1], device=self._place)
        staying = self.rows_that_fit(shard)
        rows = torch.empty((staying, shard.columns), dtype=kinds[0], device=self._place)
        pinned = PinnedRows(features, self._place) if staying < shard.points else None
        return DeviceShard(shard, rows, labels, state, np.zeros(shard.tiles, bool), pinned=pinned)

    def rows_that_fit(self, shard: Shard) -> int:
        """How many rows of a shard stay on the device: all, or whole tiles of its first rows, so that memory is left
        for the work of the program."""
        if self._place.type != "cuda":
            return shard.points
        torch.cuda.empty_cache()
        free = active().gpu.memory_share_for_points * torch.cuda.mem_get_info(self._place)[0]
        fitting = int(free / max(shard.columns * _bytes_of(shard.features), 1))
        return shard.points if fitting >= shard.points else fitting // TILE * TILE

    def _whole_of(self, shard: Shard) -> tuple[DeviceShard, slice] | None:
        """The shard here that this one is a part of, and where: an audit visits copies of points with other states, and
        their rows need not come again."""
        features: Any = shard.features
        for held in self._shards.values():
            whole: Any = held.shard.features
            if held.shard.layout != shard.layout or whole.dtype != features.dtype or not len(whole):
                continue
            if held.staying < held.shard.points:
                continue
            tiles, rest = divmod(address_of(features) - address_of(whole), whole.strides[0] or 1)
            first = tiles * (TILE if shard.layout == "tiles" else 1)
            if rest or not 0 <= first <= first + shard.points <= held.shard.points or first % TILE:
                continue
            if held.here[first // TILE : -(-(first + shard.points) // TILE)].all():
                return held, slice(first, first + shard.points)
        return None

    def _rows(self, values: Any, lo: int, hi: int, shard: Shard, rows: slice) -> torch.Tensor:
        """Some tiles of an array as rows on the device; they are turned there, where that is quick."""
        some = values[rows] if shard.layout == "rows" else values[lo:hi]
        here = torch.from_numpy(writeable_view(np.ascontiguousarray(some)))
        if self._place.type == "cpu":
            here = here.clone()
        tiles = here.to(self._place, non_blocking=self._place.type == "cuda" and here.is_pinned())
        if shard.layout == "rows":
            return tiles
        return tiles.transpose(1, 2).reshape(-1, tiles.shape[1])[: rows.stop - rows.start]

    # -- states --------------------------------------------------------------------------------------------

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Bring states that are newer on the device into the memory of these shards."""
        for shard in shards:
            held = self._shards.get(id(shard))
            if held is None or not held.newer or not shard.state.shape[1]:
                continue
            if (start, shard.points if end is None else end) != (0, shard.points):
                self._fetch_some(shard, held, start, shard.points if end is None else end)
                continue
            held.newer = False
            if shard.layout == "rows":
                known = np.repeat(held.here, TILE)[: shard.points]
                fresh = held.state.cpu().numpy()
                if known.all():
                    np.copyto(shard.state[: shard.points], fresh)
                else:
                    shard.state[: shard.points][known] = fresh[known]
            else:
                self._fetch_tiles(shard, held)

    def _fetch_some(self, shard: Shard, held: DeviceShard, start: int, end: int) -> None:
        """Points that are to be given away: to fetch all would take longer than a pass of training."""
        rows = start + np.flatnonzero(
            np.repeat(held.here[start // TILE : -(-end // TILE)], TILE)[start % TILE :][: end - start]
        )
        if not len(rows):
            return
        fresh = held.state[start:end].cpu().numpy()[rows - start]
        if shard.layout == "rows":
            shard.state[rows] = fresh
        else:
            shard.state[rows // TILE, :, rows % TILE] = fresh

    def _fetch_tiles(self, shard: Shard, held: DeviceShard) -> None:
        """Rows become tiles on the device, and come as whole tiles: on the host that would take ten times as long."""
        spare = -len(held.state) % TILE
        rows = torch.nn.functional.pad(held.state, (0, 0, 0, spare)) if spare else held.state
        tiles = rows.reshape(-1, TILE, rows.shape[1]).transpose(1, 2).contiguous().cpu().numpy()
        if held.here.all():
            np.copyto(shard.state, tiles)
        else:
            shard.state[held.here] = tiles[held.here]

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Tiles that have not been brought yet come with their states when they are trained."""
        for shard in shards:
            held, last = self._shards.get(id(shard)), shard.points if end is None else end
            if held is None:
                continue
            lo, hi = start // TILE, -(-last // TILE)
            rows = slice(start, last) if shard.layout == "rows" else slice(lo * TILE, min(hi * TILE, shard.points))
            held.state[rows] = self._rows(shard.state, lo, hi, shard, rows)
            held.newer = held.newer and (start, last) != (0, shard.points)

    def forget(self, shard: Shard) -> None:
        held = self._shards.pop(id(shard), None)
        if held is not None and held.pinned is not None:
            held.pinned.release()

    def close(self) -> None:
        for held in list(self._shards.values()):
            self.forget(held.shard)
        if self._place.type == "cuda":
            torch.cuda.empty_cache()
