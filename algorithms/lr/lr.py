"""Logistic regression, binary and softmax: the model, its statistics and the per-point hooks.

Never looks at a shard as a whole; the block kernels are in `kernels.py`, the steps in `search.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.class_labels import label_values
from flegel.algorithms.lr import answers, kernels
from flegel.algorithms.lr.curvature import add_outer
from flegel.algorithms.lr.model import (
    PAIR_NAMES,
    Gradients,
    Linear,
    check_classes,
    importance_of,
    intercept_loss,
    joined,
    least_weight,
    no_pairs,
    number_of,
    pairs_in,
    reject_regression_targets,
    reject_unknown_labels,
    shown_label,
    shown_labels,
    start_loss,
    with_pairs,
)
from flegel.algorithms.lr.point import SUMS, visit
from flegel.algorithms.lr.precondition import coordinates, plain, scaled
from flegel.algorithms.lr.products import ProductKernel
from flegel.algorithms.lr.sample_start import minimum_of_sample
from flegel.algorithms.lr.search import (
    CAUTIOUS,
    CHECKING,
    EMPTYING,
    EXACT,
    GUARDED,
    LATER,
    NOISE,
    NOT_YET,
    RECOUNTED,
    UNCHECKED,
    UNCOUNTED,
    Curvature,
    Penalty,
    PlannedStep,
    StepSearch,
    begin,
    following_check,
    longer,
    pairs_of,
    quasi_newton,
    remaining,
    rounding_of,
    scheduled,
    shorter,
    unsolved,
    with_long_rows,
    with_pair,
)
from flegel.algorithms.lr.shapes import kernel_choice, served_by
from flegel.algorithms.number_range import check_squares
from flegel.algorithms.rows import add_scaled, dot
from flegel.configuration.active import active
from flegel.core.pytree import Array, given
from flegel.core.shard import DataPoint, Shard, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import Kernel, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

REMEMBERED = Statistics(spent=("visits", "unknown", "bent"), lagging=("curvature",))
FORGOTTEN = Statistics(spent=("gradient", "visits", "unknown", "bent"), lagging=("curvature",))


class LR(Algorithm):
    """Logistic regression for two or more classes, with L2 and L1 penalties and class weights.

    Model: P(class | x) = softmax(W·x + b); two classes need one output, P = 1 / (1 + exp(−w·x − b)). The bias is not
    penalized. Minimized is mean(weight of the point · class weight · log-loss) + ½·l2·‖W‖² + l1·‖W‖₁; scikit-learn's C
    is 1 / (points · l2), or 1 / (points · l1).
    State of a point: its last residual (P − target, one number an output), loss and counted curvature, and the number
    of θ at its last visit, 0 before the first.
    Statistics: the gradient G = Σ residual·x, each point with the residual of its last visit (`memory`, a stochastic
    average gradient), or, without memory, the sum over the interval's visits (the paper's Eq. 1); the second
    derivatives H, all of them where columns are few, otherwise their diagonal; the loss.
    Start: with two classes and few columns the minimum for a part of the sample (`sample_start.py`), which is held;
    otherwise 0.
    Steps: from 0 θ moves at every barrier by −α·H⁻¹·G with α in proportion to the visits. When a pass brings less
    than 1 %, and always under `bsp` and with l1, θ is held until every point has been visited with it. Then loss and
    gradient are exact, and the step is Newton's (L-BFGS about H where H is not all there is; proximal with l1), taken
    back where the loss rose (`search.py`). Where columns are neither few nor many, L-BFGS begins with the diagonal of H
    and θ is held from the beginning; all of H is summed only if that is slow. With more than 1,024 columns the diagonal
    remains all there is. The answer is the best θ that was measured.
    Objective: while θ moves, mean of log-loss + penalty, each point with the θ of its last visit; then of the best θ.
    Reference: M. Schmidt et al., Minimizing finite sums with the stochastic average gradient (2017); J. Lee et al.,
    Proximal Newton-type methods for minimizing composite functions (2014).
    Labels are numbers (a reader turns words into class numbers); `classes` are by default those of all rows.
    """

    accepts = Accepts(sparse=True, weighted=True, labels="classes")
    learning = Learning(
        trivial="the intercept alone",
        auxiliary=(*(name for name in Linear._fields if name.startswith("internal_")), *PAIR_NAMES),
    )
    placement = ParameterPlacement(
        unsharded="the length of each step is found along all of θ at once (lr-gradient takes plain steps, and can)",
        not_additive="its step search compares the loss of θ with that of the step before, which a θ from outside "
        "breaks; `lr-gradient` and `lr-local` can be trained by groups",
        unsent=("internal_search", "internal_best", "internal_curvature", *PAIR_NAMES),
    )
    kernels = Kernels(layout="tiles", torch_program="flegel.algorithms.lr.torch_program:LogisticProgram")
    figures = ReportedFigures(shown=("accuracy",))
    hyper_names = HyperNames(
        instead={"C": "give l2 = 1 / (C · rows) for an L2 penalty, or l1 for an L1 penalty"},
    )

    classes: Annotated[
        list[float | str] | None, Meta(description="all label values, or their words, in order; by default those found")
    ] = None
    l2: Annotated[float, Meta(ge=0, description="strength of the penalty ½·l2·‖weights‖² on the mean loss")] = 0.0
    l1: Annotated[float, Meta(ge=0, description="strength of the penalty l1·‖weights‖₁ on the mean loss")] = 0.0
    class_weight: Annotated[
        Literal["balanced"] | list[float] | dict[float | str, float] | None,
        Meta(description="weight of each class, in their order or by label value or word; balanced: 1 / frequency"),
    ] = None
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
        bool, Meta(description="take steps in units of the data's own curvature; false: the plain gradient")
    ] = True
    _words: Sequence[str] | None = None
    """The words of the labels, by number, where labels are words; `validate` sets it."""

    @property
    def statistics(self) -> Statistics:  # type: ignore[override]
        return REMEMBERED if self.memory else FORGOTTEN

    @property
    def outputs(self) -> int:
        if self.classes is None:
            raise UsageError("LR: the classes are not known yet; give classes=… or validate a sample first.")
        return 1 if len(self.classes) <= 2 else len(self.classes)

    # -- start ---------------------------------------------------------------------------------------------

    def validate(self, sample: Sample) -> None:
        """Find the classes among the labels where the user did not name them, replace words by their numbers, and
        refuse labels, weights of classes and penalties that cannot be trained."""
        found = label_values(sample, "LR")
        if not (self.l2 or self.l1):  # with a penalty, weights of columns next to 0 are 0
            check_squares(sample, "LR", large=False)
        self._words = sample.class_names
        if self.classes is None:
            reject_regression_targets(found, self._words)
            self.classes = [float(value) for value in found]
        self.classes = [number_of(value, self._words) for value in self.classes]
        check_classes(self._label_values, found, self._words)
        if isinstance(self.class_weight, dict):
            self.class_weight = {number_of(c, self._words): weight for c, weight in self.class_weight.items()}
        self._importance(np.ones(len(self.classes)))  # raises where class_weight does not fit the classes
        if self.l1 and not self.memory:
            raise UsageError("LR: l1 needs memory=true; without it no step rests on all points.")

    @property
    def _label_values(self) -> list[float]:
        """The label values: after `validate`, words have become numbers."""
        return [float(value) for value in self.classes or ()]

    def _importance(self, counts: Array) -> Array:
        return importance_of(self.class_weight, self._label_values, counts, self._words)

    @property
    def _penalty(self) -> Penalty:
        return Penalty(self.l2, self.l1)

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Linear:
        """θ = 0, or the minimum for a part of the sample where two classes have few columns."""
        start = self._zero(sample)
        full = float(start.internal_visit[5]) == 1.0
        if not (full and self.outputs == 1 and self.memory and not self.l1):
            return start
        importance, metric = start.internal_importance, start.internal_metric
        found = minimum_of_sample(sample, self._label_values, importance, self.l2, metric, self.learning.tolerance)
        return start if found is None else self._held_at(start, *found, sample)

    def _held_at(self, fresh: Linear, weights: Array, bias: Array, sample: Sample) -> Linear:
        """`fresh` with this θ, which is held from the beginning."""
        numbers = np.append(self._penalty.of(weights), fresh.internal_visit[1:])
        search = begin(sample.points, self.memory, rounding_of(sample.features))
        made = {"internal_visit": numbers, "internal_search": search}
        return fresh._replace(weights=weights, bias=bias, **made)

    def _zero(self, sample: Sample) -> Linear:
        """θ = 0 in the coordinates that the search will use; how much curvature is summed depends on the number of
        columns."""
        self.validate(sample)
        assert sample.labels is not None
        columns, outputs = sample.columns, self.outputs
        size = outputs * (columns + 1) ** 2
        full = self.scaling and size <= active().shapes.lr_full_numbers
        late = self._begins_with_diagonal(columns) and size <= active().shapes.lr_late_numbers
        held = self.l1 > 0 or self._begins_with_diagonal(columns)
        sparse = isinstance(sample.features, Sparse)
        if full or self._begins_with_diagonal(columns):
            metric = coordinates(sample.features, columns, self.intercept, self.intercept and not sparse)
        elif self.scaling:
            metric = scaled(sample.features, columns, self._curvature, self.l2, self.intercept)
        else:
            metric = plain(columns, self.intercept)
        pairs = 0 if not self.scaling or (full and outputs == 1) else pairs_of(outputs, columns + 1)
        summed = LATER if late else float(full)
        mass = np.ones(len(sample.labels)) if sample.weights is None else sample.weights
        counts = np.array([mass[np.asarray(sample.labels) == c].sum() for c in self._label_values], dtype=np.float64)
        start = Linear(
            weights=np.zeros((outputs, columns)),
            bias=np.zeros(outputs),
            classes=np.array(self._label_values),
            internal_visit=np.array(
                [0.0, 1.0, active().lr.recount_moving, 0.0, CAUTIOUS, summed, *least_weight(sample)]
            ),
            internal_importance=self._importance(counts),
            internal_search=begin(sample.points, held, rounding_of(sample.features)),
            internal_best=np.zeros((2, outputs, columns + 1)),
            internal_metric=metric,
            internal_curvature=np.zeros((1, columns + 1, columns + 1) if full and outputs == 1 else (0, 0, 0)),
        )
        return with_pairs(start, no_pairs(pairs, outputs, columns + 1))

    def continueParameter(self, previous: Linear, sample: Sample, rng: np.random.Generator) -> Linear:
        """The weights and bias of before; the search for the next step begins anew, from exact measurements."""
        known = [float(c) for c in previous.classes]
        self.validate(sample)
        if set(self._label_values) <= set(known):
            self.classes = list(known)
        fresh = self._zero(sample)
        if previous.weights.shape != fresh.weights.shape or known != self._label_values:
            raise UsageError("LR: start= has other columns or classes than these data; give the classes of the start.")
        return self._held_at(fresh, previous.weights, previous.bias, sample)

    def _begins_with_diagonal(self, columns: int) -> bool:
        """Steps begin with the diagonal of the second derivatives alone, and θ is held from the beginning."""
        size = self.outputs * (columns + 1) ** 2
        shapes = active().shapes
        some = shapes.lr_full_numbers < size <= shapes.lr_late_numbers or columns > shapes.lr_wide_columns
        return some and self.scaling and self.memory and not self.l1

    @property
    def _curvature(self) -> float:
        """Böhning's bound: the second derivative of the loss by a score is at most this."""
        return 0.25 if self.outputs == 1 else 0.5

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, 2 * self.outputs + 2), np.float32)

    def initAggregator(self, sample: Sample, parameter: Linear) -> Gradients:
        outputs, columns = parameter.weights.shape
        wide = columns + 1 if parameter.internal_visit[5] > 0.0 else 1
        curvature = np.zeros((outputs, wide, columns + 1))
        counts = np.zeros(len(parameter.classes))
        return Gradients(np.zeros((outputs, columns + 1)), curvature, counts, *(np.zeros(1) for _ in range(SUMS)))

    # -- training ------------------------------------------------------------------------------------------

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Linear, iterationNum: int) -> Gradients:
        """The change of this point's gradient, loss and curvature since its last visit."""
        outputs, columns = parameter.weights.shape
        metric, numbers = parameter.internal_metric, parameter.internal_visit
        wide = columns + 1 if numbers[5] > 0.0 else 1
        sums = np.zeros((SUMS, 1))
        change = Gradients(
            np.zeros((outputs, columns + 1)),
            np.zeros((outputs, wide, columns + 1)),
            np.zeros(parameter.classes.shape[0]),
            sums[0],
            sums[1],
            sums[2],
            sums[3],
            sums[4],
            sums[5],
        )
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
        if dataPoint.state[2 * outputs + 1] == 0.0:
            change.counts[target] = dataPoint.weight
        model = (
            parameter.internal_importance,
            (numbers[0], 1.0 if self.memory else 0.0, numbers[1], numbers[2], numbers[3], numbers[4]),
        )
        steps, bends, totals = np.zeros(outputs), np.zeros(outputs), np.zeros(SUMS)
        visit(scores, target, dataPoint.weight, dataPoint.state, model, steps, bends, totals)  # type: ignore[no-untyped-call]
        for k in range(outputs):
            add_scaled(dataPoint.features, steps[k], change.gradient[k])
            change.gradient[k, columns] += steps[k]
            if bends[k] != 0.0 and numbers[5] > 1.0:
                first = np.zeros((1, columns + 1))
                add_outer(dataPoint.features, bends[k], metric, first)
                change.curvature[k, 0] += first[0]
            elif bends[k] != 0.0:
                add_outer(dataPoint.features, bends[k], metric, change.curvature[k])
        for i in range(SUMS):
            sums[i, 0] = totals[i]
        return change

    def layout_for(self, columns: int) -> str:
        return "rows" if self._by_products(columns) else self.kernels.layout

    def kernel(self, share: Shard) -> Kernel | None:
        if isinstance(share.features, Sparse) or share.layout == "tiles":
            return kernels.kernel_for(self.memory, share, self.outputs)
        return ProductKernel(self.memory) if self._by_products(share.columns) else None

    def kernel_choice(self, share: Shard) -> str:
        if isinstance(share.features, Sparse):
            return "sparse: products with the entries of a row alone"
        return kernel_choice(self.outputs, share.columns)

    def _by_products(self, columns: int) -> bool:
        """Is a block of dense rows multiplied at once?"""
        return self.classes is not None and served_by(self.outputs, columns).kernel == "products"

    # -- steps ---------------------------------------------------------------------------------------------

    def updateParameter(self, aggregator: Gradients, oldParameter: Linear) -> Linear:
        """A step where the sums are good enough; where all points were visited under the same θ, its objective is
        measured instead."""
        reject_unknown_labels(aggregator, shown_labels(oldParameter.classes.tolist(), self._words))
        visits, seen = float(aggregator.visits[0]), float(aggregator.seen[0])
        if visits <= 0:
            return oldParameter
        search = StepSearch(*(float(number) for number in oldParameter.internal_search))
        search = search._replace(trained=search.trained + visits, bent=search.bent + float(aggregator.bent[0]))
        everyone = seen >= search.points
        if everyone and self.class_weight == "balanced":
            importance = self._importance(aggregator.counts)
            if not np.allclose(importance, oldParameter.internal_importance, rtol=1e-6):
                search = search._replace(settling=1.0, best=NOT_YET, measured=0.0)
                fresh = self._moved(aggregator, oldParameter, joined(oldParameter), search)
                return fresh._replace(internal_importance=importance)
        same = everyone and float(aggregator.stamps[0]) == seen * float(oldParameter.internal_visit[1])
        if same and (self.memory or visits == seen):
            return self._measure(aggregator, oldParameter, search)
        if everyone:
            search = self._look(aggregator, search)
        if search.settling:
            return self._held(oldParameter, search)
        return self._move(aggregator, oldParameter, search)

    def _curvatures(self, aggregator: Gradients, parameter: Linear) -> Curvature:
        seen, metric = float(aggregator.seen[0]), parameter.internal_metric
        rounding = StepSearch(*parameter.internal_search).rounding
        diagonal = float(parameter.internal_visit[5]) != 1.0 and self._begins_with_diagonal(metric.shape[1] - 1)
        return Curvature(aggregator.curvature, seen, metric, self._curvature, self.scaling, float(rounding), diagonal)

    def _look(self, aggregator: Gradients, search: StepSearch) -> StepSearch:
        """Once a pass: has the mean loss settled? Without memory, a loss that rose by a tenth halves the steps."""
        if search.trained - search.mark < search.points:
            return search
        mean = float(aggregator.loss[0] / aggregator.seen[0])
        before, search = search.marked, search._replace(mark=search.trained, marked=mean)
        if not self.memory:
            return search._replace(pace=search.pace / 2 if mean > 1.1 * before else min(1.0, 1.1 * search.pace))
        rules = active().lr
        slow = mean > (1.0 - rules.moving_ends_below_gain) * before
        over = slow or search.trained >= rules.moving_passes * search.points
        return search._replace(settling=1.0) if over else search

    def _move(self, aggregator: Gradients, parameter: Linear, search: StepSearch) -> Linear:
        """θ moves at every barrier, by `lr.steps_per_pass` times the part of a pass that was visited."""
        theta, visits = joined(parameter), float(aggregator.visits[0])
        curvature = self._curvatures(aggregator, parameter)
        count = curvature.seen if self.memory else visits
        gradient = self._penalty.add_slope(theta, aggregator.gradient / count)
        rate = self._rate(search) * search.pace * min(1.0, active().lr.steps_per_pass * visits / search.points)
        rate /= active().lr.curvature_headroom if curvature.full else 1.0
        # Few points show correlations that the data do not have: more damping.
        damping = max(search.damping, 0.1 * theta.shape[1] / curvature.seen)
        step = rate * curvature.solve(gradient, self._penalty, damping)
        fresh = theta + self._balanced_step(theta, step)
        if not np.isfinite(fresh).all():
            return self._held(parameter, search._replace(settling=1.0))
        return self._moved(aggregator, parameter, fresh, search)

    def _measure(self, aggregator: Gradients, parameter: Linear, search: StepSearch) -> Linear:
        """Loss and gradient are exact for this θ: accept it if it is better than the best θ, else go back."""
        curvature = self._curvatures(aggregator, parameter)
        value = float(aggregator.loss[0]) / curvature.seen
        measured = np.empty_like(parameter.internal_best)
        theta, gradient = joined(parameter, measured[0]), measured[1]
        self._penalty.add_slope(theta, np.divide(aggregator.gradient, curvature.seen, out=gradient))
        search = search._replace(settling=1.0 if self.memory else 0.0)
        if search.measured == 0:
            search = search._replace(best=start_loss(aggregator, parameter))
        elif search.trained - search.mark >= active().lr.stalled_passes * search.points:
            slow = search.marked < NOT_YET and search.best > 0.99 * search.marked
            search = search._replace(mark=search.trained, marked=search.best, stuck=1.0 if slow else search.stuck)
        limit = search.best * (1.0 + NOISE) + active().lr.armijo * search.promised * search.length
        best = parameter.internal_best[0]
        if value <= limit or np.array_equal(theta, best):  # the best θ measured again is not worse but for rounding
            search = with_long_rows(search, curvature.of_long_rows)
            return self._accept(aggregator, parameter, search, value, measured)
        newton = self._newton(parameter, curvature)
        most = active().lr.most_damping
        short = (newton and search.pace <= 1.0) or search.length < active().lr.shortest_step or search.promised == 0.0
        if search.measured == 0 or (short and not search.wary):  # to the best θ; from there with a bounding curvature
            damping = min(1e3 * search.damping, most)
            search = search._replace(wary=2.0, promised=0.0, length=1.0, brought=NOT_YET, damping=damping)
            parameter = with_pairs(parameter, no_pairs(len(pairs_in(parameter)), *theta.shape))
            return self._moved(aggregator, parameter, best, search)
        factor = shorter(search, value, float(np.vdot(gradient, theta - best)), not self.l1)
        search = search._replace(
            length=search.length * factor,
            damping=min(10.0 * search.damping, most) if short and search.length == 1.0 else search.damping,
            pace=min(search.pace, 1.0) * math.sqrt(factor),
        )
        # Along a long row, steps that cannot be measured may lead to ones that can: its curvature halves at each.
        if -search.promised * search.length <= NOISE * search.best and not (search.long_rows and search.stuck == 0.0):
            left = -search.promised / 2.0 / search.best
            return self._held(parameter, search._replace(gap=left, stuck=left if left > NOISE else 0.0))
        return self._moved(aggregator, parameter, best + factor * (theta - best), search)

    def _accept(
        self,
        aggregator: Gradients,
        parameter: Linear,
        search: StepSearch,
        value: float,
        measured: Array,
    ) -> Linear:
        """This θ, `measured` with its gradient, is the best; the next step starts from it."""
        curvature = self._curvatures(aggregator, parameter)
        (theta, gradient), pairs = measured, pairs_in(parameter)
        if pairs and search.measured:
            if search.length < active().lr.pairs_kept_above_length:
                pairs = no_pairs(len(pairs), *theta.shape)
            pairs = with_pair(pairs, theta, gradient, parameter.internal_best)
        newton = self._newton(parameter, curvature)
        left = float(np.vdot(gradient, theta - parameter.internal_best[0])) if search.promised < 0.0 else 0.0
        step = self._next_step(theta, search, curvature, pairs, value, gradient, newton, left)
        brought = search.best - value if search.measured else NOT_YET
        gains = search.gains.with_step(brought) if search.measured else search.gains
        before, search = search, search._replace(damping=step.damping, pace=step.pace, promised=step.promised)
        start = start_loss(aggregator, parameter)
        gap, doubt = self._gap(search, curvature, gradient, value, start, brought, newton, pairs)
        search = self._with_bent(search, parameter, curvature, gap)
        known = NOT_YET if search.bent and step.promised < -1e-15 * value else gap
        if not newton and not self.l1 and step.promised < -1e-15 * value:
            checked = following_check(search, curvature.diagonal, gap <= self.learning.tolerance)
            if checked in (CHECKING, RECOUNTED):
                if search.bent and search.checked != UNCHECKED:
                    pairs = no_pairs(len(pairs), *theta.shape)
                known, step = NOT_YET, self._checking_step(theta, before, curvature, pairs, gradient, left)
                search = search._replace(pace=step.pace, promised=step.promised)
            search = search._replace(checked=checked)
        known = min(known, self._bound_of_gap(curvature, gradient, value, start, parameter))
        search = search._replace(
            best=min(value, search.best),
            measured=search.measured + 1.0,
            length=1.0,
            gap=min(known, NOT_YET),
            brought=brought,
            doubt=doubt,
            recent=gains.recent,
            usual=gains.usual,
            before=gains.before,
        )
        parameter = with_pairs(curvature.kept_in(parameter)._replace(internal_best=given(measured)), pairs)
        mode = float(parameter.internal_visit[5])
        if mode == EMPTYING or (mode == LATER and self._too_slow(search, theta.shape[1])):
            numbers = parameter.internal_visit.copy()
            numbers[5] = EMPTYING if mode == LATER else 1.0
            search = search._replace(promised=0.0, brought=NOT_YET, gap=NOT_YET, damping=active().lr.first_damping)
            return self._moved(aggregator, parameter._replace(internal_visit=numbers), theta, search)  # the same θ
        if newton and -step.promised > active().lr.credible_promise * value and not search.wary:
            search = search._replace(wary=2.0, promised=0.0, brought=NOT_YET, gap=NOT_YET)
            return self._moved(aggregator, parameter, theta, search)  # the same θ, with cautious curvature
        if not step.promised < -1e-15 * value or not np.isfinite(step.change).all():
            return self._held(parameter, search)
        search = search._replace(wary=max(search.wary - 1.0, 0.0))
        return self._moved(aggregator, parameter, theta + step.change, search)

    def _next_step(
        self,
        theta: Array,
        search: StepSearch,
        curvature: Curvature,
        pairs: Sequence[Array],
        value: float,
        gradient: Array,
        newton: bool,
        left: float,
    ) -> PlannedStep:
        """The step from the best θ: proximal with l1, quasi-Newton where the curvature is a diagonal, else Newton.
        `left`: the slope along the last step at its end."""
        penalty = self._penalty
        damping = max(search.damping * (0.2 if search.length == 1.0 else 1.0), active().lr.least_damping)
        pace = min(1.0, 1.5 * search.pace) if search.length == 1.0 else search.pace
        if penalty.l1:
            step = curvature.proximal(theta, gradient, penalty, damping, pace)
        elif not newton and not search.wary:
            step = quasi_newton(gradient, pairs, curvature.solver(penalty, damping), not curvature.full)
        else:
            step = curvature.solve(gradient, penalty, damping)
            pace = pace if not self.scaling else longer(search, left, float(np.vdot(gradient, step)))
            step *= pace
        step *= self._rate(search)
        step = self._balanced_step(theta, step)
        promised = float(np.vdot(gradient, step))
        if penalty.l1:
            promised += penalty.l1 * float(np.abs((theta + step)[:, :-1]).sum() - np.abs(theta[:, :-1]).sum())
        if not newton and not penalty.l1 and -promised > active().lr.plausible_promise * value:
            step *= active().lr.plausible_promise * value / -promised
            promised = -active().lr.plausible_promise * value
        return PlannedStep(step, promised, damping, pace)

    def _checking_step(
        self,
        theta: Array,
        search: StepSearch,
        curvature: Curvature,
        pairs: Sequence[Array],
        gradient: Array,
        left: float,
    ) -> PlannedStep:
        """A step by the curvature of the points alone."""
        solver = curvature.solver(self._penalty, search.damping)
        step = solver.solve(gradient)
        if curvature.diagonal and pairs and pairs[0].any():
            step *= float(np.vdot(pairs[0][0], pairs[0][1])) / solver.length(pairs[0][1])
        before = search if search.checked in (CHECKING, RECOUNTED) else search._replace(promised=0.0)
        pace = longer(before, left, float(np.vdot(gradient, step)))
        step = self._balanced_step(theta, pace * step)
        return PlannedStep(step, float(np.vdot(gradient, step)), search.damping, pace)

    def _gap(
        self,
        search: StepSearch,
        curvature: Curvature,
        gradient: Array,
        value: float,
        start: float,
        brought: float,
        newton: bool,
        pairs: Sequence[Array],
    ) -> tuple[float, float]:
        """How far the objective may still fall, relative to it, and the doubt that is kept for the next estimate.
        `search` holds the planned step; `brought`: what the last step gained; `start`: the objective at θ = 0."""
        penalty, damping = self._penalty, search.damping
        exact = curvature.full and not penalty.l1 and newton and not search.longest
        free = -search.promised / (search.pace if exact else 1.0)
        if exact and damping > active().lr.least_damping:  # without damping, flat directions promise more
            free = -float((gradient * curvature.solve(gradient, penalty, active().lr.least_damping)).sum())
        if search.long_rows and not newton:
            free = max(free, curvature.squared_length_without_long_rows(gradient, penalty))
        if curvature.full or penalty.l1:
            gap = max(free / 2.0, remaining(brought, search.brought), 0.0 if exact else brought / 2.0)
        elif search.measured:
            gap = max(free / 2.0, search.gains.with_step(brought).remaining)
        else:
            gap = NOT_YET
        counted = max(value, active().lr.least_objective * start)
        gap /= counted
        doubt = 0.0 if exact else max(min(gap, 1.0), search.doubt / (4.0 if curvature.full else 2.0))
        rules = active().lr  # one small step says little where the curvature is an estimate
        gap = max(gap, doubt) * (1.0 if exact else rules.estimated_gap if newton else rules.estimated_gap_by_pairs)
        gap *= active().lr.long_rows_gap if search.longest else 1.0
        if gap <= self.learning.tolerance and not newton and not penalty.l1:
            gap = max(gap, curvature.gap_by_flattest(gradient, pairs) / counted)
        if search.wary or (not exact and damping > active().lr.most_damping * 1e-6):
            gap = NOT_YET  # the curvature is an upper bound, so the gap would be too small
        return gap, doubt

    def _bound_of_gap(
        self, curvature: Curvature, gradient: Array, value: float, start: float, parameter: Linear
    ) -> float:
        """What the gap is at most, without an estimate of the curvature; infinite where nothing bounds it."""
        if self._separated(value, parameter):
            return value / start  # the minimum is 0
        if self.l1:
            return NOT_YET
        bound = curvature.bound_of_gap(gradient, self._penalty) / max(value, active().lr.least_objective * start)
        return max(bound, 1e-2 * self.learning.tolerance)  # who asks for more digits also wants those of weights

    def _with_bent(self, search: StepSearch, parameter: Linear, curvature: Curvature, gap: float) -> StepSearch:
        """The search, with no bent points where the second derivatives are about those by which the last step was
        found: such points are then too few to matter in any direction."""
        if not search.bent or gap >= 1.0 or search.longest:
            return search
        changed = curvature.changed(parameter.internal_curvature, self._penalty)
        return search._replace(bent=0.0) if changed <= active().lr.curvature_held else search

    def _too_slow(self, search: StepSearch, width: int) -> bool:
        """The diagonal and L-BFGS would need more steps than it costs to sum all second derivatives."""
        rules = active().lr
        many = rules.late_sums_from_steps + rules.late_sums_from_steps_per_column * width
        left = self.learning.tolerance * search.best
        judged = search.trained >= rules.passes_before_late_sums * search.points
        return judged and search.gains.steps_until(left) > many

    def _newton(self, parameter: Linear, curvature: Curvature) -> bool:
        """Steps are Newton's, with the curvature as it is; otherwise L-BFGS corrects it by pairs."""
        return not pairs_in(parameter) or (curvature.full and self.outputs == 1)

    def _balanced_step(self, theta: Array, step: Array) -> Array:
        """`step`, in place, so that it leads to weights of all classes that sum to 0. With l2 they do at the minimum,
        since only their differences enter the scores. A step by curvatures of single classes leaves that plane, and
        back leads only the penalty, which is flat."""
        if self.outputs > 1 and self.l2 and not self.l1:
            step -= theta.mean(axis=0) + step.mean(axis=0)
        return step

    def _separated(self, value: float, parameter: Linear) -> bool:
        """No point has a loss of log 2, so every point is on its side, and without a penalty the minimum is 0."""
        points, least = float(parameter.internal_search[1]), float(parameter.internal_importance.min())
        least *= float(parameter.internal_visit[6:].sum()) if len(parameter.internal_visit) > 6 else 1.0
        return not (self.l1 or self.l2) and value * points < math.log(2.0) * least

    def _held(self, parameter: Linear, search: StepSearch) -> Linear:
        """θ is kept for the next interval."""
        numbers = parameter.internal_visit.copy()
        numbers[2], numbers[4] = self._recounted(search, parameter), self._cap(search, parameter)
        return parameter._replace(internal_search=np.array(search), internal_visit=numbers)

    def _recounted(self, search: StepSearch, parameter: Linear) -> float:
        """The part by which a point's curvature must have changed to be counted again."""
        whole = float(parameter.internal_visit[5]) == 1.0
        rules = active().lr
        if not whole and search.checked not in (CHECKING, RECOUNTED):
            return rules.recount_diagonal
        return rules.recount_held if search.settling else rules.recount_moving

    def _cap(self, search: StepSearch, parameter: Linear) -> float:
        """Where residuals are cut off in the curvature. Far on the wrong side of the plane a loss is straight, and a
        Newton step from there has no bound: while θ moves, such points count with ¼, the most there is. After a step
        that failed all count with the curvature of a parabola that bounds their loss.
        """
        if float(parameter.internal_visit[5]) == EMPTYING:
            return UNCOUNTED
        if not search.settling:
            return CAUTIOUS
        return GUARDED if search.wary else EXACT

    def _moved(self, aggregator: Gradients, parameter: Linear, theta: Array, search: StepSearch) -> Linear:
        """A new θ, with the next number."""
        mode = float(parameter.internal_visit[5])
        mean = float(aggregator.curvature[:, 0 if mode > 1.0 else -1, -1].mean() / aggregator.seen[0])
        number = float(parameter.internal_visit[1]) + 1.0
        part, cap = self._recounted(search, parameter), self._cap(search, parameter)
        exactly = mode == 1.0 or search.checked in (CHECKING, RECOUNTED)
        least = active().lr.negligible_curvature if exactly else active().lr.negligible_in_diagonal
        floor = 0.0 if mode == EMPTYING else max(least * mean, 0.0)
        numbers = [self._penalty.value(theta), number, part, floor, cap, *parameter.internal_visit[5:]]
        weights, bias = given(theta[:, :-1].copy()), given(theta[:, -1].copy())
        search = search._replace(bent=0.0) if search.promised else search  # 0: θ may be the same
        made = {"internal_visit": np.array(numbers), "internal_search": np.array(search)}
        return parameter._replace(weights=weights, bias=bias, **made)

    def _rate(self, search: StepSearch) -> float:
        return self.learning_rate * scheduled(self.schedule, self.decay, search.trained / search.points)

    def efficiency(self, part: float, workers: int) -> float | None:
        """Steps are in proportion to the visits behind them, up to half a pass."""
        full = 0.8 / active().lr.steps_per_pass  # up to there no visit is wasted: less 20 %, as rounds vary in length
        return min(1.0, full / part)

    def holds(self, parameter: Linear) -> bool:
        return bool(StepSearch(*parameter.internal_search).settling)

    def objective(self, aggregator: Gradients, parameter: Linear) -> float | None:
        search = StepSearch(*parameter.internal_search)
        if search.settling and search.measured:
            return float(search.best)
        return float(aggregator.loss[0] / aggregator.seen[0]) if aggregator.seen[0] > 0 else None

    def metrics(self, aggregator: Gradients, parameter: Linear) -> dict[str, float]:
        """The mean log-loss: the objective without its penalty, so class weights count."""
        value = self.objective(aggregator, parameter)
        search = StepSearch(*parameter.internal_search)
        measured = search.settling and search.measured
        weights = parameter.internal_best[0, :, :-1] if measured else parameter.weights
        return {} if value is None else {"log_loss": max(value - self._penalty.of(weights), 0.0)}

    def baseline(self, aggregator: Gradients, parameter: Linear) -> float:
        told_apart = self.intercept and len(parameter.classes) > 1
        return intercept_loss(aggregator, parameter) if told_apart else start_loss(aggregator, parameter)

    def optimality(self, aggregator: Gradients, parameter: Linear) -> float | None:
        """(Objective − minimum) / objective at the best θ, by the Newton decrement ½·Gᵀ·H⁻¹·G; infinite while no θ was
        measured, not a number where no step is better any more. Not known for plain gradients.
        """
        if not self.memory or not self.scaling:
            return None
        search = StepSearch(*parameter.internal_search)
        if search.stuck and search.measured:
            return math.nan
        return float(search.gap) if search.measured else math.inf

    def finalParameter(self, aggregator: Gradients, parameter: Linear) -> Linear:
        """The best θ that was measured; while θ moves, the last one, unless its loss is above that of θ(0)."""
        search = StepSearch(*parameter.internal_search)
        if search.measured == 0:
            mean = float(aggregator.loss[0] / max(float(aggregator.seen[0]), 1.0))
            if mean <= start_loss(aggregator, parameter):
                return parameter
        elif not search.settling:
            return parameter
        best = parameter.internal_best[0]
        return parameter._replace(weights=best[:, :-1].copy(), bias=best[:, -1].copy())

    def warnings(self, aggregator: Gradients, parameter: Linear) -> list[str]:
        """Say that there is one class only, that the classes are separable, or why the search did not reach the
        minimum."""
        if len(parameter.classes) == 1:
            only = shown_label(float(parameter.classes[0]), self._words)
            return [f"There is only one class: every label is {only}, so the model can only answer that."]
        search = StepSearch(*parameter.internal_search)
        if search.measured and self._separated(float(search.best), parameter):
            return [
                "A plane separates the classes: every point is classified correctly, and larger weights always have a "
                "smaller loss. Give l2 or l1 for weights that mean something."
            ]
        return unsolved(search, parameter.internal_metric)

    # -- use -----------------------------------------------------------------------------------------------

    def probabilities(self, features: Any, parameter: Linear) -> Array:
        return answers.probabilities(features, parameter)

    def scores(self, features: Any, parameter: Linear) -> Array:
        """Of two classes the log-odds of the second one; otherwise log-probabilities, but for a number per row."""
        found = answers.class_scores(features, parameter)
        return found[:, 1] if found.shape[1] == 2 else found

    def model(self, parameter: Linear) -> dict[str, Array]:
        return {"weights": parameter.weights, "bias": parameter.bias, "classes": parameter.classes}

    def work(self, columns: int) -> float:
        return 4.0 * columns  # of two classes, with exponentials

    def predict(self, features: Any, parameter: Linear) -> Array:
        """The most likely class of each row, as a label value."""
        return answers.likeliest(features, parameter)

    def to_sklearn(self, parameter: Linear, classes: list[str] | None) -> Any:
        return answers.genuine(parameter, classes, self.l2, self.l1)

    def evaluate(self, features: Any, labels: Array | None, parameter: Linear) -> Evaluation:
        """Mean log-loss + penalty, and accuracy."""
        if labels is None:
            raise UsageError("LR: evaluating needs labels.")
        values = np.asarray(labels, dtype=np.float64)
        loss, target, right = answers.judged(features, values, parameter)
        weighted = loss * np.append(parameter.internal_importance, 1.0)[target]
        mean, accuracy, objective = answers.means(loss, right, weighted)
        return Evaluation(objective + self._penalty.of(parameter.weights), {"log_loss": mean, "accuracy": accuracy})
