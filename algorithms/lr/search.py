"""How logistic regression moves from measured statistics: Newton steps, proximal steps, and returning from failed ones.

Pure functions of statistics and θ, called by `lr` on the coordinator; never looks at points. Imports no compiler.

Measured: when the last visit of every point was made with the same θ, loss and gradient are those of this θ, exactly.
Then θ is compared with the best one so far. A better one becomes the best and the next step starts from it; from a
worse one the search goes back towards the best along the same step, by interpolation. So the objective of the best
θ never rises, whatever order the visits came in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.lr.model import Linear
from flegel.algorithms.lr.precondition import descend, inward, outward
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array, given, protected
from flegel.core.shard import Sparse
from flegel.wording import option

NOISE = 1e-7
"""Relative error of the mean loss: losses are stored in float32."""
DIGITS = 2e-13
"""A column that varies by less than this part of its mean and unit does not vary: the rest is rounding."""
ROUNDINGS = 4.0
"""Gradients and columns are taken to be wrong by up to this many roundings: a product has one, and the sums of 64
products that kernels keep in the rows' type have some more."""
BLOCK_NUMBERS = 2**15
"""Of an array with a number for each weight that is worked on at a time: 256 KB."""
PIECE = 2**14
"""Of twenty such arrays that are worked on together: 2.5 MB, each piece by the next thread that is free."""
NOT_YET = 1e300  # stands for infinity: θ travels with these numbers, and must be finite
UNCOUNTED, GUARDED, CAUTIOUS, EXACT = -1.0, 0.0, 0.5, 1.0
"""Which points count with more than their curvature (see `kernels.py`): all, those on the wrong side, none; or no point
counts at all."""


LATER, EMPTYING = 2.0, 3.0
"""In place of 1 (all second derivatives are summed) or 0 (their diagonal): there is room for all, but only the diagonal
is summed so far, in the first row; and it is taken out of there again, before all are summed."""
UNCHECKED, CHECKING, RECOUNTED, CHECKED = 0.0, 1.0, 2.0, 3.0
"""Steps of L-BFGS follow the curvature of the last ones, and so never show that it vanishes along a point that is far
longer than the others. So a distance to the minimum is believed only after steps by the curvature of the points
themselves that bend none of them: one, and of a diagonal, which is summed roughly, a second one after a pass that
recounts it."""
_DIVIDE = EntryPoint("flegel.algorithms.lr.step_kernel", "divide")
_PROXIMAL_STEP = EntryPoint("flegel.algorithms.coordinate_descent", "proximal_step")


class Gains(NamedTuple):
    """What steps of L-BFGS brought. Single ones differ by factors, so the rate of convergence and the distance to the
    minimum are taken from means."""

    recent: float
    usual: float
    before: float

    def with_step(self, brought: float) -> Gains:
        if self.usual <= 0.0:
            return Gains(brought, brought, brought)
        weight = active().lr.usual_weight
        return Gains(0.5 * (self.recent + brought), self.usual + weight * (brought - self.usual), self.usual)

    @property
    def ratio(self) -> float:
        """Of what a step brings to what the one before brought."""
        return min(max(self.usual / self.before, 0.5), 0.97) if self.before > 0.0 else 0.97

    @property
    def remaining(self) -> float:
        """Estimate of the decrease that is still to come, where gains go on to shrink at the same rate."""
        return max(self.recent, 0.0) * self.ratio / (1.0 - self.ratio)

    def steps_until(self, left: float) -> float:
        """How many more steps, at that rate, until this decrease is left."""
        return float(np.log(max(self.remaining / left, 1.0)) / -np.log(self.ratio)) if left > 0.0 else 0.0


class StepSearch(NamedTuple):
    """Where the search stands. All numbers, because it travels with θ as one array."""

    trained: float
    """Visits so far."""
    points: float
    settling: float
    """1: θ is held until every point has been visited with it. 0: θ moves at every barrier."""
    best: float
    """Objective of the best θ."""
    measured: float
    """How many θ have been measured and accepted."""
    promised: float
    """Change of the objective by the step under way, to first order; 0 where that is not known."""
    length: float
    """Of the step under way, as a part of the step first tried."""
    damping: float
    pace: float
    """Factor on steps whose curvature is not known exactly."""
    gap: float
    """Estimate of (objective − minimum) / objective at the best θ."""
    mark: float
    """Visits at the last look at the mean loss of a pass."""
    marked: float
    """That mean loss."""
    wary: float
    """Good steps still required before the curvature of points on the wrong side is trusted again."""
    brought: float
    """Decrease of the objective by the last step."""
    stuck: float
    """Above 0 where the search ended because no step was better: what the last one promised, of the objective."""
    doubt: float
    """The largest of the last estimates of the gap, each half of what it was a step ago."""
    rounding: float
    """Relative rounding of the rows' numbers: that of the type in which they are stored."""
    recent: float
    """Mean of what steps brought, in which the last one counts half."""
    usual: float
    """The same over more steps (`lr.usual_weight`)."""
    before: float
    """That mean before the last step."""
    bent: float
    """Points whose curvature changed by the step under way (`kernels.lr_bent_part`)."""
    checked: float
    """Of steps of L-BFGS: whether a distance to the minimum is to be believed (see `UNCHECKED`)."""
    long_rows: float
    """Curvature at the best θ that is due to rows far longer than the others (`Curvature.of_long_rows`)."""
    longest: float
    """The most of it at any θ: sums that held it have its rounding, and Newton steps by them converge like others."""

    @property
    def gains(self) -> Gains:
        return Gains(self.recent, self.usual, self.before)


def begin(points: int, settling: bool, rounding: float = float(np.finfo(np.float64).eps)) -> Array:
    """The state of a search that has measured nothing yet, as an array of θ."""
    first = StepSearch(
        trained=0.0,
        points=float(points),
        settling=float(settling),
        best=NOT_YET,
        measured=0.0,
        promised=0.0,
        length=1.0,
        damping=active().lr.first_damping,
        pace=1.0,
        gap=NOT_YET,
        mark=0.0,
        marked=NOT_YET,
        wary=0.0,
        brought=NOT_YET,
        stuck=0.0,
        doubt=0.0,
        rounding=rounding,
        recent=0.0,
        usual=0.0,
        before=0.0,
        bent=0.0,
        checked=UNCHECKED,
        long_rows=0.0,
        longest=0.0,
    )
    return np.array(first)


def rounding_of(features: Any) -> float:
    """Relative rounding of such rows; whole numbers are computed with as float64."""
    kind = (features.values if isinstance(features, Sparse) else np.asarray(features)).dtype
    return float(np.finfo(kind if kind.kind == "f" else np.float64).eps)


class PlannedStep(NamedTuple):
    """A step from the best θ, and how it was found."""

    change: Array
    promised: float
    """Change of the objective to first order: negative for a step that helps."""
    damping: float
    pace: float


class Penalty(NamedTuple):
    """½·l2·‖w‖² + l1·‖w‖₁; the bias is free."""

    l2: float
    l1: float

    def value(self, theta: Array) -> float:
        return self.of(theta[:, :-1])

    def of(self, weights: Array) -> float:
        squares = 0.5 * self.l2 * float(np.einsum("kt,kt->", weights, weights)) if self.l2 else 0.0
        return squares + (self.l1 * float(np.abs(weights).sum()) if self.l1 else 0.0)

    def add_slope(self, theta: Array, gradient: Array) -> Array:
        """gradient += the derivative of the smooth part, in place."""
        if self.l2:
            for some in output_blocks(gradient):
                gradient[some, :-1] += self.l2 * theta[some, :-1]
        return gradient


def output_blocks(numbers: Array) -> Iterator[slice]:
    """Outputs at a time of which a cache holds several arrays: what lies between two operations on a million weights
    needs no new memory, which would cost more than the operations."""
    several = max(BLOCK_NUMBERS // max(numbers.shape[1], 1), 1)
    for first in range(0, len(numbers), several):
        yield slice(first, first + several)


class Solver(NamedTuple):
    """Solves with one curvature."""

    solve: Callable[[Array], Array]
    """gradient ↦ −H⁻¹·gradient."""
    squared_length: Callable[[Array], float] | None = None
    """gradient ↦ gradientᵀ·H⁻¹·gradient, where that takes less than `solve`."""

    def length(self, gradient: Array) -> float:
        if self.squared_length is not None:
            return self.squared_length(gradient)
        return -float(np.vdot(gradient, self.solve(gradient)))


class Curvature(NamedTuple):
    """The second derivatives of the mean loss, as `curvature.py` sums them, and the coordinates they are in."""

    sums: Array
    seen: float
    """Points in the sums."""
    metric: Array
    """Two rows by column, the bias last: its mean, which is subtracted, and the unit by which it is divided. For the
    bias the first row holds 1, or 0 where there is none."""
    bound: float
    """Of the second derivative of the loss by the score."""
    summed: bool
    """False where the sums are not used: with the plain gradient."""
    rounding: float
    """Of the rows' numbers, relative."""
    diagonal: bool = False
    """The diagonal is all that is known: there are no directions of the sample."""

    @property
    def full(self) -> bool:
        return bool(self.summed and not self.diagonal and self.sums.shape[1] > 1)

    @property
    def of_long_rows(self) -> float:
        """The mean of the diagonals where rows that are far longer than others have most of it, otherwise 0. In these
        coordinates a usual column has the curvature of the bias."""
        if not self.summed:
            return 0.0
        diagonals = np.einsum("ktt->kt", self.sums) if self.full else self.sums[:, 0]
        mean = float(np.maximum(diagonals, 0.0).mean())
        usual = float(np.maximum(diagonals[:, -1], 0.0).mean())
        return mean / self.seen if mean > active().lr.long_row_curvature * usual else 0.0

    def squared_length_without_long_rows(self, gradient: Array, penalty: Penalty) -> float:
        """gradientᵀ·H⁻¹·gradient where every column has the curvature of the bias. Long rows have much of it for each
        of several classes and next to none for those together, which sums for single classes do not show."""
        inner = inward(gradient, self.metric)
        usual = np.maximum(self.sums[:, -1 if self.full else 0, -1], 0.0) / self.seen
        usual = np.maximum(usual, 1e-6 * self.bound)
        ridge = np.append(penalty.l2 / self.metric[1, :-1] ** 2, 0.0)
        return float((inner**2 / (usual[:, None] + ridge)).sum())

    def bound_of_gap(self, gradient: Array, penalty: Penalty) -> float:
        """How far the objective may be above its minimum at most, whatever the curvature of the loss is: the penalty
        alone bends every weight by l2, so it is ‖∇‖²/(2·l2) without a bias. A bias has no penalty; its part is taken
        from its own curvature, and the whole is multiplied by `lr.bound_with_bias`, as a step of the bias changes the
        slopes of the weights."""
        if not penalty.l2 or not self.summed:
            return NOT_YET
        slopes = gradient[:, :-1]
        bound = float(np.einsum("kt,kt->", slopes, slopes)) / (2.0 * penalty.l2)
        if self.metric[0, -1] == 0.0:  # no bias
            return min(bound, NOT_YET)
        bends = np.maximum(self.sums[:, -1 if self.full else 0, -1], 0.0) / self.seen
        if not (bends > 0.0).all():
            return NOT_YET
        bound += float((gradient[:, -1] ** 2 / (2.0 * bends)).sum())
        return min(active().lr.bound_with_bias * bound, NOT_YET)

    def gap_by_flattest(self, gradient: Array, pairs: Sequence[Array]) -> float:
        """The distance to the minimum if the whole gradient lay along the flattest of the last steps. Where weights
        grow without end, along planes between some classes, steps bring next to nothing for a while and more later;
        their curvature is what shows it."""
        unit = np.append(self.metric[1, :-1], 1.0)
        bends = [
            float(np.vdot(pair[0], pair[1])) / float(((pair[0] * unit) ** 2).sum()) for pair in pairs if pair.any()
        ]
        flattest = min(bends, default=0.0)
        inner = inward(gradient, self.metric)
        return float(np.vdot(inner, inner)) / (2.0 * flattest) if flattest > 0.0 else 0.0

    def matrix(self, k: int, penalty: Penalty, damping: float) -> Array:
        """The full Hessian of output k with penalty and damping. A constant column gets 1: its weight stays."""
        sums = self.sums[k]
        whole: Array = np.where(_lower(len(sums)), sums, sums.T) / self.seen
        places = np.arange(len(whole))
        diagonal = np.maximum(whole[places, places], 0.0)
        rounding = DIGITS * (1.0 + np.abs(self.metric[0]) / self.metric[1])
        still = diagonal <= rounding**2 * diagonal[-1]
        ridge = penalty.l2 / self.metric[1, :-1] ** 2
        still[:-1] &= ridge <= 0.0
        diagonal[:-1] += ridge
        # In coordinates of the sample a usual column has the curvature of the bias. One that hardly varied so far is
        # damped as if it did: otherwise it would take over a part of the bias with a weight out of proportion.
        diagonal[:-1] += damping * np.maximum(diagonal[:-1], diagonal[-1])
        whole[still] = 0.0
        whole[:, still] = 0.0
        whole[places, places] = np.where(still, 1.0, diagonal)
        if self.metric[0, -1] == 0.0:  # no bias
            whole[-1] = whole[:, -1] = 0.0
            whole[-1, -1] = 1.0
        return whole

    def kept_in(self, parameter: Linear) -> Linear:
        """θ with these second derivatives, where there is room for them."""
        if not parameter.internal_curvature.size:
            return parameter
        return parameter._replace(
            internal_curvature=given(np.where(_lower(self.sums.shape[1]), self.sums, 0.0) / self.seen)
        )

    def changed(self, before: Array, penalty: Penalty) -> float:
        """By which part the second derivatives differ from `before` in the direction in which they differ most: the
        largest |eigenvalue| of H⁻¹·(H − before). Infinite where `before` is not known."""
        if not self.full or before.shape != self.sums.shape or not before.any():
            return float("inf")
        most = 0.0
        for k in range(len(self.sums)):
            now = self.matrix(k, penalty, active().lr.least_damping)
            unit = 1.0 / np.sqrt(np.diagonal(now))
            lower = self.sums[k] / self.seen - before[k]
            if self.metric[0, -1] == 0.0:  # no bias
                lower[-1] = 0.0
            apart = np.where(_lower(len(lower)), lower, lower.T) * unit * unit[:, None]
            root = _root(now * unit * unit[:, None])
            inner = np.linalg.solve(root, np.linalg.solve(root, apart).T)
            most = max(most, float(np.abs(np.linalg.eigvalsh(inner)).max()))
        return most

    def larger(self) -> Array:
        """Each column's curvature (at least the bias's) relative to `bound`; for the bias, its curvature itself."""
        if not self.summed:
            return np.ones((len(self.sums), self.sums.shape[2]))
        here = 1.25 * np.maximum(self.sums[:, 0], 0.0) / self.seen
        mean = np.maximum(here[:, -1:], 1e-6 * self.bound)
        here = np.maximum(here, mean) / self.bound
        here[:, -1] = mean[:, 0]
        return here

    def of_columns(self, penalty: Penalty) -> Array:
        """Two rows: what the penalty adds to the diagonal of the Hessian, by column, and the least that counts."""
        ridge = np.append(penalty.l2 / self.metric[1, :-1] ** 2, 0.0)
        mean = np.zeros_like(ridge)
        for some in output_blocks(self.sums[:, 0]):
            mean += np.maximum(self.sums[some, 0], 0.0).sum(axis=0)
        least = active().lr.least_curvature * (mean / (self.seen * len(self.sums)) + ridge)
        return np.stack([ridge, least])

    def solver(self, penalty: Penalty, damping: float) -> Solver:
        """`solve` for several gradients."""
        if not self.diagonal or not self.summed:
            return Solver(lambda gradient: self.solve(gradient, penalty, damping))
        sums = protected(self.sums)  # the same types for every job, so that the code is compiled once
        others = (float(self.seen), self.of_columns(penalty), np.ascontiguousarray(self.metric[:2]))

        def solve(gradient: Array) -> Array:
            step = np.empty(gradient.shape)

            def some(first: int, end: int) -> None:
                _DIVIDE(protected(gradient[first:end]), sums[first:end], *others, step[first:end])

            in_pieces(len(gradient), max(PIECE // gradient.shape[1], 1), some)
            return step

        def length(gradient: Array) -> float:
            return float(_DIVIDE(protected(gradient), sums, *others, np.empty((1, gradient.shape[1]))))

        return Solver(solve, length)

    def solve(self, gradient: Array, penalty: Penalty, damping: float) -> Array:
        """−H⁻¹·gradient, both by raw weights and bias."""
        if self.diagonal and self.summed:
            return self.solver(penalty, damping).solve(gradient)
        inner = inward(gradient, self.metric)
        if not self.full:
            return -outward(descend(inner, self.metric, self.larger()), self.metric)
        step = np.stack([self._step(k, inner[k], penalty, damping) for k in range(len(inner))])
        return -outward(step, self.metric)

    def _step(self, k: int, gradient: Array, penalty: Penalty, damping: float) -> Array:
        """H⁻¹·gradient of output k, without the directions that only rounding tells apart.

        Where columns are collinear (all columns of a one-hot encoding and the bias always are), some directions have
        no curvature, and their gradient is rounding: divided by next to nothing, it would be a step without bound.
        """
        damped = self.matrix(k, penalty, damping)
        unit = 1.0 / np.sqrt(np.diagonal(damped))
        slope, root = gradient * unit, _root(damped * unit * unit[:, None])
        if float(np.diagonal(root).min()) ** 2 > active().lr.well_conditioned_pivot:
            return np.asarray(_divided(root, slope) * unit)
        values, directions = np.linalg.eigh(self.matrix(k, penalty, 0.0) * unit * unit[:, None])
        # How far the origin of the raw numbers lies from a column's mean, in units of its curvature: so many digits are
        # lost where the mean is subtracted.
        offsets = np.abs(self.metric[0]) / self.metric[1] * unit * np.sqrt(max(damped[-1, -1], 0.0))
        offsets[-1] = 0.0
        wrong = ROUNDINGS * self.rounding * (1.0 + offsets)  # of a column's scores, in units of its curvature
        noise = directions.T**2 @ wrong**2
        summed = ROUNDINGS * len(values) * float(np.finfo(np.float64).eps) * values[-1]
        parts = directions.T @ slope
        known = (values > np.maximum(noise, summed)) & (parts**2 > noise)
        kept = directions[:, known]
        return np.asarray(kept @ (kept.T @ _divided(root, kept @ parts[known])) * unit)

    def proximal(self, theta: Array, gradient: Array, penalty: Penalty, damping: float, pace: float) -> Array:
        """The step to the minimum of the quadratic model with the l1 penalty, by coordinate descent."""
        inner = inward(gradient, self.metric)
        unit = self.metric[1].copy()
        unit[-1] = 1.0
        start, least = theta * unit, np.append(penalty.l1 / unit[:-1], 0.0)
        step = np.empty_like(inner)
        for k in range(len(inner)):
            if self.full:
                matrix = self.matrix(k, penalty, damping)
                step[k] = _PROXIMAL_STEP(matrix, inner[k], start[k], least)
            else:
                rest = np.append(np.full(len(unit) - 1, self.metric[1, -1]), 1.0)
                diagonal = self.larger()[k] * rest / pace
                shrunk = start[k] - inner[k] / diagonal
                step[k] = np.sign(shrunk) * np.maximum(np.abs(shrunk) - least / diagonal, 0.0) - start[k]
        return outward(step, self.metric)


@functools.cache
def _lower(width: int) -> Array:
    """Marks the lower triangle, which is all that is summed."""
    marks = np.tril(np.ones((width, width), dtype=bool))
    marks.flags.writeable = False
    return marks


def _root(matrix: Array) -> Array:
    """Cholesky's root; a matrix that is not positive gets more on its diagonal."""
    extra = 0.0
    while True:
        try:
            return np.linalg.cholesky(matrix + extra * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            extra = max(100.0 * extra, 1e-12)


def _divided(root: Array, gradient: Array) -> Array:
    """(root·rootᵀ)⁻¹·gradient."""
    return np.asarray(np.linalg.solve(root.T, np.linalg.solve(root, gradient)))


# -- quasi-Newton pairs -------------------------------------------------------------------------------------


def pairs_of(outputs: int, width: int) -> int:
    """How many pairs are kept for so many weights."""
    rules = active().lr
    return int(np.clip(rules.pair_bytes // (2 * 8 * outputs * width), 2, rules.most_pairs))


def with_pair(pairs: Sequence[Array], theta: Array, gradient: Array, before: Array) -> tuple[Array, ...]:
    """The newest pair first, the oldest left out: how θ and its gradient differ from those before. One without positive
    curvature is left out."""
    fresh = np.empty(before.shape)
    step, change = fresh.reshape(2, -1)
    for now, then, made in zip((theta, gradient), before.reshape(2, -1), (step, change), strict=True):
        _less_sum(now.reshape(-1), [1.0], [then], made)
    if not float(_dots([step], change)[0]) > 0.0:
        return tuple(pairs)
    return (given(fresh), *tuple(pairs)[:-1])


def quasi_newton(gradient: Array, pairs: Sequence[Array], solver: Solver, rescaled: bool = True) -> Array:
    """L-BFGS: −H⁻¹·gradient where H follows the pairs of steps and changes of the gradient; that of `solver` where
    there are none. `rescaled`: the newest pair says in which units the solver is; otherwise these are right.

    The usual two loops over pairs, but on products of vectors that are made all at once: so every array is read a few
    times rather than a few times a pair.
    """
    flat = gradient.reshape(-1)
    products, along = _products(pairs, flat)
    used = np.flatnonzero(np.diagonal(products) > 0.0)
    if not len(used):
        return solver.solve(gradient)
    steps, changes = ([pairs[int(i)][side].reshape(-1) for i in used] for side in (0, 1))
    products, along = products[np.ix_(used, used)], along[used]
    own, parts = np.diagonal(products), np.zeros(len(used))
    for i in range(len(used)):  # the newest first
        parts[i] = (along[i] - products[i, :i] @ parts[:i]) / own[i]
    rest = np.empty(gradient.shape)
    _less_sum(flat, parts, changes, rest.reshape(-1))
    step = solver.solve(rest)
    if rescaled:
        step *= own[0] / solver.length(changes[0].reshape(gradient.shape))
    back, more = _dots(changes, step.reshape(-1)), np.zeros(len(used))
    for i in reversed(range(len(used))):
        more[i] = parts[i] + (back[i] - products[i + 1 :, i] @ more[i + 1 :]) / own[i]
    _less_sum(step.reshape(-1), more, steps, step.reshape(-1))
    return step


def _products(pairs: Sequence[Array], flat: Array) -> tuple[Array, Array]:
    """Products of all steps with all changes of the gradient, and of all steps with `flat`. Pieces are added in their
    order, whoever has made them."""
    both = [pair.reshape(2, -1) for pair in pairs]
    made: dict[int, tuple[Array, Array]] = {}

    def some(start: int, end: int) -> None:
        steps, changes = (np.stack([one[side, start:end] for one in both]) for side in (0, 1))
        made[start] = steps @ changes.T, steps @ flat[start:end]

    in_pieces(flat.size, PIECE, some)
    ordered = [made[start] for start in sorted(made)]
    return sum(one for one, _ in ordered), sum(one for _, one in ordered)  # type: ignore[return-value]


def _dots(vectors: Sequence[Array], flat: Array) -> Array:
    """Products of each of the vectors with `flat`."""
    made: dict[int, list[Any]] = {}

    def some(start: int, end: int) -> None:
        made[start] = [vector[start:end] @ flat[start:end] for vector in vectors]

    in_pieces(flat.size, PIECE, some)
    return np.sum([made[start] for start in sorted(made)], axis=0)  # type: ignore[no-any-return]


def _less_sum(numbers: Array, factors: Sequence[float] | Array, vectors: Sequence[Array], into: Array) -> None:
    """into = numbers − Σ factor · vector."""

    def some(start: int, end: int) -> None:
        whole = factors[0] * vectors[0][start:end]
        for factor, vector in zip(factors[1:], vectors[1:], strict=True):
            whole += factor * vector[start:end]
        np.subtract(numbers[start:end], whole, out=into[start:end])

    in_pieces(into.size, PIECE, some)


def with_long_rows(search: StepSearch, curvature: float) -> StepSearch:
    """`search` at a θ where long rows have this curvature. A step that has changed it has bent them, even if by less
    than counts for other points, and what was known of the distance to the minimum before is to be checked again."""
    before, most = search.long_rows, max(search.long_rows, curvature)
    search = search._replace(long_rows=curvature, longest=max(search.longest, curvature))
    if abs(curvature - before) <= active().lr.bent_long_rows * most:
        return search
    checked = UNCHECKED if search.checked == CHECKED else search.checked
    return search._replace(bent=search.bent + 1.0, checked=checked)


def following_check(search: StepSearch, diagonal: bool, near: bool) -> float:
    """What `checked` becomes when a step was accepted. `near`: the minimum seems to be reached."""
    if search.checked in (CHECKING, RECOUNTED):
        if not search.bent:
            return RECOUNTED if diagonal and search.checked == CHECKING else CHECKED
        return UNCHECKED if search.length < 1.0 else CHECKING
    return search.checked if not near or search.checked == CHECKED else CHECKING


def scheduled(schedule: str, decay: float, passes: float) -> float:
    """The factor on the learning rate after this many passes."""
    match schedule:
        case "inverse":
            return 1.0 / (1.0 + decay * passes)
        case "sqrt":
            return float(1.0 / np.sqrt(1.0 + decay * passes))
    return 1.0


def remaining(last: float, before: float) -> float:
    """Estimate of the remaining decrease after steps that brought `before` and then `last` (Aitken)."""
    ratio = min(max(last, 0.0) / before, 0.95) if before > 0.0 else 0.95
    return max(last, 0.0) * ratio / (1.0 - ratio)


def unsolved(search: StepSearch, metric: Array) -> list[str]:
    """Why the search has not reached the minimum, as a warning; none where it has, or has hardly begun."""
    rules = active().lr
    if search.stuck:
        return [
            f"Steps have stopped bringing anything that can be measured, at {search.best:.4g} and without "
            "having reached the minimum: columns are too nearly collinear. Give l2, or leave columns out."
        ]
    if search.measured < rules.warned_from_steps or search.gap <= rules.warned_from_gap:
        return []
    units = metric[1, :-1]
    apart = float(units.max(initial=1e-300) / units.min(initial=1e300))
    scales = f"columns differ in size by a factor of {apart:.0e}, and are" if apart > 1e3 else "columns are"
    far = f"by about {100.0 * search.gap:.2g} %" if search.gap < 1.0 else "by how much is not known"
    return [
        f"The minimum is not reached: after {search.measured:.0f} steps objective {search.best:.4g} can still fall, "
        f"{far}; {scales} nearly collinear. Scale the columns ({option('scale', 'standard')}), give l2, or "
        "train for longer."
    ]


# -- line search --------------------------------------------------------------------------------------------


def longer(search: StepSearch, left: float, promised: float) -> float:
    """By how much a Newton step is lengthened: twice the last one while the objective still falls at the end of whole
    steps as Newton's method does not expect, and they promise less and less. So it does along points whose curvature
    vanishes as exp(-score): each whole step changes their scores by 1, whatever is left to go."""
    rules = active().lr
    if search.length != 1.0 or search.wary or not search.promised < 0.0 or -promised * search.pace > -search.promised:
        return 1.0
    falls = left < (0.0 if search.pace > 1.0 else rules.slope_left * search.promised)
    return min(2.0 * search.pace, rules.longest_newton_step) if falls else 1.0


def shorter(search: StepSearch, value: float, end_slope: float, smooth: bool = True) -> float:
    """Estimated minimum between the best θ (0) and the last one (1), as a part of the way.

    A cubic through both values and slopes. A parabola where one slope is not known: that of the start before a step
    promised anything, that of the end where the objective is not `smooth`.
    """
    rise = value - search.best
    start = search.promised * search.length
    if smooth and start < 0.0 < end_slope:
        middle = start + end_slope - 3.0 * rise
        root = float(np.sqrt(max(middle**2 - start * end_slope, 0.0)))
        return float(np.clip(1.0 - (end_slope + root - middle) / (end_slope - start + 2.0 * root), 0.01, 0.7))
    start = start if start < 0.0 else 2.0 * rise - end_slope
    bend = 2.0 * (rise - start)
    return float(np.clip(-start / bend if bend > 0.0 else 0.5, 0.02, 0.5))
