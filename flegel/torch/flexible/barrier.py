"""The state between two barriers of one rank: private gradient sums, counts, norms, and the all-reduced table.

Gradients of micro-batches that are not synchronized are kept apart from `.grad`, so that clipping, zeroing and stepping
by the script between barriers find nothing to change. Decides nothing: `pace.py` and `deal.py` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from flegel.torch.flexible.compression import CompressedSum
from flegel.torch.flexible.pace import REPORT_FIELDS, RankReport

JOINED_BUCKET_BYTES = 4 << 20
"""Largest first bucket to which the table of reports is appended: copying it costs less than a message of its own."""


def _join(
    sums: dict[torch.nn.Parameter, torch.Tensor], found: dict[torch.nn.Parameter, torch.Tensor], factor: float
) -> None:
    """Adds to the sums that exist, by the factor; others begin with what was found."""
    both = [(sums[p], g) for p, g in found.items() if p in sums]
    sums.update({p: g for p, g in found.items() if p not in sums})
    if any(g.is_sparse for _, g in both):
        for kept, gradient in both:
            kept.add_(gradient, alpha=factor)
    elif both:
        torch._foreach_add_([kept for kept, _ in both], [g for _, g in both], alpha=factor)


class PooledBarrier:
    """Sums over ranks, divided by the samples of all ranks; one object for each wrapped module."""

    def __init__(
        self, module: torch.nn.Module, group: Any, device: torch.device, broken: Callable[[BaseException], None]
    ) -> None:
        """`broken` is called when a message between ranks fails."""
        self.broken = broken
        self.group = group
        self._begin(module, device, dist.get_rank(group), dist.get_world_size(group))

    def _begin(self, module: torch.nn.Module, device: torch.device, rank: int, ranks: int) -> None:
        """What is known before the first micro-batch."""
        self.rank, self.ranks = rank, ranks
        self.table = torch.zeros((self.ranks, REPORT_FIELDS), dtype=torch.float64, device=device)
        self.synchronizing = False
        """The running backward pass is the one that synchronizes."""
        self.complete = False
        """Gradients are the mean over all ranks; the optimizer has not stepped yet."""
        self.square = torch.zeros((), dtype=torch.float64, device=device)
        self.pooled = torch.zeros((), dtype=torch.float64, device=device)
        self.weight = 1
        """Samples of the iteration, by which its gradients, means over them, are multiplied; 1 where they are sums."""
        self._kept: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Sums over the iterations since the last barrier."""
        self._iteration: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Gradients of the running iteration, not multiplied yet."""
        self._merged = False
        """Both are in `.grad` already."""
        self.reopened = False
        """The iteration synchronizes more than once, so norms of its local gradients are not known."""
        self._views: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._joined = False
        self._pending: Any = None
        self._received = self.table
        """The summed table, once `_pending` has ended."""
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self.watching_unused = False
        """`adopt_unused` will be called."""
        self.compressed: CompressedSum | None = None
        """How buckets are summed, if not in full precision."""
        self.measuring = True
        """The norms of this barrier's gradients are wanted, for the noise scale."""

    def before_backward(self) -> None:
        """Called while a backward pass begins: what does not synchronize is kept when it has ended. Where parameters
        may be unused, DDP remembers that one was used since the last barrier, so it must find the sum that was kept."""
        if self.complete:
            self._reopen()
        if not self.synchronizing:
            torch.autograd.Variable._execution_engine.queue_callback(self._keep)
        elif self.watching_unused and not self._merged:
            self._merged = True
            for parameter in {**self._kept, **self._iteration}:
                parameter.grad = torch.zeros_like(parameter)
                if parameter in self._kept:
                    parameter.grad.add_(self._kept[parameter], alpha=1.0 / self.weight)
                if parameter in self._iteration:
                    parameter.grad.add_(self._iteration[parameter])

    def _reopen(self) -> None:
        """Another backward pass of the iteration whose gradients are the mean of all ranks already, as where two losses
        are derived one after the other: each rank contributes an equal part of that mean to the next sum."""
        self.complete, self.reopened = False, True
        share = float(self._received[:, 0].sum()) / self.ranks / self.weight
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(share)
        self._kept.clear()
        self._iteration.clear()

    def _keep(self) -> None:
        """After a backward pass that does not synchronize: gradients are taken away, all at once, because a hook for
        each parameter costs as much as a small layer. They count once the optimizer steps."""
        found = {p: p.grad for p in self._parameters if p.grad is not None}
        for parameter in found:
            parameter.grad = None
        # views lie in the buckets of DDP, which the next backward pass fills
        _join(self._iteration, {p: g.detach().clone() if g._is_view() else g.detach() for p, g in found.items()}, 1.0)

    def commit(self) -> None:
        """The optimizer would step: the gradients of the iteration join the sums, by its samples."""
        found, self._iteration = self._iteration, {}
        new = [g for p, g in found.items() if p not in self._kept]
        if new and self.weight != 1:
            torch._foreach_mul_(new, float(self.weight))
        _join(self._kept, found, float(self.weight))

    def discard(self, parameters: set[torch.nn.Parameter] | None = None) -> None:
        """The script zeroes gradients: those of this iteration, of all parameters or of these, do not count."""
        self.complete = self._merged = self.reopened = False
        for parameter in list(self._iteration):
            if parameters is None or parameter in parameters:
                del self._iteration[parameter]

    def finish(self) -> None:
        """The optimizer steps with the mean of all ranks."""
        self.complete = self.synchronizing = self._merged = self.reopened = False
        self._kept.clear()
        self._iteration.clear()

    def send(self, report: RankReport, bucket: dist.GradBucket) -> None:
        """The row of this rank on its way to all others: with the gradients of the first bucket, if that is small and
        has enough bits for it, or as a message of its own."""
        self.table.zero_()
        self.table[self.rank] = torch.tensor(report.row(), dtype=torch.float64)
        self.square.zero_()
        self.pooled.zero_()
        first = bucket.buffer()
        small = first.dtype in (torch.float32, torch.float64) and first.nbytes <= JOINED_BUCKET_BYTES
        self._joined = small and self.compressed is None
        if not self._joined:
            self._received = self.table
            self._pending = self._sum(self.table)

    def _sum(self, values: torch.Tensor) -> Any:
        """Over all ranks, under way; a link that is broken already ends this rank with a sentence."""
        try:
            return dist.all_reduce(values, group=self.group, async_op=True)
        except RuntimeError as error:
            self.broken(error)
            raise

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """One bucket: what was kept joins it, ranks are summed, the sum is divided by all samples."""
        buffer = bucket.buffer()
        apart = (self._kept or self._iteration) and not self._merged
        parts: list[tuple[torch.Tensor, torch.nn.Parameter]] = []
        if apart or self.watching_unused:  # listing the parts of a bucket costs as much as a small layer
            parts = list(zip(bucket.gradients(), bucket.parameters(), strict=True))
            for gradient, parameter in parts:
                if self.watching_unused:
                    self._views[parameter] = gradient
                if apart and parameter in self._iteration:
                    gradient.add_(self._iteration[parameter].view_as(gradient))
        if self.weight != 1:
            buffer.mul_(float(self.weight))
        for gradient, parameter in parts if apart else ():
            if parameter in self._kept:
                gradient.add_(self._kept[parameter].view_as(gradient))
        if self.measuring:
            self.square += torch.linalg.vector_norm(buffer, dtype=torch.float32).double().square()
        if self.compressed is not None and self.compressed.fits(buffer):
            return self._reduce_compressed(self.compressed, bucket)
        message = buffer
        if self._joined and bucket.index() == 0:
            message = torch.cat([buffer, self.table.view(-1).to(buffer.dtype)])
        work = self._sum(message)
        if message is not buffer:
            self._pending, self._received = work, message[buffer.numel() :].view_as(self.table)

        def divide(future: torch.futures.Future[Any]) -> torch.Tensor:
            """Divide the summed gradients by the samples of all ranks, once the sum is complete."""
            try:
                future.value()
                if message is buffer:  # a work ends after its own callbacks
                    self._pending.wait()
            except RuntimeError as error:
                self.broken(error)
                raise
            total = message[: buffer.numel()]
            if self.measuring:
                self.pooled += torch.linalg.vector_norm(total, dtype=torch.float32).double().square()
            return torch.div(total, self._received[:, 0].sum().to(total.dtype), out=buffer)

        return work.get_future().then(divide)

    def _reduce_compressed(
        self, compressed: CompressedSum, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """The same with fewer bytes; not overlapped, since it is for links that are slower than the computation."""
        buffer = bucket.buffer()
        try:
            compressed.sum(bucket.index(), buffer)
            self._pending.wait()
        except RuntimeError as error:
            self.broken(error)
            raise
        if self.measuring:
            self.pooled += torch.linalg.vector_norm(buffer, dtype=torch.float32).double().square()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer.div_(self._received[:, 0].sum().to(buffer.dtype)))
        return done

    def reports(self) -> list[RankReport]:
        """The rows of all ranks, after the barrier."""
        try:
            self._pending.wait()
        except RuntimeError as error:
            self.broken(error)
            raise
        return [RankReport(*row) for row in self._received.tolist()]

    def adopt_unused(self) -> None:
        """Gradients of parameters that no rank used in its last micro-batch, but some rank did before it: DDP leaves
        `.grad` of such parameters alone."""
        for parameter, gradient in self._views.items():
            if parameter.grad is None and bool(gradient.any()):
                parameter.grad = gradient.clone().view_as(parameter)
        self._views.clear()

    def average_buffers(self, module: torch.nn.Module, samples: float, total: float) -> None:
        """Running statistics, such as those of BatchNorm, averaged over ranks by samples, in one message."""
        found = [b for b in module.buffers() if b.is_floating_point() and b.numel()]
        if not found:
            return
        flat = torch.cat([b.detach().reshape(-1).to(torch.float32) for b in found]).mul_(samples / total)
        dist.all_reduce(flat, group=self.group)
        at = 0
        for one in found:
            one.copy_(flat[at : at + one.numel()].view_as(one))
            at += one.numel()
