"""`LocalStepsDDP`: ranks step by themselves between barriers, at which they average how far their weights have moved.

For links that are slower than the computation: an exchange of the size of one gradient for many steps. The sampler,
barriers by time, 8 bits, lost ranks and the end of training are those of `FlexibleDDP`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch

from flegel.errors import UsageError
from flegel.runtime import clock
from flegel.torch.flexible import iteration
from flegel.torch.flexible.compression import CompressedSum
from flegel.torch.flexible.connection import Connection, GroupMessages
from flegel.torch.flexible.ddp import FlexibleDDP, ForwardPass
from flegel.torch.flexible.exchange import BarrierResult, HealingBarrier
from flegel.torch.flexible.outer import OuterOptimizer
from flegel.torch.flexible.pace import BarrierPace, RankReport


class LocalStepsBarrier(HealingBarrier):
    """What ranks exchange: the change of their weights, once the local steps of an interval are made."""

    def __init__(self, module: torch.nn.Module, device: torch.device, outer: OuterOptimizer) -> None:
        super().__init__(module, device, lambda: False)
        self.outer = outer

    def before_backward(self) -> torch.Tensor | None:
        """Gradients stay in `.grad`: the script's optimizer steps with them."""
        return None

    def reduce_all(self, connection: Connection | GroupMessages, check: Callable[[], None]) -> BarrierResult:
        """The sums over ranks; the weights of this rank stay as they are until all ranks have them."""
        if self.idle:
            return super().reduce_all(connection, check)
        moved = self.outer.change()
        flats = [torch.cat([moved[p].reshape(-1) for p in chunk]) for chunk in self._chunks]
        table = self._own_row(connection.rank, connection.ranks)
        site, buffers = self.part_of_site(), self._flat_buffers() if self.averaging else None
        self._sum_all(connection, flats, [table, *(one for one in (site, buffers) if one is not None)], check)
        return BarrierResult(flats, table, torch.zeros(0), buffers, site)

    def accept(self, result: BarrierResult) -> list[RankReport]:
        """The outer step, along the mean over ranks: each local step of each rank counts alike."""
        reports = [RankReport(*row) for row in result.table.tolist()]
        self._count_remainders()
        finite = True
        for flat in result.sums:
            flat.div_(len(reports))
            finite = finite and bool(torch.isfinite(flat).all())
        self.pooled_square = 0.0 if finite else math.inf
        self.outer.step(self._parts(result.sums))
        self._accept_buffers(result, sum(r.samples for r in reports))
        return reports

    def forget(self) -> None:
        super().forget()
        self.outer.opened = False


class CountedPace(BarrierPace):
    """Barriers by a number of steps: the interval is the time in which the slowest rank makes them."""

    def __init__(self, steps: int) -> None:
        super().__init__(fixed=1.0)
        self._steps = steps

    def barrier(self, reports: Sequence[RankReport], pooled: float, barriers: int = 1) -> None:
        self.interval = self._steps * max(r.unit for r in reports)


class LocalStepsDDP(FlexibleDDP):
    """Wraps a module as `FlexibleDDP` does; `optimizer.step` steps on this rank, and some of the steps end with a
    barrier."""

    _in_buckets = False

    def __init__(
        self,
        module: torch.nn.Module,
        *args: Any,
        local_steps: int | None = None,
        seconds: float | None = None,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
        **options: Any,
    ) -> None:
        """`local_steps`: that each rank makes between two barriers; or `seconds` between barriers, in which faster
        ranks make more. `outer_rate`, `outer_momentum`: of SGD with Nesterov momentum on the mean change of weights; 1
        and 0 average the weights. `options`: those of `FlexibleDDP`, but for the ones that concern larger steps."""
        _check_local(local_steps, seconds, outer_rate, outer_momentum, options)
        self._rate, self._momentum = outer_rate, outer_momentum
        super().__init__(module, *args, **options)
        self._local_steps = local_steps
        self.pace = CountedPace(local_steps) if local_steps is not None else BarrierPace(fixed=seconds)
        self._made_steps = 0
        """Iterations since the last barrier."""
        self._stepping: set[int] = set()
        """Optimizers that have not stepped in this iteration yet."""
        self._exchange_due = False
        self.exchange_listeners: list[Callable[[float], None]] = []
        """Called with the seconds of each exchange: it happens after the step, where no hook of PyTorch measures."""
        self._kept_gradients: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Gradients of what an epoch has left below an iteration of every rank; they join the next step."""

    def _connect(self, timeout: float, compress: bool) -> None:
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        self.outer = OuterOptimizer(
            [p for p in self.module.parameters() if p.requires_grad], self._rate, self._momentum
        )
        self.barrier: LocalStepsBarrier = LocalStepsBarrier(self.module, device, self.outer)
        self.barrier.report_of = self._report
        self.barrier.compressed = CompressedSum() if compress else None
        self.healer = self._healing(timeout)
        if self.healer is not None:
            return
        self._messages = GroupMessages(self.process_group)
        self.barrier.rank, self.barrier.ranks = self._messages.rank, self._messages.ranks

    # -- one iteration -------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self._exchange_due and torch.is_grad_enabled() and iteration.running.begins(self.number):
            self._meet()  # not all optimizers of this model have stepped in the last iteration
        return super().forward(*inputs, **named)

    def _decide(self, made: ForwardPass) -> bool:
        self._stepping = {id(one) for one in self._optimizers}
        return super()._decide(made)

    def _rate_sum(self) -> float:
        """Steps are those of one rank, and so are their rates."""
        return 0.0

    def _is_in_time(self, now: float) -> bool:
        if self._local_steps is None:
            return super()._is_in_time(now)
        return self._made_steps + 1 >= self._local_steps

    @property
    def _epoch_is_over(self) -> bool:
        """The last barrier of the epoch was passed: another local step would set this rank apart from the others."""
        return self._sampler is not None and not self._sampler.training

    # -- what the script steps -----------------------------------------------------------------------------

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The same optimizer, some of whose steps end with a barrier. One model may have several."""
        real_step = optimizer.step
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._optimizers.append(optimizer)

        def step(optimizer: torch.optim.Optimizer, closure: Any = None, **named: Any) -> Any:
            """A local step with the gradients of this rank, and the exchange where it is due. Once the last barrier of
            the epoch was passed, no step: gradients are kept, and added to those of the first step of the next epoch.
            """
            if closure is not None:
                raise UsageError("An optimizer that evaluates a closure several times cannot step at barriers.")
            result = None
            if self._epoch_is_over:
                self._keep_gradients(parameters)
            else:
                self.outer.open()
                self._add_kept_gradients(parameters)
                result = real_step(**named)
            self._after_step(optimizer)
            return result

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        return optimizer

    def _keep_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for p in parameters:
            if p.grad is not None:
                self._kept_gradients[p] = (
                    self._kept_gradients[p] + p.grad if p in self._kept_gradients else p.grad.detach().clone()
                )

    def _add_kept_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for p in parameters:
            if p in self._kept_gradients:
                left = self._kept_gradients.pop(p)
                p.grad = left if p.grad is None else p.grad + left

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped on this rank, or its scaler has left the step out. The exchange follows the last
        optimizer of the iteration."""
        loop = iteration.running
        if not loop.has_stepped(self.number):
            self._made_steps += not self._epoch_is_over
            self._exchange_due = loop.last
        loop.step(self.number, type(self.module).__name__)
        self.stepped = False
        self._stepping.discard(id(optimizer))
        if self._exchange_due and not self._stepping:
            self._meet()

    def scaler(self, scaler: Any) -> Any:
        """The same scaler of gradients; its scale is that of this rank. A step that it leaves out counts as made."""
        self._scalers.append(scaler)
        real_step = scaler.step

        def stepping(optimizer: Any, *given: Any, **named: Any) -> Any:
            result = real_step(optimizer, *given, **named)
            if id(optimizer) in self._stepping:
                self._after_step(optimizer)
            return result

        scaler.step = stepping
        return scaler

    # -- the barrier ---------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """All ranks exchange how far they have moved, and have the same weights afterwards."""
        self._exchange_due = False
        self._ready = self._now()
        self._seconds = self._ready - self._timings.opened
        self.barrier.averaging, self.barrier.window = self._averaging, self._window
        if self.healer is not None:
            ended = self.healer.exchange()
            self._tell_exchange()
            if not ended:
                return  # the interval goes on: this rank was given samples of a lost one
        elif self.watchdog is not None:
            self.watchdog.arrive(self.barriers, self._ready)
            with self._explaining():
                result = self.barrier.reduce_all(self._messages, lambda: None)
            self.watchdog.leave()
            self._tell_exchange()
            self.settle(result)
        self._window, self._made_steps, self.stepped = 0, 0, True
        self._open()

    def _tell_exchange(self) -> None:
        for listener in self.exchange_listeners:
            listener(clock.now() - self._ready)

    def _module_state(self) -> dict[str, Any]:
        return self.outer.of_all_ranks(self.module)

    def live_state(self) -> dict[str, Any]:
        return {**super().live_state(), "outer": self.outer.state_dict()}

    def load_live_state(self, state: dict[str, Any]) -> None:
        super().load_live_state(state)
        self.outer.load_state_dict(state["outer"])

    def forget(self) -> None:
        super().forget()
        self._made_steps, self._exchange_due = 0, False
        self._kept_gradients.clear()


def _check_local(
    local_steps: int | None, seconds: float | None, rate: float, momentum: float, options: dict[str, Any]
) -> None:
    """Raise `UsageError` where arguments of LocalDDP contradict each other."""
    if (local_steps is None) == (seconds is None):
        raise UsageError("Give one of local_steps=… (between barriers, on each rank) and seconds=… (between barriers).")
    if local_steps is not None and (not isinstance(local_steps, int) or local_steps < 1):
        raise UsageError(f"local_steps={local_steps!r}: give a whole number above 0.")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"seconds={seconds!r}: give seconds above 0.")
    if not rate > 0 or not 0 <= momentum < 1:
        raise UsageError(
            f"outer_rate={rate!r}, outer_momentum={momentum!r}: give a rate above 0, and a momentum from 0 to below 1."
        )
    wrong = sorted({"interval", "lr_rule", "reference_batch"} & options.keys())
    if wrong:
        raise UsageError(f"Omit {', '.join(wrong)}: local steps rest on the batches of one rank; give seconds=… .")
