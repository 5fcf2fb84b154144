"""Naive Bayes: Gaussian, multinomial and Bernoulli, from sums by class: one pass, exact."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.class_labels import MOST_LOSS, class_numbers, label_values, whole_numbers
from flegel.algorithms.estimators import fitted_naive_bayes
from flegel.algorithms.moments import mean_of_sample
from flegel.algorithms.number_range import check_squares
from flegel.algorithms.rows import row_parts, rows_of, times
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

ONE_HOT_CLASSES = 16
"""Up to so many classes sums by class are a product of matrices; beyond, rows are sorted by class first."""


class ClassSums(NamedTuple):
    """Sums over the points of each class, at their weights."""

    counts: Array
    sums: Array
    squares: Array
    """Σ z² of z = row − origin; of counted events there is no need for them, and no row."""
    unknown: Any
    """Points whose label is none of the classes."""
    unfit: Any
    """Numbers that cannot be counted: the sample that is checked before training lacks some."""


class Likelihoods(NamedTuple):
    """θ. Of Gaussians `first` and `second` are means and variances by class; of events the logarithms of their
    probabilities, and their counts."""

    classes: Array
    counts: Array
    log_prior: Array
    first: Array
    second: Array
    internal_origin: Array


class NaiveBayes(Algorithm):
    """Base: columns are independent within a class. Objective: −Σ log P(row, class)."""

    accepts = Accepts(sparse=True, weighted=True, labels="classes")
    statistics = Statistics(constant=True)
    learning = Learning(trivial="the classes alone", auxiliary=("classes", "counts", "internal_origin"))
    placement = ParameterPlacement(
        unsharded="the classes share the smoothing of all columns", unsent=("counts", "log_prior", "first", "second")
    )
    figures = ReportedFigures(shown=("accuracy",))
    _squares = False

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Likelihoods:
        classes, columns = label_values(sample, type(self).__name__), sample.columns
        origin = mean_of_sample(sample) if self._squares else np.zeros(columns)
        zeros = np.zeros((len(classes), columns))
        return Likelihoods(classes, np.zeros(len(classes)), np.zeros(len(classes)), zeros, zeros + 1.0, origin)

    def contributions(self, features: Any, labels: Array, weights: Array | None, parameter: Likelihoods) -> ClassSums:
        target, width = class_numbers(labels, parameter.classes), len(parameter.internal_origin)
        mass = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
        known = target >= 0
        mass, safe, classes = np.where(known, mass, 0.0), np.where(known, target, 0), len(parameter.classes)
        counts = np.bincount(safe, mass, minlength=classes)
        seen = self.seen(features)
        if isinstance(seen, Sparse):
            owner = np.repeat(np.arange(len(labels)), np.diff(seen.indptr))
            place = safe[owner] * width + seen.indices
            sums = np.bincount(place, seen.values * mass[owner], minlength=classes * width).reshape(classes, width)
            return ClassSums(counts, sums, np.zeros((0, width)), float((~known).sum()), self.unfit(seen.values))
        rows = seen - parameter.internal_origin if self._squares else np.asarray(seen, np.float64)
        sums = by_class(rows, safe, mass, classes)
        squares = by_class(rows * rows, safe, mass, classes) if self._squares else np.zeros((0, width))
        return ClassSums(counts, sums, squares, float((~known).sum()), self.unfit(seen))

    def seen(self, features: Any) -> Any:
        """Rows as the model sees them."""
        return features

    def unfit(self, values: Array) -> float:
        """How many of these cannot be counted."""
        return 0.0

    def check_unfit(self, numbers: float) -> None:
        """Raise where some cannot be counted."""
        if numbers:
            raise UsageError(
                f"{type(self).__name__} counts events, and a value is below 0 ({int(numbers):,} at least); "
                "choose other columns."
            )

    def work(self, columns: int) -> float:
        return 8.0 * columns

    def updateParameter(self, aggregator: ClassSums, oldParameter: Likelihoods) -> Likelihoods:
        if aggregator.unknown > 0:
            raise UsageError(
                f"{type(self).__name__}: {int(aggregator.unknown)} points have labels that are no classes."
            )
        self.check_unfit(float(aggregator.unfit))
        counts = aggregator.counts
        with np.errstate(divide="ignore"):
            prior = np.log(counts / max(float(counts.sum()), 1e-300))
        first, second = self.fitted(aggregator, oldParameter)
        return oldParameter._replace(
            counts=counts, log_prior=np.maximum(prior, np.log(1e-300)), first=first, second=second
        )

    def fitted(self, sums: ClassSums, parameter: Likelihoods) -> tuple[Array, Array]:
        """`first` and `second` of θ."""
        raise NotImplementedError(f"{type(self).__name__} must define fitted")

    # -- use -----------------------------------------------------------------------------------------------

    def joint(self, features: Any, parameter: Likelihoods) -> Array:
        """log P(row, class), a column a class."""
        raise NotImplementedError(f"{type(self).__name__} must define joint")

    def scores(self, features: Any, parameter: Likelihoods) -> Array:
        return self.joint(features, parameter)

    def probabilities(self, features: Any, parameter: Likelihoods) -> Array:
        joint = self.joint(features, parameter)
        return np.asarray(np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)))

    def predict(self, features: Any, parameter: Likelihoods) -> Array:
        return np.asarray(whole_numbers(parameter.classes)[self.joint(features, parameter).argmax(axis=1)])

    def to_sklearn(self, parameter: Likelihoods, classes: list[str] | None) -> Any:
        values = whole_numbers(parameter.classes)
        named = np.array([classes[int(c)] for c in values]) if classes else values
        hyper = {"var_smoothing" if name == "smoothing" else name: value for name, value in self.hyper().items()}
        return fitted_naive_bayes(type(self).__name__, parameter, hyper, named)

    def evaluate(self, features: Any, labels: Array | None, parameter: Likelihoods) -> Evaluation | None:
        if labels is None:
            return None
        target, total, right, loss = class_numbers(labels, parameter.classes), 0.0, 0, 0.0
        for first, end, rows in row_parts(features, len(parameter.internal_origin)):
            joint, own = self.joint(rows, parameter), target[first:end]
            mine = joint[np.arange(len(own)), own]
            total -= float(np.where(own < 0, -MOST_LOSS, mine).sum())
            right += int((joint.argmax(axis=1) == own).sum())
            loss += float(np.where(own < 0, MOST_LOSS, np.logaddexp.reduce(joint, axis=1) - mine).sum())
        rows_seen = max(len(target), 1)
        return Evaluation(total, {"accuracy": right / rows_seen, "log_loss": loss / rows_seen})


class GaussianNB(NaiveBayes):
    """Each column is Gaussian within a class. `smoothing` times the largest variance of a column is added to all."""

    accepts = Accepts(weighted=True, labels="classes", small_sample=True)
    _squares = True

    smoothing: Annotated[float, Meta(ge=0, description="part of the largest variance that is added to all")] = 1e-9

    def validate(self, sample: Sample) -> None:
        check_squares(sample, type(self).__name__)

    def fitted(self, sums: ClassSums, parameter: Likelihoods) -> tuple[Array, Array]:
        counts = np.maximum(sums.counts, 1e-300)[:, None]
        away, mass = sums.sums / counts, max(float(sums.counts.sum()), 1e-300)
        mean = sums.sums.sum(axis=0) / mass
        whole = sums.squares.sum(axis=0) / mass - mean**2
        variances = np.maximum(sums.squares / counts - away**2, 0.0) + self.smoothing * max(float(whole.max()), 0.0)
        return parameter.internal_origin + away, np.maximum(variances, 1e-300)

    def objective(self, aggregator: ClassSums, parameter: Likelihoods) -> float:
        away = parameter.first - parameter.internal_origin
        counts = aggregator.counts[:, None]
        squares = aggregator.squares - 2.0 * away * aggregator.sums + counts * away**2
        terms = counts * np.log(2.0 * np.pi * parameter.second) + squares / parameter.second
        return float(0.5 * terms.sum() - aggregator.counts @ parameter.log_prior)

    def joint(self, features: Any, parameter: Likelihoods) -> Array:
        found = np.empty((rows_of(features), len(parameter.classes)))
        for first, end, rows in row_parts(features, 2 * len(parameter.internal_origin)):
            for c, (mean, variance) in enumerate(zip(parameter.first, parameter.second, strict=True)):
                found[first:end, c] = ((np.asarray(rows, np.float64) - mean) ** 2) @ (-0.5 / variance)
        found += parameter.log_prior - 0.5 * np.log(2.0 * np.pi * parameter.second).sum(axis=1)
        return found


class MultinomialNB(NaiveBayes):
    """Rows are counts of events, whose probabilities depend on the class; `alpha` is added to each count."""

    alpha: Annotated[float, Meta(ge=0, description="added to the count of every event in every class")] = 1.0

    def validate(self, sample: Sample) -> None:
        values = sample.features.values if isinstance(sample.features, Sparse) else sample.features
        self.check_unfit(self.unfit(np.asarray(values)))

    def unfit(self, values: Array) -> float:
        return float(np.count_nonzero(values < 0))

    def fitted(self, sums: ClassSums, parameter: Likelihoods) -> tuple[Array, Array]:
        smooth = np.maximum(sums.sums + self.alpha, 1e-300)
        return np.log(smooth) - np.log(smooth.sum(axis=1, keepdims=True)), sums.sums

    def objective(self, aggregator: ClassSums, parameter: Likelihoods) -> float:
        return float(-(aggregator.sums * parameter.first).sum() - aggregator.counts @ parameter.log_prior)

    def joint(self, features: Any, parameter: Likelihoods) -> Array:
        return np.asarray(times(features, parameter.first.T) + parameter.log_prior)


class BernoulliNB(NaiveBayes):
    """Columns are true or false: true above `binarize`."""

    alpha: Annotated[float, Meta(ge=0, description="added to both counts of every column in every class")] = 1.0
    binarize: Annotated[float, Meta(description="a column is true above this")] = 0.0

    def seen(self, features: Any) -> Any:
        if isinstance(features, Sparse):
            return features._replace(values=(features.values > self.binarize).astype(np.float64))
        return (np.asarray(features) > self.binarize).astype(np.float64)

    def validate(self, sample: Sample) -> None:
        if isinstance(sample.features, Sparse) and self.binarize < 0:
            raise UsageError("BernoulliNB: binarize below 0 would make the zeros of sparse rows true; give 0 or more.")

    def fitted(self, sums: ClassSums, parameter: Likelihoods) -> tuple[Array, Array]:
        smooth = np.maximum(sums.sums + self.alpha, 1e-300)
        return np.log(smooth) - np.log(np.maximum(sums.counts + 2.0 * self.alpha, 1e-300))[:, None], sums.sums

    def objective(self, aggregator: ClassSums, parameter: Likelihoods) -> float:
        absent = _log_complement(parameter.first)
        inside = (aggregator.sums * (parameter.first - absent)).sum() + aggregator.counts @ absent.sum(axis=1)
        return float(-inside - aggregator.counts @ parameter.log_prior)

    def joint(self, features: Any, parameter: Likelihoods) -> Array:
        absent = _log_complement(parameter.first)
        return np.asarray(
            times(self.seen(features), (parameter.first - absent).T) + absent.sum(axis=1) + parameter.log_prior
        )


def by_class(rows: Array, target: Array, mass: Array, classes: int) -> Array:
    """Σ mass · row over the rows of each class."""
    if classes <= ONE_HOT_CLASSES:
        shares = np.zeros((classes, len(rows)))
        shares[target, np.arange(len(rows))] = mass
        return np.asarray(shares @ rows)
    order = np.argsort(target, kind="stable")
    found, starts = np.unique(target[order], return_index=True)
    sums = np.zeros((classes, rows.shape[1]))
    sums[found] = np.add.reduceat(rows[order] * mass[order, None], starts, axis=0)
    return sums


def _log_complement(logarithms: Array) -> Array:
    """log(1 − P) of logarithms of P."""
    return np.log(np.maximum(-np.expm1(logarithms), 1e-300))
