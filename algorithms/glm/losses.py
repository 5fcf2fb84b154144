"""Poisson, gamma and Huber regression, and the linear support vector machine: losses of a generalized linear model."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from flegel.algorithm import Sample
from flegel.algorithms.estimators import fitted_glm, fitted_planes
from flegel.algorithms.glm.dense import CompiledLoss
from flegel.algorithms.glm.glm import Derivatives, GeneralizedLinear, LinearFit, Slopes
from flegel.algorithms.glm.places import GAMMA, GUARDED_HUBER, HINGE, HUBER, MOST_SCORE, POISSON
from flegel.algorithms.rows import rows_of
from flegel.core.pytree import Array
from flegel.declarations.figures import ReportedFigures
from flegel.errors import UsageError
from flegel.wording import setting

L1 = Meta(ge=0, description="strength of the penalty l1·‖weights‖₁ on the mean loss, which makes weights 0")
LEAST_POSITIVE = 5e-324
"""The least float64 above 0."""


def log_mean(shares: Array, exponents: Array) -> float:
    """log Σ share · exp(exponent), without overflow."""
    top = float(exponents.max(initial=-1e300))
    return top + float(np.log(max(float(shares @ np.exp(exponents - top)), 1e-300)))


ALL_ZERO = (
    "Every count is 0: the model can only answer 0. The intercept would be minus infinity, and is a number far below 0."
)
VANISHED_MEAN = 1e-100
"""Of all counts: no table of numbers has one but 0."""
VANISHED_SCALE = 1e-6
"""Of the mean loss: the scale of a fit with residuals is a part of it."""


class LogLink(GeneralizedLinear):
    """Base of models of positive means: exp(w·x + b)."""

    figures = ReportedFigures(shown=("deviance",))

    longest_step = 2.0
    lowest_loss = 0.0

    l1: Annotated[float, L1] = 0.0

    def start(self, labels: Array, shares: Array, offsets: Array) -> tuple[float, Array]:
        """The bias with the right mean: of labels, and of exp(offset + bias)."""
        return float(np.log(max(float(shares @ labels), 1e-300))) - log_mean(shares, offsets), np.zeros(0)

    def answers(self, scores: Array) -> Array:
        return np.asarray(np.exp(np.clip(scores, -MOST_SCORE, MOST_SCORE)))

    def figures_of(self, answers: Array, labels: Array) -> dict[str, float]:
        losses = self.derivatives(np.log(np.maximum(answers, 1e-300)), labels, np.zeros(0)).loss
        return {"deviance": 2.0 * float(losses.mean()) if len(labels) else 0.0}

    def to_sklearn(self, parameter: LinearFit, classes: list[str] | None) -> Any:
        return fitted_glm(f"{type(self).__name__}Regressor", {"alpha": self.l2}, parameter)


class Poisson(LogLink):
    """Counts with the mean exp(w·x + b). Loss: half the deviance, μ − y + y·log(y / μ). An offset is the logarithm of
    what the counts are in proportion to (`offset`, a column)."""

    rule = "a label is below 0, and counts are not"

    def fitting(self, labels: Array) -> Array:
        return np.asarray(labels >= 0.0)

    def optimality(self, aggregator: Slopes, parameter: LinearFit) -> float:
        return 0.0 if self._vanished(aggregator, parameter) else super().optimality(aggregator, parameter)

    def warnings(self, aggregator: Slopes, parameter: LinearFit) -> list[str]:
        return [ALL_ZERO] if self._vanished(aggregator, parameter) else super().warnings(aggregator, parameter)

    def _vanished(self, aggregator: Slopes, parameter: LinearFit) -> bool:
        """Whether all rows have been visited and all means are 0, as where every count is: then the mean of the sample
        is where the search begins. The curvature by the bias is the sum of means."""
        columns, found = len(parameter.weights), np.asarray(aggregator.curvature)
        means = float(found[columns if len(found) > 1 else 0, columns])
        seen = float(aggregator.seen) >= float(parameter.internal_search[1])
        started = float(parameter.internal_search[2]) < VANISHED_MEAN
        return bool(self.intercept and seen and started and means <= VANISHED_MEAN * float(aggregator.mass))

    def compiled_loss(self) -> CompiledLoss | None:
        return CompiledLoss(POISSON, least_label=0.0) if type(self).derivatives is Poisson.derivatives else None

    def derivatives(self, scores: Array, labels: Array, shape: Array) -> Derivatives:
        scores = np.clip(scores, -MOST_SCORE, MOST_SCORE)
        mean = np.exp(scores)
        known = labels * np.log(np.where(labels > 0, labels, 1.0))
        return Derivatives(mean - labels + known - labels * scores, mean - labels, mean)


class Gamma(LogLink):
    """Positive quantities with the mean exp(w·x + b). Loss: half the deviance, y / μ − 1 − log(y / μ)."""

    rule = "a label is not above 0, as quantities of a gamma model are"

    def fitting(self, labels: Array) -> Array:
        return np.asarray(labels > 0.0)

    def compiled_loss(self) -> CompiledLoss | None:
        return CompiledLoss(GAMMA, least_label=LEAST_POSITIVE) if type(self).derivatives is Gamma.derivatives else None

    def start(self, labels: Array, shares: Array, offsets: Array) -> tuple[float, Array]:
        """The bias with which the mean of label / exp(offset + bias) is 1."""
        return log_mean(shares * labels, -offsets), np.zeros(0)

    def derivatives(self, scores: Array, labels: Array, shape: Array) -> Derivatives:
        scores = np.clip(scores, -MOST_SCORE, MOST_SCORE)
        ratio = labels * np.exp(-scores)
        return Derivatives(ratio - 1.0 - np.log(np.maximum(labels, 1e-300)) + scores, 1.0 - ratio, ratio)


class Huber(GeneralizedLinear):
    """Linear regression that outliers hardly change: residuals above epsilon scales count linearly, not squared.

    Loss: σ + r²/σ where |r| ≤ epsilon·σ, else σ + 2·epsilon·|r| − epsilon²·σ; the scale σ is fitted too, as in
    scikit-learn. Reference: A. Owen, A robust hybrid of lasso and ridge regression (2006).
    """

    figures = ReportedFigures(shown=("mae",))
    shapes = 1
    lowest_loss = 0.0
    guards = True

    epsilon: Annotated[float, Meta(ge=1, description="residuals above so many scales count linearly")] = 1.35

    def start(self, labels: Array, shares: Array, offsets: Array) -> tuple[float, Array]:
        left = labels - offsets
        middle = float(np.median(left))
        scale = 1.5 * float(np.median(np.abs(left - middle)))
        return middle, np.array([scale or float(left.std()) or 1.0])

    def compiled_loss(self) -> CompiledLoss | None:
        if type(self).derivatives is not Huber.derivatives:
            return None
        return CompiledLoss(HUBER, self.epsilon, shapes=1, guarded_kind=GUARDED_HUBER)

    def derivatives(self, scores: Array, labels: Array, shape: Array) -> Derivatives:
        scale, epsilon = max(float(shape[0]), 1e-150), self.epsilon
        away = labels - scores
        inside = np.abs(away) <= epsilon * scale
        ratio = np.where(inside, away / scale, 0.0)
        loss = scale + np.where(inside, away * ratio, 2.0 * epsilon * np.abs(away) - epsilon**2 * scale)
        slope = np.where(inside, -2.0 * ratio, -2.0 * epsilon * np.sign(away))
        by_scale = 1.0 - np.where(inside, ratio**2, epsilon**2)
        bend = np.where(inside, 2.0 / scale, 0.0)
        return Derivatives(loss, slope, bend, by_scale, ratio * bend, ratio**2 * bend)

    def guarded(self, found: Derivatives, scores: Array, labels: Array, shape: Array) -> Derivatives:
        """The parabola that lies above the loss of an outlier, which has no second derivative, and touches it."""
        reach = self.epsilon * max(float(shape[0]), 1e-150)
        size = np.abs(labels - scores)
        return found._replace(bend=np.where(size <= reach, found.bend, 2.0 * self.epsilon / np.maximum(size, reach)))

    def warnings(self, aggregator: Slopes, parameter: LinearFit) -> list[str]:
        if float(parameter.shape[0]) > VANISHED_SCALE * float(aggregator.loss) / max(float(aggregator.mass), 1e-300):
            return super().warnings(aggregator, parameter)
        return [
            "The scale went to 0: more than half of the rows are fitted exactly, as with nearly as many columns as "
            f"rows, and the model may be short of its minimum; use {setting('l2', 0.1)} or more, or fewer columns."
        ]

    def to_sklearn(self, parameter: LinearFit, classes: list[str] | None) -> Any:
        model = fitted_glm("HuberRegressor", {"epsilon": self.epsilon, "alpha": self.l2}, parameter)
        model.scale_ = float(parameter.shape[0])
        return model


class LinearSVM(GeneralizedLinear):
    """The plane between two classes, with squared hinge loss max(0, 1 − y·(w·x + b))², y = ±1; labels above `boundary`
    are +1, others −1."""

    figures = ReportedFigures(shown=("accuracy",))
    lowest_loss = 0.0

    l1: Annotated[float, L1] = 0.0
    boundary: Annotated[float, Meta(description="labels above it are +1, others -1")] = 0.5

    def check_words(self, sample: Sample) -> None:
        words = sample.class_names
        if words is not None and len(words) > 2:
            raise UsageError(
                f"LinearSVM divides two classes, and the labels are {len(words)} words "
                f"({', '.join(map(repr, words[:3]))}{', …' if len(words) > 3 else ''}); leave rows out, or use lr."
            )

    def validate(self, sample: Sample) -> None:
        super().validate(sample)
        labels = np.unique(np.asarray(sample.labels, np.float64))
        above, whole = labels > self.boundary, rows_of(sample.features) == sample.points
        if (above.all() or not above.any()) and (
            whole or len(labels) > 1
        ):  # one label of a sample may have rare others
            between = setting("boundary", float(labels[:2].mean()))
            raise UsageError(
                f"LinearSVM divides two classes, and all labels ({', '.join(f'{label:g}' for label in labels[:3])}"
                f"{', …' if len(labels) > 3 else ''}) are on one side of boundary={self.boundary:g}; "
                + (f"give one between them ({between})." if len(labels) > 1 else "name another label column.")
            )

    def compiled_loss(self) -> CompiledLoss | None:
        return CompiledLoss(HINGE, self.boundary) if type(self).derivatives is LinearSVM.derivatives else None

    def derivatives(self, scores: Array, labels: Array, shape: Array) -> Derivatives:
        side = np.where(labels > self.boundary, 1.0, -1.0)
        short = np.maximum(1.0 - side * scores, 0.0)
        return Derivatives(short**2, -2.0 * side * short, 2.0 * (short > 0.0))

    def answers(self, scores: Array) -> Array:
        """1 on the side of +1, else 0."""
        return (scores > 0.0).astype(np.int64)

    def figures_of(self, answers: Array, labels: Array) -> dict[str, float]:
        return {"accuracy": float((answers == (labels > self.boundary)).mean()) if len(labels) else 0.0}

    def to_sklearn(self, parameter: LinearFit, classes: list[str] | None) -> Any:
        return fitted_planes(parameter, float(parameter.internal_search[1]), self.l2)
