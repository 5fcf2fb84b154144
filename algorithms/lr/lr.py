"""Logistic regression, binary and softmax: the model, its statistics and the per-point hooks.

Never looks at a share as a whole; the block kernels are in `lr_kernels`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Kernel, Sample
from flegel.algorithms.lr import kernels
from flegel.algorithms.lr.precondition import descend, plain, scaled
from flegel.algorithms.rows import add_scaled, dot, times
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.errors import UsageError

GAIN = 2.0
"""How far one pass may go, in steps of the bounding quadratic. Every barrier of a pass moves by its share."""
FULL_STEP = 0.8 / GAIN
"""Of a pass between two barriers: beyond 1 / GAIN visits are wasted, and rounds are not always of the same length."""
_NO_LOSS = 1e300  # finite: a parameter is checked to be


class Linear(NamedTuple):
    """θ. One row of `weights` an output: one for two classes, otherwise one a class.

    `penalty` is ½·l2·‖weights‖² of this very θ, `trained` the visits so far, `points` the size of the data;
    `pace` holds a factor on the steps, the best mean loss so far, and the passes since the factor last
    fell; `classes` are the label values in order, and `metric` is fixed at the start (see
    `precondition`).
    """

    weights: Array
    bias: Array
    penalty: Array
    trained: Array
    points: Array
    pace: Array
    classes: Array
    metric: Array


class Gradients(NamedTuple):
    """s: Σ residual·x (last column: the bias), Σ loss, Σ residual², points seen, visits and strangers of now.

    A stranger is a visit to a point whose label is not among the classes.
    """

    gradient: Array
    loss: Array
    squares: Array
    seen: Array
    visits: Array
    unknown: Array


class LR(Algorithm):
    """Logistic regression with L2 penalty, for two or more classes.

    Model: P(class | x) = softmax(W·x + b); two classes need one output, P = 1 / (1 + exp(−w·x − b)). The
    bias is not penalized. State of a point: its last residual (P − target, one number an output) and its
    last loss, −1 before the first visit.
    Statistics: G = Σ residual·x, each point with the residual of its last visit (`memory`, a stochastic
    average gradient: noise vanishes as θ settles, whatever the interval); or, without memory, the sum
    over the interval's visits (the paper's Eq. 1). Both are the full gradient when every barrier covers
    one pass.
    Step: θ ← θ − α·P·(G / n + l2·W) with α = learning_rate · schedule · min(1, 2 · visits / points), so a
    pass goes equally far in ten intervals or in a thousand. P is the inverse of the loss's bounding
    curvature on the sample, which makes the steps independent of scale and offset of the features; they
    lengthen as the mean of residual² shows the bound to be loose.
    Objective: mean over the points seen of log-loss + penalty, each with the θ of its last visit, kept by
    difference. When the interval is one pass, that is the objective of the θ that was trained with.
    Reference: D. Böhning, Multinomial logistic regression algorithm (1992); M. Schmidt, N. Le Roux, F. Bach,
    Minimizing finite sums with the stochastic average gradient (2017).

    Labels are numbers (a reader turns text into class numbers); `classes` lists those that occur, and
    `validate` takes them from the sample where they were not given.
    """

    layout = "tiles"
    supervised = True
    sparse = True

    classes: Annotated[
        list[float] | None, Meta(description="all label values in order; taken from a sample by default")
    ] = None
    l2: Annotated[float, Meta(ge=0, description="strength of the penalty ½·l2·‖weights‖² on the mean loss")] = 0.0
    intercept: Annotated[bool, Meta(description="fit a bias besides the weights")] = True
    memory: Annotated[
        bool,
        Meta(description="remember every point's last gradient; false: plain mini-batch gradient descent"),
    ] = True
    learning_rate: Annotated[float, Meta(gt=0, description="factor on every step; 1 suits the automatic scaling")] = 1.0
    schedule: Annotated[
        Literal["constant", "inverse", "sqrt"],
        Meta(description="learning rate over passes p: constant, 1/(1+decay·p), or 1/√(1+decay·p)"),
    ] = "constant"
    decay: Annotated[float, Meta(ge=0, description="how fast the schedule falls, per pass")] = 0.5
    scaling: Annotated[
        bool, Meta(description="take steps in units of the data's own spread; false: the plain gradient")
    ] = True

    @property
    def spent(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("visits", "unknown") if self.memory else ("gradient", "visits", "unknown")

    @property
    def outputs(self) -> int:
        if self.classes is None:
            raise UsageError("LR: the classes are not known yet; give classes=… or validate a sample first.")
        return 1 if len(self.classes) <= 2 else len(self.classes)

    # -- start ---------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        if sample.labels is None:
            raise UsageError("LR learns from labels, and these data have none; name the label column.")
        labels = np.asarray(sample.labels)
        if labels.dtype.kind not in "fiub":
            raise UsageError("LR: labels must be numbers; let the reader turn text into class numbers.")
        if not np.isfinite(labels.astype(np.float64)).all():
            raise UsageError("LR: a label is missing or infinite; leave such rows out.")
        found = np.unique(labels.astype(np.float64))
        if self.classes is None:
            if len(found) > 1000:
                raise UsageError(f"LR: {len(found)} different labels in a sample look like a quantity, not classes.")
            self.classes = [float(value) for value in found]
        self._check_classes(found)

    def _check_classes(self, found: Array) -> None:
        assert self.classes is not None
        if len(self.classes) == 0 or len(set(self.classes)) != len(self.classes):
            raise UsageError("LR: classes must name at least one label value, and none twice.")
        strange = sorted(set(found.tolist()) - set(self.classes))
        if strange:
            raise UsageError(f"LR: label {strange[0]:g} is not among classes={self.classes}; list it there too.")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Linear:
        self.validate(sample)
        assert self.classes is not None
        columns, bound = sample.columns, self._curvature
        if self.scaling:
            metric = scaled(sample.features, columns, bound, self.l2, self.intercept)
        else:
            metric = plain(columns, self.intercept)
        return Linear(
            weights=np.zeros((self.outputs, sample.columns)),
            bias=np.zeros(self.outputs),
            penalty=np.zeros(1),
            trained=np.zeros(1),
            points=np.array([float(sample.points)]),
            pace=np.array([1.0, _NO_LOSS, 0.0]),
            classes=np.array(self.classes, dtype=np.float64),
            metric=metric,
        )

    @property
    def _curvature(self) -> float:
        """Böhning's bound: the second derivative of the loss by a score is at most this."""
        return 0.25 if self.outputs == 1 else 0.5

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        state = np.zeros((points, self.outputs + 1), np.float32)
        state[:, -1] = -1.0
        return state

    def initAggregator(self, sample: Sample, parameter: Linear) -> Gradients:
        outputs, columns = parameter.weights.shape
        return Gradients(np.zeros((outputs, columns + 1)), *(np.zeros(1) for _ in range(5)))

    # -- training ------------------------------------------------------------------------------------------

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Linear, iterationNum: int) -> Gradients:
        outputs, columns = parameter.weights.shape
        state = dataPoint.state
        gradient, sums = np.zeros((outputs, columns + 1)), np.zeros((5, 1))
        change = Gradients(gradient, sums[0], sums[1], sums[2], sums[3], sums[4])
        target = -1
        for c in range(parameter.classes.shape[0]):
            if dataPoint.label == parameter.classes[c]:
                target = c
        if target < 0:
            change.unknown[0] = 1.0
            return change
        scores = np.zeros(outputs)
        for k in range(outputs):
            scores[k] = dot(dataPoint.features, parameter.weights[k]) + parameter.bias[k]
        loss = residuals(scores, target)  # scores now hold probability − target
        for k in range(outputs):
            before = np.float64(state[k])
            state[k] = scores[k]
            after = np.float64(state[k])
            step = after - before if self.memory else after
            change.squares[0] += after * after - before * before
            add_scaled(dataPoint.features, step, change.gradient[k])
            change.gradient[k, columns] += step
        old = max(np.float64(state[outputs]), 0.0)
        change.seen[0] = 1.0 if state[outputs] < 0.0 else 0.0
        state[outputs] = loss + parameter.penalty[0]
        change.loss[0] = np.float64(state[outputs]) - old
        change.visits[0] = 1.0
        return change

    def kernel(self, share: Shard) -> Kernel:
        return kernels.kernel_for(share, self.memory)

    def updateParameter(self, aggregator: Gradients, oldParameter: Linear) -> Linear:
        self._complain_about_strangers(aggregator, oldParameter)
        visits = float(aggregator.visits[0])
        if visits <= 0:
            return oldParameter
        weights, bias = oldParameter.weights, oldParameter.bias
        gradient = aggregator.gradient / (aggregator.seen[0] if self.memory else visits)
        gradient[:, :-1] += self.l2 * weights
        passes = float(oldParameter.trained[0] / oldParameter.points[0])
        share = visits / float(oldParameter.points[0])
        pace = self._pace(aggregator, oldParameter, share)
        rate = self.learning_rate * self._schedule(passes) * float(pace[0]) * min(1.0, GAIN * share)
        rate *= self._looseness(aggregator, oldParameter)
        move = rate * descend(gradient, oldParameter.metric)
        weights, bias = weights - move[:, :-1], bias - move[:, -1]
        return oldParameter._replace(
            weights=weights,
            bias=bias,
            penalty=np.array([0.5 * self.l2 * float((weights**2).sum())]),
            trained=oldParameter.trained + visits,
            pace=pace,
        )

    def _pace(self, aggregator: Gradients, parameter: Linear, share: float) -> Array:
        """A brake for data that the sample did not foresee: half the steps when the loss rose by a tenth.

        Only a loss over all points can be compared with an earlier one, and what a change of pace did shows a
        pass later, so it is judged once a pass; meanwhile the pace recovers slowly.
        """
        pace, best, since = (float(number) for number in parameter.pace)
        if aggregator.seen[0] < parameter.points[0]:
            return parameter.pace
        mean, since = float(aggregator.loss[0] / aggregator.seen[0]), since + share
        if since >= 1.0 and mean > 1.1 * best:
            return np.array([pace / 2, mean, 0.0])
        return np.array([min(1.0, pace * 1.1 ** min(share, 1.0)), min(best, mean), since])

    def _looseness(self, aggregator: Gradients, parameter: Linear) -> float:
        """By how much the bounding curvature exceeds the mean one, which is E[residual²] where the model
        is right.
        """
        if not self.scaling or aggregator.seen[0] < parameter.points[0]:
            return 1.0
        mean = 1.25 * float(aggregator.squares[0] / aggregator.seen[0])
        return self._curvature / min(max(mean, self._curvature / 10), self._curvature)

    def _schedule(self, passes: float) -> float:
        match self.schedule:
            case "inverse":
                return 1.0 / (1.0 + self.decay * passes)
            case "sqrt":
                return 1.0 / math.sqrt(1.0 + self.decay * passes)
        return 1.0

    def _complain_about_strangers(self, aggregator: Gradients, parameter: Linear) -> None:
        if aggregator.unknown[0] > 0:
            raise UsageError(
                f"LR: {int(aggregator.unknown[0])} points carry labels outside "
                f"classes={parameter.classes.tolist()}, taken from a sample; list all of them with classes=…"
            )

    def efficiency(self, part: float, workers: int) -> float | None:
        """Steps are in proportion to the visits behind them, up to half a pass."""
        return min(1.0, FULL_STEP / part)

    def objective(self, aggregator: Gradients, parameter: Linear) -> float | None:
        return float(aggregator.loss[0] / aggregator.seen[0]) if aggregator.seen[0] > 0 else None

    def warnings(self, aggregator: Gradients, parameter: Linear) -> list[str]:
        if len(parameter.classes) == 1:
            return [f"Every label is {parameter.classes[0]:g}, so the model can only answer that."]
        return []

    # -- use -----------------------------------------------------------------------------------------------

    def probabilities(self, features: Any, parameter: Linear) -> Array:
        """P(class | x), one column a class in the order of `parameter.classes`."""
        scores = times(features, np.asarray(parameter.weights).T) + parameter.bias
        if scores.shape[1] == 1:
            if len(parameter.classes) == 1:
                return np.ones_like(scores)
            scores = np.hstack([np.zeros_like(scores), scores])
        scores -= scores.max(axis=1, keepdims=True)
        likely = np.exp(scores)
        return np.asarray(likely / likely.sum(axis=1, keepdims=True))

    def predict(self, features: Any, parameter: Linear) -> Array:
        """The most likely class of each row, as a label value."""
        return np.asarray(parameter.classes)[self.probabilities(features, parameter).argmax(axis=1)]

    def evaluate(self, features: Any, labels: Array | None, parameter: Linear) -> Evaluation:
        """Mean log-loss + penalty, and accuracy."""
        if labels is None:
            raise UsageError("LR: evaluating needs labels.")
        values = np.asarray(labels, dtype=np.float64)
        order = np.argsort(parameter.classes)
        place = np.searchsorted(parameter.classes, values, sorter=order).clip(max=len(order) - 1)
        target = order[place]
        if not np.array_equal(parameter.classes[target], values):
            raise UsageError("LR: a label is not among the classes that the model was trained with.")
        scores = times(features, np.asarray(parameter.weights).T) + parameter.bias
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        loss = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(scores)), target]
        right = float(np.mean(self.predict(features, parameter) == values)) if len(values) else 0.0
        mean = float(loss.mean()) if len(loss) else 0.0
        return Evaluation(mean + float(parameter.penalty[0]), {"loss": mean, "accuracy": right})


residuals = kernels.residuals
