"""`flegel.torch.watch`: what a rank spends on each section of its iterations, on plain DDP and on FlexibleDDP.

Hooks of PyTorch measure (data, forward, backward, exchange, step); the rest is the host. One line for each window of
time goes to a file of this rank; nothing is sent. `flegel ddp-report FOLDER` compares the ranks.
"""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten
from torch.utils.data.dataloader import _BaseDataLoaderIter

from flegel.errors import UsageError
from flegel.report.rank_sections import SECTIONS
from flegel.runtime import clock

_watches: weakref.WeakSet[Watch] = weakref.WeakSet()
_plain_next = _BaseDataLoaderIter.__next__


def _timed_next(loader: Any) -> Any:
    """A batch of PyTorch's loader, for all watches."""
    began = clock.now()
    try:
        return _plain_next(loader)
    finally:
        for one in list(_watches):
            one.add("data", clock.now() - began)


class Watch:
    """Measures one model on one rank."""

    def __init__(self, model: torch.nn.Module, folder: Path, every: float, rank: int, ranks: int) -> None:
        """`every`: seconds of a window, after which a line is written to the file of this rank in `folder`."""
        self._every, self._ranks = every, ranks
        self._file = folder / f"rank-{rank}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text("", encoding="utf-8")
        self._seconds = dict.fromkeys(SECTIONS, 0.0)
        self._iterations, self._window, self._opened = 0, self._now_window(), clock.now()
        self._forward = 0.0
        self._steps: list[float] = []
        """When steps began that have not ended: that of a class may call that of its base, and both are told."""
        self._evaluated = 0.0
        self._backward: float | None = None
        self._next_forward_begins_iteration = True
        """The last thing was no forward pass."""
        self._handles = [
            model.register_forward_pre_hook(lambda *_: self._forward_begins()),
            model.register_forward_hook(lambda _, __, outputs: self._forward_ends(outputs)),
            register_optimizer_step_pre_hook(lambda *_: self._step_begins()),
            register_optimizer_step_post_hook(lambda *_: self._step_ends()),
        ]
        self._exchanges: list[Callable[[float], None]] = getattr(model, "exchange_listeners", [])
        self._exchanges.append(self._exchanged)
        _BaseDataLoaderIter.__next__ = _timed_next
        _watches.add(self)
        atexit.register(self.close)

    def add(self, section: str, seconds: float) -> None:
        self._seconds[section] += seconds

    def _exchanged(self, seconds: float) -> None:
        """An exchange outside of backward passes."""
        self.add("exchange", seconds)

    def close(self) -> None:
        """Writes what was measured, and measures no more."""
        if self._handles:
            self._write()
            for handle in self._handles:
                handle.remove()
            self._handles = []
            self._exchanges.remove(self._exchanged)
            _watches.discard(self)

    def _now_window(self) -> int:
        """By the wall clock, so that windows of all ranks are the same without a message."""
        return int(clock.microseconds() / 1e6 / self._every)

    def _forward_begins(self) -> None:
        if self._next_forward_begins_iteration and torch.is_grad_enabled():
            if self._now_window() != self._window:
                self._write()
            self._iterations, self._next_forward_begins_iteration = self._iterations + 1, False
        self._forward = clock.now()

    def _forward_ends(self, outputs: Any) -> None:
        """Count the time of a forward pass, and note when its backward pass begins."""
        spent = clock.now() - self._forward
        if not torch.is_grad_enabled():
            self._evaluated += spent
            return
        self.add("forward", spent)
        found = next((t for t in tree_flatten(outputs)[0] if isinstance(t, torch.Tensor) and t.requires_grad), None)
        if found is not None:
            found.register_hook(lambda _: self._backward_begins())

    def _backward_begins(self) -> None:
        """Callbacks run in the order in which they were queued: this one when the gradients are there, and what it
        queues after DDP's own, which waits for the exchange."""
        if self._backward is None:
            self._backward = clock.now()
            torch.autograd.Variable._execution_engine.queue_callback(self._gradients_ready)

    def _gradients_ready(self) -> None:
        """Count the time of the backward pass; what follows until the engine's last callback is the exchange."""
        ready = clock.now()
        if self._backward is not None:
            self.add("backward", ready - self._backward)

        def exchanged() -> None:
            self.add("exchange", clock.now() - ready)
            self._backward, self._next_forward_begins_iteration = None, True

        torch.autograd.Variable._execution_engine.queue_callback(exchanged)

    def _step_begins(self) -> None:
        self._steps.append(clock.now())

    def _step_ends(self) -> None:
        began = self._steps.pop() if self._steps else clock.now()
        if not self._steps:
            self.add("step", clock.now() - began)

    def _write(self) -> None:
        """The window that has ended; what no hook measured is the host's."""
        now = clock.now()
        known = sum(self._seconds.values()) + self._evaluated
        self._seconds["host"] += max(0.0, now - self._opened - known)
        if self._iterations:
            line = {"window": self._window, "every": self._every, "ranks": self._ranks, "iterations": self._iterations}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "seconds": {k: round(v, 6) for k, v in self._seconds.items()}}) + "\n")
        self._steps.clear()  # one that raised has no end
        self._seconds = dict.fromkeys(SECTIONS, 0.0)
        self._iterations, self._evaluated, self._opened, self._window = 0, 0.0, now, self._now_window()


def watch(
    model: torch.nn.Module, folder: str | Path = "ddp-watch", every: float = 5.0, rank: int | None = None
) -> Watch:
    """Measures the sections of this rank's iterations and writes them into a folder that all ranks share (or that are
    copied together), one line for each window of `every` seconds. `model`: the wrapped one, DDP or FlexibleDDP."""
    if every <= 0.0:
        raise UsageError(f"every={every}: give seconds above 0.")
    own, many = getattr(model, "rank", None), getattr(model, "ranks", None)
    if rank is None:
        rank = own if isinstance(own, int) else dist.get_rank() if dist.is_initialized() else 0
    ranks = many if isinstance(many, int) else dist.get_world_size() if dist.is_initialized() else 0
    return Watch(model, Path(folder), every, rank, ranks)
