"""Mini-batch gradient descent as the FSP paper's Eq. 1 has it, for logistic regression and for factorization.

θ moves by −rate times the mean gradient of the visits since the last barrier, and nothing else. `lr` and `nmf` do
better; these are what they are compared with (docs/published.md).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.core.pytree import Array
from flegel.core.sharding import Sharding
from flegel.declarations.accepts import Accepts
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

NEGATIVE_FACTORS = (
    "sums of changes may make factors negative, which must be 0 or more; "
    "`nmf` with solver=coordinate can be trained by groups"
)
"""Why groups cannot exchange changes of H."""


class IntervalGradients(NamedTuple):
    """s. Gradient and visits are those since the last barrier; each point counts in `loss` with its last visit."""

    gradient: Any
    visits: Any
    loss: Any
    points: Any


class SoftmaxModel(Algorithm):
    """Logistic regression of two or more classes; θ has a row of weights and a bias for each."""

    accepts = Accepts(labels="classes")
    learning = Learning(averaged=True)

    classes: Annotated[int, Meta(ge=2, description="number of classes")] = 2

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.zeros((self.classes, sample.columns + 1))

    def predict(self, features: Any, parameter: Any) -> Any:
        return self._outputs(features, parameter).argmax(axis=1)

    def evaluate(self, features: Any, labels: Array | None, parameter: Any) -> Evaluation:
        """Mean log-loss, and accuracy."""
        if labels is None:
            raise UsageError(f"{type(self).__name__}: evaluating needs labels.")
        outputs, right = self._outputs(features, parameter), np.asarray(labels).astype(np.intp)
        highest = outputs.max(axis=1)
        losses = (
            np.log(np.exp(outputs - highest[:, None]).sum(axis=1)) + highest - outputs[np.arange(len(right)), right]
        )
        accuracy = float((outputs.argmax(axis=1) == right).mean())
        return Evaluation(float(losses.mean()), {"log_loss": float(losses.mean()), "accuracy": accuracy})

    def _outputs(self, features: Any, parameter: Any) -> Array:
        return np.asarray(np.asarray(features) @ parameter[:, :-1].T + parameter[:, -1])


class FactorModel(Algorithm):
    """Factorization of a full matrix, rows as points: x ≈ H·w with H, w ≥ 0. H is θ; w is the state of a point, beside
    its last loss and whether it was visited."""

    accepts = Accepts(labels="ignored")
    learning = Learning(averaged=True)

    rank: Annotated[int, Meta(ge=1, description="number of factors")] = 8

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        mean = max(float(np.mean(np.asarray(sample.features))), 1e-12)
        return np.sqrt(mean / self.rank) * (0.5 + rng.random((sample.columns, self.rank)))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.concatenate([0.5 + rng.random((points, self.rank)), np.zeros((points, 2))], axis=1)

    def evaluate(self, features: Any, labels: Array | None, parameter: Any) -> Evaluation:
        """Mean squared error of an entry, with w solved anew for this H by projected gradients."""
        rows, gram = np.asarray(features, dtype=np.float64), parameter.T @ parameter
        length, wanted = max(float(np.linalg.eigvalsh(gram)[-1]), 1e-12), rows @ parameter
        weights = np.zeros((len(rows), parameter.shape[1]))
        for _ in range(200):  # steps: the error of generated matrices changes by less than 1e-3 of it after them
            weights = np.maximum(weights - (weights @ gram - wanted) / length, 0.0)
        error = float(np.mean((weights @ parameter.T - rows) ** 2))
        return Evaluation(error, {"rmse": float(np.sqrt(error))})


class PlainLR(SoftmaxModel):
    """Logistic regression of two or more classes, whose labels are 0, 1, 2, …; θ has a row of weights and a bias for
    each class. Objective: mean log-loss, each point with the θ of its last visit."""

    placement = ParameterPlacement(sharding=Sharding({"value": 1}, {"gradient": 1}), additive=("value",))  # by column
    statistics = Statistics(spent=("gradient", "visits"))

    rate: Annotated[float, Meta(gt=0, description="length of a step")] = 0.1

    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        """Residuals of all classes, then the loss."""
        x, outputs = dataPoint.features, np.zeros(self.classes + 1)
        for c in range(self.classes):
            outputs[c] = parameter[c, -1]
            for j in range(x.shape[0]):
                outputs[c] += parameter[c, j] * x[j]
        highest = outputs[: self.classes].max()
        total = np.exp(outputs[: self.classes] - highest).sum()
        right = int(dataPoint.label)
        outputs[-1] = np.log(total) + highest - outputs[right]
        for c in range(self.classes):
            outputs[c] = np.exp(outputs[c] - highest) / total
        outputs[right] -= 1.0
        return outputs

    def statistics_of(self, dataPoint: Any, hidden: Any) -> IntervalGradients:
        x = dataPoint.features
        gradient = np.zeros((self.classes, x.shape[0] + 1))
        for c in range(self.classes):
            gradient[c, :-1] = hidden[c] * x
            gradient[c, -1] = hidden[c]
        return IntervalGradients(gradient, 1.0, hidden[-1], 1.0)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter - self.rate * aggregator.gradient / max(aggregator.visits, 1.0)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator.loss / max(aggregator.points, 1.0))


class PlainNMF(FactorModel):
    """Factorize a full matrix. A visit takes one gradient step on w, a barrier one on H. Objective: mean squared error
    of an entry."""

    placement = ParameterPlacement(
        sharding=Sharding({"value": 0}, {"gradient": 0}), not_additive=NEGATIVE_FACTORS
    )  # by column
    statistics = Statistics(spent=("gradient", "visits"), lagging=("loss",))

    rate: Annotated[float, Meta(gt=0, description="length of a step on H")] = 0.05

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> IntervalGradients:
        x, state, rank = dataPoint.features, dataPoint.state, self.rank
        step, loss = np.zeros(rank), 0.0
        gradient = np.zeros(parameter.shape)
        for j in range(x.shape[0]):
            error = -x[j]
            for k in range(rank):
                error += parameter[j, k] * state[k]
            loss += error * error
            for k in range(rank):
                step[k] += error * parameter[j, k]
                gradient[j, k] = error * state[k]
        length = 1e-12
        for k in range(rank):
            for j in range(x.shape[0]):
                length += parameter[j, k] * parameter[j, k]
        change = IntervalGradients(gradient, 1.0, loss - state[rank], 1.0 - state[rank + 1])
        for k in range(rank):
            state[k] = max(state[k] - step[k] / length, 0.0)
        state[rank], state[rank + 1] = loss, 1.0
        return change

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        step = self.rate * aggregator.gradient / max(aggregator.visits, 1.0)
        return np.maximum(oldParameter - step, 0.0)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator.loss / max(aggregator.points, 1.0) / parameter.shape[0])
