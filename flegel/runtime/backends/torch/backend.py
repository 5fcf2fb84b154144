"""The backend for GPUs (and, for tests, torch on a processor): programs of algorithms over blocks of rows."""

from __future__ import annotations

from importlib import import_module

import torch

from flegel.algorithm import Algorithm
from flegel.core.pytree import Tree
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.errors import UsageError
from flegel.runtime.backends.torch.devices import torch_device
from flegel.runtime.backends.torch.kernel import TorchKernel


class TorchBackend:
    """Builds kernels of algorithms that have a program for torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.device = str(device)

    def on(self, device: str) -> TorchBackend:
        return TorchBackend(torch_device(device))

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        """As on processors, because points travel between workers as they lie."""
        return "rows" if interpret else hook(algorithm, KernelHooks.layout_for)(columns)

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> TorchKernel:
        name = type(algorithm).__name__
        if not algorithm.kernels.torch_program:
            raise UsageError(f"{name} has no program for {self.device}; its workers compute on processors.")
        if isinstance(shard.features, Sparse):
            raise UsageError(f"{name} takes dense rows on {self.device}; leave sparse ones to processors.")
        if shard.weights is not None:
            raise UsageError(f"{name} takes points without weights on {self.device}; leave those to processors.")
        module, _, program = algorithm.kernels.torch_program.partition(":")
        made = getattr(import_module(module), program)(algorithm, self._device)
        return TorchKernel(made, shard, parameter, empty, self._device)


BACKEND = TorchBackend(torch.device("cpu"))
