"""Optimizers on one flat vector, as `torch.optim` defines them, and learning rates over time. NumPy alone, no torch.

An optimizer is a function of (weights, gradient, state, settings); its state is a matrix with a row for each quantity
that it remembers, so it is stored and resumed with θ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flegel.core.pytree import Array


@dataclass(frozen=True)
class StepSettings:
    """What one step depends on besides gradient and state. `step` counts from 1."""

    lr: float
    step: int
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0


Update = Callable[[Array, Array, Array, StepSettings], None]
"""Changes weights and state in place; the gradient may be overwritten."""


def _decayed(weights: Array, gradient: Array, settings: StepSettings) -> Array:
    return gradient + settings.weight_decay * weights if settings.weight_decay else gradient


def sgd(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    weights -= settings.lr * _decayed(weights, gradient, settings)


def momentum(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    g, v = _decayed(weights, gradient, settings), state[0]
    v *= settings.momentum
    v += g
    weights -= settings.lr * v


def nesterov(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    g, v = _decayed(weights, gradient, settings), state[0]
    v *= settings.momentum
    v += g
    weights -= settings.lr * (g + settings.momentum * v)


def _adam_step(weights: Array, g: Array, state: Array, settings: StepSettings) -> None:
    (first, second), (beta1, beta2) = state, settings.betas
    first += (1.0 - beta1) * (g - first)
    second *= beta2
    second += (1.0 - beta2) * g * g
    correction1, correction2 = 1.0 - beta1**settings.step, 1.0 - beta2**settings.step
    denominator = np.sqrt(second) / math.sqrt(correction2) + settings.epsilon
    weights -= (settings.lr / correction1) * first / denominator


def adam(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    _adam_step(weights, _decayed(weights, gradient, settings), state, settings)


def adamw(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    weights *= 1.0 - settings.lr * settings.weight_decay
    _adam_step(weights, gradient, state, settings)


def rmsprop(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    """`torch.optim.RMSprop` with alpha = betas[1]."""
    g, squares = _decayed(weights, gradient, settings), state[0]
    squares *= settings.betas[1]
    squares += (1.0 - settings.betas[1]) * g * g
    weights -= settings.lr * g / (np.sqrt(squares) + settings.epsilon)


def adagrad(weights: Array, gradient: Array, state: Array, settings: StepSettings) -> None:
    g, squares = _decayed(weights, gradient, settings), state[0]
    squares += g * g
    weights -= settings.lr * g / (np.sqrt(squares) + settings.epsilon)


@dataclass(frozen=True)
class Optimizer:
    """`rows`: quantities that it remembers for each weight. `normalizes`: a step does not grow with the gradient, so
    its learning rate goes with the root of the batch's gain."""

    update: Update
    rows: int
    normalizes: bool = False


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(sgd, 0),
    "momentum": Optimizer(momentum, 1),
    "nesterov": Optimizer(nesterov, 1),
    "adam": Optimizer(adam, 2, normalizes=True),
    "adamw": Optimizer(adamw, 2, normalizes=True),
    "rmsprop": Optimizer(rmsprop, 1, normalizes=True),
    "adagrad": Optimizer(adagrad, 1, normalizes=True),
}


def rate_factor(schedule: str, passes: float, epochs: float, warmup: float) -> float:
    """The factor of the learning rate after so many passes over the data; `step`: a tenth after each third."""
    if passes < warmup:
        return (passes + 0.02) / (warmup + 0.02)  # not 0 in the very first step
    done = min((passes - warmup) / max(epochs - warmup, 1e-9), 1.0)
    match schedule:
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case "linear":
            return 1.0 - done
        case "step":
            return float(0.1 ** min(int(3.0 * done), 2))
    return 1.0
