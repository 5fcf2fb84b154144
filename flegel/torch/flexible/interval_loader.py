"""Intervals for trainers that own the loop: one step of the trainer is one barrier, whatever a rank makes until it.

Such trainers count steps, and log, save and evaluate by that count with messages between ranks, so all ranks must make
the same number of steps. Here a step takes the first micro-batch of an interval from the loader; further ones of the
interval are read and trained inside the step. Knows no trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

from flegel.errors import UsageError
from flegel.torch.flexible.ddp import FlexibleDDP
from flegel.torch.flexible.sampler import FlexibleSampler

KEPT_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "drop_last",
)
"""Of a loader that is replaced."""


def samples_of_tree(inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Samples of a micro-batch that lies somewhere in the arguments: the first dimension of the first tensor."""
    for value in tree_flatten((inputs, named))[0]:
        if isinstance(value, torch.Tensor) and value.ndim:
            return len(value)
    raise UsageError("A batch without a tensor does not tell its samples: pass samples=lambda inputs, named: … .")


class IntervalLoader(DataLoader):  # type: ignore[misc]
    """A loader of PyTorch over a `FlexibleSampler`, whose running iterator can be asked for further batches."""

    def __init__(self, loader: DataLoader, seed: int = 0) -> None:
        """Reads as `loader` does, but every index of an epoch on one of the ranks."""
        if loader.batch_size is None:
            raise UsageError("Flexible barriers need a loader with batch_size: leave out batch_sampler.")
        sampler = loader.sampler if isinstance(loader.sampler, FlexibleSampler) else None
        self.flexible = sampler or FlexibleSampler(loader.dataset, seed=seed, drop_last=loader.drop_last)
        options = {name: getattr(loader, name) for name in KEPT_OPTIONS}
        super().__init__(loader.dataset, batch_size=loader.batch_size, sampler=self.flexible, **options)

    def __iter__(self) -> Any:
        self._running = super().__iter__()
        return self._running

    def set_epoch(self, epoch: int) -> None:
        self.flexible.set_epoch(epoch)

    def following(self) -> Any:
        """The next batch of the running interval."""
        try:
            return next(self._running)
        except StopIteration:
            raise UsageError("The data of an epoch ended between two barriers: use one loader for training.") from None

    def ends_epoch(self) -> bool:
        """Whether the barrier of the running interval is the last one of the epoch."""
        deal = self.flexible.deal
        if deal is None or not self.flexible.training:
            return True
        return deal.ends_with_next_barrier(self.batch_size or 1)


def train_interval(
    model: FlexibleDDP,
    loader: IntervalLoader,
    optimizers: list[torch.optim.Optimizer],
    output: Any,
    backward: Callable[[Any], None],
    forward: Callable[[Any], Any],
) -> Any:
    """Micro-batches up to the one with which ranks synchronize; `output`: of the forward pass of the first. Returns the
    output of the last, whose backward pass and step are left to the trainer."""
    while not model.ends_interval():
        backward(output)
        for optimizer in optimizers:
            optimizer.step()
        output = forward(loader.following())
    return output
