"""θ and reports of a network as they travel, and what a network is to those who compute with it. Types only."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.plan.interval.gradient_noise import GradientNoise


class NetworkWeights(NamedTuple):
    """θ: all parameters as one vector, all buffers as another. The coordinator's own: `optimizer`, its state, and
    `course`, a `TrainingCourse`. `rate` is the learning rate for local steps."""

    weights: Array
    buffers: Array
    rate: Array
    optimizer: Array
    course: Array


class TrainingCourse(NamedTuple):
    """Where training stands: points of the data, steps, samples, noise (`GradientNoise`), loss and accuracy."""

    points: float
    steps: float = 0.0
    samples: float = 0.0
    variance: float = 0.0
    square: float = 0.0
    weight: float = 0.0
    loss: float = 0.0
    accuracy: float = 0.0
    known: float = 0.0
    """Of the running means of loss and accuracy: the weight of what they contain."""

    @property
    def noise(self) -> GradientNoise:
        return GradientNoise(self.variance, self.square, self.weight)

    @property
    def scale(self) -> float | None:
        """The noise scale, no larger than the data: averages over less than a pass cannot tell more."""
        found = self.noise.scale
        return None if found is None else min(found, self.points)


class NetworkSums(NamedTuple):
    """What a worker reports: Σ gradients (or visits·Δθ), Σ visits·buffers, `sums`: loss, visits and right answers; and
    `spread`: reports, Σ‖G_i‖²/n_i over reports, ‖g‖² of the mean gradient of the first micro-batch, its size, and the
    sum of the reporting workers' numbers (1 + the first of their rows)."""

    gradient: Array
    buffers: Array
    sums: Array
    spread: Array


LOSS, VISITS, CORRECT = range(3)
REPORTS, SQUARES, FIRST_SQUARE, FIRST_COUNT, SENDER = range(5)


def no_sums(parameter: NetworkWeights) -> NetworkSums:
    """The report of no samples."""
    return NetworkSums(np.zeros_like(parameter.weights), np.zeros(len(parameter.buffers)), np.zeros(3), np.zeros(5))


class SingleReport(NamedTuple):
    """A report that was an update of its own: who sent it, Σ gradients, and samples."""

    sender: float
    gradient: Array
    samples: float


class ModuleSpec(Protocol):
    """A network as `probing`, `training` and `torch_optimizer` see it; `NeuralNetwork` says what each setting means."""

    precision: Any
    divide: float | None
    shape: list[int] | None
    targets: Any
    optimizer: str
    options: dict[str, Any]
    lr: float
    local: bool
    autocast: bool
    micro_batch: int | None

    def build(self) -> Any: ...

    def loss(self, outputs: Any, targets: Any) -> Any: ...

    def module(self, parameter: NetworkWeights) -> Any: ...
