"""The backend that networks ask for: a module on a processor or a GPU, by torch. Registered as `network`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from flegel.algorithm import Algorithm
from flegel.core.pytree import Tree
from flegel.core.shard import Shard
from flegel.runtime import clock
from flegel.runtime.backends.torch.devices import torch_device
from flegel.torch.training import NetworkKernel

if TYPE_CHECKING:
    import torch

    from flegel.torch.records import ModuleSpec


class NetworkBackend:
    """Builds kernels of networks for one device."""

    def __init__(self, device: torch.device, now: Callable[[], float] = clock.now) -> None:
        """`now`: the clock by which kernels choose the size of their micro-batches."""
        self._device, self._now = device, now
        self.device = str(device)

    def on(self, device: str) -> NetworkBackend:
        return NetworkBackend(torch_device(device), self._now)

    def by_clock(self, now: Callable[[], float]) -> NetworkBackend:
        """The same with another clock. By one that stands still all micro-batches have the first size, so that gradient
        sums are the same to the last bit in every run."""
        return NetworkBackend(self._device, now)

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return "rows"

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> NetworkKernel:
        return NetworkKernel(cast("ModuleSpec", algorithm), shard, parameter, empty, self._device, self._now)


BACKEND = NetworkBackend(torch_device("cpu"))
