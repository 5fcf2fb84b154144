"""Principal components of rows with gaps: the observed numbers alone count. Never reads data or a clock."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.every_point import EveryPoint, all_counted
from flegel.algorithms.moments import MOST_COLUMNS
from flegel.algorithms.pca import principal
from flegel.algorithms.rows import row_parts, rows_of
from flegel.algorithms.seeding import some_weighted, weighted_rows
from flegel.algorithms.solve import posterior
from flegel.configuration.active import active
from flegel.core.gaps import GAP, observed, unobserved
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError

LEAST_NOISE = 1e-9
"""Least variance of the noise, as a part of the mean variance of a column."""

START_PASSES = 200
"""Over the rows that θ(0) is trained on, at most."""
START_ENDS_BELOW_GAIN = 1e-9
"""Of the likelihood of these rows, in a pass."""


class Loadings(NamedTuple):
    """θ. x_t − origin_t ≈ loadings_t · (w, 1): the last number of a column's row is its mean. `noise`: the variance of
    what remains, and its least value. `origin` never changes; `total`: what all points weigh."""

    loadings: Array
    noise: Array
    origin: Array
    total: Array


class LatentSums(NamedTuple):
    """s, of each column over the rows that have it, with z = x − origin and v = (w, 1) of the last visit: Σ E[v·vᵀ]
    (lower triangles, of which the last number is how much these rows weigh), Σ z·v and Σ z². `figures`: Σ of
    divergences from the prior, and the weight of the points that were visited."""

    pairs: Array
    cross: Array
    squares: Array
    figures: Array


class LatentChange(NamedTuple):
    """What a visit changes in a point's state: E[v·vᵀ], and the divergence."""

    point: Any
    origin: Array
    changes: Array
    weight: float


class GapPCA(EveryPoint):
    """The k directions along which rows with gaps vary most, by probabilistic PCA: nothing is filled in.

    Model: x = mean + L·w + noise, w of the standard normal distribution, noise of one variance. State of a point: the
    moments of w, given what is observed of the row. Statistics: their sums by column. Update, once every point has been
    visited: a regression for each column. Components are the singular vectors of L. Objective (minimized): minus the
    free energy, which never rises, and ends at minus the log-likelihood of the observed numbers. Without gaps the
    components are those of `PCA`, which needs one pass.
    Reference: M. Tipping, C. Bishop, Probabilistic principal component analysis (1999); A. Ilin, T. Raiko, Practical
    approaches to PCA in the presence of missing values (2010).
    """

    accepts = Accepts(weighted=True, labels="ignored", gaps=True)
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-7, slow_gains=True, auxiliary=("origin", "total"))
    placement = ParameterPlacement(unsharded="a row is explained by the loadings of all its columns")
    figures = ReportedFigures(followed=("noise",))
    hyper_names = HyperNames(also_called={"n_components": "k"})

    k: Annotated[int, Meta(ge=1, le=128, description="number of components")] = 2

    def validate(self, sample: Sample) -> None:
        if not self.k < sample.columns <= MOST_COLUMNS:
            raise UsageError(
                f"GapPCA: k={self.k} components need {self.k + 1} to {MOST_COLUMNS} columns, not {sample.columns}."
            )
        if len(sample.features) == sample.points and (blank := unobserved(observed(sample.features).sum(axis=0))):
            raise UsageError(f"GapPCA: {blank}; leave it out.")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Loadings:
        """Components of the covariances of the sample, each over the rows that have both columns."""
        self.validate(sample)
        rows, weights = weighted_rows(np.asarray(sample.features, np.float64), sample.weights)
        known, mass = observed(rows).astype(np.float64), np.ones(len(rows)) if weights is None else weights
        if not np.any(np.where(known > 0, rows, -np.inf).max(axis=0) > np.where(known > 0, rows, np.inf).min(axis=0)):
            raise UsageError(
                f"GapPCA: what is observed of {len(rows):,} rows of {sample.points:,} does not vary, so there is no "
                "direction to find."
            )
        counts = np.maximum(mass @ known, 1e-300)
        origin = mass @ np.where(known > 0, rows, 0.0) / counts
        weighed = np.where(known > 0, rows - origin, 0.0) * np.sqrt(mass)[:, None]
        known *= np.sqrt(mass)[:, None]
        both = known.T @ known
        values, components = principal(weighed.T @ weighed / np.where(both > 0, both, 1.0), sample.columns)
        usual = max(float(values.mean()), 1e-300)
        noise = max(float(values[self.k :].mean()), LEAST_NOISE * usual)
        lengths = np.sqrt(np.maximum(values[: self.k] - noise, 1e-2 * noise))
        loadings = np.column_stack([components[: self.k].T * lengths, np.zeros(sample.columns)])
        first = Loadings(loadings, np.array([noise, LEAST_NOISE * usual]), origin, np.array([sample.mass]))
        places, own = some_weighted(np.arange(len(rows)), weights, active().starts.gmm_most_trial_rows, rng)
        return self._trained(rows[places], np.ones(len(places)) if own is None else own, first)

    def _trained(self, rows: Array, mass: Array, theta: Loadings) -> Loadings:
        """θ after EM over these rows, where w is scaled and shifted to the standard normal distribution after each
        pass (parameter expansion): many times fewer passes than without, which only all rows at once can do."""
        known, value = observed(rows), np.inf
        z = np.where(known, rows - theta.origin, 0.0)
        sides, number = (mass[:, None] * known).T, mass.sum()
        f, g = np.tril_indices(self.k + 1)
        for _ in range(START_PASSES):
            w, spread, likelihood = _latent(z - theta.loadings[:, -1] * known, known, theta)
            before, value = value, -float(mass @ likelihood)
            if before - value <= START_ENDS_BELOW_GAIN * abs(value):
                break
            v = np.column_stack([w, np.ones(len(w))])
            pairs = v[:, :, None] * v[:, None, :]
            pairs[:, : self.k, : self.k] += spread
            cross = (mass[:, None] * z).T @ v
            theta = self._updated(LatentSums(sides @ pairs[:, f, g], cross, mass @ z**2, np.zeros(2)), theta)
            pairs = pairs[:, : self.k, : self.k]
            mean = mass @ w / number
            scale = np.linalg.cholesky(np.tensordot(mass, pairs, 1) / number - np.outer(mean, mean))
            axes, centre = theta.loadings[:, : self.k], theta.loadings[:, self.k]
            theta = theta._replace(loadings=np.column_stack([axes @ scale, centre + axes @ mean]))
        return theta

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, (self.k + 1) * (self.k + 2) // 2 + 1))

    def initAggregator(self, sample: Sample, parameter: Loadings) -> LatentSums:
        columns, width = parameter.loadings.shape
        pairs = np.zeros((columns, width * (width + 1) // 2))
        return LatentSums(pairs, np.zeros((columns, width)), np.zeros(columns), np.zeros(2))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Loadings, iterationNum: int) -> LatentChange:
        row: Any = dataPoint.features
        k, size = parameter.loadings.shape[1] - 1, dataPoint.state.shape[0]
        matrix, right, changes = np.zeros((k, k)), np.zeros(k), np.empty(size)
        for t in range(row.shape[0]):
            if row[t] < GAP:
                away = row[t] - parameter.origin[t] - parameter.loadings[t, k]
                for f in range(k):
                    right[f] += parameter.loadings[t, f] * away
                    for g in range(f + 1):
                        matrix[f, g] += parameter.loadings[t, f] * parameter.loadings[t, g]
        posterior(matrix, right, parameter.noise[0], changes)
        for i in range(size):
            last = dataPoint.state[i]
            dataPoint.state[i] = changes[i]
            changes[i] = dataPoint.state[i] - last
        return LatentChange(row, parameter.origin, changes, dataPoint.weight)

    def aggregate(self, target: LatentSums, change: LatentChange) -> LatentSums:
        """Replace a row's moments in the sums of its columns."""
        row, origin, changes, weight = change
        width, pairs = target.cross.shape[1], target.pairs.shape[1]
        first = weight * changes[pairs - 1]
        for t in range(row.shape[0]):
            if row[t] < GAP:
                z = row[t] - origin[t]
                for p in range(pairs):
                    target.pairs[t, p] += weight * changes[p]
                for f in range(width):
                    target.cross[t, f] += weight * z * changes[pairs - width + f]
                target.squares[t] += first * z * z
        target.figures[0] += weight * changes[pairs]
        target.figures[1] += first
        return target

    def updateParameter(self, aggregator: LatentSums, oldParameter: Loadings) -> Loadings:
        seen = all_counted(aggregator.figures[1], oldParameter)
        return self._updated(aggregator, oldParameter) if seen else oldParameter

    def _updated(self, aggregator: LatentSums, oldParameter: Loadings) -> Loadings:
        matrices, seen = _symmetric(aggregator.pairs, self.k + 1), aggregator.pairs[:, -1] > 0
        matrices[~seen] = np.eye(self.k + 1)
        solved = np.linalg.solve(matrices, aggregator.cross[:, :, None])[:, :, 0]
        loadings = np.where(seen[:, None], solved, oldParameter.loadings)
        left = _remaining(aggregator, loadings) / max(float(aggregator.pairs[:, -1].sum()), 1e-300)
        least = float(oldParameter.noise[1])
        return oldParameter._replace(loadings=loadings, noise=np.array([max(left, least), least]))

    def objective(self, aggregator: LatentSums, parameter: Loadings) -> float:
        noise, count = float(parameter.noise[0]), float(aggregator.pairs[:, -1].sum())
        left = _remaining(aggregator, parameter.loadings)
        return 0.5 * (count * math.log(2.0 * math.pi * noise) + left / noise) + float(aggregator.figures[0])

    def metrics(self, aggregator: LatentSums, parameter: Loadings) -> dict[str, float]:
        return {"noise": float(parameter.noise[0])}

    def work(self, columns: int) -> float:
        return float(self.k**2 * (columns + self.k / 3.0))

    # -- use -----------------------------------------------------------------------------------------------

    def model(self, parameter: Loadings) -> dict[str, Array]:
        """As `PCA`; variances are those of the model, divided by the number of rows."""
        _, lengths, components = np.linalg.svd(np.asarray(parameter.loadings)[:, : self.k].T, full_matrices=False)
        largest = components[np.arange(self.k), np.abs(components).argmax(axis=1)]
        return {
            "components": components * np.where(largest < 0, -1.0, 1.0)[:, None],
            "centre": parameter.origin + parameter.loadings[:, self.k],
            "explained_variance": lengths**2 + parameter.noise[0],
            "noise_variance": parameter.noise[:1],
        }

    def filled(self, features: Any, parameter: Loadings) -> Array:
        """The rows with what the model expects in place of gaps (NaN), in float64."""
        shape = np.shape(features)
        if len(shape) != 2 or shape[1] != len(parameter.origin) or parameter.loadings.shape[1] != self.k + 1:
            raise UsageError(
                f"GapPCA: the model has {len(parameter.origin)} columns and {parameter.loadings.shape[1] - 1} "
                f"components, the rows have the shape {shape} and k is {self.k}; give the columns that it was trained "
                "on (those without any number were left out), and the same k."
            )
        made = np.empty((rows_of(features), len(parameter.origin)))
        for first, end, rows in row_parts(features, len(parameter.origin)):
            made[first:end] = self._explained(np.asarray(rows, np.float64), parameter)[0]
        return made

    def predict(self, features: Any, parameter: Loadings) -> Array:
        """Coordinates of rows along the components; what is not observed counts as the model expects it."""
        model = self.model(parameter)
        return np.asarray((self.filled(features, parameter) - model["centre"]) @ model["components"].T)

    def evaluate(self, features: Any, labels: Array | None, parameter: Loadings) -> Evaluation:
        value = 0.0
        for _, _, rows in row_parts(features, len(parameter.origin)):
            value -= float(self._explained(np.asarray(rows, np.float64), parameter)[1].sum())
        return Evaluation(value, {"log_likelihood": -value / max(rows_of(features), 1)})

    def _explained(self, rows: Array, theta: Loadings) -> tuple[Array, Array]:
        """Rows without gaps, and the log-likelihood of what is observed of each."""
        known, mean = observed(rows), theta.origin + theta.loadings[:, self.k]
        w, _, likelihood = _latent(np.where(known, rows - mean, 0.0), known, theta)
        return np.where(known, rows, w @ theta.loadings[:, : self.k].T + mean), likelihood


def _latent(z: Array, known: Array, theta: Loadings) -> tuple[Array, Array, Array]:
    """Means and covariances of w for rows about the mean, whose gaps are 0; the log-likelihoods of what is observed."""
    k, noise = theta.loadings.shape[1] - 1, float(theta.noise[0])
    axes = np.asarray(theta.loadings)[:, :k]
    products = (axes[:, :, None] * axes[:, None, :]).reshape(len(axes), -1)
    matrices = (known.astype(np.float64) @ products).reshape(-1, k, k) + noise * np.eye(k)
    right, inverse, count = z @ axes, np.linalg.inv(matrices), known.sum(axis=1)
    w = np.einsum("ifg,ig->if", inverse, right)
    logs = count * math.log(2.0 * math.pi) + (count - k) * math.log(noise) + np.linalg.slogdet(matrices)[1]
    squares = np.einsum("it,it->i", z, z) - np.einsum("ik,ik->i", right, w)
    return w, noise * inverse, -0.5 * (logs + squares / noise)


def _symmetric(pairs: Array, width: int) -> Array:
    """Matrices of lower triangles."""
    (f, g), matrices = np.tril_indices(width), np.empty((len(pairs), width, width))
    matrices[:, f, g] = matrices[:, g, f] = pairs
    return matrices


def _remaining(sums: LatentSums, loadings: Array) -> float:
    """Σ E (z − loadings·v)² over all that is observed."""
    matrices = _symmetric(sums.pairs, loadings.shape[1])
    curved = np.einsum("tf,tfg,tg->", loadings, matrices, loadings, optimize=True)
    return max(float(sums.squares.sum() - 2.0 * (loadings * sums.cross).sum() + curved), 0.0)
