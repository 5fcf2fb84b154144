"""Non-negative factorization of counts: generalized Kullback–Leibler divergence over the whole matrix.

A class of its own, because nothing but the model is shared with the factorization by squares. Never reads a clock.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.estimators import fitted_factorization
from flegel.algorithms.nmf.rows import observed, start_row
from flegel.configuration.compiled import kernel_settings
from flegel.core import pytree
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.kernels import Kernel
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

LEAST = 1e-12  # lower bound of a predicted entry, in units of the mean entry
ROW_SOLVED_BELOW_GAIN = kernel_settings().nmf_kl_row_solved_below_gain
MOST_SWEEPS = kernel_settings().nmf_most_sweeps


class KLFactors(NamedTuple):
    """θ. An entry is about scale · (w_i · h_j), with `factors` the rows h_j and w_i in the state of point i.

    `scale` is the mean entry of the sample. `rows`: how many there are, the version of H, how many rows are in
    `gathered`, the sums for the next H (Σ w_i·x_ij / (w_i·h_j) a column, and Σ w_i in the last row).
    """

    factors: Array
    scale: Array
    rows: Array
    gathered: Array


class KLSums(NamedTuple):
    """s. ratios, counted (this interval): what goes into `gathered`, and of how many rows. loss: Σ of the rows'
    divergences at their last visit. seen: rows visited.
    """

    ratios: Array
    counted: Array
    loss: Array
    seen: Array


class KLRowChange(NamedTuple):
    """A row's change: the fields of `KLSums`, only for the columns that the row has."""

    columns: Array
    ratios: Array
    mass: Array
    counted: float
    loss: float
    first: bool


class KLNMF(Algorithm):
    """Factorize a non-negative matrix by Kullback–Leibler divergence: x_ij ≈ scale · w_i·h_j with w, h ≥ 0.

    Model: H (`factors`, columns × rank) is θ; w_i is the state of point i, besides its last divergence (−1: never
    visited) and the version of H under which it was counted. Entries that a sparse row does not store are 0.
    A visit takes `sweeps` of Lee and Seung's rule on w_i, each of which is an EM step of a Poisson model. H takes its
    step when every row has been visited under the present H, whatever the barriers are, because a ratio x / (w·h) holds
    for one H only. A row of weight c is the row c·x: its divergence is c times that of x. So the objective,
    Σ x·log(x/y) − x + y over rows seen, never rises from one H to the next.
    Reference: D. Lee, S. Seung, Algorithms for non-negative matrix factorization (2000).
    """

    accepts = Accepts(sparse=True, labels="ignored", weighted=True)
    statistics = Statistics(spent=("ratios", "counted"), lagging=("loss",))  # a visit improves the last one's weights
    learning = Learning(tolerance=1e-6, slow_gains=True, auxiliary=("gathered",))
    placement = ParameterPlacement(
        not_additive="its ratios x / (w·h) hold for one H only, which all rows have to be visited under; `nmf` with "
        "solver=coordinate can be trained by groups"
    )

    rank: Annotated[int, Meta(ge=1, le=512, description="number of factors")] = 20
    sweeps: Annotated[int, Meta(ge=1, description="updates of a row a visit")] = 3
    precision: Annotated[Literal["float32", "float64"], Meta(description="precision of the row factors")] = "float64"

    # -- start ---------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        values = _stored(sample.features)
        if not np.isfinite(values).all():
            raise UsageError("KLNMF: an entry is missing or infinite; use nmf with solver=sgd for missing ones.")
        if len(values) and values.min() < 0:
            raise UsageError(f"KLNMF: entries must not be negative, and {values.min():g} is; shift them first.")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> KLFactors:
        values = _stored(sample.features).astype(np.float64)
        rows = len(sample.features.indptr) - 1 if isinstance(sample.features, Sparse) else len(sample.features)
        scale = float(values.sum() / max(rows * sample.columns, 1)) or 1.0
        factors = (0.5 + rng.random((sample.columns, self.rank))) / np.sqrt(self.rank)
        gathered = np.zeros((sample.columns + 1, self.rank))
        return KLFactors(factors, np.array([scale]), np.array([float(sample.points), 0.0, 0.0]), gathered)

    def continueParameter(self, previous: KLFactors, sample: Sample, rng: np.random.Generator) -> KLFactors:
        """H of before, for these rows; a column that was 0 in all rows before begins anew, since products keep a 0."""
        fresh = self.initParameter(sample, rng)
        if previous.factors.shape != fresh.factors.shape:
            raise UsageError("KLNMF: start= has another rank or number of columns than this job.")
        known = previous.factors.any(axis=1, keepdims=True)
        factors = np.where(known, previous.factors, fresh.factors * float(previous.factors.mean()))
        return fresh._replace(factors=factors, scale=previous.scale)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        state = np.zeros((points, self.rank + 2), self.precision)
        state[:, self.rank :] = -1.0
        return state

    def initAggregator(self, sample: Sample, parameter: KLFactors) -> KLSums:
        return KLSums(np.zeros_like(parameter.gathered), np.zeros(1), np.zeros(1), np.zeros(1))

    # -- training ------------------------------------------------------------------------------------------

    def updateDataPoint(self, dataPoint: DataPoint, parameter: KLFactors, iterationNum: int) -> KLRowChange:
        """Multiplicative updates of the row's weights; the row is counted once for each θ, since its ratios replace the
        old ones."""
        columns, values = observed(dataPoint.features, parameter.scale[0])
        values *= dataPoint.weight
        state, rank = dataPoint.state, parameter.factors.shape[1]
        ratios, weights = np.zeros(columns.shape[0]), np.zeros(rank)
        mass = parameter.factors.sum(axis=0)
        first = state[rank] < 0.0
        old = 0.0 if first else np.float64(state[rank])
        counted = visit(
            parameter.factors, mass, columns, values, state, parameter.rows[1], self.sweeps, weights, ratios
        )
        change = np.zeros((columns.shape[0], rank))
        if counted:
            for t in range(columns.shape[0]):
                change[t] = weights * ratios[t]
        else:
            weights[:] = 0.0
        return KLRowChange(columns, change, weights, counted, np.float64(state[rank]) - old, first)

    def aggregate(self, target: KLSums, change: KLSums | KLRowChange) -> KLSums:
        if len(change) == 4:  # KLSums, a worker's report; numba removes this branch for a KLRowChange
            pytree.add(target, change)
            return target
        columns, ratios, mass, counted, loss, first = change
        for t in range(len(columns)):
            target.ratios[columns[t]] += ratios[t]
        target.ratios[-1] += mass
        target.counted[0] += counted
        target.loss[0] += loss
        target.seen[0] += first
        return target

    def kernel(self, share: Shard) -> Kernel:
        return _kernel(self.sweeps)

    def updateParameter(self, aggregator: KLSums, oldParameter: KLFactors) -> KLFactors:
        points, version, counted = oldParameter.rows
        gathered = oldParameter.gathered + aggregator.ratios
        counted += float(aggregator.counted[0])
        if counted < points:
            return oldParameter._replace(gathered=gathered, rows=np.array([points, version, counted]))
        below = np.where(gathered[-1] > 0, gathered[-1], 1.0)
        factors = oldParameter.factors * (np.maximum(gathered[:-1], 0.0) / below)
        rows = np.array([points, version + 1.0, 0.0])
        return oldParameter._replace(factors=factors, rows=rows, gathered=np.zeros_like(gathered))

    def objective(self, aggregator: KLSums, parameter: KLFactors) -> float | None:
        return max(float(aggregator.loss[0]), 0.0) * float(parameter.scale[0]) if aggregator.seen[0] > 0 else None

    def metrics(self, aggregator: KLSums, parameter: KLFactors) -> dict[str, float]:
        """The divergence of an entry, in the mean of the rows seen, each as of its last visit."""
        value, entries = self.objective(aggregator, parameter), float(aggregator.seen[0]) * len(parameter.factors)
        return {} if value is None else {"mean_divergence": value / entries}

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, features: Any, parameter: KLFactors) -> Array:
        """The weights w of new rows, solved for the finished H."""
        return self.solved(features, parameter)[0]

    def solved(self, features: Any, parameter: KLFactors) -> tuple[Array, float]:
        """The same, and the sum of divergences in units of the scale."""
        factors, scale = np.ascontiguousarray(parameter.factors, dtype=np.float64), float(parameter.scale[0])
        rows = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
        weights = np.zeros((rows, factors.shape[1]))
        if isinstance(features, Sparse):
            return weights, _solve_sparse(features.indptr, features.indices, features.values, factors, scale, weights)
        return weights, _solve_dense(np.ascontiguousarray(features), factors, scale, weights)

    def predict(self, features: Any, parameter: KLFactors) -> Array:
        """Every entry of the rows as the model sees them."""
        return np.asarray(float(parameter.scale[0]) * self.transform(features, parameter) @ parameter.factors.T)

    def model(self, parameter: KLFactors) -> dict[str, Array]:
        return {"factors": parameter.factors, "scale": parameter.scale}

    def to_sklearn(self, parameter: KLFactors, classes: list[str] | None) -> Any:
        return fitted_factorization(
            np.sqrt(float(parameter.scale[0])) * parameter.factors, (0.0, 0.0), 0.0, counts=True
        )

    def evaluate(self, features: Any, labels: Array | None, parameter: KLFactors) -> Evaluation:
        """Rows solved anew for the finished H: the divergence, also per entry."""
        weights, total = self.solved(features, parameter)
        value = total * float(parameter.scale[0])
        return Evaluation(value, {"mean_divergence": value / max(weights.shape[0] * len(parameter.factors), 1)})


def _stored(features: Any) -> Array:
    return np.asarray(features.values if isinstance(features, Sparse) else features).ravel()


# -- one row ------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def divide(factors: Array, columns: Array, values: Array, weights: Array, ratios: Array) -> None:
    """x / y for every stored entry."""
    for t in range(columns.shape[0]):
        about = 0.0
        for f in range(weights.shape[0]):
            about += weights[f] * factors[columns[t], f]
        ratios[t] = values[t] / max(about, LEAST)


@njit(nogil=True, cache=True)
def sweep(factors: Array, mass: Array, columns: Array, weights: Array, ratios: Array) -> None:
    """One step of the multiplicative rule on w."""
    for f in range(weights.shape[0]):
        above = 0.0
        for t in range(columns.shape[0]):
            above += factors[columns[t], f] * ratios[t]
        weights[f] = weights[f] * above / mass[f] if mass[f] > 0.0 else 0.0


@njit(nogil=True, cache=True)
def divergence(mass: Array, values: Array, weights: Array, ratios: Array) -> float:
    """Σ x·log(x/y) − x + y over all columns."""
    value = 0.0
    for f in range(weights.shape[0]):
        value += weights[f] * mass[f]
    for t in range(values.shape[0]):
        if values[t] > 0.0:
            value += values[t] * (np.log(ratios[t]) - 1.0)
    return max(value, 0.0)


@njit(nogil=True, cache=True)
def visit(
    factors: Array,
    mass: Array,
    columns: Array,
    values: Array,
    state: Array,
    version: float,
    sweeps: int,
    weights: Array,
    ratios: Array,
) -> float:
    """A visit; 1 where the row counts for the next H, with `weights` and `ratios`, 0 where it has counted already."""
    rank = weights.shape[0]
    if state[rank + 1] == version:
        return 0.0
    for f in range(rank):
        weights[f] = state[f]
    if state[rank] < 0.0:
        start_row(factors, columns, values, weights)
    divide(factors, columns, values, weights, ratios)
    for _ in range(sweeps):
        sweep(factors, mass, columns, weights, ratios)
        divide(factors, columns, values, weights, ratios)
    for f in range(rank):
        state[f] = weights[f]
    state[rank] = divergence(mass, values, weights, ratios)
    state[rank + 1] = version
    return 1.0


@njit(nogil=True, cache=True)
def solve(factors: Array, mass: Array, columns: Array, values: Array, weights: Array) -> float:
    """The best weights of a new row, in place; its divergence."""
    ratios = np.zeros(columns.shape[0])
    start_row(factors, columns, values, weights)
    divide(factors, columns, values, weights, ratios)
    value = divergence(mass, values, weights, ratios)
    for _ in range(MOST_SWEEPS):
        sweep(factors, mass, columns, weights, ratios)
        divide(factors, columns, values, weights, ratios)
        before, value = value, divergence(mass, values, weights, ratios)
        if before - value <= ROW_SOLVED_BELOW_GAIN * value:
            break
    return value


@njit(nogil=True, cache=True)
def _solve_dense(features, factors, scale, weights):
    """`solve` for each row; the sum of their divergences."""
    mass, columns, total = factors.sum(axis=0), np.arange(features.shape[1]), 0.0
    for i in range(features.shape[0]):
        total += solve(factors, mass, columns, features[i].astype(np.float64) / scale, weights[i])
    return total


@njit(nogil=True, cache=True)
def _solve_sparse(indptr, indices, entries, factors, scale, weights):
    mass, total = factors.sum(axis=0), 0.0
    for i in range(weights.shape[0]):
        lo, hi = indptr[i], indptr[i + 1]
        total += solve(factors, mass, indices[lo:hi], entries[lo:hi].astype(np.float64) / scale, weights[i])
    return total


# -- many rows ----------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _count(factors, mass, columns, values, state, version, sweeps, sums, figures):
    """Visit one row and add its ratios and weights to the sums, unless this θ has counted it already."""
    rank = factors.shape[1]
    weights, ratios = np.zeros(rank), np.zeros(columns.shape[0])
    first = state[rank] < 0.0
    old = 0.0 if first else np.float64(state[rank])
    if visit(factors, mass, columns, values, state, version, sweeps, weights, ratios) > 0.0:
        for t in range(columns.shape[0]):
            for f in range(rank):
                sums[columns[t], f] += weights[f] * ratios[t]
        for f in range(rank):
            sums[-1, f] += weights[f]
        figures[0] += 1.0
        figures[1] += np.float64(state[rank]) - old
        figures[2] += 1.0 if first else 0.0


@njit(nogil=True, cache=True)
def _sparse(rows, factors, scale, state, weights, version, sweeps, sums, figures, start, end, flag):
    indptr, indices, entries = rows
    mass = factors.sum(axis=0)
    for i in range(start, end):
        if raised(flag):
            return i
        lo, hi = indptr[i], indptr[i + 1]
        values = entries[lo:hi].astype(np.float64) / scale
        if weights is not None:
            values *= weights[i]
        _count(factors, mass, indices[lo:hi], values, state[i], version, sweeps, sums, figures)
    return end


@njit(nogil=True, cache=True)
def _dense(features, factors, scale, state, weights, version, sweeps, sums, figures, start, end, flag):
    mass = factors.sum(axis=0)
    columns = np.arange(features.shape[1])
    for i in range(start, end):
        if raised(flag):
            return i
        values = features[i].astype(np.float64) / scale
        if weights is not None:
            values *= weights[i]
        _count(factors, mass, columns, values, state[i], version, sweeps, sums, figures)
    return end


def _kernel(sweeps: int) -> Kernel:
    """The kernel of so many sweeps over the weights of a row at each visit."""

    def run(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        figures = np.zeros(3)
        rest = (
            parameter.factors,
            float(parameter.scale[0]),
            shard.state,
            shard.weights,
            float(parameter.rows[1]),
            sweeps,
            aggregator.ratios,
            figures,
            start,
            min(end, shard.points),
            flag,
        )
        if isinstance(shard.features, Sparse):
            rows = shard.features
            reached = _sparse((rows.indptr, rows.indices, rows.values), *rest)
        else:
            reached = _dense(shard.features, *rest)
        aggregator.counted[0] += figures[0]
        aggregator.loss[0] += figures[1]
        aggregator.seen[0] += figures[2]
        return int(reached)

    return run
