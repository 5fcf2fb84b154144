"""`FlexibleDDP`: DistributedDataParallel with barriers by time; ranks contribute what they managed, by samples.

Before a forward pass a rank decides whether this micro-batch is the last one that fits into the interval, and only
that backward pass synchronizes, overlapped with communication as in DDP. In between, `optimizer.step` does nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from flegel.errors import FlegelWarning, UsageError
from flegel.runtime import clock
from flegel.torch.flexible import sampler as samplers
from flegel.torch.flexible.barrier import PooledBarrier
from flegel.torch.flexible.pace import (
    LEARNING_RATE_RULES,
    BarrierPace,
    RankReport,
    RankTimings,
    learning_rate_factor,
)
from flegel.torch.flexible.watchdog import Watchdog

BUFFERS = ("average", "local")


class _Weighted(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is multiplied by the number of samples: means become sums. Where a backward pass
    begins, `begun` is called."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, samples: int, begun: Callable[[], None]) -> torch.Tensor:
        ctx.samples, ctx.begun = samples, begun
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
        ctx.begun()
        return gradients[0] * ctx.samples, None, None


def _first_dimension(inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Samples of a micro-batch: the first dimension of the first tensor with one."""
    for value in (*inputs, *named.values()):
        if isinstance(value, torch.Tensor) and value.ndim:
            return len(value)
    raise UsageError("FlexibleDDP cannot see how many samples a batch has: pass samples=lambda inputs, named: ….")


class FlexibleDDP(DistributedDataParallel):  # type: ignore[misc]
    """Wraps a module as DDP does; all of DDP's arguments are accepted."""

    def __init__(
        self,
        module: torch.nn.Module,
        *args: Any,
        interval: float | None = None,
        samples: Callable[[tuple[Any, ...], dict[str, Any]], int] = _first_dimension,
        mean_loss: bool = True,
        buffers: str = "average",
        lr_rule: str = "none",
        reference_batch: int | None = None,
        endless: bool = False,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        """`interval`: seconds between barriers; found by itself otherwise. `mean_loss`: the loss is a mean over its
        samples (False: a sum). `buffers`: running statistics are averaged at barriers, or stay local. `lr_rule`:
        multiplies the learning rate of a step by its samples over `reference_batch` (by default ranks × the first
        micro-batch), by the root of that, or ("adascale") by what it is worth in steps of `reference_batch`. `endless`:
        the data never end, so no FlexibleSampler is needed. `timeout`: seconds without a sign of a rank after which
        training ends with a sentence that names it."""
        for name, value, known in (("buffers", buffers, BUFFERS), ("lr_rule", lr_rule, LEARNING_RATE_RULES)):
            if value not in known:
                raise UsageError(f"{name}={value!r} is not known; choose one of {', '.join(known)}.")
        if interval is not None and not interval > 0:
            raise UsageError(f"interval={interval!r}: give seconds above 0, or leave it out to have it found.")
        if any(isinstance(m, torch.nn.SyncBatchNorm) for m in module.modules()):
            raise UsageError(
                "SyncBatchNorm exchanges messages in every forward pass, and ranks make different numbers of them: use "
                "BatchNorm; FlexibleDDP averages its statistics at barriers (buffers='average')."
            )
        if any(type(p).__name__ == "DTensor" for p in module.parameters()):
            raise UsageError(
                "The module was sharded by fully_shard (FSDP2), which sums gradients in every backward pass: wrap the "
                "plain module, or keep FSDP2 without flexible barriers."
            )
        accepted = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers"] = False
        options.setdefault("gradient_as_bucket_view", True)
        super().__init__(module, *args, **options)
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self.watchdog = Watchdog(self.process_group, timeout)
        self.barrier = PooledBarrier(self.module, self.process_group, device, self.watchdog.broken)
        self.barrier.watching_unused = self.find_unused_parameters
        self.pace, self._own = BarrierPace(fixed=interval), RankTimings()
        self._samples, self._mean_loss = samples, mean_loss
        self._averaging = buffers == "average" and next(module.buffers(), None) is not None
        self._lr_rule, self._reference, self._endless = lr_rule, reference_batch, endless
        self._grouping = self._sampler_missing = False
        self._window, self._largest, self._last_cost, self._last_square, self._last_pooled = 0, 0, 0.0, 0.0, 0.0
        self._ready = self._seconds = 0.0
        self.barriers = 0
        self.samples_seen = 0
        """Samples of all ranks until the last barrier."""
        self.stepped = False
        """The last call of `optimizer.step` was at a barrier, so it stepped."""
        self._event: Any = None
        self.register_comm_hook(None, lambda _, bucket: self._hook(bucket))
        self._own.open(self._now())

    # -- one micro-batch -----------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        if self.barrier.complete:
            raise UsageError(
                "The optimizer did not step after the last barrier: wrap it, optimizer = model.optimizer(…)."
            )
        count = self._samples(inputs, named)
        last = False
        if not self._grouping:
            last = self._decide(count)
        self.barrier.synchronizing = last
        self.require_backward_grad_sync = last
        outputs = super().forward(*inputs, **named)
        factor, begun = count if self._mean_loss else 1, self.barrier.after_backward
        if isinstance(outputs, torch.Tensor):  # walking a tree of one leaf costs more than the leaf
            weighted = outputs.requires_grad and outputs.is_floating_point()
            return _Weighted.apply(outputs, factor, begun) if weighted else outputs
        return tree_map_only(
            torch.Tensor,
            lambda t: _Weighted.apply(t, factor, begun) if t.requires_grad and t.is_floating_point() else t,
            outputs,
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches inside belong to the one after it: together they count as one micro-batch of that size."""
        before, self._grouping = self._grouping, True
        try:
            yield
        finally:
            self._grouping = before

    def _decide(self, count: int) -> bool:
        """By this rank's clock and past only. The report of this rank leaves before its last micro-batch begins."""
        now = self._now()
        self._own.begin(now)
        self._window += count
        self._largest = max(self._largest, count)
        sampler = samplers.active()
        if sampler is None and not self._endless:
            if not self._sampler_missing:
                self._sampler_missing = True
                warnings.warn(
                    "No FlexibleSampler is being iterated, so every micro-batch is synchronized: ranks could run out "
                    "of data at different times. Use flegel.torch.FlexibleSampler, or endless=True.",
                    FlegelWarning,
                    stacklevel=3,
                )
            return True
        last = self._own.is_last(now, self.pace.interval)
        return last if sampler is None else sampler.decide(self._window, self._largest, last)

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            sampler = samplers.active()
            self._ready = self._now()
            self._seconds = self._ready - self._own.first
            self.watchdog.arrive(self.barriers)
            self.barrier.measuring = self.pace.measures(self.barriers)
            self.barrier.send(
                RankReport(
                    self._window,
                    self._seconds,
                    self._own.typical or self._seconds,
                    self._last_cost,
                    self._last_square,
                    self._largest,
                    sampler.ahead(self._window) if sampler is not None else 0,
                ),
                bucket,
            )
        future = self.barrier.reduce(bucket)
        if bucket.is_last():
            self._ready = self._now()
            self.barrier.complete = True
        return future

    # -- the barrier ---------------------------------------------------------------------------------------

    def _finish(self) -> float:
        """After the synchronized backward pass; returns the factor of the learning rate."""
        reports = self.barrier.reports()
        square, pooled = float(self.barrier.square), float(self.barrier.pooled)
        self.watchdog.leave()
        total = sum(r.samples for r in reports)
        if self.find_unused_parameters:
            self.barrier.adopt_unused()
        if self._averaging:
            self.barrier.average_buffers(self.module, self._window, total)
        self._own.ready(self._ready)
        self.pace.barrier(reports, self._last_pooled)
        self._last_square, self._last_pooled = square, pooled
        sampler = samplers.active()
        if sampler is not None:
            sampler.barrier(reports, self.pace)
        self.barriers += 1
        self.samples_seen += int(total)
        if self._reference is None:
            self._reference = int(sum(r.batch for r in reports))
        self.barrier.complete = self.barrier.synchronizing = False
        self._window = 0
        return learning_rate_factor(self._lr_rule, total, self._reference, self.pace.noise.scale)

    def _open(self) -> None:
        """The optimizer has stepped: the next interval begins. All that a barrier took counts as its cost."""
        now = self._now()
        self._last_cost = now - self._ready
        self._own.open(now)

    def _now(self) -> float:
        """Seconds, once the device has done all but the newest micro-batch: launching alone is not training."""
        if self.barrier.table.is_cuda:
            if self._event is not None:
                self._event.synchronize()
            self._event = torch.cuda.Event()
            self._event.record()
        return clock.now()

    # -- what the script steps -----------------------------------------------------------------------------

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The same optimizer, whose `step` acts at barriers only."""
        real = optimizer.step

        def step(optimizer: torch.optim.Optimizer, closure: Any = None, **named: Any) -> Any:
            if closure is not None:
                raise UsageError(
                    "An optimizer that evaluates a closure several times cannot step at flexible barriers."
                )
            self.stepped = self.barrier.complete
            if not self.stepped:
                return None
            factor = self._finish()
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups if factor != 1.0 else ():
                group["lr"] = group["lr"] * factor
            try:
                return real(**named)
            finally:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                self._open()

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]  # schedulers ask for a method
        return optimizer

    def scheduler(self, scheduler: Any, samples: int | None = None) -> Any:
        """The same learning-rate schedule, which steps at barriers only; with `samples` once for each so many samples
        of all ranks, whatever the barriers are."""
        real, done = scheduler.step, 0

        def step(*given: Any, **named: Any) -> None:
            nonlocal done
            if not self.stepped:
                return
            due = self.samples_seen // samples - done if samples else 1
            for _ in range(due):
                real(*given, **named)
            done += due

        scheduler.step = step
        return scheduler

    def scaler(self, scaler: Any) -> Any:
        """The same scaler of gradients, which unscales, steps and updates at barriers only."""
        unscale, step, update = scaler.unscale_, scaler.step, scaler.update

        def stepping(optimizer: Any, *given: Any, **named: Any) -> Any:
            self.stepped = self.barrier.complete
            if not self.stepped:
                return None
            result = step(optimizer, *given, **named)
            if self.barrier.complete:  # gradients were not finite, so the scaler left the optimizer out
                self._finish()
                self._open()
            return result

        scaler.unscale_ = lambda optimizer: unscale(optimizer) if self.barrier.complete else None
        scaler.step = stepping
        scaler.update = lambda *given, **named: update(*given, **named) if self.stepped else None
        return scaler
