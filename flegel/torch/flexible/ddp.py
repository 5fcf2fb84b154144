"""`FlexibleDDP`: DistributedDataParallel with barriers by time; ranks contribute what they managed, by samples.

At the first backward pass of an iteration of the training loop a rank decides whether the iteration is the last one
that fits into the interval; only then its last backward pass synchronizes, overlapped with communication as in DDP. In
between, `optimizer.step` does nothing but to count the gradients. A forward pass alone counts for nothing, in whatever
mode: it may be an evaluation. Models that are trained in one loop follow one decision (iteration.py).
"""

from __future__ import annotations

import inspect
import itertools
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from flegel.errors import FlegelWarning, UsageError
from flegel.runtime import clock
from flegel.torch.flexible import iteration
from flegel.torch.flexible import sampler as samplers
from flegel.torch.flexible.barrier import PooledBarrier, report_tensor
from flegel.torch.flexible.compression import CompressedSum
from flegel.torch.flexible.even_run import EvenRun
from flegel.torch.flexible.exchange import BarrierResult, HealingBarrier
from flegel.torch.flexible.healer import Healer
from flegel.torch.flexible.joining import current
from flegel.torch.flexible.pace import (
    LEARNING_RATE_RULES,
    BarrierPace,
    RankReport,
    RankTimings,
    learning_rate_factor,
    rule_of,
)
from flegel.torch.flexible.rank_settings import rank_settings
from flegel.torch.flexible.site import Site
from flegel.torch.flexible.site_rounds import SiteRounds
from flegel.torch.flexible.watchdog import Watchdog

BUFFER_MODES = ("average", "local")
COMPRESSIONS = ("none", "int8")
RATE_TOLERANCE = 1e-4  # relative: rates travel with 32 bits; a schedule that steps more often changes them by more
GROUP_ARGUMENT = 4  # position of process_group among DDP's arguments after the module


class ForwardPass:
    """One forward pass with gradients, which is part of the training if its backward pass begins."""

    __slots__ = (
        "began",
        "excluded",
        "excluded_before",
        "grouped",
        "handed",
        "interval",
        "leader",
        "sampler",
        "samples",
    )

    def __init__(self, samples: int, grouped: bool) -> None:
        """`grouped`: under `no_sync`."""
        self.samples, self.grouped = samples, grouped
        self.began = 0.0
        """When it began, where that may be asked; 0 otherwise. Of that moment are the next four."""
        self.interval, self.excluded_before = 0, 0.0
        """The interval of the timings, and what evaluations had taken of it."""
        self.sampler: samplers.FlexibleSampler | None = None
        self.handed: int | None = None
        """Samples of the epoch that the script had taken from its loader, if that can be asked."""
        self.leader: FlexibleDDP | None = None
        """Whose timings left it out, because it looked like an evaluation."""
        self.excluded = 0.0
        """Seconds that were left out."""

    def began_by(self, timings: RankTimings) -> float:
        """When it began; later by what evaluations took since then, which these timings leave out."""
        return self.began + (timings.excluded - self.excluded_before if timings.intervals == self.interval else 0.0)

    def take_back(self) -> None:
        """Its backward pass begins, so it was no evaluation. Its seconds count, if its interval has not ended."""
        leader, self.leader = self.leader, None
        if leader is not None:
            leader._evaluated_until = 0.0
            if leader._timings.intervals == self.interval:
                leader._timings.exclude(-self.excluded)


class _Watched(torch.autograd.Function):  # type: ignore[misc]
    """The identity. Where a backward pass begins, `begun` is called with the forward pass and its outputs; what it
    returns is the gradient of the reports."""

    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        begun: Callable[[ForwardPass, list[torch.Tensor]], torch.Tensor | None],
        made: ForwardPass,
        outputs: list[torch.Tensor],
        report: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.begun, ctx.made, ctx.outputs = begun, made, outputs
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None, torch.Tensor | None]:
        return gradients[0], None, None, None, ctx.begun(ctx.made, ctx.outputs)


_apply_watched = super(torch.autograd.Function, _Watched).apply
"""Without the wrappers of function transforms: for outputs outside of any."""


def _alike(reports: Sequence[RankReport]) -> None:
    """Ranks whose loops went apart end together, with one sentence: their sums would mean nothing."""
    reports = [r for r in reports if not r.silent]
    if not reports:
        return
    if len({r.epoch for r in reports}) > 1:
        raise UsageError(
            f"Ranks are in different epochs ({', '.join(str(int(r.epoch)) for r in reports)}): one has left its loop "
            "over the data early. Leave it on all ranks at the same barrier: where model.stepped is true, by a "
            "condition that all ranks share, such as model.barriers or model.samples_seen."
        )
    if len({r.barrier for r in reports}) > 1:
        raise UsageError(
            "A rank left out an optimizer step that others made: call optimizer.step() after every synchronized "
            "backward pass, or leave it out by a condition that all ranks share, such as gradients that are not "
            "finite, which are the same on all ranks."
        )
    least, most = min(r.rate for r in reports), max(r.rate for r in reports)
    if most - least > RATE_TOLERANCE * most:
        raise UsageError(
            f"Learning rates of ranks differ ({', '.join(f'{r.rate:.4g}' for r in reports)}), so their weights would "
            "go apart: ranks make different numbers of batches, so wrap a schedule that steps in each of them, "
            "scheduler = model.scheduler(scheduler), and change rates by what all ranks share."
        )


def _first_dimension(inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Samples of a micro-batch: the first dimension of the first tensor with one."""
    for value in (*inputs, *named.values()):
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    raise UsageError("FlexibleDDP cannot see how many samples a batch has: pass samples=lambda inputs, named: ….")


def _check_arguments(interval: float | None, buffers: str, lr_rule: str, compress: str) -> None:
    """Refuse arguments of `FlexibleDDP` that are not known or out of range."""
    for name, value, known in (
        ("buffers", buffers, BUFFER_MODES),
        ("lr_rule", lr_rule, LEARNING_RATE_RULES),
        ("compress", compress, COMPRESSIONS),
    ):
        if value not in known:
            raise UsageError(f"{name}={value!r} is not known; choose one of {', '.join(known)}.")
    if interval is not None and not interval > 0:
        raise UsageError(f"interval={interval!r}: give seconds above 0, or leave it out to have it found.")


def _check_module(module: torch.nn.Module) -> None:
    """Refuse modules that exchange messages between barriers."""
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


def _group_of(positional: Sequence[Any], named: dict[str, Any]) -> Any:
    """The process group among the user's arguments for DDP; None for the default one."""
    if len(positional) > GROUP_ARGUMENT:
        return positional[GROUP_ARGUMENT]
    mesh = named.get("device_mesh")
    return mesh.get_group(mesh_dim=0) if mesh is not None else named.get("process_group")


def _options_of_ddp(
    module: torch.nn.Module, positional: Sequence[Any], given: dict[str, Any], sends: bool
) -> dict[str, Any]:
    """The user's arguments for DDP, and those that flexible barriers need. Buffers are not sent in forward passes.
    `sends`: gradients travel in DDP's own messages."""
    accepted = inspect.signature(DistributedDataParallel.__init__).parameters
    sent = "forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers"
    options = {"gradient_as_bucket_view": True, **given, sent: False}
    if not sends:
        options["static_graph"] = False  # it would wait for a backward pass that synchronizes to record the graph
    if options.get("find_unused_parameters"):  # sums of what only earlier micro-batches used lie in the buckets
        options["gradient_as_bucket_view"] = True
    if len(positional) <= GROUP_ARGUMENT and options.get("device_mesh") is None and not options.get("process_group"):
        # Ranks meet first: one that has ended fails this message, and would keep `new_group` waiting for 30 minutes.
        device = next((p.device for p in module.parameters() if not p.is_meta), torch.device("cpu"))
        dist.all_reduce(torch.zeros(1, device=device))
        # Of its own: what the script or another model sends at the same moment is never taken for a gradient.
        options["process_group"] = dist.new_group()
    return options


class Schedule:
    """A learning-rate schedule that steps at barriers, or once for each so many samples."""

    def __init__(self, model: Any, scheduler: Any, samples: int | None) -> None:
        self.model, self.scheduler, self.samples, self.done = model, scheduler, samples, 0
        self.real = scheduler.step

    def wrap(self) -> Any:
        """The same schedule, of a class of its own: an attribute would become a part of its `state_dict`."""

        def step(_: Any, *given: Any, **named: Any) -> None:
            if not self.model.stepped:
                return
            due = self.model.samples_seen // self.samples - self.done if self.samples else 1
            for _ in range(due):
                self.real(*given, **named)
            self.done += due

        kind = type(self.scheduler)
        self.scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})
        return self.scheduler


class FlexibleDDP(DistributedDataParallel):  # type: ignore[misc]
    """Wraps a module as DDP does; all of DDP's arguments are accepted."""

    _made: ClassVar[weakref.WeakValueDictionary[int, FlexibleDDP]] = weakref.WeakValueDictionary()
    """By number: models that are trained in one loop find their leader."""
    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _in_buckets: ClassVar[bool] = True
    """Gradients travel in DDP's buckets, unless ranks heal."""

    def __init__(
        self,
        module: torch.nn.Module,
        *args: Any,
        interval: float | None = None,
        samples: Callable[[tuple[Any, ...], dict[str, Any]], int] = _first_dimension,
        mean_loss: bool = True,
        buffers: str = "average",
        lr_rule: str = "auto",
        reference_batch: int | None = None,
        endless: bool = False,
        compress: str = "none",
        timeout: float = 60.0,
        site: Site | None = None,
        **options: Any,
    ) -> None:
        """`interval`: seconds between barriers; found by itself otherwise. `mean_loss`: the loss is a mean over its
        samples (False: a sum). `buffers`: running statistics are averaged at barriers, or stay local. `lr_rule`:
        multiplies the learning rate of a step by its samples over `reference_batch` (by default ranks × the first
        micro-batch), by the root of that, or ("adascale") by what it is worth in steps of `reference_batch`; "auto"
        takes the root for Adam and its kin and "adascale" for SGD, and never makes a rate smaller. `endless`:
        the data never end, so no FlexibleSampler is needed. `compress`: "int8" sends gradients with 8 bits, and what
        rounding left out at the next barrier, for slow links. `timeout`: seconds without a sign of a rank after which
        training ends with a sentence that names it. `site`: these ranks are one of several sites that train one model
        through a bucket; they have met by `flegel.torch.join`, and call `finish` after their last epoch."""
        _check_arguments(interval, buffers, lr_rule, compress)
        _check_module(module)
        if site is not None and current() is None:
            raise UsageError("Ranks of a site are replaced when they are lost: call flegel.torch.join(…) first.")
        object.__setattr__(self, "_reported", None)  # set while DDP lists its parameters
        self.number = next(self._numbers)
        self.watchdog = None if current() is not None else Watchdog(_group_of(args, options), timeout, self.number)
        try:
            with self._explaining():
                sends = self._in_buckets and current() is None
                super().__init__(module, *args, **_options_of_ddp(module, args, options, sends))
        except BaseException:
            if self.watchdog is not None:
                self.watchdog.close()
            raise
        self._made[self.number] = self
        iteration.running.made(self.number)
        self.pace, self._timings = BarrierPace(fixed=interval), RankTimings()
        self._connect(timeout, compress == "int8")
        self.site = None if site is None else SiteRounds(module, site)
        """This rank's part in the rounds of several sites."""
        if self.site is not None and isinstance(self.barrier, HealingBarrier):
            self.barrier.part_of_site = self.site.part
        self._samples, self._mean_loss = samples, mean_loss
        self._averaging = buffers == "average" and next(module.buffers(), None) is not None
        self._lr_rule, self._reference, self._endless = lr_rule, reference_batch, endless
        self._wrapped_at = clock.now()
        self.barriers = 0
        self.samples_seen = 0
        """Samples of all ranks until the last barrier."""
        self.stepped = False
        """The last call of `optimizer.step` was at a barrier, so it stepped."""
        self._begin_state()
        self._timings.open(self._now())

    def __setattr__(self, name: str, value: Any) -> None:
        """What changes with every micro-batch: PyTorch looks for parameters, modules and buffers in each value, which
        took 14 µs in place of 1.3 on a loaded machine."""
        if name in self.__dict__ and not isinstance(value, (torch.Tensor, torch.nn.Module)):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _build_params_for_reducer(self) -> tuple[list[torch.Tensor], list[bool]]:
        """DDP's parameters, and the tensor that carries the reports: the last one, so its bucket is sent first."""
        parameters, sparse = super()._build_params_for_reducer()
        if current() is None:
            report = report_tensor(self.module, dist.get_world_size(self.process_group))
            object.__setattr__(self, "_reported", report)
            object.__setattr__(self, "_report_output", report.view_as(report))
            parameters, sparse = [*parameters, report], [*sparse, False]
        return parameters, sparse

    def _build_debug_param_to_name_mapping(self, parameters: list[torch.Tensor]) -> dict[int, str]:
        own = [p for p in parameters if p is not self._reported]
        names: dict[int, str] = super()._build_debug_param_to_name_mapping(own)
        return names if len(own) == len(parameters) else {**names, len(own): "reports of ranks"}

    def _connect(self, timeout: float, compress: bool) -> None:
        """Messages between ranks: in the buckets of DDP, or, where ranks heal, after the backward pass."""
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        self.barrier: PooledBarrier
        self.healer = self._healing(timeout)
        if self.healer is not None:
            self.barrier = HealingBarrier(self.module, device, self._exchange)
            self.barrier.report_of = self._report
            self.barrier.compressed = CompressedSum() if compress else None
            return
        self.barrier = PooledBarrier(self.module, self.process_group, self._reported, self._exchanging)
        self.barrier.report_of, self.barrier.arrive = self._leave_for_barrier, self._arrive
        if self.watchdog is not None:
            self.barrier.leave = self.watchdog.leave
        if compress:
            self.barrier.compressed = CompressedSum()
            self.register_comm_hook(None, lambda _, bucket: self.barrier.reduce(bucket))

    def _explaining(self) -> AbstractContextManager[None]:
        """Around messages between ranks: where one fails, this process ends with a sentence."""
        return self.watchdog.explaining() if self.watchdog is not None else nullcontext()

    def _exchanging(self) -> AbstractContextManager[None]:
        """Around messages that are no part of a backward pass: the wait for other ranks has an end."""
        return self.watchdog.exchanging() if self.watchdog is not None else nullcontext()

    def _healing(self, timeout: float) -> Healer | None:
        """What replaces lost ranks, if this process has met others by `flegel.torch.join`."""
        meeting = current()
        if meeting is None:
            return None
        if any(one.healer is not None for one in self._made.values() if one is not self):
            raise UsageError("Ranks that heal train one model: put several into one module.")
        return Healer(self, meeting, timeout)

    def _begin_state(self) -> None:
        """What is known of the running iteration and of the last barrier, before there was any."""
        self._grouping = self._was_grouped = self._sampler_missing = False
        self._sampler: samplers.FlexibleSampler | None = None
        self._window, self._largest, self._last_cost, self._last_square, self._last_pooled = 0, 0, 0.0, 0.0, 0.0
        self._ready = self._seconds = 0.0
        self._backward_began = self._backward_seconds = 0.0
        """Of the last synchronizing backward pass, without waiting for others."""
        self._evaluated_until = 0.0
        """When the last forward pass without gradients ended; 0 if training has gone on since."""
        self._expected = 1
        """Backward passes until the step of the last iteration: the last one of them synchronizes."""
        self._counts_across_epochs: bool | None = None
        """The script completes a group of micro-batches that an epoch has left incomplete with the first ones of the
        next epoch; otherwise it counts anew in each. None: not known before its first step after such a group."""
        self._synchronized_pass = 0
        """The number in its iteration of the last backward pass that synchronized."""
        self._latest = ForwardPass(0, False)
        self._unseen = False
        """The outputs of the latest forward pass hold no tensor whose backward pass could be seen."""
        self._backward_call = -1
        """PyTorch's number of the latest backward pass that began."""
        self._entering = threading.Lock()
        self._run = EvenRun()
        self._barriers_timed = 1
        """Barriers since this rank's timings were opened, the running one included."""
        self._checked = -rank_settings().barriers_per_finite_check
        """The last barrier whose gradients were searched for values that are not finite."""
        self._one_device = len({p.device for p in self.module.parameters()}) < 2
        self.require_backward_grad_sync = False
        self._owing = False
        """The last iteration was to synchronize, but had fewer passes than expected; others wait for the next one."""
        self._pooled: float | None = None
        """Samples of all ranks, while the optimizers of this model step at a barrier."""
        self._asks_to_stop = self._stopping = self._scaled = self._told_rule = self._told_not_finite = False
        self._due: set[int] = set()
        """Optimizers that have not stepped at this barrier yet."""
        self._optimizers: list[torch.optim.Optimizer] = []
        self._schedules: list[Schedule] = []
        self._scalers: list[Any] = []
        self._states: dict[str, Any] = {}
        self._total = 0.0
        """Samples of all ranks at the last barrier."""
        self._event: Any = None

    # -- one micro-batch -----------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """One forward pass. It counts when its backward pass begins. In train mode one is expected, so that models of
        one loop know of each other; in eval mode it is an evaluation until then."""
        run = self._run
        if run.left > 0 and self._continues_run(inputs, named):
            iteration.running.silent, run.passing = self.number, True
            return super().forward(*inputs, **named)
        if not torch.is_grad_enabled():
            return self._evaluate(*inputs, **named)
        if run.pending and self.training:
            self._record_silent_step()
        if self.barrier.complete and not self._optimizers:
            raise UsageError(
                "The optimizer did not step after the last barrier: wrap it, optimizer = model.optimizer(…)."
            )
        loop = iteration.running
        begins = loop.begins(self.number)
        if begins and self.healer is not None:
            self._check_begun()
            self.healer.enter_if_due()
            if self.site is not None:
                self.site.look()
        made = self._latest = ForwardPass(self._samples(inputs, named), self._grouping)
        self._unseen = True
        if begins or loop.is_open or not self.training:
            self._look(made)
        if not self.training:
            return self._evaluate_or_train(made, *inputs, **named)
        if begins:
            loop.begin()
        loop.take_part(self.number)
        self._leader._evaluated_until = 0.0
        return super().forward(*inputs, **named)

    def _look(self, made: ForwardPass) -> None:
        """At the clock and the sampler, as they are when a pass begins that may decide how its iteration ends."""
        made.began, made.sampler = self._now(), samplers.active()
        made.interval, made.excluded_before = self._timings.intervals, self._timings.excluded
        made.handed = made.sampler.handed_by_loader() if made.sampler is not None else None

    def _evaluate_or_train(self, made: ForwardPass, *inputs: Any, **named: Any) -> Any:
        """A forward pass in eval mode: its time is that of an evaluation, until its backward pass begins."""
        leader = self._leader
        began = leader._evaluated_until or made.began
        outputs = super().forward(*inputs, **named)
        leader._evaluated_until = self._now()
        made.leader, made.excluded, made.interval = leader, leader._evaluated_until - began, leader._timings.intervals
        leader._timings.exclude(made.excluded)
        return outputs

    def _run_ddp_forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's outputs, which tell when their backward pass begins."""
        outputs = super()._run_ddp_forward(*inputs, **named)
        if not torch.is_grad_enabled():
            return outputs
        found: list[torch.Tensor] = []
        if isinstance(outputs, torch.Tensor):  # walking a tree of one leaf costs more than the leaf
            return self._watched(outputs, found)
        return tree_map_only(torch.Tensor, lambda one: self._watched(one, found), outputs)

    def _watched(self, output: torch.Tensor, found: list[torch.Tensor]) -> torch.Tensor:
        """`found`: outputs from which PyTorch looks for the parameters that were used, if some may be unused."""
        if not output.requires_grad:
            return output
        begun: Any = self._silent_backward_begins
        if not self._run.passing:
            begun, self._unseen = self._backward_begins, False
        if self.find_unused_parameters and not self.static_graph:
            found.append(output)
        apply = _Watched.apply if torch._C._are_functorch_transforms_active() else _apply_watched
        watched: torch.Tensor = apply(output, begun, self._latest, found, self._reported)
        return watched

    def _backward_begins(self, made: ForwardPass, outputs: list[torch.Tensor]) -> torch.Tensor | None:
        """The first output of a forward pass is derived: the pass is part of the training. Returns the gradient of the
        reports, where the backward pass synchronizes."""
        with self._entering:  # outputs on two devices are derived in two threads
            made.take_back()
            call = torch._C._current_graph_task_id()
            if call == self._backward_call:
                return None  # another output, or another forward pass, of the same backward pass
            self._backward_call = call
            self._begin_iteration(made)
            self._enter(made)
            if self.barrier.synchronizing:
                self._prepare_reducer(outputs)
            elif self.static_graph and not self.barriers:
                raise UsageError(
                    "static_graph=True: PyTorch records the graph in the first backward pass, which must synchronize, "
                    "as with DDP: make the first step without no_sync(), or omit static_graph."
                )
            return self.barrier.before_backward()

    def _begin_iteration(self, made: ForwardPass) -> None:
        """Decide with the first backward pass of an iteration whether the iteration is the last before a barrier."""
        loop = iteration.running
        if self._run.pending:
            self._record_silent_step()
        elif self._run.made or self._run.left:
            self._end_run()
        if loop.begins(self.number):
            loop.begin()
        loop.take_part(self.number)
        if loop.is_open:
            loop.decide(self.number, self._decide(made))

    def _enter(self, made: ForwardPass) -> None:
        """Count a backward pass that begins."""
        loop = iteration.running
        self._pooled = None
        number = loop.enter(self.number, made.samples)
        if number > 1 and self._sampler is not None:
            self._sampler.handed()  # an epoch may end within this iteration
        if number == 1 or (self._was_grouped and not self._mean_loss):
            self._window += loop.weight if self._mean_loss else made.samples
            self._largest = max(self._largest, loop.weight)
        self._was_grouped = made.grouped
        if made.grouped and self._counts_across_epochs is None:
            self._counts_across_epochs = True  # the script itself says which backward pass is the last
        self.barrier.weight = loop.weight if self._mean_loss else 1
        self.barrier.synchronizing = self._synchronizes(made, number)
        if self.barrier.synchronizing:
            self._synchronized_pass = number

    def _synchronizes(self, made: ForwardPass, number: int) -> bool:
        """Whether this backward pass, of that number in the iteration, is the last one before a barrier."""
        loop, earlier = iteration.running, iteration.running.earlier_passes(self.number)
        if self.barrier.complete and 0 < earlier < self._synchronized_pass:
            return False  # the group is longer than expected on this rank, an epoch ended in it: others are not here
        counted = number - earlier if self._counts_across_epochs is False else number
        last = (loop.last or self._owing) and counted >= self._expected
        return last and not made.grouped and not loop.has_stepped(self.number)

    def _prepare_reducer(self, outputs: list[torch.Tensor]) -> None:
        """What DDP does in a forward pass whose backward pass synchronizes; here, since only now it is known that there
        is one. DDP's own forward pass is told that none synchronizes."""
        if isinstance(self.barrier, HealingBarrier):
            self.barrier.check_frozen(unused=True)  # DDP's own messages are not used
            return
        self.barrier.check_frozen(self.find_unused_parameters)
        self.logger.set_runtime_stats_and_log()
        self.reducer.prepare_for_forward()
        # The tensor of reports is an input of the outputs that the script has, but not of the module's own.
        self.reducer.prepare_for_backward([*outputs, self._report_output] if outputs else [])

    # -- steps of equally fast ranks without reports (even_run.py) ------------------------------------------

    def _continues_run(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether this forward pass is like all others of the run, as far as can be seen now."""
        run = self._run
        if not torch.is_grad_enabled() or not self.training or self.barrier.complete:
            return False
        if self._grouping or self._asks_to_stop or iteration.running.alone != self.number:
            return False
        if run.reader is not None:
            reader = run.reader()
            if reader is None or reader._num_yielded != run.next_batch + run.made:
                return False
        self.__dict__["_evaluated_until"] = 0.0
        return self._samples(inputs, named) == run.samples

    def _silent_backward_begins(self, made: ForwardPass, outputs: list[torch.Tensor]) -> torch.Tensor | None:
        """The backward pass of a run: this rank's constant row travels with its first gradients."""
        call, run = torch._C._current_graph_task_id(), self._run
        if call == self._backward_call:
            return None
        if not run.passing or iteration.running.silent != self.number:  # derived twice, or other models took part
            run.passing = False
            return self._backward_begins(ForwardPass(run.samples, False), outputs)
        run.passing = False
        self.__dict__["_backward_call"] = call  # without PyTorch's search for parameters
        self._prepare_reducer(outputs)
        self._reported.grad = None
        torch.autograd.Variable._execution_engine.queue_callback(self._silently_sent)
        return run.row

    def _silently_sent(self) -> None:
        """This rank's gradients are complete; those of all ranks are when the next callback runs."""
        self._run.arrived = now = self._now()
        if self.watchdog is not None:
            self.watchdog.arrive(self.barriers, now)
        torch.autograd.Variable._execution_engine.queue_callback(self._silently_summed)

    def _silently_summed(self) -> None:
        """Gradients are the mean over ranks, as DDP makes it. If some rank reported, this barrier is one like others
        from here on."""
        run, received = self._run, self._reported.grad
        if received is None:
            return
        if run.table is None or not torch.equal(received, run.table):
            if not all(report.silent for report in RankReport.of_means(received.numpy(force=True))):
                self._record_silent_step()
                self.barrier.summed_up()
                return
            run.table = received.detach().clone()
        if self.watchdog is not None:
            self.watchdog.leave()
        run.passed(clock.now(), self._timings.opened)
        self.barrier.complete = run.pending = True

    def _finish_silent_step(self) -> None:
        """The optimizer steps after a barrier without reports."""
        run, own = self._run, self.__dict__
        if self._averaging:
            self.barrier.average_buffers(self.module, run.samples, run.total)
        self.barrier.complete = run.pending = False
        iteration.running.silent = -1
        if self._sampler is not None:
            self._sampler.silent += 1
        own["barriers"] += 1  # without PyTorch's search for parameters
        own["samples_seen"] += run.total
        own["stepped"] = True

    def _record_silent_step(self) -> None:
        """The running iteration of a run becomes one like others, since something else happened in it."""
        run, loop = self._run, iteration.running
        if run.pending:
            run.made, run.waited = run.made - 1, run.waited - run.last_wait  # counted as this iteration below
            self.barrier.reports = [RankReport(samples=float(run.samples), silent=1.0)] * self.ranks
        run.pending = False
        self._end_run()
        loop.record_silent()
        loop.decide(self.number, True)
        loop.enter(self.number, run.samples)
        self._pooled, self._window, self._largest = None, run.samples, max(self._largest, run.samples)
        self._ready, self._timings.count = run.arrived, self._timings.count + 1
        self.barrier.weight = run.samples
        self.barrier.measuring = self.barrier.checking = self.barrier.filling = False

    def _end_run(self) -> None:
        """This rank's timings take over what the run has measured."""
        if self._sampler is not None:
            self._sampler.resume(self._run.made)
        self._barriers_timed = self._run.close(self._timings)

    def _begin_run(self, reports: Sequence[RankReport]) -> None:
        """After reports of all ranks: whether the next barriers need none."""
        run, sampler, unit = self._run, self._sampler, self.barrier.unit
        alike = (
            self._reported is not None
            and not isinstance(self.barrier, HealingBarrier)
            and self._mean_loss
            and len(self._optimizers) == 1
            and self._one_device
            and self._expected == 1
            and iteration.running.passes(self.number) == 1
            and (self._lr_rule == "none" or self._reference == unit * len(reports))
            and all(r.samples == unit and (sampler is None or r.take == unit) for r in reports)
        )
        run.reported(self.pace.even, alike, None if sampler is None else sampler.silent_barriers())
        if run.left and run.samples != unit:
            run.samples, run.total, run.table = unit, unit * len(reports), None
            run.row = torch.zeros_like(self._reported, requires_grad=False)
            own = RankReport(samples=float(unit), least=0.0, silent=1.0)
            run.row[self.rank] = torch.tensor(own, dtype=run.row.dtype)
        if run.left and sampler is not None:
            run.reader = sampler.reader()
            reader = run.reader() if run.reader is not None else None
            run.next_batch = reader._num_yielded + 1 if reader is not None else 0

    def ends_interval(self) -> bool:
        """For trainers that derive the outputs of every forward pass: whether the backward pass of the latest one
        synchronizes."""
        self._begin_iteration(self._latest)
        return self._synchronizes(self._latest, iteration.running.passes(self.number) + 1)

    def _evaluate(self, *inputs: Any, **named: Any) -> Any:
        """A forward pass without gradients. Alone it is an evaluation: what passes from the first one to the end of the
        last is no time of training. Beside other models it may belong to their iteration."""
        leader = self._leader
        if self.training and (iteration.running.several_models or leader is not self):
            return super().forward(*inputs, **named)
        began = leader._evaluated_until or self._now()
        outputs = super().forward(*inputs, **named)
        leader._evaluated_until = self._now()
        leader._timings.exclude(leader._evaluated_until - began)
        return outputs

    @property
    def _leader(self) -> FlexibleDDP:
        """The model that began the iteration, whose timings are this rank's; this one, before anything was trained."""
        return self._made.get(iteration.running.leader, self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._run.pending:
            self._record_silent_step()
        self.barrier.discard()
        super().zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches inside belong to the one after it: together they count as one iteration."""
        before, self._grouping = self._grouping, True
        try:
            yield
        finally:
            self._grouping = before

    def _decide(self, made: ForwardPass) -> bool:
        """By this rank's clock when the forward pass began, and by its past only."""
        if not made.began:
            self._look(made)
        now, sampler = made.began_by(self._timings), made.sampler
        self._evaluated_until, self._sampler = 0.0, sampler
        self._timings.begin(now)
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
        last = self._is_in_time(now)
        return last if sampler is None else sampler.decide(made.samples, last, made.handed)

    def _is_in_time(self, now: float) -> bool:
        """Whether the iteration that begins is the last one before a barrier, if the claims do not end sooner."""
        return self.pace.even or self._timings.is_last(now, self.pace.interval)

    def _leave_for_barrier(self) -> RankReport:
        """A synchronizing backward pass begins: what this rank reports travels with its first gradients."""
        barrier, self._backward_began = self.barrier, self._now()
        if not barrier.reopened:
            self._seconds = (
                self._backward_began - self._timings.opened + self._backward_seconds
            ) / self._barriers_timed
        barrier.measuring = self.pace.measures(self.barriers) and not barrier.reopened
        barrier.checking = self.barriers - self._checked >= rank_settings().barriers_per_finite_check
        if barrier.checking:
            self._checked = self.barriers
        barrier.filling = self.find_unused_parameters and not self.pace.even
        return self._report()

    def _arrive(self) -> None:
        """This rank's gradients are complete: it waits for others."""
        now = self._now()
        self._backward_seconds = now - self._backward_began
        if not self.barrier.reopened:
            self._ready = now
        if self.watchdog is not None:
            self.watchdog.arrive(self.barriers, now)

    def _report(self) -> RankReport:
        """Of this rank; what concerns the sampler is told by the model that leads the iteration."""
        site = self.site.report() if self.site is not None else 0.0
        if isinstance(self.barrier, HealingBarrier) and self.barrier.idle:
            return RankReport(generation=self.healer.prepared() if self.healer is not None else 0, site=site)
        leads = iteration.running.leader == self.number
        progress = samplers.LoaderProgress()
        if leads and self._sampler is not None:
            progress = self._sampler.progress(self._passes_to_come())
        return RankReport(
            self._window,
            self._seconds,
            self._timings.typical or self._seconds,
            self._last_cost,
            self._last_square,
            self._largest,
            progress.ahead,
            progress.taken,
            progress.take,
            progress.least,
            progress.closed,
            progress.epoch,
            self.barriers,
            self._asks_to_stop,
            self.healer.prepared() if self.healer is not None else 0,
            self._rate_sum(),
            site,
        )

    def _passes_to_come(self) -> int:
        """Backward passes that may follow before the step, in a group in which an epoch ended."""
        loop = iteration.running
        earlier = loop.earlier_passes(self.number)
        if not earlier or self._counts_across_epochs is not None:
            return 0
        return max(0, self._expected - (loop.passes(self.number) - earlier))

    def _rate_sum(self) -> float:
        """What all ranks have in common if their schedules do; rates that are tensors are not waited for."""
        rates = [group["lr"] for one in self._optimizers for group in one.param_groups]
        return sum(rate for rate in rates if isinstance(rate, (int, float)))

    # -- the barrier ---------------------------------------------------------------------------------------

    def _finish(self) -> float:
        """Complete a barrier after the synchronized backward pass; returns the samples of all ranks."""
        if self.healer is None:
            self._settle(self.barrier.reports)
            if self._averaging:
                self.barrier.average_buffers(self.module, self._window, self._total)
        self.barrier.finish()
        self._window = 0
        return self._total

    def _settle(self, reports: Sequence[RankReport]) -> None:
        """What all ranks have reported: the next interval, the next claims."""
        square, pooled = self.barrier.local_square, self.barrier.pooled_square
        _alike(reports)
        self._stopping = any(r.stop for r in reports)
        if not math.isfinite(pooled) and not self._scaled and not self._told_not_finite:
            self._told_not_finite = True
            warnings.warn(
                f"Gradients of barrier {self.barriers} are not finite, so weights will not be either, on all ranks: "
                "lower the learning rate, clip gradients, or wrap a GradScaler, model.scaler(…), which leaves such "
                "steps out.",
                FlegelWarning,
                stacklevel=4,
            )
        self._total = total = sum([r.samples for r in reports])
        silent = any(r.silent for r in reports)
        if silent:
            self._run.disturbed()
        if iteration.running.leader == self.number:
            self._timings.ready(self._ready)
            if silent:
                if self._sampler is not None:
                    self._sampler.partly_silent(reports)
            else:
                self.pace.barrier(reports, self._last_pooled, self._barriers_timed)
                self._last_square, self._last_pooled = square, pooled
                if self._sampler is not None:
                    self._sampler.barrier(reports, self.pace)
        self.barriers += 1
        if silent:
            self.samples_seen += int(total)
            return
        self.barrier.unit = int(max([r.batch for r in reports])) if self._mean_loss else 1
        self.samples_seen += int(total)
        if self._reference is None:
            self._reference = int(sum(r.batch for r in reports))
        self._begin_run(reports)

    def _rate_factor(self, optimizer: torch.optim.Optimizer) -> float:
        """The factor on the learning rate of this step."""
        rules = rank_settings()
        total, reference = float(self._pooled or 0.0), float(self._reference or 1)
        if self._lr_rule != "auto":
            return learning_rate_factor(self._lr_rule, total, reference, self.pace.noise.scale)
        rule, noise = rule_of(type(optimizer)), self.pace.noise
        factor = max(
            1.0,
            learning_rate_factor(
                rule, total, reference, noise.scale if noise.weight >= rules.least_noise_weight else None
            ),
        )
        if total > rules.told_batch_ratio * reference and not self._told_rule:
            self._told_rule = True
            if self.barrier.rank == 0:
                warnings.warn(
                    f"Steps rest on {total / reference:.1f} times the samples of one of DDP, so the learning rate of "
                    f"{type(optimizer).__name__} is multiplied at each step by lr_rule={rule!r}. Pass "
                    "FlexibleDDP(…, lr_rule='none') to keep it.",
                    FlegelWarning,
                    stacklevel=4,
                )
        return factor

    def should_stop(self, seconds: float | None = None, samples: int | None = None) -> bool:
        """Whether the training ends here: `seconds` after the model was wrapped, by the clock of any rank, or after so
        many samples of all ranks. The answer is the same on all ranks, and true after a barrier only, so a loop may be
        left by it: `if model.should_stop(seconds=3600): break`."""
        self._asks_to_stop = seconds is not None and clock.now() - self._wrapped_at >= seconds
        enough = samples is not None and self.samples_seen >= samples
        return self.stepped and (self._stopping or enough)

    def _open(self) -> None:
        """The optimizer has stepped: the next interval begins. All that a barrier took counts as its cost."""
        # DDP arranges its buckets anew after the first backward pass, with a message in the next forward pass: another
        # rank may be at a barrier of another model by then.
        if self.healer is None and self._arrange_buckets() and self.barrier.compressed is not None:
            self.barrier.compressed.forget()
        leader = self._leader
        now = self._now()
        leader._last_cost = now - leader._ready
        leader._evaluated_until = 0.0  # an evaluation that follows is another one: what lies between was no evaluation
        leader._timings.open(now)
        self._barriers_timed = 1
        if self.site is not None and not self._due:
            self.site.at_barrier(int(self._total), self.ranks)

    def _arrange_buckets(self) -> bool:
        """Let DDP arrange its buckets in the order in which gradients came; whether it did, once in a training."""
        try:
            with self._exchanging():
                return bool(self.reducer._rebuild_buckets())
        except RuntimeError as error:
            if "rebuilt parameter indices" not in str(error):
                raise
            raise UsageError(
                "PyTorch cannot order the gradients of the first iteration, which has two backward passes over one "
                "forward pass: call backward once, for the sum of the losses, or make a forward pass for each."
            ) from error

    def _now(self) -> float:
        """Seconds, once the device has done all but the newest micro-batch: launching alone is not training."""
        if self.barrier.device.type == "cuda":
            if self._event is not None:
                self._event.synchronize()
            self._event = torch.cuda.Event()
            self._event.record()
        return clock.now()

    # -- what the script steps -----------------------------------------------------------------------------

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The same optimizer, whose `step` acts at barriers only. One model may have several."""
        real, zero = optimizer.step, optimizer.zero_grad
        parameters = {p for group in optimizer.param_groups for p in group["params"]}
        self._optimizers.append(optimizer)

        def step(optimizer: torch.optim.Optimizer, closure: Any = None, **named: Any) -> Any:
            """At a barrier: step with the learning rate of this batch, which is set back afterwards. Otherwise only
            count the gradients."""
            if closure is not None:
                raise UsageError(
                    "An optimizer that evaluates a closure several times cannot step at flexible barriers."
                )
            if self._run.pending:
                self._finish_silent_step()
                return real(**named)
            factor = self._step(optimizer)
            if factor is None:
                return None
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups if factor != 1.0 else ():
                group["lr"] = group["lr"] * factor
            try:
                return real(**named)
            finally:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                self._open()

        def zero_grad(optimizer: torch.optim.Optimizer, *given: Any, **named: Any) -> None:
            if self._run.pending:
                self._record_silent_step()
            if self._run.left <= 0:  # otherwise nothing is kept
                self.barrier.discard(parameters)
            zero(*given, **named)

        # schedulers ask for a method
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = MethodType(zero_grad, optimizer)  # type: ignore[method-assign]
        return optimizer

    def _step(self, optimizer: torch.optim.Optimizer) -> float | None:
        """The script steps. At a barrier: the factor of the learning rate; otherwise gradients are counted."""
        if self._at_barrier(optimizer):
            if self.barrier.complete:
                self._pooled, self._due = self._finish(), {id(one) for one in self._optimizers}
                self._end_iteration(synchronized=True)
            self._due.discard(id(optimizer))
            self.stepped = True
            return self._rate_factor(optimizer)
        self.stepped = False
        if self._pooled is None:
            self._check_seen()
            self.barrier.commit()
            self._end_iteration(synchronized=False)
        return None

    def _check_seen(self) -> None:
        """Refuse outputs whose backward pass was not seen: their gradients would stay on this rank."""
        if self._unseen and any(p.grad is not None for p in self.module.parameters()):
            raise UsageError(
                f"FlexibleDDP finds no tensor in the outputs of {type(self.module).__name__}, so it does not see their "
                "backward pass: return a tensor, or tensors in tuples, lists and dictionaries."
            )

    def _end_iteration(self, synchronized: bool) -> None:
        loop = iteration.running
        if not loop.has_stepped(self.number):
            self._owing = (loop.last or self._owing) and not synchronized
            passes, earlier = loop.passes(self.number), loop.earlier_passes(self.number)
            if earlier:
                self._counts_across_epochs = passes <= self._expected
            self._expected = max(passes if self._counts_across_epochs else passes - earlier, 1)
        loop.step(self.number, type(self.module).__name__)

    def _at_barrier(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.barrier.complete or (self._pooled is not None and id(optimizer) in self._due)

    def scheduler(self, scheduler: Any, samples: int | None = None) -> Any:
        """The same learning-rate schedule, which steps at barriers only; with `samples` once for each so many samples
        of all ranks, whatever the barriers are."""
        made = Schedule(self, scheduler, samples)
        self._schedules.append(made)
        return made.wrap()

    def scaler(self, scaler: Any) -> Any:
        """The same scaler of gradients, which unscales, steps and updates at barriers only."""
        self._scaled = True
        self._scalers.append(scaler)
        unscale, step, update = scaler.unscale_, scaler.step, scaler.update

        def stepping(optimizer: Any, *given: Any, **named: Any) -> Any:
            """Step the scaler only at barriers; where gradients were not finite, the barrier is completed without a
            step."""
            if not self._at_barrier(optimizer):
                return self._step(optimizer)
            result = step(optimizer, *given, **named)
            if self._at_barrier(optimizer):  # gradients were not finite, so the scaler left the optimizer out
                if self._run.pending:
                    self._finish_silent_step()
                else:
                    self._step(optimizer)
                    self._open()
            return result

        scaler.unscale_ = lambda optimizer: unscale(optimizer) if self._at_barrier(optimizer) else None
        scaler.step = stepping
        scaler.update = lambda *given, **named: update(*given, **named) if self.stepped else None
        return scaler

    # -- ranks that heal -----------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Of this process; it changes when ranks are lost or join, after `flegel.torch.join`."""
        return self.barrier.rank

    @property
    def ranks(self) -> int:
        return self.barrier.ranks

    def begin(self, sampler: samplers.FlexibleSampler | None = None, **states: Any) -> int:
        """Before the first epoch: the epoch to begin with. After `flegel.torch.join` this process joins the training;
        where that runs already, weights, optimizers, schedules, scalers, the sampler and `states` (whatever has
        `state_dict` and `load_state_dict`) are taken from a peer. Call it again after `RankExcluded` to rejoin."""
        if self.healer is not None:
            self._states, self._sampler = states, sampler
            self.healer.begin(sampler)
            if self.site is not None:
                self.site.await_first()
            self._timings.open(self._now())
        return sampler.epoch if sampler is not None else 0

    def finish(self, seconds: float = math.inf) -> bool:
        """After the last epoch, on all ranks of a site: wait until all sites have ended, for so many seconds at most.
        True where they have; then the module is the same at all of them, to the last bit."""
        if self.site is None or self.healer is None or not isinstance(self.barrier, HealingBarrier):
            raise UsageError("Only ranks of a site wait for other sites: pass FlexibleDDP(…, site=Site(…)).")
        self._check_begun()
        self.site.rest(seconds)
        self.barrier.idle = True
        try:
            while not self.site.ended:
                self.site.wait()
                self.healer.exchange()
        finally:
            self.barrier.idle = False
        self.healer.mark_ended()
        return self.site.agreed

    def close(self) -> None:
        """This process has ended its training: others, if any, go on without it."""
        if self.site is not None:
            self.site.close("left")
        if self.healer is not None:
            self.healer.close()

    @property
    def of_site(self) -> bool:
        """These ranks are one of several sites, which know what θ they have in common."""
        return self.site is not None

    def regrouped(self) -> None:
        """Ranks were lost or have joined."""
        if self.site is not None:
            self.site.lead(self.rank == 0)

    def _check_begun(self) -> None:
        if self.healer is not None and not self.healer.begun:
            raise UsageError("Call model.begin(sampler) before the first epoch: ranks that heal meet there.")

    def _exchange(self) -> bool:
        """The barrier of ranks that heal, at the end of a backward pass."""
        healer, barrier = self.healer, self.barrier
        if healer is None or not isinstance(barrier, HealingBarrier):
            raise UsageError("Only ranks that heal exchange gradients here.")
        self._ready = self._now()
        self._seconds = self._ready - self._timings.opened
        barrier.measuring = self.pace.measures(self.barriers)
        barrier.averaging, barrier.window = self._averaging, self._window
        if healer.exchange():
            return True
        iteration.running.last = self._owing = False
        return False

    def settle(self, result: BarrierResult) -> None:
        """All ranks have this barrier."""
        if not isinstance(self.barrier, HealingBarrier):
            return
        if self.barrier.idle:
            reports = [RankReport(*row) for row in result.table.tolist()]
        else:
            reports = self.barrier.accept(result)
            self._settle(reports)
        if self.site is not None:
            self.site.settle([report.site for report in reports], result.site)

    LIVE = ("barriers", "samples_seen", "_reference", "_last_pooled", "_told_rule", "_told_not_finite")

    def live_state(self) -> dict[str, Any]:
        """All that a rank needs which joins; the same on all ranks after they have stepped."""
        return {
            **{name: getattr(self, name) for name in self.LIVE},
            "module": self._module_state(),
            "optimizers": [one.state_dict() for one in self._optimizers],
            "schedules": [{"done": one.done, "state": one.scheduler.state_dict()} for one in self._schedules],
            "scalers": [one.state_dict() for one in self._scalers],
            "states": {name: one.state_dict() for name, one in self._states.items()},
            "sampler": self._sampler.live_state() if self._sampler is not None else None,
            "pace": self.pace.to_state(),
            "site": self.site.state() if self.site is not None else None,
        }

    def _module_state(self) -> dict[str, Any]:
        return self.module.state_dict()  # type: ignore[no-any-return]

    def load_live_state(self, state: dict[str, Any]) -> None:
        """Take the state of another rank, so that this one goes on as if it had always been there."""
        mine = [len(self._optimizers), len(self._schedules), len(self._scalers), sorted(self._states)]
        theirs = [len(state[name]) for name in ("optimizers", "schedules", "scalers")] + [sorted(state["states"])]
        if mine != theirs:
            raise UsageError(
                f"The script of this rank has {mine} optimizers, schedules, scalers and further states, others "
                f"{theirs}: start the same script, and call model.begin(…) after all of them were wrapped."
            )
        for name in self.LIVE:
            setattr(self, name, state[name])
        self.module.load_state_dict(state["module"])
        for optimizer, own in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        for schedule, own in zip(self._schedules, state["schedules"], strict=True):
            schedule.done = own["done"]
            schedule.scheduler.load_state_dict(own["state"])
        for scaler, own in zip(self._scalers, state["scalers"], strict=True):
            scaler.load_state_dict(own)
        for name, one in self._states.items():
            one.load_state_dict(state["states"][name])
        if self._sampler is not None and state["sampler"] is not None:
            self._sampler.load_live_state(state["sampler"])
        self.pace.load_state(state["pace"])
        if self.site is not None and state["site"] is not None:
            self.site.load_state(state["site"])

    def forget(self) -> None:
        """What this process has of an interval that ended without it."""
        if self.site is not None:
            self.site.forget()
        if isinstance(self.barrier, HealingBarrier):
            self.barrier.forget()
        iteration.running.clear()
        self._timings, self._pooled, self._window, self._owing, self._expected = RankTimings(), None, 0, False, 1
        self._run, self._barriers_timed = EvenRun(), 1
