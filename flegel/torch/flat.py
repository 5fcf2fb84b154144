"""A module's parameters and buffers as flat vectors, and back. Trains nothing.

Parameters whose type is that of the vector become views of it: what is written to the vector is in the module without a
copy, and gradients accumulate straight into a second vector of the same length. Parameters of other types (bfloat16,
float16) are copied in and their gradients are added after each backward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from flegel.core.pytree import Array


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that take gradients, shared ones once, in the order of the module."""
    return [p for p in module.parameters() if p.requires_grad]


def held(module: nn.Module) -> list[torch.Tensor]:
    """Tensors that training changes without a gradient, such as the running means of batch normalization."""
    return [b for b in module.buffers() if b is not None]


def weights_of(module: nn.Module, kind: str) -> Array:
    """The parameters as one vector of this type, a copy."""
    return _vector(trainable(module), kind)


def buffers_of(module: nn.Module, kind: str = "float64") -> Array:
    return _vector(held(module), kind)


def _vector(tensors: list[Any], kind: str) -> Array:
    parts = [t.detach().to("cpu", torch.float64).numpy().reshape(-1) for t in tensors]
    return np.concatenate([*parts, np.zeros(0)]).astype(kind)


def set_buffers(module: nn.Module, values: Any) -> None:
    """Buffers from one vector (a tensor or an array); whole numbers are rounded."""
    vector = torch.as_tensor(values)
    at = 0
    with torch.no_grad():
        for buffer in held(module):
            part = vector[at : at + buffer.numel()].reshape(buffer.shape).to(buffer.device)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            at += buffer.numel()


def set_weights(module: nn.Module, values: Any) -> None:
    """Parameters from one vector, copied."""
    vector = torch.as_tensor(values)
    at = 0
    with torch.no_grad():
        for p in trainable(module):
            p.copy_(vector[at : at + p.numel()].reshape(p.shape).to(p.device))
            at += p.numel()


class FlatModule:
    """A module on a device whose parameters lie in `weights` and whose gradients are summed in `gradient`."""

    def __init__(self, module: nn.Module, device: torch.device, kind: torch.dtype, gradient: torch.Tensor) -> None:
        """Move the module to the device, and its parameters into one vector; `gradient` is the vector that sums
        go to."""
        self.module = module.to(device)
        self.device = device
        self._parameters = trainable(self.module)
        self.weights = torch.empty(sum(p.numel() for p in self._parameters), dtype=kind, device=device)
        self.gradient = gradient
        self._shared = all(p.dtype == kind for p in self._parameters)
        set_at = 0
        with torch.no_grad():
            for p in self._parameters:
                part = slice(set_at, set_at + p.numel())
                self.weights[part] = p.reshape(-1)
                if self._shared:
                    p.data = self.weights[part].view(p.shape)
                    p.grad = gradient[part].view(p.shape)
                set_at += p.numel()

    def set_weights(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            self.weights.copy_(values)
            if not self._shared:
                set_weights(self.module, self.weights)

    def after_backward(self) -> None:
        """Gradients of parameters that are no views go into the sum."""
        if self._shared:
            return
        at = 0
        with torch.no_grad():
            for p in self._parameters:
                if p.grad is not None:
                    self.gradient[at : at + p.numel()] += p.grad.reshape(-1)
                    p.grad = None
                at += p.numel()
