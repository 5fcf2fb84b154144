"""The outer optimizer of local steps: a step of SGD with Nesterov momentum along the mean change of all ranks' weights.

Ranks train by themselves for some steps and then exchange how far their weights have moved; the mean of that is the
gradient of the outer optimizer (A. Douillard et al., DiLoCo, 2023). With a rate of 1 and no momentum the new weights
are the mean of all ranks (local SGD). All ranks make the same outer step from the same bits, so their weights are equal
again. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class OuterOptimizer:
    """Of one module. Weights are equal on all ranks when an interval opens, and again when it closes."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], rate: float, momentum: float) -> None:
        self._parameters = list(parameters)
        self._weights = [p.detach().clone() for p in self._parameters]
        self._optimizer = torch.optim.SGD(self._weights, lr=rate, momentum=momentum, nesterov=momentum > 0.0)
        self.opened = False
        """Weights have moved, or may have, since the last barrier."""

    def open(self) -> None:
        """Before the first local step of an interval: the weights of now are those that all ranks have. They are read
        anew, so that a checkpoint which was loaded meanwhile counts."""
        if not self.opened:
            torch._foreach_copy_(self._weights, [p.detach() for p in self._parameters])
            self.opened = True

    def change(self) -> dict[torch.nn.Parameter, torch.Tensor]:
        """How far the weights of this rank have moved since the interval was opened, with the sign of a gradient."""
        self.open()
        moved = torch._foreach_sub(self._weights, [p.detach() for p in self._parameters])
        return dict(zip(self._parameters, moved, strict=True))

    def step(self, mean: dict[torch.nn.Parameter, torch.Tensor]) -> None:
        """Closes the interval: the outer step, from the weights at its beginning; the module has the result."""
        for weight, parameter in zip(self._weights, self._parameters, strict=True):
            weight.grad = mean[parameter]
        self._optimizer.step()
        for weight, parameter in zip(self._weights, self._parameters, strict=True):
            weight.grad = None
            parameter.detach().copy_(weight)
        self.opened = False

    def of_all_ranks(self, module: torch.nn.Module) -> dict[str, Any]:
        """The state of the module with the weights that all ranks have, not those of this one's local steps."""
        state: dict[str, Any] = module.state_dict()
        if self.opened:
            own = dict(zip(self._parameters, self._weights, strict=True))
            names = module.named_parameters(remove_duplicate=False)
            state.update({name: own[parameter] for name, parameter in names if parameter in own})
        return state

    def state_dict(self) -> dict[str, Any]:
        """The momentum; the same on all ranks. Weights are those of the module at a barrier."""
        return self._optimizer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The interval begins anew with the weights that the module has then."""
        self._optimizer.load_state_dict(state)
        self.opened = False
