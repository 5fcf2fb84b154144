"""A neural network as an `Algorithm`: what the coordinator does with gradient sums. Needs torch only when it is used.

Subclass it with `build` and, where it is not cross-entropy, `loss`; `flegel.torch.model` makes such a subclass from a
module class. Workers compute gradients in `training.py`; this file starts θ, takes the steps of the optimizer and
judges progress. It never sees a worker.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Sparse
from flegel.core.sharding import Sharding
from flegel.declarations.accepts import Accepts
from flegel.declarations.kernels import Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError
from flegel.plan.interval.gradient_noise import NoiseEstimate, can_be_told, from_reports, from_two_batches, gain
from flegel.torch.optimizers import OPTIMIZERS, StepSettings, rate_factor
from flegel.torch.records import (
    CORRECT,
    FIRST_COUNT,
    FIRST_SQUARE,
    LOSS,
    REPORTS,
    SENDER,
    SQUARES,
    VISITS,
    NetworkSums,
    NetworkWeights,
    SingleReport,
    TrainingCourse,
    no_sums,
)

BLOCK_WEIGHTS = 4096
"""Weights of a block: gradients are measured block by block, and slices of servers end between blocks."""


def squares_of_blocks(vector: Array) -> Array:
    """The squared length of each block of a vector, in float64: squares of 1e20 are no float32."""
    blocks = (vector[at : at + BLOCK_WEIGHTS].astype(np.float64) for at in range(0, len(vector), BLOCK_WEIGHTS))
    return np.array([float(np.dot(block, block)) for block in blocks])


def require_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError("Networks need PyTorch; install it with: pip install 'flegel[torch]'.")


WHOLE_NETWORK = ParameterPlacement(
    unsharded="a class of torch.optim keeps its state by whole layers, and slices end inside them (sgd, momentum, "
    "nesterov, adam, adamw, rmsprop and adagrad can)",
    unsent=("optimizer", "course"),
    additive=("weights", "buffers"),
    typed=True,
)
BY_BLOCK = replace(
    WHOLE_NETWORK, sharding=Sharding({"weights": 0, "optimizer": 1}, {"gradient": 0}, granule=BLOCK_WEIGHTS)
)


class NeuralNetwork(Algorithm):
    """Train a neural network (PyTorch) by gradient sums over flexible batches.

    θ is one flat vector. A step is that of the optimizer for the mean gradient of all visits since the last barrier.
    Where `batch` is given, the learning rate belongs to batches of that size, and larger ones take larger steps, as
    far as the measured gradient noise says that these are worth it (AdaScale).
    """

    accepts = Accepts(labels="required")
    statistics = Statistics(spent=NetworkSums._fields, per_report=("buffers", "spread"))
    learning = Learning(
        averaged=True,
        auxiliary=NetworkWeights._fields,  # a first update need not rest on 500 numbers for each weight
    )
    kernels = Kernels(backend="network", in_batches=True)

    optimizer: Annotated[
        str, Meta(description="sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, or a class of torch.optim")
    ] = "adam"
    lr: Annotated[float, Meta(gt=0, description="learning rate")] = 1e-3
    batch: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="batch size that lr is meant for; none: lr as it is for any batch"),
    ] = None
    schedule: Annotated[
        Literal["constant", "cosine", "linear", "step"], Meta(description="learning rate over the epochs")
    ] = "constant"
    warmup: Annotated[float, Meta(ge=0, description="epochs in which the learning rate rises to lr")] = 0.0
    epochs: Annotated[float, Meta(gt=0, description="passes over the data after which training ends")] = 10.0
    momentum: Annotated[float, Meta(ge=0, lt=1, description="of momentum and nesterov")] = 0.9
    betas: Annotated[
        list[float], Meta(min_length=2, max_length=2, description="of adam and adamw; the second one of rmsprop")
    ] = [0.9, 0.999]  # noqa: RUF012
    epsilon: Annotated[float, Meta(gt=0, description="of adam, adamw, rmsprop and adagrad")] = 1e-8
    weight_decay: Annotated[float, Meta(ge=0, description="L2 penalty; decoupled for adamw")] = 0.0
    options: Annotated[dict[str, Any], Meta(description="further arguments of a class of torch.optim")] = {}  # noqa: RUF012
    local: Annotated[bool, Meta(description="workers take local steps of gradient descent and report visits·Δθ")] = (
        False
    )
    micro_batch: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="samples of one forward pass, at most; 256 on processors, 4096 on GPUs"),
    ] = None
    shape: Annotated[list[int] | None, Meta(description="shape of one input, such as [1, 28, 28]; found by trying")] = (
        None
    )
    divide: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="divide inputs by this; 255 for pixels, 1 for all else, by default"),
    ] = None
    precision: Annotated[Literal["float32", "float64"], Meta(description="type of θ and of the gradients")] = "float32"
    autocast: Annotated[bool, Meta(description="compute in bfloat16 where that is safe (GPUs)")] = False
    targets: Annotated[
        Literal["auto", "classes", "values"], Meta(description="labels are class numbers, or values; found by trying")
    ] = "auto"
    arguments: Annotated[dict[str, Any], Meta(description="arguments of the module's constructor")] = {}  # noqa: RUF012

    _trouble = ""
    """Why training came to an early end."""
    _last_report: SingleReport | None = None
    """The last update, where it was of one report: the next one of another worker tells how much of it was chance."""

    # -- the network ---------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The `nn.Module`, freshly initialized."""
        raise NotImplementedError(f"{type(self).__name__} must define build, which returns an nn.Module")

    def loss(self, outputs: Any, targets: Any) -> Any:
        """The loss of a batch: its mean as a scalar, or one number for each sample. Cross-entropy by default."""
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets, reduction="none")

    def module(self, parameter: NetworkWeights) -> Any:
        """A ready `nn.Module` with these weights, for evaluation."""
        require_torch()
        from flegel.torch import flat
        from flegel.torch.probing import fresh_module

        made = fresh_module(self)
        flat.set_weights(made, parameter.weights)
        flat.set_buffers(made, parameter.buffers)
        return made.eval()

    # -- start ---------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        """Refuse rows that a network cannot learn from, and find shape and kind of its inputs by trying."""
        require_torch()
        from flegel.torch import probing

        if isinstance(sample.features, Sparse):
            raise UsageError(f"{type(self).__name__} takes dense rows; convert the sparse ones first.")
        if sample.labels is None:
            raise UsageError(f"{type(self).__name__} learns from labels, and these data have none; name their column.")
        probing.learn_inputs(self, sample)

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> NetworkWeights:
        """Weights and buffers of a fresh module, the start of the optimizer, and an empty course."""
        from flegel.torch import flat, probing

        made = probing.fresh_module(self, seed=int(rng.integers(2**31)))
        weights = flat.weights_of(made, self.precision)
        state = self._start_optimizer(made, weights)
        course = np.array(TrainingCourse(float(sample.points)))
        start = np.array([self._rate(TrainingCourse(float(sample.points)), 1.0)])
        return NetworkWeights(weights, flat.buffers_of(made, "float32"), start, state, course)

    def _start_optimizer(self, made: Any, weights: Array) -> Array:
        if self.optimizer in OPTIMIZERS:
            return np.zeros((OPTIMIZERS[self.optimizer].rows, len(weights)), weights.dtype)
        from flegel.torch.torch_optimizer import start_state

        return start_state(self, made)

    def initAggregator(self, sample: Sample, parameter: NetworkWeights) -> NetworkSums:
        return no_sums(parameter)

    # -- training ------------------------------------------------------------------------------------------

    def updateDataPoint(self, dataPoint: DataPoint, parameter: NetworkWeights, iterationNum: int) -> NetworkSums:
        """The specification: the gradient of one sample."""
        from flegel.torch.training import one_sample

        return one_sample(self, dataPoint, parameter)

    @property
    def placement(self) -> ParameterPlacement:  # type: ignore[override]
        return BY_BLOCK if self.optimizer in OPTIMIZERS else WHOLE_NETWORK

    def updateParameter(self, aggregator: NetworkSums, oldParameter: NetworkWeights) -> NetworkWeights:
        before, spread = self._last_report, aggregator.spread
        self._last_report = None
        if not self.local and round(float(spread[REPORTS])) == 1:
            here = SingleReport(float(spread[SENDER]), aggregator.gradient.copy(), float(aggregator.sums[VISITS]))
            self._last_report = here
        summary = self.sliceSummary(aggregator, oldParameter, 0, len(oldParameter.weights))
        return self._updated(aggregator, oldParameter, summary, before)

    def sliceSummary(self, aggregator: NetworkSums, parameter: NetworkWeights, start: int, stop: int) -> Array | None:
        """The squared length of the gradient, block by block, so that cuts between blocks change no bit of it."""
        return None if self.local else squares_of_blocks(aggregator.gradient)

    def updateSlice(
        self, aggregator: NetworkSums, oldParameter: NetworkWeights, start: int, stop: int, summary: Array | None
    ) -> NetworkWeights:
        """One step of the optimizer for the mean gradient. `summary`: what `sliceSummary` gave for all slices together,
        which is the squared length of the summed gradient by blocks; None with local steps. A loss that is not finite
        makes θ not finite, which ends the job with a sentence."""
        return self._updated(aggregator, oldParameter, summary, None)

    def _updated(
        self, aggregator: NetworkSums, oldParameter: NetworkWeights, summary: Array | None, before: SingleReport | None
    ) -> NetworkWeights:
        """As `updateSlice`; `before`: the update before this one, where it was of one report and θ is whole."""
        visits = float(aggregator.sums[VISITS])
        if visits <= 0:
            return oldParameter
        if not math.isfinite(float(aggregator.sums[LOSS])):
            self._trouble = (
                f"The loss became {aggregator.sums[LOSS]} after {int(oldParameter.course[1])} steps; lower lr "
                f"(now {self.lr:g}), or look for inputs that are not finite."
            )
            return oldParameter._replace(weights=np.full_like(oldParameter.weights, np.nan))
        gradient_square = 0.0 if summary is None else float(summary.sum())
        estimate = None if self.local else self._noise_of(aggregator, gradient_square, before)
        course = self._progressed(aggregator, estimate, TrainingCourse(*oldParameter.course))
        mean = aggregator.gradient / aggregator.gradient.dtype.type(visits)
        if self.local:
            mean /= -max(float(oldParameter.rate[0]), 1e-30)  # a step of gradient descent gives θ + Δθ
        weights, state = oldParameter.weights.copy(), oldParameter.optimizer.copy()
        rate = float(oldParameter.rate[0]) if self.local else self._rate(course, visits)
        self._step(weights, mean, state, rate, int(course.steps))
        buffers = oldParameter.buffers
        if len(buffers):
            buffers = (aggregator.buffers / visits).astype(buffers.dtype)
        following = np.array([self._rate(course, visits)])
        return NetworkWeights(weights, buffers, following, state, np.array(course))

    def _step(self, weights: Array, gradient: Array, state: Array, rate: float, number: int) -> None:
        """Take one step of the optimizer in place: one of our own, or a class of torch.optim."""
        if self.optimizer not in OPTIMIZERS:
            from flegel.torch.torch_optimizer import step

            return step(self, weights, gradient, state, rate)
        settings = StepSettings(
            rate, number, self.momentum, (self.betas[0], self.betas[1]), self.epsilon, self.weight_decay
        )
        OPTIMIZERS[self.optimizer].update(weights, gradient, state, settings)
        return None

    def _progressed(
        self, aggregator: NetworkSums, estimate: NoiseEstimate | None, course: TrainingCourse
    ) -> TrainingCourse:
        """The course after one more step; `estimate`: what it tells of the gradient noise.

        Loss and accuracy are running means, which begin at 0: a step replaces a part `fresh` of them, and `known` is
        the part that is replaced so far, by which they are divided where they are read.
        """
        rules = active().networks
        sums = aggregator.sums
        visits = float(sums[VISITS])
        fresh = 1.0 - math.exp(-rules.fades_per_pass * visits / course.points)
        memory = 1.0 - min(0.1, visits / (rules.noise_passes * course.points))
        noise = course.noise.add(estimate, memory)
        return TrainingCourse(
            course.points,
            course.steps + 1.0,
            course.samples + visits,
            noise.variance,
            noise.square,
            noise.weight,
            course.loss + fresh * (float(sums[LOSS]) / visits - course.loss),
            course.accuracy + fresh * (float(sums[CORRECT]) / visits - course.accuracy),
            course.known + fresh * (1.0 - course.known),
        )

    def _noise_of(
        self, aggregator: NetworkSums, gradient_square: float, before: SingleReport | None
    ) -> NoiseEstimate | None:
        """S and ‖G‖² of this step, with `gradient_square` the squared length of ΣG: from the spread between reports;
        of one report from its distance to the last one of another worker, else from its first micro-batch. θ has
        changed a little between two reports, which counts as noise; within a short report there is too little to
        compare, and intervals that follow from it become shorter and shorter."""
        spread = aggregator.spread
        visits, reports = float(aggregator.sums[VISITS]), float(spread[REPORTS])
        if reports >= 2:
            # The sum of squares over counts as one worker more: only their sum enters the estimate.
            rest = [0.0] * (round(reports) - 1)
            share = visits / round(reports)
            return from_reports([float(spread[SQUARES]) * share, *rest], [share] * round(reports), gradient_square)
        if before is not None and before.sender != float(spread[SENDER]) and before.samples > 0:
            pooled = before.gradient + aggregator.gradient
            squares = [float(squares_of_blocks(before.gradient).sum()), gradient_square]
            return from_reports(squares, [before.samples, visits], float(squares_of_blocks(pooled).sum()))
        return from_two_batches(
            float(spread[FIRST_SQUARE]), float(spread[FIRST_COUNT]), gradient_square / visits**2, visits
        )

    def _rate(self, course: TrainingCourse, visits: float) -> float:
        """The learning rate of a step that rests on so many visits."""
        rate = self.lr * rate_factor(self.schedule, course.samples / course.points, self.epochs, self.warmup)
        if self.batch is None or self.local:
            return rate
        scale = course.scale
        larger = math.sqrt(visits / self.batch) if scale is None else gain(visits, self.batch, scale)
        known = OPTIMIZERS.get(self.optimizer)
        return rate * (math.sqrt(larger) if known is None or known.normalizes else larger)

    # -- progress ------------------------------------------------------------------------------------------

    def objective(self, aggregator: NetworkSums, parameter: NetworkWeights) -> float | None:
        course = TrainingCourse(*parameter.course)
        return float(course.loss / course.known) if course.known else None

    def metrics(self, aggregator: NetworkSums, parameter: NetworkWeights) -> dict[str, float]:
        course = TrainingCourse(*parameter.course)
        if not course.known or self.targets == "values":
            return {}
        return {"accuracy": float(course.accuracy / course.known)}

    def noise_scale(self, parameter: NetworkWeights) -> float | None:
        if self.local:
            return None
        course = TrainingCourse(*parameter.course)
        if course.scale is None:
            return math.nan
        return min(course.scale, can_be_told(course.samples / course.steps, course.steps))

    def finished(self, parameter: NetworkWeights) -> str:
        course = TrainingCourse(*parameter.course)
        done = course.samples >= self.epochs * course.points - 0.5
        return f"{self.epochs:g} epochs are done" if done else ""

    def optimality(self, aggregator: NetworkSums, parameter: NetworkWeights) -> float | None:
        """Never known: the loss is a running mean over noisy batches, so its change over a pass says nothing."""
        return math.inf

    def warnings(self, aggregator: NetworkSums, parameter: NetworkWeights) -> list[str]:
        return [self._trouble] if self._trouble else []

    # -- use -----------------------------------------------------------------------------------------------

    def model_files(self, parameter: NetworkWeights) -> dict[str, bytes]:
        """The weights as safetensors, where that is installed."""
        if find_spec("safetensors") is None:
            return {}
        from flegel.torch.weight_files import content

        return {"model.safetensors": content(self.module(parameter))}

    def outputs(self, features: Any, parameter: NetworkWeights) -> Array:
        """What the network computes for rows, in blocks."""
        from flegel.torch.probing import outputs_of

        return outputs_of(self, features, parameter)

    def predict(self, features: Any, parameter: NetworkWeights) -> Array:
        """The likeliest class of each row; the outputs themselves where labels are values."""
        found = self.outputs(features, parameter)
        if self.targets == "values":
            return found
        return found.argmax(axis=1) if found.ndim == 2 and found.shape[1] > 1 else (found.reshape(-1) > 0).astype(int)

    def evaluate(self, features: Any, labels: Array | None, parameter: NetworkWeights) -> Evaluation:
        """Mean loss, and accuracy where labels are classes."""
        from flegel.torch.probing import loss_of

        if labels is None:
            raise UsageError(f"{type(self).__name__}: evaluating needs labels.")
        found = self.outputs(features, parameter)
        mean = loss_of(self, found, labels)
        if self.targets == "values":
            return Evaluation(mean, {"loss": mean})
        right = float(np.mean(self.predict(features, parameter) == np.asarray(labels)))
        return Evaluation(mean, {"loss": mean, "accuracy": right})
