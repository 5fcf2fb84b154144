"""`FlexibleAccelerator`: Hugging Face Accelerate with flexible barriers. Loops stay the script's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, RandomSampler

from flegel.errors import UsageError
from flegel.torch.flexible.ddp import FlexibleDDP
from flegel.torch.flexible.interval_loader import IntervalLoader
from flegel.torch.flexible.sampler import FlexibleSampler


class DeviceLoader:
    """Batches of a training loader on the device of this rank. It reads nothing ahead of the loop by itself."""

    def __init__(self, loader: IntervalLoader, device: torch.device) -> None:
        self.loader, self.device, self.dataset, self.batch_size = loader, device, loader.dataset, loader.batch_size
        self.sampler = loader.flexible

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield send_to_device(batch, self.device)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)


class FlexibleAccelerator(Accelerator):  # type: ignore[misc]
    """In place of `Accelerator`: `prepare` wraps models, shuffled loaders, optimizers and schedules for flexible
    barriers. Loaders that are not shuffled, as for evaluation, are prepared as Accelerate does."""

    def __init__(self, *given: Any, flexible: dict[str, Any] | None = None, **named: Any) -> None:
        """`flexible`: options of `FlexibleDDP`."""
        super().__init__(*given, **named)
        self._flexible = dict(flexible or {})
        if self.mixed_precision == "fp16":
            raise UsageError("mixed_precision='fp16' scales gradients by itself: use 'bf16' with flexible barriers.")

    def prepare(self, *given: Any, **named: Any) -> Any:
        found = super().prepare(*given, **named)
        if self.num_processes > 1:
            self._link(list(found) if isinstance(found, tuple) else [found])
        return found

    def _link(self, found: list[Any]) -> None:
        """Optimizers and schedules step at the barriers of the model whose parameters they have."""
        models = [one for one in (*found, *self._models) if isinstance(one, FlexibleDDP)]
        for one in found:
            if isinstance(one, AcceleratedOptimizer) and not getattr(one.optimizer, "_flexible", False):
                model = self._model_of(one.optimizer, models)
                model.optimizer(one.optimizer)
                one.optimizer._flexible = True
        loaders = [one for one in self._dataloaders if isinstance(one, DeviceLoader)]
        for one in found:
            if isinstance(one, AcceleratedScheduler) and loaders:
                # Accelerate's convention: a step of the schedule for the batch of each process.
                samples = (loaders[-1].batch_size or 1) * self.gradient_accumulation_steps
                samples *= self.num_processes if self.split_batches else 1
                self._model_of(one.scheduler.optimizer, models).scheduler(one.scheduler, samples=samples)

    @staticmethod
    def _model_of(optimizer: Any, models: list[FlexibleDDP]) -> FlexibleDDP:
        own = {p for group in optimizer.param_groups for p in group["params"]}
        for model in models:
            if own & set(model.parameters()):
                return model
        raise UsageError("Prepare the model before its optimizer, or both in one call of accelerator.prepare(…).")

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        plain = evaluation_mode or self.num_processes < 2 or isinstance(model, FlexibleDDP)
        if plain or not any(p.requires_grad for p in model.parameters()):
            return super().prepare_model(model, device_placement, evaluation_mode)
        inner = super().prepare_model(model, device_placement, evaluation_mode=True)
        given = self.ddp_handler.to_kwargs() if self.ddp_handler is not None else {}
        if self.device.type == "cuda":
            given = {"device_ids": [self.local_process_index], "output_device": self.local_process_index, **given}
        wrapped = FlexibleDDP(inner, **given, **self._flexible)
        self._models[-1] = wrapped
        return wrapped

    def prepare_data_loader(self, data_loader: Any, *given: Any, **named: Any) -> Any:
        shuffled = isinstance(getattr(data_loader, "sampler", None), RandomSampler | FlexibleSampler)
        if self.num_processes < 2 or not isinstance(data_loader, DataLoader) or not shuffled:
            return super().prepare_data_loader(data_loader, *given, **named)
        loader = DeviceLoader(IntervalLoader(data_loader), self.device)
        self._dataloaders.append(loader)
        self.register_for_checkpointing(loader.sampler)
        return loader
