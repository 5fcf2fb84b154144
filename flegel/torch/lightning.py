"""`FlexibleDDPStrategy`: Lightning with flexible barriers. A step of the trainer is a barrier."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, DistributedSampler

from flegel.errors import UsageError
from flegel.torch.flexible.ddp import FlexibleDDP
from flegel.torch.flexible.interval_loader import IntervalLoader, samples_of_tree, train_interval
from flegel.torch.flexible.sampler import FlexibleSampler


class FlexibleDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """`Trainer(strategy=FlexibleDDPStrategy())`; takes the options of `DDPStrategy` and of `FlexibleDDP`."""

    strategy_name = "flexible_ddp"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{"samples": samples_of_tree, **named})
        self._loader: IntervalLoader | None = None
        self._trainer: Any = None

    # -- what is wrapped -----------------------------------------------------------------------------------

    def _setup_model(self, model: torch.nn.Module) -> FlexibleDDP:
        devices = self.determine_ddp_device_ids()
        with torch.cuda.stream(torch.cuda.Stream()) if devices is not None else nullcontext():
            return FlexibleDDP(model, device_ids=devices, **self._ddp_kwargs)

    def _register_ddp_hooks(self) -> None:
        """`FlexibleDDP` has its own."""

    def setup(self, trainer: Any) -> None:
        """Wrap the model, and refuse what FlexibleDDP cannot do: manual optimization and accumulated gradients."""
        self._trainer = trainer
        super().setup(trainer)
        if not isinstance(self.model, FlexibleDDP):
            return
        module = trainer.lightning_module
        if not module.automatic_optimization or trainer.accumulate_grad_batches > 1:
            raise UsageError(
                "FlexibleDDPStrategy needs automatic optimization and accumulate_grad_batches=1: an interval "
                "accumulates gradients by itself, and FlexibleDDPStrategy(interval=seconds) makes it longer."
            )
        if str(trainer.precision).startswith("16"):
            raise UsageError("precision='16-mixed' scales gradients by itself: use 'bf16-mixed' or 32.")
        for optimizer in self.optimizers:
            self.model.optimizer(optimizer)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Shuffled loaders are those of training; Lightning has given them a DistributedSampler."""
        sampler = getattr(dataloader, "sampler", None)
        ours = isinstance(sampler, FlexibleSampler) and sampler.shuffle
        if isinstance(dataloader, DataLoader) and (
            ours or (isinstance(sampler, DistributedSampler) and sampler.shuffle)
        ):
            self._loader = IntervalLoader(dataloader, getattr(sampler, "seed", 0))
            return self._loader
        return dataloader

    # -- one step ------------------------------------------------------------------------------------------

    def training_step(self, *given: Any, **named: Any) -> Any:
        """Forward and backward passes up to the micro-batch with which ranks synchronize; Lightning does the rest with
        that one."""
        if self._loader is None or not isinstance(self.model, FlexibleDDP):
            raise UsageError("FlexibleDDPStrategy found no shuffled loader: use DataLoader(…, shuffle=True).")
        if given[1] == 0:
            self._follow_schedules()
        run = super().training_step

        def forward(batch: Any) -> Any:
            return run(self.batch_to_device(batch), *given[1:], **named)

        output = train_interval(self.model, self._loader, self.optimizers, run(*given, **named), _backward, forward)
        self._tell_end()
        return output

    def _tell_end(self) -> None:
        """Lightning takes the length of its loader for the number of steps; how many barriers an epoch has is known
        when the last one begins."""
        fitting = self._trainer.fit_loop
        if self._trainer.val_check_interval == 1.0:
            self._trainer.val_check_batch = float("inf")  # after the last batch
        if self._loader is not None and self._loader.ends_epoch():
            fitting.epoch_loop.batch_progress.is_last_batch = True
            fitting._data_fetcher.done = True

    def _follow_schedules(self) -> None:
        """Schedules by steps have as many of them as with DDP, by samples."""
        if self._loader is None or not isinstance(self.model, FlexibleDDP):
            return
        for config in self._trainer.lr_scheduler_configs:
            if config.interval == "step" and not getattr(config, "_flexible", False):
                samples = self.world_size * (self._loader.batch_size or 1)
                self.model.scheduler(config.scheduler, samples=samples)
                config._flexible = True

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **named: Any) -> Any:
        """The closure (forward, backward, clipping) first: a step at a barrier evaluates none."""
        result = self.precision_plugin._wrap_closure(model or self.lightning_module, optimizer, closure)
        optimizer.step(**named)
        return result


def _backward(output: Any) -> None:
    (output["loss"] if isinstance(output, dict) else output).backward()
