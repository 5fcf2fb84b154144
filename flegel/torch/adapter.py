"""From a module class and a loss to an `Algorithm` that workers can rebuild. Trains nothing.

The module travels to workers as source text, as every user's class does: `model` writes a subclass of `NeuralNetwork`
around it. What cannot be rebuilt from source (lambdas, closures, finished modules) is refused with a sentence.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from torch import nn

from flegel.errors import UsageError, nearest
from flegel.loading.class_source import load_module, source_with
from flegel.loading.code_gate import Consent
from flegel.torch.network import NeuralNetwork
from flegel.torch.optimizers import OPTIMIZERS
from flegel.torch.torch_optimizer import optimizer_class

LOSSES = {
    "cross_entropy": "functional.cross_entropy(outputs, targets, reduction='none')",
    "mse": "functional.mse_loss(outputs, targets, reduction='none').flatten(1).mean(1) if outputs.ndim > 1 else "
    "functional.mse_loss(outputs, targets, reduction='none')",
    "l1": "functional.l1_loss(outputs, targets)",
    "huber": "functional.smooth_l1_loss(outputs, targets)",
    "bce": "functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype).reshape(outputs.shape))",
    "nll": "functional.nll_loss(outputs, targets, reduction='none')",
}
"""By name: the loss as an expression."""
SUBCLASS_SOURCE = '''
from torch import nn
from torch.nn import functional
from flegel.torch.network import NeuralNetwork


class {name}(NeuralNetwork):
    """{title}"""

    def build(self):
        return {build}(**self.arguments)

    def loss(self, outputs, targets):
        return {loss}
'''


def model(
    build: Any,
    loss: Any = "cross_entropy",
    optimizer: str | type[torch.optim.Optimizer] = "adam",
    **hyper: Any,
) -> NeuralNetwork:
    """A network to be given to `flegel.run`.

    `build` is a module class, or a function that returns a module; `arguments={...}` are passed to it. `loss` is a name
    (cross_entropy, mse, l1, huber, bce, nll), a function of (outputs, targets) that returns the mean or one number for
    each sample, or a loss of torch.nn. `optimizer` is a name or a class of torch.optim. All other arguments are
    hyper-parameters of `NeuralNetwork`: batch, lr, schedule, epochs, ...
    """
    name = optimizer if isinstance(optimizer, str) else optimizer.__name__
    if name not in OPTIMIZERS:
        optimizer_class(name)
    return network_class(build, loss)(optimizer=name, **hyper)


def network_class(build: Any, loss: Any = "cross_entropy") -> type[NeuralNetwork]:
    """The subclass of `NeuralNetwork` around a module class or a function that builds one."""
    _check_build(build)
    expression, definitions = _loss_expression(loss)
    own = build.__module__.startswith("torch.")
    name = f"{build.__name__}Network"
    text = SUBCLASS_SOURCE.format(name=name, title=_title(build), build=build.__name__, loss=expression)
    if own:
        text = f"from {build.__module__} import {build.__name__}\n{text}"
    try:
        source = source_with([*definitions, *([] if own else [build])], text)
        found = getattr(load_module(source, Consent.PRESENT), name)
    except UsageError as error:
        raise UsageError(f"The module {build.__name__} cannot be rebuilt in workers: {error}") from None
    except Exception as error:
        raise UsageError(
            f"The module {build.__name__} cannot be rebuilt in workers: its source alone raises "
            f"{type(error).__name__}: {error}."
        ) from error
    assert isinstance(found, type) and issubclass(found, NeuralNetwork)
    return found


def _title(build: Any) -> str:
    lines = (inspect.getdoc(build) or "").strip().splitlines()
    return lines[0].replace('"', "'").replace("\\", "") if lines else f"The network {build.__name__}."


def _check_build(build: Any) -> None:
    """Refuse what workers cannot rebuild from source: finished modules, lambdas, and what is defined inside a
    function."""
    if isinstance(build, nn.Module):
        raise UsageError(
            f"A finished module ({type(build).__name__}) cannot be rebuilt in workers; give its class, or a function "
            "that returns it."
        )
    named = isinstance(build, (type, types.FunctionType)) and build.__name__.isidentifier()
    if not named or (isinstance(build, type) and not issubclass(build, nn.Module)):
        raise UsageError(
            f"{build!r} cannot be rebuilt in workers: give a subclass of nn.Module or a function at the top of a file; "
            "arguments go into arguments={...}."
        )
    if "<locals>" in build.__qualname__:
        raise UsageError(
            f"{build.__qualname__} is defined inside a function and cannot be rebuilt in workers; move it to the top "
            "of its file."
        )


def _loss_expression(loss: Any) -> tuple[str, list[Any]]:
    """The loss as an expression of outputs and targets, and the definitions that it needs."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise UsageError(f"No loss is called {loss!r}{nearest(loss, list(LOSSES))}")
        return LOSSES[loss], []
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        loss = loss()
    if isinstance(loss, nn.Module):
        return _loss_module(loss), []
    if isinstance(loss, types.BuiltinFunctionType | types.FunctionType) and loss.__module__ == "torch.nn.functional":
        return f"functional.{loss.__name__}(outputs, targets)", []
    if isinstance(loss, types.FunctionType) and loss.__name__.isidentifier() and "<locals>" not in loss.__qualname__:
        return f"{loss.__name__}(outputs, targets)", [loss]
    raise UsageError(
        f"The loss {loss!r} cannot be rebuilt in workers: give a name ({', '.join(LOSSES)}), a loss of torch.nn, or a "
        "function at the top of a file."
    )


def _loss_module(loss: nn.Module) -> str:
    """A loss of torch.nn with its settings, which are plain attributes."""
    kind = type(loss)
    if getattr(nn, kind.__name__, None) is not kind or list(loss.parameters()):
        raise UsageError(f"The loss {kind.__name__} is none of torch.nn; wrap it in a function at the top of a file.")
    settings = {}
    for name in inspect.signature(kind.__init__).parameters:
        value = getattr(loss, name, None)
        if isinstance(value, torch.Tensor):
            raise UsageError(
                f"The loss {kind.__name__} holds a tensor ({name}), which does not travel to workers; wrap the loss in "
                "a function at the top of a file that makes it."
            )
        if name not in ("self", "size_average", "reduce") and isinstance(value, (bool, int, float, str)):
            settings[name] = value
    if settings.get("reduction") == "sum":
        settings["reduction"] = "mean"  # samples are summed by the kernel
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"nn.{kind.__name__}({given})(outputs, targets)"
