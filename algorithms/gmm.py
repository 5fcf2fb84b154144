"""Gaussian mixtures by incremental EM: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `gmm_kernel` does the same to whole tiles, fast.
Never reads data or a clock.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Kernel, Sample
from flegel.algorithms.gmm_kernel import CUT, kernel_for
from flegel.algorithms.seeding import numbered, standard_units, start_rows
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.errors import UsageError

LEAST_VARIANCE = 1e-12  # of a column's own variance: what regularization is at least


class Mixture(NamedTuple):
    """θ, and what follows from it, so that a visit need not invert matrices.

    `covariances` and `whiten` have a row per component: d variances, or a lower triangle row by row. `whiten`
    is the inverse Cholesky factor in units of `unit`: ‖whiten·(x − mean)/unit‖² is a squared Mahalanobis
    distance. `level` is what in the log density does not depend on x. `origin` and `unit` never change.
    """

    weights: Array
    means: Array
    covariances: Array
    whiten: Array
    level: Array
    origin: Array
    unit: Array


class Moments(NamedTuple):
    """s: Σ r, Σ r·y, Σ r·y·yᵀ (diagonal or lower triangle) per component, y = (x − origin) / unit; and ΣH."""

    counts: Array
    sums: Array
    squares: Array
    entropy: Array


class Shift(NamedTuple):
    """A point's change: by how much its responsibilities (and, last, its entropy) have changed; and y."""

    changes: Array
    y: Array


class GMM(Algorithm):
    """Fit a mixture of k Gaussians, with diagonal or full covariance matrices.

    Model: p(x) = Σ w_j N(x; μ_j, Σ_j). State of a point: its responsibilities r_1 … r_k and their entropy,
    all 0 before its first visit.
    Statistics: Σ r_j, Σ r_j y, Σ r_j y yᵀ about a fixed origin in fixed units (mean and standard deviation of
    the sample, the latter to a power of two), and the sum of entropies; a visit adds the difference to the
    point's last one.
    M-step: w_j = N_j / N, μ_j the mean, Σ_j the covariance plus `regularization` times a unit's square.
    A component without points stays as it was, with weight 0.
    Objective (maximized): F(Q, θ) of the paper's Eq. (2), Σ_i E_r[log w_z p(x_i | z)] + H(r_i) over visited
    points, exactly, from the statistics. With regularization ε it is that of points blurred by noise of
    variance ε, for which the M-step above is the exact maximum. So F never falls: to about 1e-12 in float64,
    and 1e-7 in float32, whose responsibilities sum to 1 no better.
    Reference: A. Dempster, N. Laird, D. Rubin (1977); R. Neal, G. Hinton (1998).
    """

    layout = "tiles"
    maximize = True

    k: Annotated[int, Meta(ge=1, description="number of components")] = 10
    covariance: Annotated[Literal["diagonal", "full"], Meta(description="shape of a component: diagonal or full")] = (
        "diagonal"
    )
    regularization: Annotated[
        float, Meta(ge=0, description="added to variances, as a fraction of about a column's variance")
    ] = 1e-6
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="means: k-means++, random, first, a .npy file of k rows, or an array of them"),
    ] = "k-means++"

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Mixture:
        rows = np.asarray(sample.features)
        origin, unit = standard_units(rows)
        y = (rows - origin) / unit
        means = (start_rows(rows, self.k, self.init, sample.columns, rng, "GMM") - origin) / unit
        nearest = numbered(y, means)
        within = ((y - means[nearest]) ** 2).mean(axis=0)  # one spread for all: as the nearest means leave it
        spread = np.broadcast_to(np.maximum(within, 1e-3), means.shape)
        covariances = spread.copy()
        if self._full(sample.columns):
            covariances = _packed(np.stack([np.diag(row) for row in spread]))
        return self._mixture(np.full(self.k, 1.0 / self.k), means, covariances, origin, unit)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, self.k + 1))

    def initAggregator(self, sample: Sample, parameter: Mixture) -> Moments:
        return Moments(
            np.zeros_like(parameter.weights),
            np.zeros_like(parameter.means),
            np.zeros_like(parameter.covariances),
            np.zeros(1),
        )

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Mixture, iterationNum: int) -> Shift:
        k, d = parameter.means.shape
        whiten, unit = parameter.whiten, parameter.unit
        y = (dataPoint.features - parameter.origin) / unit
        below = np.empty(k)
        for j in range(k):
            squares, entry = 0.0, 0
            for row in range(d):
                z = 0.0
                for t in range(row if whiten.shape[1] == d else 0, row + 1):
                    z += whiten[j, entry] * (y[t] - (parameter.means[j, t] - parameter.origin[t]) / unit[t])
                    entry += 1
                squares += z * z
            below[j] = parameter.level[j] - 0.5 * squares
        below -= below.max()
        shares = np.exp(below)
        for j in range(k):
            if not below[j] > CUT:
                shares[j] = 0.0
                below[j] = 0.0
        mass = shares.sum()
        changes = np.empty(k + 1)
        changes[:k] = shares / mass
        changes[k] = np.log(mass) - (shares * below).sum() / mass
        for j in range(k + 1):
            new = changes[j]
            changes[j] = new - dataPoint.state[j]
            dataPoint.state[j] = new
        return Shift(changes, y)

    def aggregate(self, target: Moments, change: Shift | Moments) -> Moments:
        if len(change) == len(target):  # a whole report; numba drops this branch when it compiles for a Shift
            return pytree.add(target, change)
        changes, y = change
        k, d = target.sums.shape
        for j in range(k):
            target.counts[j] += changes[j]
            entry = 0
            for row in range(d):
                target.sums[j, row] += changes[j] * y[row]
                for t in range(row if target.squares.shape[1] == d else 0, row + 1):
                    target.squares[j, entry] += changes[j] * y[row] * y[t]
                    entry += 1
        target.entropy[0] += changes[k]
        return target

    def updateParameter(self, aggregator: Moments, oldParameter: Mixture) -> Mixture:
        counts = np.maximum(aggregator.counts, 0.0)
        filled = counts > 1e-8
        n = np.where(filled, counts, 1.0)[:, None]
        old_means = (oldParameter.means - oldParameter.origin) / oldParameter.unit
        means = np.where(filled[:, None], aggregator.sums / n, old_means)
        scatter = aggregator.squares / n - _outer(means, aggregator.squares.shape[1])
        covariances = self._regularized(scatter)
        covariances[~filled] = oldParameter.covariances[~filled] / _outer(
            oldParameter.unit[None, :], covariances.shape[1]
        )
        total = counts.sum()
        weights = counts / total if total > 0 else oldParameter.weights
        return self._mixture(weights, means, covariances, oldParameter.origin, oldParameter.unit)

    def objective(self, aggregator: Moments, parameter: Mixture) -> float:
        d = parameter.means.shape[1]
        filled = aggregator.counts > 1e-8
        counts = aggregator.counts[filled, None]
        at = (parameter.means[filled] - parameter.origin) / parameter.unit
        own = aggregator.sums[filled] / counts
        width = parameter.whiten.shape[1]
        scatter = aggregator.squares[filled] - counts * _outer(own, width) + counts * _outer(own - at, width)
        precision = _precision(parameter.whiten[filled], d)
        distances = (precision * scatter * _twice(d, width)).sum()
        return float(aggregator.counts[filled] @ parameter.level[filled] - 0.5 * distances + aggregator.entropy[0])

    def kernel(self, share: Shard) -> Kernel | None:
        return kernel_for(share, self.k) if share.layout == "tiles" else None

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"GMM: k={self.k} is more than the number of points, {sample.points}")

    def warnings(self, aggregator: Moments, parameter: Mixture) -> list[str]:
        empty = int((aggregator.counts <= 1e-8).sum())
        if not empty:
            return []
        return [f"{empty} of {self.k} components have lost all their points (weight 0); a smaller k may do."]

    def transform(self, features: Any, parameter: Mixture) -> tuple[Array, Array]:
        """Responsibilities of each row, and the logarithm of its density."""
        rows = np.asarray(features)
        k, d = parameter.means.shape
        if rows.ndim != 2 or rows.shape[1] != d:
            raise UsageError(f"GMM: rows of shape {rows.shape} do not fit a model of {d} columns.")
        y = (rows - parameter.origin) / parameter.unit
        means = (parameter.means - parameter.origin) / parameter.unit
        logits = np.empty((len(rows), k))
        for j in range(k):
            whitened = (y - means[j]) @ _square(parameter.whiten[j], d).T
            logits[:, j] = parameter.level[j] - 0.5 * (whitened**2).sum(axis=1)
        top = logits.max(axis=1)
        shares = np.exp(logits - top[:, None])
        mass = shares.sum(axis=1)
        return shares / mass[:, None], top + np.log(mass)

    def predict(self, features: Any, parameter: Mixture) -> Array:
        """The most responsible component of each row, int32."""
        return self.transform(features, parameter)[0].argmax(axis=1).astype(np.int32)

    def evaluate(self, features: Any, labels: Array | None, parameter: Mixture) -> Evaluation:
        densities = self.transform(features, parameter)[1]
        return Evaluation(float(densities.sum()), {"mean_log_likelihood": float(densities.mean())})

    def covariance_matrices(self, parameter: Mixture) -> Array:
        """(k, d, d), in the units of the data."""
        d = parameter.means.shape[1]
        lower = np.stack([_square(row, d) for row in parameter.covariances])
        return lower + np.transpose(lower, (0, 2, 1)) * (1 - np.eye(d))

    # -- packing -------------------------------------------------------------------------------------------

    def _full(self, columns: int) -> bool:
        return self.covariance == "full" and columns > 1

    def _regularized(self, scatter: Array) -> Array:
        """Covariances that are positive definite: blurred, and not below what rounding leaves meaningful."""
        least = max(self.regularization, LEAST_VARIANCE)
        d = _columns_of(scatter.shape[1], self.covariance == "full")
        if scatter.shape[1] == d:
            return np.maximum(scatter, 0.0) + least
        values, vectors = np.linalg.eigh(np.stack([_square(row, d) for row in scatter]), UPLO="L")
        values = np.maximum(values, 0.0) + least
        return _packed(np.einsum("jab,jb,jcb->jac", vectors, values, vectors))

    def _mixture(self, weights: Array, means: Array, covariances: Array, origin: Array, unit: Array) -> Mixture:
        """Everything in the units of the data, from means and covariances in standard units."""
        d = means.shape[1]
        width = covariances.shape[1]
        if width == d:
            whiten = 1.0 / np.sqrt(covariances)
            diagonal = whiten
        else:
            lower = np.linalg.cholesky(np.stack([_symmetric(row, d) for row in covariances]))
            inverse = np.linalg.inv(lower)
            whiten = _packed(inverse)
            diagonal = np.einsum("jtt->jt", inverse)
        level = (
            np.log(np.maximum(weights, 1e-300))
            - 0.5 * d * np.log(2 * np.pi)
            + np.log(diagonal).sum(axis=1)
            - np.log(unit).sum()
            - 0.5 * max(self.regularization, LEAST_VARIANCE) * (whiten**2).sum(axis=1)
        )
        return Mixture(
            weights,
            origin + means * unit,
            covariances * _outer(unit[None, :], width),
            whiten,
            level,
            origin,
            unit,
        )


def _columns_of(width: int, full: bool) -> int:
    return int((np.sqrt(8 * width + 1) - 1) / 2) if full and width > 1 else width


def _packed(matrices: Array) -> Array:
    """(k, d, d) to the lower triangles, row by row."""
    rows, columns = np.tril_indices(matrices.shape[1])
    return np.ascontiguousarray(matrices[:, rows, columns])


def _square(packed: Array, d: int) -> Array:
    """One component's lower triangle (or diagonal) as a d × d matrix with zeros above."""
    if len(packed) == d:
        return np.diag(packed)
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = packed
    return matrix


def _symmetric(packed: Array, d: int) -> Array:
    lower = _square(packed, d)
    return lower + np.tril(lower, -1).T


def _outer(vectors: Array, width: int) -> Array:
    """v vᵀ of each row, packed like covariances of this width."""
    d = vectors.shape[1]
    if width == d:
        return vectors * vectors
    rows, columns = np.tril_indices(d)
    return vectors[:, rows] * vectors[:, columns]


def _twice(d: int, width: int) -> Array:
    """How often an entry of a packed symmetric matrix counts in a sum over the whole matrix."""
    if width == d:
        return np.ones(d)
    rows, columns = np.tril_indices(d)
    return np.where(rows == columns, 1.0, 2.0)


def _precision(whiten: Array, d: int) -> Array:
    """Whitening matrices to precision matrices AᵀA, packed alike."""
    if whiten.shape[1] == d:
        return whiten * whiten
    return _packed(np.stack([(a := _square(row, d)).T @ a for row in whiten]))
