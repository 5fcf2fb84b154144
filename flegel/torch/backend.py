"""The backend that networks ask for: a module on a processor or a GPU, by torch. Registered as `network`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flegel.algorithm import Algorithm
from flegel.core.pytree import Tree
from flegel.core.shard import Shard
from flegel.runtime.backends.torch.devices import torch_device
from flegel.torch.training import NetworkKernel

if TYPE_CHECKING:
    import torch

    from flegel.torch.records import ModuleSpec


class NetworkBackend:
    """Builds kernels of networks for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.device = str(device)

    def on(self, device: str) -> NetworkBackend:
        return NetworkBackend(torch_device(device))

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return "rows"

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> NetworkKernel:
        return NetworkKernel(cast("ModuleSpec", algorithm), shard, parameter, empty, self._device)


BACKEND = NetworkBackend(torch_device("cpu"))
