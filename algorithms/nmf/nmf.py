"""Non-negative matrix factorization: the model, its statistics and the per-point hooks, for two solvers.

Never looks at a shard as a whole; the block kernels are in `kernels.py` (observed entries) and `whole_kernel.py` (whole
matrices), the arithmetic of one row in `rows.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.estimators import fitted_factorization
from flegel.algorithms.nmf import kernels
from flegel.algorithms.nmf.extrapolation import extrapolated
from flegel.algorithms.nmf.rows import (
    EPSILON,
    add_products,
    dot,
    errors,
    fold_in,
    join_columns,
    observed,
    settled,
    solve_row,
    split_row,
    start_row,
    step_columns,
    whole_row,
)
from flegel.algorithms.nmf.whole_kernel import WholeMatrix, descend_columns
from flegel.algorithms.plain_gradient import NEGATIVE_FACTORS
from flegel.algorithms.rows import rows_of
from flegel.algorithms.seeding import polishing_passes
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.gaps import observed as known_numbers
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard, Sparse, make_shard
from flegel.core.sharding import Sharding
from flegel.core.stop_flag import new_flag
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import Kernel, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

ALSO_CALLED_RANK = {"k": "rank", "n_components": "rank", "components": "rank"}


class Factors(NamedTuple):
    """θ. An entry is about scale · (w_i · h_j), with `factors` the rows h_j and w_i in the state of point i.

    `energy` is what AdaGrad has gathered of every column (solver sgd), `scale` the mean entry of the sample:
    all training is in units of it, so that large and tiny ratings behave alike. `rows`: how many there are,
    how many had been seen when this H was made, and 1 once all were; then `held` of the statistics.
    `penalty`: the regularization in force: on squares of rows, of columns, on sums of rows, of columns. `descended`
    (coordinate): H as coordinate descent left it, before it was extrapolated; `pace`: Nesterov's t, and the objective
    with this H (0: none yet).
    """

    factors: Array
    energy: Array
    scale: Array
    rows: Array
    penalty: Array
    descended: Array
    pace: Array


class FactorSums(NamedTuple):
    """s. What a field means depends on the solver; fields that it does not need are empty.

    moves: sgd: how far this interval moved h_j; multiplicative: Σ x_ij·w_i. gram (multiplicative): Σ
    w_i·w_iᵀ.
    energy, progress, spread (sgd, this interval): Σ of squared gradients, Σ of step lengths and its
    square, a column.
    counts (sgd): entries seen, a column. loss: see `NMF`; then (sgd) Σ n_i·‖w_i‖² and Σ n_i, where row i has n_i
    entries, (else) Σ of all weights. seen: rows visited. A row counts as often as it weighs.
    held (sgd): Σ of squared errors of the entries held out, each at its row's last visit, and how many these are.
    """

    moves: Array
    gram: Array
    energy: Array
    progress: Array
    spread: Array
    counts: Array
    loss: Array
    seen: Array
    held: Array


class RowChange(NamedTuple):
    """A row's change: the fields of `FactorSums`, only for the columns that the row has."""

    columns: Array
    moves: Array
    gram: Array
    energy: Array
    progress: Array
    loss: Array
    first: float
    held: Array


LAGGING = ("moves", "gram", "loss", "held")
"""A visit improves the weights of the last one."""
STEPS = Statistics(spent=("moves", "energy", "progress", "spread"), lagging=LAGGING)
SUMS = Statistics(lagging=LAGGING)
OPTIMIZER_FIELDS = ("descended", "pace")
BY_STEPS = Learning(tolerance=1e-5, trivial="factors of zero", auxiliary=OPTIMIZER_FIELDS)
BY_SWEEPS = Learning(tolerance=1e-6, slow_gains=True, trivial="factors of zero", auxiliary=OPTIMIZER_FIELDS)
"""Coordinate descent gains little in a pass when there is still 0.1 % to gain."""
BY_COLUMN = ParameterPlacement(
    sharding=Sharding(
        {"factors": 0, "energy": 0}, dict.fromkeys(("moves", "energy", "progress", "spread", "counts"), 0)
    ),
    not_additive=NEGATIVE_FACTORS,
    unsent=OPTIMIZER_FIELDS,
)
WHOLE = ParameterPlacement(
    unsharded="solver=coordinate and solver=multiplicative look at the objective of all of H; use solver=sgd",
    unsent=OPTIMIZER_FIELDS,
)


class NMF(Algorithm):
    """Factorize a non-negative matrix, rows as points: x_ij ≈ scale · w_i·h_j with w, h ≥ 0.

    Model: H (`factors`, columns × rank) is θ, w_i is the state of point i, besides its last loss (−1:
    never visited).
    A row that was never visited begins with equal weights that fit it best, and is solved at once where H has
    seen every row before (after the loss of a worker or of states; docs/adr/resuming-from-a-commit.md); one
    without entries keeps weights that predict the mean.

    solver=sgd: only observed entries count (the stored ones of a sparse row, all but gaps of a dense one).
    A visit solves w_i for the H at hand (coordinate descent), then takes one AdaGrad step on h_j for
    every entry, in place, on the worker's own copy of H. The barrier joins the copies (see
    docs/adr/nmf-updates.md). Objective:
    Σ [e_ij² + scale²·regularization·(‖w_i‖² + ‖h_j‖²)] over the entries of rows seen, where e and w are those of
    the row's last visit, with the H that it saw, and h_j is the present one. Kept by difference.

    solver=coordinate: the whole matrix; entries that a sparse row does not store are 0. A visit takes `sweeps` of
    coordinate descent on w_i, a barrier as many on H. solver=multiplicative: the same by Lee and Seung's rule, which
    needs more passes.
    Statistics Σ x·w and Σ w·wᵀ are kept by difference, so the objective, ‖X − W·Hᵀ‖² plus the penalty, is
    that of the present W and H over rows seen, and never rises. With m columns, n rows and r = `l1_ratio` the penalty
    is scale² times m·regularization·((1 − r)·‖W‖² + 2·r·ΣW) + n·column_regularization·((1 − r)·‖H‖² + 2·r·ΣH).
    H waits until every row has been seen: one made of the first few rows would fit those only, and lead to an optimum
    up to 9 % worse.

    Reference: D. Lee, S. Seung, Algorithms for non-negative matrix factorization (2000); A. Cichocki,
    A.-H. Phan, Fast local algorithms for large scale NMF (2009); J. Duchi et al., Adaptive subgradient
    methods (2011).
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored", ratings=True, gaps=True)
    state = HiddenState(kept=True, remade=True)
    kernels = Kernels(compiled_apart=tuple({"solver": solver} for solver in ("sgd", "coordinate", "multiplicative")))
    figures = ReportedFigures(followed=("rmse",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_RANK)

    rank: Annotated[int, Meta(ge=1, le=512, description="number of factors")] = 20
    solver: Annotated[
        Literal["sgd", "coordinate", "multiplicative"],
        Meta(description="sgd: observed entries only (ratings); coordinate or multiplicative: the whole matrix"),
    ] = "sgd"
    regularization: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="penalty per entry on the squared length of its row and column factors, which are in units of "
            "the mean entry; default: 0.03 where entries are missing (sgd), else 0"
        ),
    ] = None
    column_regularization: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="the penalty on column factors, where it is not that on row factors (not sgd)"),
    ] = None
    l1_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="part of the penalties that is on sums of factors, not on squares (not sgd)"),
    ] = 0.0
    holdout: Annotated[
        float,
        Meta(ge=0, lt=1, description="part of the entries that is not trained on; their error is a metric (sgd)"),
    ] = 0.0
    learning_rate: Annotated[float, Meta(gt=0, description="length of AdaGrad's steps on H (sgd)")] = 0.4
    sweeps: Annotated[int, Meta(ge=1, description="coordinate descent sweeps a visit (not multiplicative)")] = 3
    precision: Annotated[
        Literal["float32", "float64"], Meta(description="precision of the row factors and the arithmetic")
    ] = "float32"

    @property
    def statistics(self) -> Statistics:  # type: ignore[override]
        return STEPS if self.solver == "sgd" else SUMS

    @property
    def learning(self) -> Learning:  # type: ignore[override]
        return BY_STEPS if self.solver == "sgd" else BY_SWEEPS

    @property
    def placement(self) -> ParameterPlacement:  # type: ignore[override]
        return BY_COLUMN if self.solver == "sgd" else WHOLE

    # -- start ---------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        values = _values(sample.features)
        if len(values) and values.min() < 0:
            raise UsageError(f"NMF: entries must not be negative, and {values.min():g} is; shift them first.")
        stored = sample.features.values if isinstance(sample.features, Sparse) else np.asarray(sample.features)
        if np.isinf(stored).any():
            raise UsageError("NMF: an entry is infinite; leave it out.")
        if self.holdout and self.solver != "sgd":
            raise UsageError(f"NMF: holdout needs solver=sgd; solver={self.solver} takes entries left out for zeros.")
        if self.solver == "sgd" and (self.l1_ratio or self.column_regularization is not None):
            raise UsageError(
                "NMF: l1_ratio and column_regularization need solver=coordinate or solver=multiplicative; solver=sgd "
                "has regularization alone."
            )
        dense = not isinstance(sample.features, Sparse)
        if self.solver != "sgd" and dense and not known_numbers(sample.features).all():
            raise UsageError(f"NMF: solver={self.solver} needs every entry; use solver=sgd for missing ones.")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Factors:
        values = _values(sample.features).astype(np.float64)
        scale = self._mean(sample, values)
        spread = float(((values / scale - 1.0) ** 2).mean()) if len(values) else 1.0
        size = 1.0 / np.sqrt(self.rank)  # entries near this size predict the mean
        offset = active().nmf.adagrad_offset * max(spread, 1e-3) / self.rank
        energy = np.full(sample.columns if self.solver == "sgd" else 0, offset)
        factors = size * (0.5 + rng.random((sample.columns, self.rank)))
        penalty = self._penalties(sample)
        rows = np.array([sample.mass, 0.0, 0.0, 0.0, 0.0])
        none = np.zeros((sample.columns if self.solver == "coordinate" else 0, self.rank))
        first = Factors(factors, energy, np.array([scale]), rows, penalty, none, np.array([1.0, 0.0]))
        return first if self.solver == "sgd" else first._replace(factors=self._polished(sample, first))

    def _polished(self, sample: Sample, first: Factors) -> Array:
        """H after some passes over the sample, where it is small enough for that (`seeding.polishing_passes`)."""
        rows = rows_of(sample.features)
        passes = polishing_passes(len(_values(sample.features)) * self.rank)
        if passes < 2 or rows < sample.points:
            return first.factors
        state = self.initState(rows, sample.columns, np.random.default_rng(0))
        shard = make_shard(sample.features, None, state, "rows")
        kernel, parameter = self.kernel(shard), first._replace(rows=np.array([float(rows), 0.0, 0.0, 0.0, 0.0]))
        sums, values = self.initAggregator(sample, parameter), [np.inf]
        for _ in range(passes):
            kernel(shard, pytree.read_only(parameter), sums, 0, rows, 0, new_flag())  # the type that workers have
            parameter = self.updateParameter(sums, parameter)
            values.append(self.objective(sums, parameter) or 0.0)
            gains = values[-2] - values[-1], values[len(values) // 2] - values[-1]
            if (
                gains[0] <= active().nmf.sample_solved_below_gain * values[-1]
                and gains[1] <= active().nmf.sample_solved_below_half_gain * values[-1]
            ):
                break
        return parameter.factors

    def _mean(self, sample: Sample, values: Array) -> float:
        """The mean entry of the sample; 1 where it has none above 0."""
        features = sample.features
        total, cells = float(values.sum()), float(len(values))
        if sample.weights is not None:
            each = np.diff(features.indptr) if isinstance(features, Sparse) else known_numbers(features).sum(axis=1)
            mass = np.repeat(sample.weights, each)
            total, cells = float(mass @ values), float(mass.sum())
        if self.solver != "sgd" and isinstance(features, Sparse):
            rows = len(features.indptr) - 1 if sample.weights is None else float(sample.weights.sum())
            cells = rows * sample.columns
        return total / cells if cells and total > 0 else 1.0

    def continueParameter(self, previous: Factors, sample: Sample, rng: np.random.Generator) -> Factors:
        """H of before, and what AdaGrad has gathered. Rows are solved for it at their first visit."""
        fresh = self.initParameter(sample, rng)
        if previous.factors.shape != fresh.factors.shape or previous.energy.shape != fresh.energy.shape:
            raise UsageError("NMF: start= has another rank, solver or number of columns than this job.")
        rows = np.array([sample.mass, sample.mass, 1.0, 0.0, 0.0])
        return fresh._replace(factors=previous.factors, energy=previous.energy, rows=rows)

    def _penalties(self, sample: Sample) -> Array:
        rows = self._penalty(sample)
        columns = rows if self.column_regularization is None else self.column_regularization
        both = np.array([rows, columns])
        return np.concatenate([(1.0 - self.l1_ratio) * both, self.l1_ratio * both])

    def _penalty(self, sample: Sample) -> float:
        """Predicting missing entries needs a penalty; approximating a complete matrix needs none."""
        if self.regularization is not None:
            return self.regularization
        whole = not isinstance(sample.features, Sparse) and known_numbers(sample.features).all()
        return 0.0 if whole or self.solver != "sgd" else active().nmf.penalty_where_missing

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        state = np.zeros((points, self.rank + (2 if self.holdout else 1)), self.precision)
        state[:, self.rank] = -1.0
        return state

    def initAggregator(self, sample: Sample, parameter: Factors) -> FactorSums:
        columns, rank = parameter.factors.shape
        sgd = self.solver == "sgd"
        gram = np.zeros((0, 0) if sgd else (rank, rank))
        energy, progress, spread, counts = (np.zeros(columns if sgd else 0) for _ in range(4))
        moves, loss, seen = np.zeros((columns, rank)), np.zeros(3), np.zeros(1)
        return FactorSums(moves, gram, energy, progress, spread, counts, loss, seen, np.zeros(2))

    # -- training ------------------------------------------------------------------------------------------

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Factors, iterationNum: int) -> RowChange:
        """Solve for the row's weights, then tell what changed: gradient steps of its columns (sgd), or its part of the
        two products that the other solvers need."""
        columns, values = observed(dataPoint.features, parameter.scale[0])
        columns, values, held_columns, held_values = split_row(dataPoint.features, columns, values, self.holdout)
        factors, state = parameter.factors, dataPoint.state
        rank, mass = factors.shape[1], dataPoint.weight
        first = state[rank] < 0.0
        settle = first and settled(parameter.rows)
        before, weights = np.zeros(rank), np.zeros(rank)
        weights[:] = state[:rank]
        if not first:
            before[:] = weights
        elif self.solver == "sgd":
            start_row(factors, columns, values, weights)
        if self.solver == "sgd":
            squares = solve_row(factors, columns, values, weights, parameter.penalty[0], self.sweeps, settle)
        else:
            sweeps = self.sweeps if self.solver == "coordinate" else 0
            squares = whole_row(factors, columns, values, weights, parameter.penalty, sweeps, first, settle)
        old = 0.0 if first else np.float64(state[rank])
        state[:rank] = weights
        state[rank] = squares
        weights[:] = state[:rank]
        entries = columns.shape[0]
        moves, gram = np.zeros((entries, rank)), np.zeros((0, 0))
        energy, progress, loss = np.zeros(0), np.zeros(0), np.zeros(3)
        if self.solver == "sgd":
            loss[0] = mass * (np.float64(state[rank]) - old)
            loss[1] = mass * entries * (dot(weights, weights) - dot(before, before))
            loss[2] = mass * entries if first else 0.0
            energy, progress = np.zeros(entries), np.zeros(entries)
            rate = self.learning_rate / np.sqrt(rank)
            energies, penalty = parameter.energy, parameter.penalty[0]
            step_columns(factors, energies, columns, values, weights, penalty, rate, mass, moves, energy, progress)
        else:
            loss[0] = mass * squares if first else 0.0  # a row's squares never change, and must not be rounded
            loss[1] = mass * (weights.sum() - before.sum())
            gram = np.zeros((rank, rank))
            add_products(columns, values, weights, before, mass, moves, gram)
        held = np.zeros(2)
        if self.holdout > 0.0:
            error = 0.0
            for t in range(held_columns.shape[0]):
                error += (held_values[t] - dot(weights, factors[held_columns[t]])) ** 2
            gone = 0.0 if first else np.float64(state[rank + 1])
            state[rank + 1] = error
            held[0] = mass * (np.float64(state[rank + 1]) - gone)
            held[1] = mass * held_columns.shape[0] if first else 0.0
        return RowChange(columns, moves, gram, energy, progress, loss, mass if first else 0.0, held)

    def aggregate(self, target: FactorSums, aggregator: FactorSums | RowChange) -> FactorSums:
        """Add one row's change, which is sparse, or a worker's sums, which are not."""
        if len(aggregator) == 9:  # FactorSums, a worker's report; numba removes this branch for a RowChange
            pytree.add(target, aggregator)
            return target
        columns, moves, gram, energy, progress, loss, first, held = aggregator  # type: ignore[misc]
        for t in range(len(columns)):
            target.moves[columns[t]] += moves[t]
        for t in range(len(energy)):
            j = columns[t]
            target.energy[j] += energy[t]
            target.spread[j] += (2.0 * target.progress[j] + progress[t]) * progress[t]
            target.progress[j] += progress[t]
            target.counts[j] += first
        for f in range(len(gram)):
            target.gram[f] += gram[f]
        target.loss[:] += loss
        target.seen[0] += first
        target.held[:] += held
        return target

    def efficiency(self, part: float, workers: int) -> float | None:
        """Less than 1 because the workers' copies of H diverge; measured in docs/adr/objectives-that-lag.md."""
        return 1.0 / (1.0 + active().nmf.cost_of_workers * (workers - 1) * part) if self.solver == "sgd" else None

    def localParameter(self, parameter: Factors, aggregator: FactorSums) -> Factors:
        if self.solver != "sgd":
            return parameter
        return parameter._replace(
            factors=parameter.factors + aggregator.moves, energy=parameter.energy + aggregator.energy
        )

    def kernel(self, share: Shard) -> Kernel:
        if self.solver == "sgd":
            return kernels.solving(share, self.rank, self.learning_rate, self.sweeps, self.holdout)
        return WholeMatrix(self._whole_sweeps(), self.rank, share)

    def _whole_sweeps(self) -> int:
        """Sweeps of coordinate descent over a whole row; 0: the multiplicative rule."""
        return self.sweeps if self.solver == "coordinate" else 0

    def updateParameter(self, aggregator: FactorSums, oldParameter: Factors) -> Factors:
        """sgd applies the summed steps; the other solvers wait until every row was seen once, and then solve for the
        factors."""
        oldParameter = oldParameter._replace(
            rows=np.array([oldParameter.rows[0], aggregator.seen[0], oldParameter.rows[2], *aggregator.held])
        )
        old = oldParameter.factors
        if self.solver == "sgd":
            moved = np.empty_like(old)
            sums = aggregator.moves, aggregator.progress, aggregator.spread
            in_pieces(
                len(old),
                active().nmf.joined_columns,
                lambda start, end: join_columns(old, *sums, start, end, moved),
            )
            return oldParameter._replace(factors=moved, energy=oldParameter.energy + aggregator.energy)
        if aggregator.seen[0] < oldParameter.rows[0] and not oldParameter.rows[2]:
            return oldParameter
        oldParameter.rows[2] = 1.0
        ridge, lasso = oldParameter.penalty[[1, 3]] * aggregator.seen[0]
        if self.solver == "coordinate":
            gram = aggregator.gram + ridge * np.eye(len(aggregator.gram))
            moved, target = old.copy(), np.ascontiguousarray(aggregator.moves) - lasso
            in_pieces(
                len(old),
                active().nmf.joined_columns,
                lambda start, end: descend_columns(moved, target, gram, self.sweeps, start, end),
            )
            complete = aggregator.seen[0] >= oldParameter.rows[0]
            return extrapolated(oldParameter, moved, complete, lambda made: self.objective(aggregator, made) or 0.0)
        below = old @ aggregator.gram + ridge * old + lasso
        below[below <= 0] = EPSILON
        return oldParameter._replace(factors=old * (np.maximum(aggregator.moves, 0.0) / below))

    def _fit(self, aggregator: FactorSums, parameter: Factors) -> tuple[float, float]:
        """Σ of squared errors of the entries seen, in units of scale², without the penalty, and how many these are."""
        h = parameter.factors
        if self.solver == "sgd":
            lengths = float(parameter.penalty[0] * aggregator.loss[1])
            return float(aggregator.loss[0]) - lengths, float(aggregator.loss[2])
        explained = float(((h @ aggregator.gram) * h).sum() - 2.0 * (aggregator.moves * h).sum())
        return float(aggregator.loss[0]) + explained, float(aggregator.seen[0]) * len(h)

    def objective(self, aggregator: FactorSums, parameter: Factors) -> float | None:
        if aggregator.seen[0] <= 0:
            return None
        h, scale = parameter.factors, float(parameter.scale[0])
        penalty = parameter.penalty
        value = float(aggregator.loss[0])
        lengths = np.einsum("jf,jf->j", h, h)
        if self.solver == "sgd":
            value += float(penalty[0] * (aggregator.counts @ lengths))
        else:
            value += float(((h @ aggregator.gram) * h).sum() - 2.0 * (aggregator.moves * h).sum())
            value += float(len(h) * (penalty[0] * np.trace(aggregator.gram) + 2.0 * penalty[2] * aggregator.loss[1]))
            value += float(aggregator.seen[0] * (penalty[1] * lengths.sum() + 2.0 * penalty[3] * h.sum()))
        return max(value, 0.0) * scale**2

    def baseline(self, aggregator: FactorSums, parameter: Factors) -> float | None:
        """The squares of all entries. Statistics of sgd hold only what remains of them."""
        return None if self.solver == "sgd" else float(aggregator.loss[0]) * float(parameter.scale[0]) ** 2

    def warnings(self, aggregator: FactorSums, parameter: Factors) -> list[str]:
        if self.solver != "sgd":
            return []
        if aggregator.seen[0] > 0 and aggregator.counts.sum() >= aggregator.seen[0] * len(parameter.factors):
            return [
                "no entry is missing: solver=coordinate factorizes a whole matrix to its minimum, and in less time; "
                "solver=sgd is for ratings of which most are missing."
            ]
        if aggregator.counts.sum() >= active().nmf.many_entries:
            return []
        return [
            "solver=sgd takes stochastic steps and ends near a minimum, 0.2 to 1 % above it on matrices of this size; "
            "a smaller tolerance comes nearer, and solver=coordinate gets there if no entry is missing."
        ]

    def metrics(self, aggregator: FactorSums, parameter: Factors) -> dict[str, float]:
        """The error of the entries seen, each as of its row's last visit (sgd), or for the present W and H (else)."""
        scale, found = float(parameter.scale[0]), {}
        squares, count = self._fit(aggregator, parameter)
        held, held_count = map(float, aggregator.held)
        if count > 0:
            found["rmse"] = scale * float(np.sqrt(max(squares, 0.0) / count))
        if held_count > 0:
            found["held_out_rmse"] = scale * float(np.sqrt(max(held, 0.0) / held_count))
            found["held_out_entries"] = held_count
        return found

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, features: Any, parameter: Factors) -> Array:
        """The weights w of new rows, solved for the finished H."""
        scale = float(parameter.scale[0])
        return fold_in(features, parameter.factors, scale, parameter.penalty, self.solver == "sgd")

    def model(self, parameter: Factors) -> dict[str, Array]:
        return {"factors": parameter.factors, "scale": parameter.scale}

    def work(self, columns: int) -> float:
        return 4.0 * self.rank * columns

    def predict(self, features: Any, parameter: Factors) -> Array:
        """Every entry of the rows, also those that are not observed, as the model sees them."""
        return np.asarray(float(parameter.scale[0]) * self.transform(features, parameter) @ parameter.factors.T)

    def ratings(self, weights: Array, parameter: Factors, rows: Array, columns: Array) -> Array:
        """The entries (rows[t], columns[t]) for given row weights, such as the states of trained points."""
        w = np.asarray(weights)[rows, : self.rank].astype(np.float64)
        return np.asarray(float(parameter.scale[0]) * np.einsum("tf,tf->t", w, parameter.factors[columns]))

    def rmse(self, weights: Array, parameter: Factors, rows: Array, columns: Array, values: Array) -> float:
        """Root mean square error on entries that were held out of the rows trained on; 0 for none."""
        if len(rows) == 0:
            return 0.0
        return float(np.sqrt(np.mean((self.ratings(weights, parameter, rows, columns) - values) ** 2)))

    def to_sklearn(self, parameter: Factors, classes: list[str] | None) -> Any:
        if self.solver == "sgd":
            raise UsageError("scikit-learn's NMF knows no missing entries, for which solver=sgd trains.")
        scale = float(parameter.scale[0])
        squares, sums = parameter.penalty[:2] * scale, parameter.penalty[2:] * scale**1.5  # in units of the entries
        alphas = squares + sums
        ratio = float(sums.sum() / alphas.sum()) if alphas.any() else 0.0
        return fitted_factorization(np.sqrt(scale) * parameter.factors, (float(alphas[0]), float(alphas[1])), ratio)

    def evaluate(self, features: Any, labels: Array | None, parameter: Factors) -> Evaluation:
        """Rows solved anew for the finished H: the objective over their entries, and the RMSE."""
        weights = self.transform(features, parameter)
        squares, entries, penalties = errors(
            features, weights, parameter.factors, float(parameter.scale[0]), parameter.penalty, self.solver == "sgd"
        )
        rmse = float(np.sqrt(squares / entries)) if entries else 0.0
        return Evaluation(squares + penalties, {"rmse": rmse, "entries": float(entries)})


def _values(features: Any) -> Array:
    """The observed entries of a sample."""
    if isinstance(features, Sparse):
        return np.asarray(features.values)
    dense = np.asarray(features)
    return dense[known_numbers(dense)] if dense.dtype.kind == "f" else dense.ravel()
