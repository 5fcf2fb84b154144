"""The gradients of a barrier between ranks that heal: local sums stay whole until all ranks have the result.

DDP's own messages are not used, since one that fails leaves them unusable: gradients are sent after the backward pass,
in an order that does not depend on it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flegel.errors import UsageError
from flegel.torch.flexible.barrier import PooledBarrier
from flegel.torch.flexible.connection import Connection, GroupMessages
from flegel.torch.flexible.pace import REPORT_FIELDS, RankReport
from flegel.torch.flexible.rank_settings import rank_settings


@dataclass
class BarrierResult:
    """Sums over ranks; held until all ranks have them."""

    sums: list[torch.Tensor]
    table: torch.Tensor
    used: torch.Tensor
    buffers: torch.Tensor | None
    site: torch.Tensor | None = None
    """What θ of all sites is, where the leader of this one brings it."""


def _square(flats: list[torch.Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(flat, dtype=torch.float32)) ** 2 for flat in flats)


class HealingBarrier(PooledBarrier):
    """One module's state between two barriers."""

    def __init__(self, module: torch.nn.Module, device: torch.device, exchange: Callable[[], bool]) -> None:
        """`exchange` is called when the gradients of a synchronizing backward pass are complete; False: the interval
        goes on."""
        self.module, self._exchange = module, exchange
        self._begin(module, device, 0, 1)
        self._chunks = self._divided()
        self._local: list[torch.Tensor] = []
        self.averaging = False
        self.window = 0
        self.part_of_site: Callable[[], torch.Tensor | None] = lambda: None
        """Called after this rank's report: what the leader of a site sends with this barrier, where it said so."""
        self.idle = False
        """Training is over here, and ranks meet without gradients until the other sites have ended."""

    def _divided(self) -> list[list[torch.nn.Parameter]]:
        """Parameters by message, in the order of the module."""
        found: list[list[torch.nn.Parameter]] = []
        size = 0
        for parameter in self._parameters:
            nbytes = parameter.numel() * parameter.element_size()
            fits = found and found[-1][0].dtype == parameter.dtype and found[-1][0].device == parameter.device
            if not fits or size + nbytes > rank_settings().message_bytes:
                found.append([])
                size = 0
            found[-1].append(parameter)
            size += nbytes
        return found

    def before_backward(self) -> torch.Tensor | None:
        """Keep the gradients of this backward pass when it ends, and meet the other ranks where this is the last one
        before a barrier."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        if self.complete:
            raise UsageError(
                "A second backward pass followed the one with which ranks met: where ranks heal, put all but the last "
                "backward pass of an iteration under `with model.no_sync():`."
            )
        queue(self._keep)
        if self.synchronizing:
            queue(self._meet)
        return None

    def _meet(self) -> None:
        """Exchange gradients after a synchronizing backward pass: all of them are in `_kept` and `_iteration`."""
        self._local = self._summed()
        if self._exchange():
            self.complete = True
        else:
            self._keep_for_later()

    def _summed(self) -> list[torch.Tensor]:
        """Σ over the interval, flat, one tensor a message."""
        flats = []
        for chunk in self._chunks:
            flat = torch.zeros(sum(p.numel() for p in chunk), dtype=chunk[0].dtype, device=chunk[0].device)
            at = 0
            for p in chunk:
                part = flat[at : at + p.numel()].view_as(p)
                at += p.numel()
                if p in self._iteration:
                    part.add_(self._iteration[p], alpha=float(self.weight))
                if p in self._kept:
                    part.add_(self._kept[p])
            flats.append(flat)
        self._used = torch.tensor([float(p in self._iteration or p in self._kept) for p in self._parameters])
        return flats

    def _keep_for_later(self) -> None:
        """No barrier yet: the sums are those of the interval so far."""
        used = [p for p, one in zip(self._parameters, self._used.tolist(), strict=True) if one]
        parts = self._parts(self._local)
        self._kept = {p: parts[p] for p in used}
        self._iteration.clear()
        self.synchronizing = False

    def _parts(self, flats: list[torch.Tensor]) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Views of the flat vectors as gradients of each parameter."""
        found = {}
        for chunk, flat in zip(self._chunks, flats, strict=True):
            at = 0
            for p in chunk:
                found[p] = flat[at : at + p.numel()].view_as(p)
                at += p.numel()
        return found

    def reduce_all(self, connection: Connection | GroupMessages, check: Callable[[], None]) -> BarrierResult:
        """The sums over the ranks of a generation; what this rank contributes stays as it is."""
        table = self._own_row(connection.rank, connection.ranks)
        site = self.part_of_site()
        others = [] if site is None else [site]
        if self.idle:
            self._sum_all(connection, [], [table, *others], check)
            return BarrierResult([], table, torch.zeros(0), None, site)
        small = torch.cat([table.view(-1), self._used.double()])
        sums = [flat.clone() for flat in self._local]
        buffers = self._flat_buffers() if self.averaging else None
        others += [] if buffers is None else [buffers]
        self._sum_all(connection, sums, [small, *others], check)
        return BarrierResult(sums, small[: table.numel()].view_as(table), small[table.numel() :], buffers, site)

    def _sum_all(
        self,
        connection: Connection | GroupMessages,
        flats: list[torch.Tensor],
        others: list[torch.Tensor],
        check: Callable[[], None],
    ) -> None:
        """Over all ranks, in place: `flats` with 8 bits where that is asked for and pays, all else as it is."""
        compressed = self.compressed if connection.ranks > 1 else None
        eight = [compressed is not None and compressed.fits(flat) for flat in flats]
        plain = [flat for flat, small in zip(flats, eight, strict=True) if not small]
        connection.wait([connection.sum(values) for values in (*others, *plain)], check)
        for number, flat in enumerate(flats):
            if compressed is not None and eight[number]:
                compressed.sum(number, flat, connection, check)

    def _own_row(self, rank: int, ranks: int) -> torch.Tensor:
        """The table of reports in which only this rank has written."""
        table = torch.zeros((ranks, REPORT_FIELDS), dtype=torch.float64)
        table[rank] = torch.tensor(self.report_of(), dtype=torch.float64)
        return table

    def _flat_buffers(self) -> torch.Tensor | None:
        found = [b for b in self.module.buffers() if b.is_floating_point() and b.numel()]
        if not found:
            return None
        return torch.cat([b.detach().reshape(-1).to("cpu", torch.float32) for b in found]).mul_(float(self.window))

    def accept(self, result: BarrierResult) -> list[RankReport]:
        """The mean over all samples becomes `.grad`; the reports of all ranks."""
        reports = [RankReport(*row) for row in result.table.tolist()]
        self._count_remainders()
        total = sum(r.samples for r in reports)
        self.local_square = self.pooled_square = 0.0
        if self.measuring:
            self.local_square, self.pooled_square = _square(self._local), _square(result.sums)
        for flat in result.sums:
            flat.div_(max(total, 1.0))
        views = self._parts(result.sums)
        for parameter, used in zip(self._parameters, result.used.tolist(), strict=True):
            parameter.grad = views[parameter] if used else None
        self._accept_buffers(result, total)
        self._local = []
        return reports

    def _count_remainders(self) -> None:
        """What roundings of this barrier have left out is added at the next one."""
        if self.compressed is not None:
            self.compressed.count()

    def _accept_buffers(self, result: BarrierResult, total: float) -> None:
        """Running statistics become the mean over all samples."""
        if result.buffers is not None:
            at, flat = 0, result.buffers.div_(max(total, 1.0))
            for one in (b for b in self.module.buffers() if b.is_floating_point() and b.numel()):
                one.copy_(flat[at : at + one.numel()].view_as(one))
                at += one.numel()

    def forget(self) -> None:
        """Drop all gradients: this process begins again without any."""
        self.finish()
        self._local = []
        if self.compressed is not None:
            self.compressed.forget()
        for parameter in self._parameters:
            parameter.grad = None
