"""The state between two barriers of one rank: private gradient sums, counts, norms, and the reports of all ranks.

Gradients of micro-batches that are not synchronized are kept apart from `.grad`, so that clipping, zeroing and stepping
by the script between barriers find nothing to change. A barrier is a backward pass of DDP as it is: PyTorch sums its
buckets while the pass goes on. What was kept is put into `.grad` before it. The reports of ranks are the gradient of a
small tensor that DDP takes for a parameter, so they travel in the first bucket without a message of their own. Where
every rank has trained one micro-batch of the same size, nothing is left to do: DDP's mean is the mean over all samples.
Decides nothing: `pace.py` and `deal.py` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from flegel.torch.flexible.compression import CompressedSum
from flegel.torch.flexible.pace import REPORT_FIELDS, RankReport


def report_tensor(module: torch.nn.Module, ranks: int) -> torch.Tensor:
    """Whose gradient carries the reports of all ranks, a row each. Of the type of the parameters, so that it shares
    their first bucket; 16 bits are too few for counts."""
    first = next((p for p in module.parameters() if p.requires_grad), None)
    double = first is not None and first.dtype == torch.float64
    return torch.zeros(
        (ranks, REPORT_FIELDS),
        dtype=torch.float64 if double else torch.float32,
        device=first.device if first is not None else None,
        requires_grad=True,
    )


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
        self, module: torch.nn.Module, group: Any, report: torch.Tensor, broken: Callable[[BaseException], None]
    ) -> None:
        """`report` is a parameter of DDP. `broken` is called when a message between ranks fails."""
        self.broken = broken
        self.group = group
        self._begin(module, report.device, dist.get_rank(group), dist.get_world_size(group))
        self._report = report
        self._row = torch.zeros(report.shape, dtype=report.dtype)
        self._numbers = self._row.numpy()[self.rank]

    def _begin(self, module: torch.nn.Module, device: torch.device, rank: int, ranks: int) -> None:
        """What is known before the first micro-batch."""
        self.rank, self.ranks, self.device = rank, ranks, device
        self.synchronizing = False
        """The running backward pass is the one that synchronizes."""
        self.complete = False
        """Gradients are the mean over all ranks; the optimizer has not stepped yet."""
        self.square = self.pooled = 0.0
        """‖ΣG‖² of this rank's gradient sum, and of that over all ranks, where they are measured."""
        self.weight = 1
        """Samples of the iteration, by which its gradients, means over them, are multiplied; 1 where they are sums."""
        self.unit = 1
        """Samples of a usual micro-batch, the same number on all ranks: what is sent is divided by it."""
        self._kept: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Sums over the iterations since the last barrier."""
        self._iteration: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Gradients of the running iteration, not multiplied yet."""
        self._sending = False
        """A synchronizing backward pass has begun."""
        self.reopened = False
        """The iteration synchronizes more than once, so norms of its local gradients are not known."""
        self.reports: list[RankReport] = []
        """Of all ranks at the last barrier."""
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._hooks: list[Any] = []
        """Of the parameters, during one backward pass."""
        self._squares: list[torch.Tensor] = []
        self.filling = False
        """Parameters may be unused, and ranks may have kept gradients of some: every rank sends all of them."""
        self.compressed: CompressedSum | None = None
        """How buckets are summed, if not in full precision."""
        self.measuring = self.checking = False
        """The norms of this barrier's gradients are wanted, for the noise scale; that of the sum is."""
        self.report_of: Callable[[], RankReport]
        """Called when a synchronizing backward pass begins."""
        self.arrive: Callable[[], None] = lambda: None
        """Called when this rank's gradients are complete, before it waits for others."""
        self.leave: Callable[[], None] = lambda: None
        """Called when those of all ranks are."""

    def before_backward(self) -> torch.Tensor | None:
        """Called while a backward pass begins; returns the gradient of the reports. What does not synchronize is kept
        when it has ended."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        if self.complete:
            self._reopen()
        if not self.synchronizing:
            queue(self._keep)
            return None
        if self._sending:
            return None
        self._sending = True
        self._numbers[:] = self.report_of()
        self._fill()
        self._watch_parameters()
        self._report.grad = None
        queue(self._sent)
        return self._row.to(self.device, copy=True)

    def _fill(self) -> None:
        """What was kept becomes `.grad`, to which the backward pass adds; in usual micro-batches."""
        if not (self._kept or self._iteration or self.filling):
            return
        for parameter in self._parameters:
            kept, own = self._kept.pop(parameter, None), self._iteration.pop(parameter, None)
            if kept is not None:
                kept.mul_(1.0 / self.unit)
            if own is not None:
                own.mul_(self.weight / self.unit)
                kept = own if kept is None else kept.add_(own)
            if kept is not None and parameter.grad is not None:
                parameter.grad.add_(kept)
            elif parameter.grad is None and (kept is not None or self.filling):
                parameter.grad = torch.zeros_like(parameter) if kept is None else kept

    def _watch_parameters(self) -> None:
        """Hooks for this backward pass, where it needs any: gradients are multiplied where the micro-batch is not a
        usual one, and measured before they are sent."""
        self._unwatch_parameters()
        factor = self.weight / self.unit
        trained = [p for p in self._parameters if p.requires_grad]  # some may have been frozen since they were wrapped
        if factor != 1.0:
            self._hooks += [p.register_hook(lambda gradient: gradient * factor) for p in trained]
        self._squares = []
        if self.measuring:

            def measure(parameter: torch.Tensor) -> None:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    self._squares.append(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32))

            self._hooks += [p.register_post_accumulate_grad_hook(measure) for p in trained]

    def _unwatch_parameters(self) -> None:
        """The backward pass has ended."""
        while self._hooks:
            self._hooks.pop().remove()

    def _sent(self) -> None:
        """After the synchronizing backward pass, before PyTorch waits for the sums."""
        self._unwatch_parameters()
        self.arrive()
        torch.autograd.Variable._execution_engine.queue_callback(self._summed_up)

    def _summed_up(self) -> None:
        """Gradients are the mean over ranks of what they sent, and become the mean over all samples."""
        self._sending = False
        received = self._report.grad
        if received is None:
            return
        reports = RankReport.of_means(received.numpy(force=True))
        counts = [report.samples for report in reports]
        if not all(counts):
            return  # a parameter got no gradient, so nothing was sent: DDP explains it in the next forward pass
        self.leave()
        self.reports = reports
        total = sum(counts)
        if self.filling:
            self._forget_unused()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if total != self.unit * self.ranks:
            factor = self.unit * self.ranks / total
            if any(gradient.is_sparse for gradient in gradients):
                for gradient in gradients:
                    gradient.mul_(factor)
            elif gradients:
                torch._foreach_mul_(gradients, factor)
        self._measure(gradients, total)
        self.complete = True

    def _forget_unused(self) -> None:
        """What no rank used is left alone by the optimizer, as with DDP."""
        for parameter in self._parameters:
            if parameter.grad is not None and not bool(parameter.grad.any()):
                parameter.grad = None

    def _measure(self, gradients: list[torch.Tensor], total: float) -> None:
        self.square = self.pooled = 0.0
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        if (self.measuring or self.checking) and dense:
            norms = torch.stack([norm.float() for norm in torch._foreach_norm(dense)])
            self.pooled = total * total * float(norms.double().square().sum())
        if self._squares:
            self.square = self.unit**2 * float(torch.stack(self._squares).double().square().sum())
            self._squares = []

    def _reopen(self) -> None:
        """Another backward pass of the iteration whose gradients are the mean of all ranks already, as where two losses
        are derived one after the other: each rank contributes an equal part of that mean to the next sum."""
        self.complete, self.reopened = False, True
        share = sum(report.samples for report in self.reports) / (self.unit * self.ranks)
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
        self.complete = self.reopened = False
        for parameter in list(self._iteration):
            if parameters is None or parameter in parameters:
                del self._iteration[parameter]

    def finish(self) -> None:
        """The optimizer steps with the mean of all ranks."""
        self.complete = self.synchronizing = self.reopened = False
        self._kept.clear()
        self._iteration.clear()

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook for a bucket where gradients are sent with fewer bits: the mean of the ranks, as DDP makes it. Not
        overlapped, since it is for links that are slower than the computation. Reports are sent as they are."""
        buffer, compressed = bucket.buffer(), self.compressed
        try:
            if compressed is None or not compressed.fits(buffer):
                dist.all_reduce(buffer, group=self.group)
                buffer.div_(self.ranks)
            else:
                parts = zip(bucket.gradients(), bucket.parameters(), strict=True)
                table = next((gradient for gradient, p in parts if p is self._report), None)
                exact = table.clone() if table is not None else None
                if table is not None:
                    table.zero_()
                compressed.sum(bucket.index(), buffer)
                buffer.div_(self.ranks)
                if table is not None and exact is not None:
                    dist.all_reduce(exact, group=self.group)
                    table.copy_(exact.div_(self.ranks))
        except RuntimeError as error:
            self.broken(error)
            raise
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

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
