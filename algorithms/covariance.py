"""Covariance matrices, as they are or shrunk towards a multiple of the identity: one pass, exact."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.estimators import fitted_covariance
from flegel.algorithms.moments import MomentModel, Moments, centred, moments_of
from flegel.algorithms.number_range import check_squares
from flegel.algorithms.rows import row_parts, rows_of
from flegel.core.pytree import Array
from flegel.declarations.accepts import Accepts
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError


class FourthMoments(NamedTuple):
    """Moments, and what the variance of second moments follows from; z = row − origin."""

    mass: Any
    sums: Array
    squares: Array
    fourth: Any
    """Σ ‖z‖⁴."""
    third: Array
    """Σ ‖z‖²·z."""


class FittedCovariance(NamedTuple):
    """θ."""

    location: Array
    covariance: Array
    shrinkage: Any
    mass: Any
    scatter: Array
    """Σ (row − mean)·(row − mean)ᵀ, or Σ row·rowᵀ where the rows are centred already."""
    mean: Array
    beta: Any
    """Σ ‖row − location‖⁴."""
    internal_origin: Array


class Covariance(MomentModel):
    """The covariance matrix of rows, (1 − s)·S + s·μ·I, where S is theirs and μ its mean diagonal.

    `shrink`: none (s = 0), fixed (s is `shrinkage`), ledoit-wolf or oas, whose s is estimated from the rows.
    Objective: minus the logarithm of the density of all rows under a Gaussian with that matrix.
    Reference: O. Ledoit, M. Wolf, A well-conditioned estimator for large-dimensional covariance matrices (2004); Y.
    Chen et al., Shrinkage algorithms for MMSE covariance estimation (2010).
    """

    accepts = Accepts(weighted=True, labels="ignored", small_sample=True)
    learning = Learning(
        trivial="columns without covariance", auxiliary=("mass", "scatter", "mean", "beta", "internal_origin")
    )
    placement = ParameterPlacement(
        unsharded="the matrix is inverted as a whole",
        unsent=("location", "covariance", "shrinkage", "mass", "scatter", "mean", "beta"),
    )

    shrink: Annotated[Literal["none", "fixed", "ledoit-wolf", "oas"], Meta(description="how much is shrunk")] = "none"
    shrinkage: Annotated[float, Meta(ge=0, le=1, description="with shrink=fixed: the part of the identity")] = 0.1
    centred: Annotated[bool, Meta(description="the rows have the mean 0, which is not subtracted")] = False

    def validate(self, sample: Sample) -> None:
        super().validate(sample)
        check_squares(sample, type(self).__name__)

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> FittedCovariance:
        self.validate(sample)
        origin = np.zeros(sample.columns) if self.centred else self.origin(sample)
        whole = np.eye(sample.columns)
        return FittedCovariance(origin, whole, 0.0, 0.0, 0.0 * whole, origin, 0.0, origin)

    def contributions(
        self, features: Any, labels: Array, weights: Array | None, parameter: FittedCovariance
    ) -> FourthMoments:
        moments = moments_of(features, None, weights, parameter.internal_origin)
        shifted = features - parameter.internal_origin
        with np.errstate(over="ignore", invalid="ignore"):  # powers beyond float64 are refused by `updateParameter`
            lengths = np.einsum("it,it->i", shifted, shifted)
            weighted = lengths if weights is None else weights * lengths
            return FourthMoments(*moments, float(weighted @ lengths), weighted @ shifted)

    def updateParameter(self, aggregator: FourthMoments, oldParameter: FittedCovariance) -> FittedCovariance:
        origin, mass = oldParameter.internal_origin, max(float(aggregator.mass), 1e-300)
        moments = Moments(*aggregator[:3])
        mean, scatter = centred(moments, origin)
        if not np.isfinite(aggregator.fourth) or not np.isfinite(aggregator.third).all():
            raise UsageError("The fourth powers of these numbers are beyond the range of float64; scale the columns.")
        away, beta = mean - origin, float(aggregator.fourth)
        if self.centred:
            location, scatter = np.zeros_like(mean), np.array(aggregator.squares)
        else:  # ‖z − a‖⁴ in sums of z
            location, length = mean, float(away @ away)
            beta += 4.0 * float(away @ aggregator.squares @ away) - 4.0 * float(away @ aggregator.third)
            beta += 2.0 * length * float(np.trace(aggregator.squares)) - 3.0 * mass * length**2
        shrunk, part = self.shrunk(scatter / mass, mass, beta)
        return FittedCovariance(location, shrunk, part, float(aggregator.mass), scatter, mean, beta, origin)

    def shrunk(self, empirical: Array, mass: float, beta: float) -> tuple[Array, float]:
        """The matrix, and the part of the identity in it."""
        part = {"none": 0.0, "fixed": self.shrinkage}.get(self.shrink)
        if part is None:
            part = ledoit_wolf(empirical, mass, beta) if self.shrink == "ledoit-wolf" else oas(empirical, mass)
        columns = len(empirical)
        return (1.0 - part) * empirical + part * np.trace(empirical) / columns * np.eye(columns), part

    def objective(self, aggregator: FourthMoments, parameter: FittedCovariance) -> float:
        return _minus_log_density(parameter, parameter.scatter, float(aggregator.mass))

    def metrics(self, aggregator: FourthMoments, parameter: FittedCovariance) -> dict[str, float]:
        return {"shrinkage": float(parameter.shrinkage)}

    # -- use -----------------------------------------------------------------------------------------------

    def distances(self, features: Any, parameter: FittedCovariance) -> Array:
        """Squared Mahalanobis distances to the location, one for each row."""
        inverse = np.linalg.pinv(parameter.covariance, hermitian=True)
        found = np.empty(rows_of(features))
        for first, end, rows in row_parts(features, len(parameter.location)):
            away = np.asarray(rows, np.float64) - parameter.location
            found[first:end] = np.einsum("it,it->i", away @ inverse, away)
        return found

    def predict(self, features: Any, parameter: FittedCovariance) -> Array:
        """The same: how unusual each row is."""
        return self.distances(features, parameter)

    def evaluate(self, features: Any, labels: Array | None, parameter: FittedCovariance) -> Evaluation:
        moments = moments_of(np.asarray(features), None, None, parameter.location)
        return Evaluation(_minus_log_density(parameter, moments.squares, float(moments.mass)), {})

    def model(self, parameter: FittedCovariance) -> dict[str, Array]:
        return {"location": parameter.location, "covariance": parameter.covariance}

    def to_sklearn(self, parameter: FittedCovariance, classes: list[str] | None) -> Any:
        return fitted_covariance(parameter, self.shrink)


def ledoit_wolf(empirical: Array, mass: float, beta: float) -> float:
    """The part of the identity with the least expected squared error; `beta`: Σ ‖row − mean‖⁴."""
    columns = len(empirical)
    if columns == 1:
        return 0.0
    squares, mean = float((empirical**2).sum()), float(np.trace(empirical)) / columns
    error = (beta / mass - squares) / (columns * mass)
    away = (squares - columns * mean**2) / columns
    error = min(error, away)
    return 0.0 if error == 0 or away <= 0 else max(error / away, 0.0)


def oas(empirical: Array, mass: float) -> float:
    """The same for Gaussian rows, by the oracle's fixed point."""
    columns = len(empirical)
    if columns == 1:
        return 0.0
    squares, mean = float((empirical**2).mean()), float(np.trace(empirical)) / columns
    below = (mass + 1.0) * (squares - mean**2 / columns)
    return 1.0 if below == 0 else min((squares + mean**2) / below, 1.0)


def _minus_log_density(parameter: FittedCovariance, scatter: Array, mass: float) -> float:
    """Of rows with this Σ (row − location)·(row − location)ᵀ; directions without variance are left out."""
    values, vectors = np.linalg.eigh(parameter.covariance)
    kept = values > max(float(values[-1]), 1e-300) * len(values) * np.finfo(np.float64).eps
    along = np.einsum("tk,tu,uk->k", vectors[:, kept], scatter, vectors[:, kept], optimize=True)
    return float(0.5 * (mass * np.log(2.0 * np.pi * values[kept]).sum() + (along / values[kept]).sum()))
