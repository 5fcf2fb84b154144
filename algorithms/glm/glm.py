"""Generalized linear models: the base of those whose loss is smooth and convex in a row's score w·x + b.

θ is held until every point has been visited with it. Then loss, gradient and second derivatives are exact, and the next
step is Newton's (L-BFGS where columns are many), halved while it fails to lower the objective. So every synchronization
model takes the same steps. Losses are in `losses.py`. Imports no compiler.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.class_labels import refuse_words
from flegel.algorithms.glm.dense import CompiledLoss, DenseKernel
from flegel.algorithms.glm.places import BEND, COUNTED, GUARDED, LARGEST_LOSS, LOSS
from flegel.algorithms.glm.rows import GlmRows, rows_for_glm
from flegel.algorithms.least_squares import exact
from flegel.algorithms.lr.search import Solver, pairs_of, quasi_newton, with_pair
from flegel.algorithms.moments import mean_of_sample, shares_of
from flegel.algorithms.number_range import USUAL, largest_numbers
from flegel.algorithms.rows import row_parts, rows_of, times
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.accepts import Accepts
from flegel.declarations.kernels import Kernel
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError
from flegel.wording import setting

FULL_COLUMNS = 1024
"""Up to so many columns all second derivatives are summed (8 MB); beyond, their diagonal, and steps are L-BFGS's."""
GRADIENT_BLOCK_NUMBERS = 2**16
"""Of rows in a block: half a megabyte in float64, which stays in a core's cache."""
ENTRIES_OF_SPARSE_ROWS = 64
"""That blocks of sparse rows are cut by: 1,024 rows, whatever they hold."""
FAR_ABOVE_BEST = 4.0
"""A row that alone makes the objective so many times the best one decides that a trial fails. Its loss is cut off
there: larger ones would cost the sums the digits of all later losses."""
LOOK_AGAIN = 1e-4
"""Part of the objective, of which a ten-thousandth is allowed for rounding where the best θ is visited once more."""
GAP_TO_GUARD = 1e-5
"""A distance to the minimum within which second derivatives are guarded: true ones may leave directions out."""
OBJECTIVE_ROUNDING = 1e-14
"""A promised decrease below this part of the objective cannot be measured."""

MOST_RIDGE = 1e100
"""What a penalty adds in the unit of a column next to 0: with more its weight is as good as 0."""
LEAST_BEND = 1e-12
"""Of the largest second derivative: weights without any go to 0 by the penalty l1."""
_PROXIMAL_STEP = EntryPoint("flegel.algorithms.coordinate_descent", "proximal_step")


class Slopes(NamedTuple):
    """Sums over points, each with the derivatives of its last visit, at its weight."""

    gradient: Array
    curvature: Array
    """All second derivatives, or one row: their diagonal."""
    loss: Any
    mass: Any
    seen: Any
    """Points that were visited."""
    stamps: Any
    """Σ of the numbers of θ at their last visits: seen · number where all were visited with this θ."""
    unfit: Any
    """Points whose labels the model cannot have: the sample that is checked before training lacks some."""
    bent: Any
    """Of this interval: visits that counted a point's curvature again."""


class LinearFit(NamedTuple):
    """θ. `internal_at` and what follows is in the coordinates of the search: columns shifted and in units of their own,
    the bias behind them, then parameters of the loss."""

    weights: Array
    bias: Any
    shape: Array
    """Parameters of the loss beside the score: the scale of Huber's."""
    internal_at: Array
    internal_best: Array
    """Two rows: the best θ, and the gradient there."""
    internal_pairs: Array
    internal_metric: Array
    """Three rows by column: shift, unit, and 1 where the parameter is free."""
    internal_search: Array
    """`NewtonSearch`."""


class NewtonSearch(NamedTuple):
    number: float
    points: float
    best: float
    first: float
    """The objective of θ(0)."""
    promised: float
    """Change of the objective by the last step, to first order."""
    length: float
    gap: float
    """What is left to the minimum, as a part of the objective; infinite while that is not known."""
    stuck: float
    guarded: float
    """1: second derivatives are those of `GeneralizedLinear.guarded`."""
    most: float
    """That a row may lose at its mass; larger losses are cut off."""
    bent: float
    """Points whose curvature changed by the step under way: what a step promises says little then."""


class Derivatives(NamedTuple):
    """Of the loss of each row: by its score, and, where the loss has a parameter, by that too."""

    loss: Array
    slope: Array
    bend: Array
    shape_slope: Array | None = None
    mixed: Array | None = None
    shape_bend: Array | None = None


class GeneralizedLinear(Algorithm):
    """Base. Minimized is mean(weight · loss) + ½·l2·‖w‖² + l1·‖w‖₁; the bias is not penalized."""

    accepts = Accepts(sparse=True, weighted=True, labels="required")
    learning = Learning(
        averaged=True,
        tolerance=1e-8,
        trivial="the start",
        auxiliary=tuple(name for name in LinearFit._fields if name.startswith("internal_")),
    )
    statistics = Statistics(spent=("bent",), lagging=("curvature",))  # counts only bends that have changed much
    placement = ParameterPlacement(
        unsharded="the length of each step is found along all of θ at once",
        unsent=("weights", "bias", "shape", "internal_best", "internal_pairs"),
    )
    shapes = 0  # parameters of the loss beside the score
    longest_step = math.inf  # in units of columns; a loss that grows exponentially loses all digits of its sums beyond
    lowest_loss = -math.inf  # no row has less; where that is known, trials far away cost the sums no digits
    guards = False  # it has second derivatives for steps that fail with the true ones (`guarded`)
    rule = "a label is missing or infinite"  # what is wrong with labels that do not fit
    l1 = 0.0  # strength of the penalty on absolute weights; a parameter of models that have it

    l2: Annotated[float, Meta(ge=0, description="strength of the penalty ½·l2·‖weights‖² on the mean loss")] = 0.0
    intercept: Annotated[bool, Meta(description="fit a bias besides the weights")] = True
    offset: Annotated[bool, Meta(description="the last column is added to the score, with the weight 1")] = False

    # -- what a model says -------------------------------------------------------------------------------------

    def derivatives(self, scores: Array, labels: Array, shape: Array) -> Derivatives:
        raise NotImplementedError(f"{type(self).__name__} must define derivatives")

    def guarded(self, found: Derivatives, scores: Array, labels: Array, shape: Array) -> Derivatives:
        """With larger second derivatives, where those of many rows vanish: steps that cannot lead far away."""
        return found

    def start(self, labels: Array, shares: Array, offsets: Array) -> tuple[float, Array]:
        """Bias and parameters of the loss to begin with; `shares` are weights that sum to 1, `offsets` are added to the
        scores."""
        return 0.0, np.zeros(0)

    def compiled_loss(self) -> CompiledLoss | None:
        """How the compiled kernel knows these derivatives; None where it does not."""
        return None

    def fitting(self, labels: Array) -> Array:
        """True for labels that the model can have."""
        return np.isfinite(labels)

    # -- start -------------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        assert sample.labels is not None
        self.check_words(sample)
        labels = np.asarray(sample.labels, np.float64)
        if not np.isfinite(labels).all():
            raise UsageError(f"{type(self).__name__}: {GeneralizedLinear.rule}.")
        self._check_unfit(float((~self.fitting(labels)).sum()))
        if self.l1 and sample.columns > FULL_COLUMNS:
            raise UsageError(
                f"{type(self).__name__}: l1 takes at most {FULL_COLUMNS:,} columns, and the data have "
                f"{sample.columns:,}; use {setting('l1', 0)} with l2, or leave columns out."
            )

    def check_words(self, sample: Sample) -> None:
        """Raise where labels are words, and the model is not one for such."""
        refuse_words(sample, type(self).__name__)

    def _check_unfit(self, points: float) -> None:
        if points:
            raise UsageError(f"{type(self).__name__}: {self.rule} ({int(points):,} rows at least).")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> LinearFit:
        """The minimum over a few rows of the sample, where the table has many more: so close to that of all rows that
        two or three passes are saved, in a third of one."""
        first, rules = self._first_parameter(sample), active().glm
        several = sample.points // rules.start_share
        if isinstance(sample.features, Sparse) or several < rules.start_rows_per_column * (sample.columns + 1):
            return first
        return self._placed(self._minimum_of(sample, max(len(sample.features) // several, 1), first), first)

    def _minimum_of(self, sample: Sample, every: int, first: LinearFit) -> Array:
        """Coordinates of the best θ that a few steps find for every so manieth row of the sample."""
        assert sample.labels is not None
        rows = np.ascontiguousarray(sample.features[::every])
        weights = None if sample.weights is None else np.asarray(sample.weights)[::every]
        labels = np.asarray(sample.labels)[::every]
        if weights is not None and not weights.any():
            return np.asarray(first.internal_at)
        state = np.zeros((len(rows), 4 + 3 * self.shapes))
        shard = make_shard(rows, labels, state, "rows", weights=weights)
        fewer = NewtonSearch(*first.internal_search)._replace(points=float(len(rows)))
        theta, sums = first._replace(internal_search=np.array(fewer)), self._no_slopes(first)
        visit, rules = self.kernel(shard), active().glm
        for number in range(rules.start_steps):
            sums = sums._replace(bent=np.zeros(()))
            visit(shard, theta, sums, 0, shard.points, number, new_flag())
            theta = self.updateParameter(sums, theta)
            if theta.internal_search[6] < rules.start_gap or theta.internal_search[7]:
                break
        return np.asarray(theta.internal_best[0])

    def _no_slopes(self, parameter: LinearFit) -> Slopes:
        """Statistics of no points."""
        width = len(parameter.internal_at)
        full = len(parameter.weights) <= FULL_COLUMNS
        return Slopes(np.zeros(width), np.zeros((width if full else 1, width)), *(np.zeros(()) for _ in range(6)))

    def _first_parameter(self, sample: Sample) -> LinearFit:
        self.validate(sample)
        assert sample.labels is not None
        columns, sparse = sample.columns, isinstance(sample.features, Sparse)
        shift = mean_of_sample(sample) if self.intercept and not sparse else np.zeros(columns)
        unit = column_units(sample, shift)
        free = np.ones(columns + 1 + self.shapes)
        free[:columns], free[columns] = np.isfinite(self._ridge(unit)), float(self.intercept)
        bias, shape = self.start(np.asarray(sample.labels, np.float64), shares_of(sample), self._offsets(sample))
        at = np.concatenate([np.zeros(columns), [bias if self.intercept else 0.0], shape])
        if self.offset:
            shift[-1], unit[-1], free[columns - 1], at[columns - 1] = 0.0, 1.0, 0.0, 1.0
        metric = np.stack(
            [np.append(shift, np.zeros(1 + self.shapes)), np.append(unit, np.ones(1 + self.shapes)), free]
        )
        pairs = 0 if columns <= FULL_COLUMNS else pairs_of(1, len(at))
        search = NewtonSearch(
            1.0, float(sample.points), math.inf, math.inf, 0.0, 1.0, math.inf, 0.0, 0.0, math.inf, 0.0
        )
        return self._placed(
            at,
            LinearFit(
                np.zeros(columns),
                0.0,
                shape,
                at,
                np.stack([at, 0.0 * at]),
                np.zeros((pairs, 2, len(at))),
                metric,
                finite(search),
            ),
        )

    def _offsets(self, sample: Sample) -> Array:
        """What is added to the score of each row of the sample."""
        if not self.offset:
            return np.zeros(len(np.asarray(sample.labels)))
        if isinstance(sample.features, Sparse):
            last = sample.features.indices == sample.columns - 1
            owner = np.repeat(np.arange(len(sample.features.indptr) - 1), np.diff(sample.features.indptr))
            return np.bincount(owner[last], sample.features.values[last], len(sample.features.indptr) - 1)
        return np.asarray(sample.features[:, -1], np.float64)

    def continueParameter(self, previous: LinearFit, sample: Sample, rng: np.random.Generator) -> LinearFit:
        """The weights of before, in new coordinates; the search begins anew."""
        fresh = self._first_parameter(sample)
        if previous.weights.shape != fresh.weights.shape:
            raise UsageError(f"{type(self).__name__}: start= has other columns than these data.")
        shift, unit, _ = fresh.internal_metric[:, : sample.columns]
        bias = float(previous.bias) + float(previous.weights @ shift)
        shape = previous.shape if len(previous.shape) == self.shapes else fresh.shape
        at = np.concatenate([np.asarray(previous.weights) * unit, [bias if self.intercept else 0.0], shape])
        return self._placed(at, fresh._replace(internal_best=np.stack([at, 0.0 * at])))

    def _placed(self, at: Array, parameter: LinearFit) -> LinearFit:
        """θ at these coordinates, and as users know it."""
        columns = len(parameter.weights)
        shift, unit, _ = parameter.internal_metric[:, :columns]
        weights = at[:columns] / unit
        bias = float(at[columns] - weights @ shift)
        return parameter._replace(weights=weights, bias=bias, shape=at[columns + 1 :].copy(), internal_at=at)

    # -- visits ------------------------------------------------------------------------------------------------

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        """Loss, slope and bend of the last visit, those of the loss's parameter, and the number of θ then."""
        return np.zeros((points, 4 + 3 * self.shapes))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: LinearFit, iterationNum: int) -> Slopes:
        row: Any = dataPoint.features
        features: Any = (
            row[None]
            if isinstance(row, np.ndarray)
            else Sparse(
                np.array([0, len(row.indices)]), row.indices, row.values, len(parameter.internal_at) - 1 - self.shapes
            )
        )
        return self.change(
            features, np.array([dataPoint.label]), np.array([dataPoint.weight]), dataPoint.state[None], parameter
        )

    def change(self, features: Any, labels: Array, weights: Array | None, state: Array, parameter: LinearFit) -> Slopes:
        """What a visit of these rows changes in the sums; their states follow."""
        columns = len(parameter.internal_at) - 1 - self.shapes
        rows: GlmRows = rows_for_glm(features, parameter.internal_metric[:, :columns])
        at, number = np.asarray(parameter.internal_at), float(parameter.internal_search[0])
        scores, truth, shape = rows.scores(at[: columns + 1]), np.asarray(labels, np.float64), at[columns + 1 :]
        found = self.derivatives(scores, truth, shape)
        if parameter.internal_search[GUARDED]:
            found = self.guarded(found, scores, truth, shape)
        mass = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
        before, values = state.astype(np.float64), [part for part in found if part is not None]
        most = float(parameter.internal_search[LARGEST_LOSS])
        far, stale = mass * found.loss > most, outdated(values, before)
        for place, each in enumerate(values):
            counted = ~far & stale if place in COUNTED else ~far
            state[:, place] = np.where(counted, each, before[:, place])
        if far.any():
            state[far, LOSS] = most / mass[far]
        state[:, -1] = number
        moved = (state.astype(np.float64) - before) * mass[:, None]  # of what is kept, in its precision
        new = before[:, -1] == 0.0
        full = columns <= FULL_COLUMNS
        gradient, curvature = rows.gradient(moved[:, 1]), rows.curvature(moved[:, 2], full)
        if self.shapes:
            gradient = np.append(gradient, moved[:, 3].sum())
            wider = np.zeros((len(gradient) if full else 1, len(gradient)))
            wider[: len(curvature), :-1] = curvature
            if full:
                wider[-1, :-1] = wider[:-1, -1] = rows.gradient(moved[:, 4])
            wider[-1, -1] = moved[:, 5].sum()
            curvature = wider
        stamps = float((state[:, -1].astype(np.float64) - before[:, -1]).sum())
        unfit = float((new & ~self.fitting(np.asarray(labels, np.float64))).sum())
        loss, seen = float(moved[:, 0].sum()), float(new.sum())
        bent = float((~far & stale & (mass > 0.0)).sum())
        return Slopes(gradient, curvature, loss, float(mass[new].sum()), seen, stamps, unfit, bent)

    def kernel(self, share: Shard) -> Kernel:
        loss = None if isinstance(share.features, Sparse) else self.compiled_loss()
        return self._visit if loss is None else DenseKernel(loss, share.columns <= FULL_COLUMNS)

    def _visit(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Blocks of sparse rows, or of a loss that is not compiled."""
        end, at = min(end, shard.points), start
        width = ENTRIES_OF_SPARSE_ROWS if isinstance(shard.features, Sparse) else shard.columns
        several = max(GRADIENT_BLOCK_NUMBERS // max(width, 1), 1)
        while at < end and not flag[0]:
            stop = min(at + several, end)
            part = shard.part(at, stop)
            change = self.change(part.features, part.labels, part.weights, part.state, parameter)
            for into, extra in zip(aggregator, change, strict=True):
                np.add(into, extra, into)
            at = stop
        return at

    def work(self, columns: int) -> float:
        return 8.0 * columns + (0.5 * columns * columns if columns <= FULL_COLUMNS else 0.0)

    # -- steps -------------------------------------------------------------------------------------------------

    def holds(self, parameter: LinearFit) -> bool:
        return True

    def updateParameter(self, aggregator: Slopes, oldParameter: LinearFit) -> LinearFit:
        self._check_unfit(float(aggregator.unfit))
        search = NewtonSearch(*(float(number) for number in oldParameter.internal_search))
        bent = float(aggregator.bent)
        search = search._replace(bent=search.bent + bent)
        if aggregator.seen < search.points or aggregator.stamps != aggregator.seen * search.number or search.stuck:
            return oldParameter._replace(internal_search=finite(search)) if bent else oldParameter
        at, best = np.asarray(oldParameter.internal_at), np.asarray(oldParameter.internal_best[0])
        value = float(aggregator.loss) / float(aggregator.mass) + self.penalty(oldParameter.weights)
        goal = search.best + 1e-4 * search.promised * search.length + OBJECTIVE_ROUNDING * abs(search.best)
        if value <= goal or not search.best < 1e299:
            return self._accepted(aggregator, oldParameter, search, at, value)
        if search.length < 1e-9:
            left = -search.promised / 2.0 / self._size(search)
            return oldParameter._replace(internal_search=finite(search._replace(stuck=1.0, gap=left)))
        if self.guards and not search.guarded and search.length < 0.5:
            return self._to(best, oldParameter, self._guarded(search))
        shorter = search._replace(length=search.length / 2.0 if search.length > 0.2 else search.length / 8.0)
        return self._to(best + (at - best) * shorter.length / search.length, oldParameter, shorter)

    def _accepted(self, sums: Slopes, parameter: LinearFit, search: NewtonSearch, at: Array, value: float) -> LinearFit:
        """The best θ so far; the next step begins here."""
        columns, (_, unit, free) = len(parameter.weights), parameter.internal_metric
        ridge = np.append(np.nan_to_num(self._ridge(unit[:columns]), posinf=0.0), np.zeros(1 + self.shapes))
        gradient = free * (sums.gradient / sums.mass + ridge * at)
        pairs = parameter.internal_pairs
        diagonal = np.diagonal(sums.curvature) if len(sums.curvature) > 1 else sums.curvature[0]
        diagonal = np.maximum(diagonal, 0.0) / sums.mass + ridge
        if self.l1:
            step = self._proximal(sums, at, gradient, ridge, parameter)
        elif len(sums.curvature) > 1:
            step = np.zeros_like(at)
            chosen = np.flatnonzero(free * (diagonal > 0))
            matrix = (sums.curvature[np.ix_(chosen, chosen)] / sums.mass) + np.diag(ridge[chosen])
            step[chosen] = -exact(matrix, gradient[None, chosen])[0]
            if self.shapes and step[-1] < -0.5 * at[-1]:  # a scale stays above 0; the others follow it there
                step[-1], others = -0.5 * at[-1], chosen[:-1]
                slope = gradient[others] + sums.curvature[others, -1] / sums.mass * step[-1]
                step[others] = -exact(matrix[:-1, :-1], slope[None])[0]
            if self.shapes and not gradient @ step < 0.0:  # with a scale so far away both mislead: each goes down alone
                others = chosen[chosen < len(at) - 1]
                step[others] = -exact(matrix[: len(others), : len(others)], gradient[None, others])[0]
                step[-1] = -gradient[-1] / diagonal[-1] if diagonal[-1] > 0 else 0.0
        else:
            if search.best < 1e299:
                pairs = np.array(with_pair(list(pairs), at, gradient, parameter.internal_best))
            scale = np.where(diagonal > 0, diagonal, 1.0)
            step = quasi_newton(gradient, list(pairs), Solver(lambda slope: -slope / scale)) * free
        gap = max(-float(gradient @ step), 0.0) / 2.0
        if self.shapes and step[-1] < -0.5 * at[-1]:
            step *= -0.5 * at[-1] / step[-1]  # a scale stays above 0, and points stay where curvature is known
        if self.l1:
            bent_by = float(step @ (sums.curvature @ step)) / float(sums.mass) + float(ridge @ step**2)
            gap = max(-self._promise(gradient, at, step, unit) - 0.5 * bent_by, 0.0)
        step *= min(1.0, self.longest_step / max(float(np.linalg.norm(step)), 1e-300))
        promised = self._promise(gradient, at, step, unit)
        first = min(search.first, value) if search.best >= 1e299 else search.first
        search = search._replace(best=value, first=max(first, value), promised=promised, length=1.0)
        gap = math.inf if search.bent else gap / self._size(search)
        if self.lowest_loss >= 0.0:
            search = search._replace(most=FAR_ABOVE_BEST * self._size(search) * float(sums.mass))
        measurable = -promised > OBJECTIVE_ROUNDING * max(abs(value), 1e-300) and np.isfinite(step).all()
        search = search._replace(gap=gap if measurable else 0.0, stuck=0.0 if measurable else 1.0)
        parameter = parameter._replace(internal_best=np.stack([at, gradient]), internal_pairs=pairs)
        if self.guards and not search.guarded and not (measurable and gap > GAP_TO_GUARD):
            return self._to(at, parameter, self._guarded(search))  # where no row has curvature, no step is promised
        return self._to(at + step if measurable else at, parameter, search)

    def _proximal(self, sums: Slopes, at: Array, gradient: Array, ridge: Array, parameter: LinearFit) -> Array:
        """The step to the minimum of the quadratic model with the penalty l1."""
        _, unit, free = parameter.internal_metric
        chosen = np.flatnonzero(free)
        matrix = sums.curvature[np.ix_(chosen, chosen)] / sums.mass + np.diag(ridge[chosen])
        places = np.arange(len(chosen))
        matrix[places, places] = np.maximum(matrix[places, places], LEAST_BEND * max(float(matrix.max()), 1e-300))
        step = np.zeros_like(at)
        step[chosen] = _PROXIMAL_STEP(matrix, gradient[chosen], at[chosen], self._least_slopes(unit)[chosen])
        return step

    def _least_slopes(self, unit: Array) -> Array:
        """By coordinate: the slope of the loss that the penalty l1 holds at 0."""
        inside = len(unit) - 1 - self.shapes
        return np.append(self.l1 / unit[:inside], np.zeros(1 + self.shapes))

    def _promise(self, gradient: Array, at: Array, step: Array, unit: Array) -> float:
        """Change of the objective by a step, to first order."""
        promised = float(gradient @ step)
        if self.l1:
            promised += float(self._least_slopes(unit) @ (np.abs(at + step) - np.abs(at)))
        return promised

    def _guarded(self, search: NewtonSearch) -> NewtonSearch:
        """The search that looks at its place again, with guarded second derivatives from now on."""
        promised = LOOK_AGAIN * abs(search.best)
        return search._replace(promised=promised, length=1.0, guarded=1.0, gap=math.inf, stuck=0.0)

    def _to(self, at: Array, parameter: LinearFit, search: NewtonSearch) -> LinearFit:
        following = finite(search._replace(number=search.number + 1.0, bent=0.0))
        return self._placed(at, parameter._replace(internal_search=following))

    def _size(self, search: NewtonSearch) -> float:
        """What gaps are parts of: the objective, unless it is next to nothing."""
        return max(abs(search.best), 1e-6 * abs(search.first), 1e-300)

    def penalty(self, weights: Array) -> float:
        free = weights[:-1] if self.offset else weights
        squares = 0.5 * self.l2 * float(free @ free) if self.l2 else 0.0  # of columns next to 0 they are infinite
        return squares + (self.l1 * float(np.abs(free).sum()) if self.l1 else 0.0)

    def _ridge(self, unit: Array) -> Array:
        """What l2 adds to second derivatives in these units of columns; infinite where it holds weights at 0."""
        with np.errstate(over="ignore"):
            ridge = self.l2 / unit / unit
        return np.where(ridge < MOST_RIDGE, ridge, np.inf)

    def objective(self, aggregator: Slopes, parameter: LinearFit) -> float | None:
        best = float(parameter.internal_search[2])
        if best < 1e299:
            return best
        return float(aggregator.loss) / float(aggregator.mass) if aggregator.mass > 0 else None

    def optimality(self, aggregator: Slopes, parameter: LinearFit) -> float:
        search = NewtonSearch(*(float(number) for number in parameter.internal_search))
        if search.stuck and search.gap > 1e-6:
            return math.nan
        return search.gap if search.gap < 1e299 else math.inf

    def finalParameter(self, aggregator: Slopes, parameter: LinearFit) -> LinearFit:
        """The best θ that was measured."""
        return self._placed(np.asarray(parameter.internal_best[0]), parameter)

    def warnings(self, aggregator: Slopes, parameter: LinearFit) -> list[str]:
        if parameter.internal_search[7] and parameter.internal_search[6] > 1e-6:
            return ["No step lowers the objective any more, short of the minimum. Give l2, or leave columns out."]
        return []

    # -- use ---------------------------------------------------------------------------------------------------

    def linear(self, features: Any, parameter: LinearFit) -> Array:
        """Scores w·x + b."""
        return np.asarray(times(features, np.asarray(parameter.weights)[:, None])[:, 0] + parameter.bias)

    def scores(self, features: Any, parameter: LinearFit) -> Array:
        return self.linear(features, parameter)

    def predict(self, features: Any, parameter: LinearFit) -> Array:
        return self.answers(self.linear(features, parameter))

    def answers(self, scores: Array) -> Array:
        """What the model says for such scores."""
        return scores

    def figures_of(self, answers: Array, labels: Array) -> dict[str, float]:
        return {"mae": float(np.abs(answers - labels).mean()) if len(labels) else 0.0}

    def evaluate(self, features: Any, labels: Array | None, parameter: LinearFit) -> Evaluation | None:
        if labels is None:
            return None
        total, labels = 0.0, np.asarray(labels, np.float64)
        scores = self.linear(features, parameter)
        for first, end, _ in row_parts(scores[:, None], 8):
            found = self.derivatives(scores[first:end], labels[first:end], np.asarray(parameter.shape))
            total += float(found.loss.sum())
        value = total / max(rows_of(features), 1) + self.penalty(np.asarray(parameter.weights))
        return Evaluation(value, self.figures_of(self.answers(scores), labels))

    def model(self, parameter: LinearFit) -> dict[str, Array]:
        shape = {"shape": parameter.shape} if self.shapes else {}
        return {"weights": parameter.weights, "bias": np.asarray(parameter.bias), **shape}


def finite(search: NewtonSearch) -> Array:
    """θ holds finite numbers: 1e300 stands for infinity."""
    return np.asarray(np.minimum(np.array(search), 1e300))


def outdated(found: list[Array], before: Array) -> Array:
    """Rows whose second derivatives are counted again: one has changed by more than a part of that by the score."""
    stale = np.zeros(len(before), np.bool_)
    for place in COUNTED:
        if place < len(found):
            stale |= np.abs(found[place] - before[:, place]) > active().glm.bend_change_counted * before[:, BEND]
    return stale


def column_units(sample: Sample, shift: Array) -> Array:
    """Root mean squares of columns less their shift, in a sample; 1 where these are 0."""
    size = np.sqrt(_mean_squares(sample, shift, np.ones(sample.columns)))
    odd = ~((size > 1.0 / USUAL) & (size < USUAL))
    if odd.any():  # squares float64 cannot hold: in parts of the largest number
        largest = largest_numbers(sample, shift)
        parts = np.where(odd & (largest > 0.0), largest, 1.0)
        size = parts * np.sqrt(_mean_squares(sample, shift, parts))
    return np.where(size > 1e-12 * np.maximum(np.abs(shift), 1e-300), size, 1.0)


def _mean_squares(sample: Sample, shift: Array, unit: Array) -> Array:
    """Of columns less their shift, in these units."""
    share, squares = shares_of(sample), np.zeros(sample.columns)
    with np.errstate(over="ignore"):
        if isinstance(sample.features, Sparse):
            rows = sample.features
            owner = np.repeat(np.arange(len(share)), np.diff(rows.indptr))
            terms = share[owner] * (np.asarray(rows.values, np.float64) / unit[rows.indices]) ** 2
            return np.bincount(rows.indices, terms, minlength=len(squares))
        for first, end, part in row_parts(sample.features, sample.columns):
            squares += share[first:end] @ ((np.asarray(part, np.float64) - shift) / unit) ** 2
    return squares
