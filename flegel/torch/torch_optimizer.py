"""Any class of `torch.optim` on the coordinator: its state as one vector, so that it is kept and resumed with θ.

The optimizer sees the parameters in their own shapes, because some (Adafactor, Muon) treat matrices in another way than
vectors. Runs in the coordinator's process only.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from flegel.core.pytree import Array
from flegel.errors import UsageError, nearest
from flegel.torch import flat
from flegel.torch.optimizers import OPTIMIZERS
from flegel.torch.records import ModuleSpec

_made: WeakKeyDictionary[ModuleSpec, tuple[Any, list[torch.nn.Parameter]]] = WeakKeyDictionary()


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of torch.optim with this name; a sentence where there is none that can be used."""
    known = {n: c for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    usable = [n for n in known if n not in ("Optimizer", "LBFGS", "SparseAdam")]
    if name not in usable:
        because = " needs several losses a step and" if name == "LBFGS" else ""
        raise UsageError(
            f"The optimizer {name!r}{because} is none that can be used{nearest(name, [*OPTIMIZERS, *usable])}"
        )
    return known[name]


def _make(network: ModuleSpec, shapes: list[tuple[int, ...]], rate: float) -> tuple[Any, list[torch.nn.Parameter]]:
    """An optimizer of torch.optim over parameters of these shapes, and the parameters."""
    kind = torch.float64 if network.precision == "float64" else torch.float32
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=kind)) for shape in shapes]
    options = dict(network.options)
    try:
        made = optimizer_class(network.optimizer)(parameters, lr=rate, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise UsageError(f"torch.optim.{network.optimizer} refuses these options: {error}.") from None
    return made, parameters


def _shapes(network: ModuleSpec, module: Any = None) -> list[tuple[int, ...]]:
    from flegel.torch.probing import fresh_module

    return [tuple(p.shape) for p in flat.trainable(module if module is not None else fresh_module(network, seed=0))]


def start_state(network: ModuleSpec, module: Any) -> Array:
    """The state before the first step, in the form that it has after one: a step with a gradient of zeros shows it."""
    made, parameters = _make(network, _shapes(network, module), network.lr)
    _take_step(made, parameters, network.lr)
    return np.zeros(sum(t.numel() for t in _tensors(made, parameters)) + 1)


def step(network: ModuleSpec, weights: Array, gradient: Array, state: Array, rate: float) -> None:
    """One step; `state` and `weights` are changed in place. The last number of the state is 1 after the first step."""
    if network not in _made:
        _made[network] = _make(network, _shapes(network), rate)
        if state[-1]:
            _take_step(*_made[network], rate)  # makes the tensors of the state, which are then filled
    made, parameters = _made[network]
    at = 0
    with torch.no_grad():
        for p in parameters:
            part = slice(at, at + p.numel())
            p.copy_(torch.from_numpy(weights[part]).reshape(p.shape))
            p.grad = torch.from_numpy(np.array(gradient[part])).reshape(p.shape)
            at += p.numel()
        if state[-1]:
            _fill(made, parameters, state)
    _set_rate(made, rate)
    made.step()
    at = 0
    for p in parameters:
        weights[at : at + p.numel()] = p.detach().numpy().reshape(-1)
        at += p.numel()
    state[:-1] = np.concatenate([t.detach().double().numpy().reshape(-1) for t in _tensors(made, parameters)] or [[]])
    state[-1] = 1.0


def _take_step(made: Any, parameters: list[torch.nn.Parameter], rate: float) -> None:
    for p in parameters:
        p.grad = torch.zeros_like(p)
    _set_rate(made, rate)
    made.step()


def _set_rate(made: Any, rate: float) -> None:
    for group in made.param_groups:
        group["lr"] = rate


def _tensors(made: Any, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """All numbers that the optimizer remembers, in a fixed order."""
    found = []
    for p in parameters:
        for _, value in sorted(made.state[p].items()):
            if isinstance(value, torch.Tensor):
                found.append(value)
    return found


def _fill(made: Any, parameters: list[torch.nn.Parameter], state: Array) -> None:
    at = 0
    for tensor in _tensors(made, parameters):
        tensor.copy_(torch.from_numpy(state[at : at + tensor.numel()]).reshape(tensor.shape))
        at += tensor.numel()
