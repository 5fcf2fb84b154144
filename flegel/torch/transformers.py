"""`FlexibleTrainer`: the Trainer of Hugging Face with flexible barriers. A step of the trainer is a barrier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from flegel.errors import UsageError
from flegel.torch.flexible.ddp import FlexibleDDP
from flegel.torch.flexible.interval_loader import IntervalLoader

SAMPLER_FILE = "flexible_sampler.pt"
"""In the folder of a checkpoint: what of the epoch was trained."""


class FlexibleTrainer(Trainer):  # type: ignore[misc]
    """In place of `Trainer`. With one process it is `Trainer` itself."""

    def __init__(self, *given: Any, flexible: dict[str, Any] | None = None, **named: Any) -> None:
        """`flexible`: options of `FlexibleDDP`."""
        super().__init__(*given, **named)
        self._flexible = dict(flexible or {})
        self.flexible_model: FlexibleDDP | None = None
        self._loader: IntervalLoader | None = None
        if self.args.gradient_accumulation_steps > 1:
            raise UsageError(
                "Set gradient_accumulation_steps=1: an interval accumulates gradients by itself. For larger steps give "
                "flexible={'interval': seconds}."
            )
        if self.args.fp16:
            raise UsageError("fp16 scales gradients by itself: use bf16 with flexible barriers.")

    @property
    def _is_flexible(self) -> bool:
        return bool(self.args.world_size > 1)

    # -- what is wrapped -----------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Over a `FlexibleSampler`. It is not prepared by Accelerate, which would read one batch ahead."""
        if not self._is_flexible:
            return super().get_train_dataloader()
        if self.train_dataset is None or not hasattr(self.train_dataset, "__len__"):
            raise UsageError("Flexible barriers need a train_dataset with a length.")
        real, self.accelerator.prepare = self.accelerator.prepare, lambda one: one
        try:
            self._loader = IntervalLoader(super().get_train_dataloader(), self.args.data_seed or self.args.seed)
        finally:
            self.accelerator.prepare = real
        return self._loader

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if not (self._is_flexible and training):
            return super()._wrap_model(model, training, dataloader)
        if isinstance(model, FlexibleDDP):
            return model
        inner = self.accelerator.prepare_model(model, evaluation_mode=True)
        placed: dict[str, Any] = {"device_ids": [self.args.device.index]} if self.args.device.type == "cuda" else {}
        self.flexible_model = FlexibleDDP(inner, **placed, **self._flexible)
        self.flexible_model.optimizer(self.optimizer)
        return self.flexible_model

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule has as many steps as with DDP, by samples: barriers are fewer where steps are larger."""
        found = super().create_scheduler(num_training_steps, optimizer)
        if self.flexible_model is not None and self._loader is not None:
            self.flexible_model.scheduler(found, samples=self.args.world_size * (self._loader.batch_size or 1))
        return found

    # -- one step ------------------------------------------------------------------------------------------

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """None: the loss is the mean of its micro-batch, and gradients of all ranks are weighted by samples."""
        if not self._is_flexible:
            return super()._get_num_items_in_batch(batch_samples, device)
        return None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """All micro-batches of an interval; the loss is their mean."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        many = 1
        while isinstance(model, FlexibleDDP) and self._loader is not None and not model.barrier.complete:
            self.optimizer.step()
            loss = loss + super().training_step(model, self._loader.following(), num_items_in_batch)
            many += 1
        return loss / many

    # -- checkpoints ---------------------------------------------------------------------------------------

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        super()._save_checkpoint(*given, **named)
        if self._loader is not None and self.args.should_save:
            folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
            torch.save(self._loader.flexible.state_dict(), folder / SAMPLER_FILE)

    def _init_training_state(self, *given: Any, **named: Any) -> tuple[int, int]:
        """What of an epoch was trained is known by the sampler: numbers of steps do not tell it."""
        trained, skipped = super()._init_training_state(*given, **named)
        resumed = named.get("resume_from_checkpoint", given[3] if len(given) > 3 else None)
        file = Path(resumed) / SAMPLER_FILE if resumed else None
        if self._loader is None or file is None or not file.exists():
            return trained, skipped
        sampler = self._loader.flexible
        sampler.load_state_dict(torch.load(file, weights_only=True))
        return (sampler.epoch + 1, 0) if sampler.state_dict()["finished"] else (sampler.epoch, 0)
