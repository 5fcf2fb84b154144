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
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist

from flegel.errors import UsageError
from flegel.torch.flexible.compression import CompressedSum
from flegel.torch.flexible.connection import GroupMessages
from flegel.torch.flexible.pace import REPORT_FIELDS, RankReport

_requires_grad = attrgetter("requires_grad")


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
        self,
        module: torch.nn.Module,
        group: Any,
        report: torch.Tensor,
        exchanging: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`report` is a parameter of DDP. `exchanging`: around messages between ranks, which may
        fail or wait for a rank that does not come."""
        self._exchanging = exchanging
        self.group, self._messages = group, GroupMessages(group)
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
        self.local_square = self.pooled_square = 0.0
        """‖ΣG‖² of this rank's gradient sum, and of that over all ranks, where they are measured."""
        self.weight = 1
        """Samples of the iteration, by which its gradients, means over them, are multiplied; 1 where they are sums."""
        self.unit = 1
        """Samples of a usual micro-batch, the same number on all ranks: what is sent is divided by it."""
        self._kept: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Sums over the iterations since the last barrier."""
        self._iteration: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Gradients of the running iteration, not multiplied yet."""
        self._rest: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Sums over backward passes after the one that synchronized, before the step: part of the next barrier."""
        self.reopened = False
        """The iteration synchronizes more than once, so norms of its local gradients are not known."""
        self.reports: list[RankReport] = []
        """Of all ranks at the last barrier."""
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._frozen = [p for p in module.parameters() if not p.requires_grad]
        self._hooks: list[Any] = []
        """Of the parameters, during one backward pass."""
        self._local_norms: list[torch.Tensor] = []
        """Norms of this rank's gradients, one for each parameter, where they are measured."""
        self.filling = False
        """Parameters may be unused, and ranks may have kept gradients of some: every rank sends all of them."""
        self.compressed: CompressedSum | None = None
        """How buckets are summed, if not in full precision."""
        self.measuring = False
        """The norms of this barrier's gradients are wanted, for the noise scale."""
        self.checking = False
        """The norm of their sum over all ranks is wanted."""
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
        if self.complete and not self.synchronizing:
            self._put_aside()
            return None
        if self.complete:
            self._reopen()
        if not self.synchronizing:
            queue(self._keep)
            return None
        self._numbers[:] = self.report_of()
        self._fill()
        self._watch_parameters()
        self._report.grad = None
        queue(self._sent)
        return self._row.to(self.device, copy=True)

    def check_frozen(self, unused: bool) -> None:
        """Refuse parameters that were frozen or released since the model was wrapped: DDP would wait for gradients that
        do not come, or leave out others, whose weights would go apart. `unused`: it looks for those without any."""
        if any(map(_requires_grad, self._frozen)):
            raise UsageError(
                "Parameters were frozen when the model was wrapped and are not any more, so ranks would not exchange "
                "their gradients: wrap the model again, or wrap it before anything is frozen, with "
                "find_unused_parameters=True."
            )
        if not unused and not all(map(_requires_grad, self._parameters)):
            raise UsageError(
                "Parameters were frozen (requires_grad=False) after the model was wrapped, so ranks would wait for "
                "their gradients: pass FlexibleDDP(…, find_unused_parameters=True), or freeze them before."
            )

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
        self._local_norms = []
        if self.measuring:

            def measure(parameter: torch.Tensor) -> None:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    self._local_norms.append(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32))

            self._hooks += [p.register_post_accumulate_grad_hook(measure) for p in trained]

    def _unwatch_parameters(self) -> None:
        """The backward pass has ended."""
        while self._hooks:
            self._hooks.pop().remove()

    def _sent(self) -> None:
        """After the synchronizing backward pass, before PyTorch waits for the sums."""
        self._unwatch_parameters()
        self.arrive()
        torch.autograd.Variable._execution_engine.queue_callback(self.summed_up)

    def summed_up(self) -> None:
        """Gradients are the mean over ranks of what they sent, and become the mean over all samples."""
        received = self._report.grad
        if received is None:
            return
        reports = RankReport.of_means(received.numpy(force=True))
        self.leave()
        if not all(map(any, reports)):  # a row of zeros: nothing was sent
            unused = sum(p.grad is None for p in self._parameters)
            raise UsageError(
                f"{unused or 'Some'} parameters got no gradient in this backward pass, so ranks would wait for them: "
                "pass FlexibleDDP(…, find_unused_parameters=True), or use all parameters in every forward pass."
            )
        self.reports = reports
        total = sum([report.samples for report in reports])
        if self.filling:
            self._forget_unused()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if total not in (0.0, self.unit * self.ranks):  # 0: all batches were empty
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
        self.local_square = self.pooled_square = 0.0
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        if (self.measuring or self.checking) and dense:
            norms = torch.stack([norm.float() for norm in torch._foreach_norm(dense)])
            self.pooled_square = total * total * float(norms.double().square().sum())
        if self._local_norms:
            self.local_square = self.unit**2 * float(torch.stack(self._local_norms).double().square().sum())
            self._local_norms = []

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

    def _put_aside(self) -> None:
        """A backward pass that does not synchronize begins after the one that did: the optimizer steps with the mean of
        all ranks as it is, and what is derived now counts at the next barrier."""
        means = {p: p.grad for p in self._parameters if p.grad is not None}
        for parameter in means:
            parameter.grad = None

        def keep() -> None:
            found = {p: p.grad.detach().mul(float(self.weight)) for p in self._parameters if p.grad is not None}
            _join(self._rest, found, 1.0)
            for parameter in self._parameters:
                parameter.grad = means.get(parameter)

        torch.autograd.Variable._execution_engine.queue_callback(keep)

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
        self._kept, self._rest = self._rest, {}
        self._iteration.clear()

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook for a bucket where gradients are sent with fewer bits: the mean of the ranks, as DDP makes it. Not
        overlapped, since it is for links that are slower than the computation. Reports are sent as they are."""
        buffer, compressed = bucket.buffer(), self.compressed
        with self._exchanging():
            if compressed is None or not compressed.fits(buffer):
                dist.all_reduce(buffer, group=self.group)
                buffer.div_(self.ranks)
            else:
                parts = zip(bucket.gradients(), bucket.parameters(), strict=True)
                table = next((gradient for gradient, p in parts if p is self._report), None)
                exact = table.clone() if table is not None else None
                if table is not None:
                    table.zero_()
                compressed.sum(bucket.index(), buffer, self._messages)
                compressed.count()
                buffer.div_(self.ranks)
                if table is not None and exact is not None:
                    dist.all_reduce(exact, group=self.group)
                    table.copy_(exact.div_(self.ranks))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def average_buffers(self, module: torch.nn.Module, samples: float, total: float) -> None:
        """Running statistics, such as those of BatchNorm, averaged over ranks by samples, in one message. A rank
        without samples adds nothing: 0 times an infinite value, as masks have, is none."""
        found = [b for b in module.buffers() if b.is_floating_point() and b.numel()]
        if not found or not total:  # all ranks had empty batches
            return
        flat = torch.cat([b.detach().reshape(-1).to(torch.float32) for b in found])
        flat = flat.mul_(samples / total) if samples else torch.zeros_like(flat)
        with self._exchanging():
            dist.all_reduce(flat, group=self.group)
        at = 0
        for one in found:
            one.copy_(flat[at : at + one.numel()].view_as(one))
            at += one.numel()
