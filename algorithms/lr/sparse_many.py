"""The kernel of logistic regression for sparse rows of three or more classes. Called by `kernels.kernel_for`.

θ and the sums are kept column by column, so that an entry of a row reads and writes numbers beside each other. Points
are decided first: each has a new state beside the one it had. Then the two change places, and what lies between them
is added, column by column, each in the order of the points (`flegel.declarations.kernels.TwoStepKernel`). So the
threads of a team share one set of sums, which have as many numbers as some thousand rows. Sums go on from what the
statistics hold: where a pass is cut into calls decides no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.lr.curvature import sparse_outer
from flegel.algorithms.lr.point import BENT, LOSS, SEEN, STAMPS, SUMS, UNKNOWN, VISITS, class_number, visit
from flegel.algorithms.simd.vectors import fma, load, spread, store
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.parallel_sums import in_pieces, processors
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse, aligned
from flegel.core.stop_flag import new_flag

OUTPUTS_AT_ONCE = 8
"""Outputs that an entry of a row is multiplied by at a time: 64 bytes, a cache line."""
ROWS_AT_ONCE = 1024
"""Of a call by one thread: their states are still in the cache when they are added."""
COLUMNS_TURNED = 4096  # at a time
MOST_PARTS, FEWEST_ENTRIES = 16, 1 << 13
"""Of the columns, and in each part: every part reads the places of all entries."""
PLACES = {"loss": LOSS, "seen": SEEN, "stamps": STAMPS, "visits": VISITS, "unknown": UNKNOWN, "bent": BENT}
"""Of the fields of the statistics among the sums of `point.visit`."""
STRANGE, IS_BENT, HAS_BENDS = 1, 2, 4
"""What is known of a decided row beside its states: its label is none of the classes; `BENT`; its curvature changed."""


@njit(nogil=True, cache=True, forceinline=True)
def _sparse_scores(indices, values, first, last, weights, bias, scores):
    """Scores of one row; `weights` are by column, so that an entry reads numbers beside each other."""
    width = weights.shape[1]
    for k in range(0, width, OUTPUTS_AT_ONCE):
        score = load(bias, k, OUTPUTS_AT_ONCE)
        for t in range(first, last):
            weight = load(weights, np.int64(indices[t]) * width + k, OUTPUTS_AT_ONCE)
            score = fma(spread(np.float64(values[t]), weight), weight, score)
        store(scores, k, score)


@njit(nogil=True, cache=True, forceinline=True)
def _add_entry(value, steps, parts, at):
    """parts[at …] += value · steps."""
    for k in range(0, len(steps), OUTPUTS_AT_ONCE):
        step = load(steps, k, OUTPUTS_AT_ONCE)
        store(parts, at + k, fma(spread(value, step), step, load(parts, at + k, OUTPUTS_AT_ONCE)))


@njit(nogil=True, cache=True)
def _decide(rows, labels, masses, state, decided, marks, weights, bias, classes, model, flag):
    """The states of rows after this visit go to `decided`, what else is to be known of them to `marks`. `weights` and
    `bias` have a number an output, and zeros up to whole vectors; `model` is what `visit` takes. Returns how many rows
    were visited."""
    indptr, indices, values = rows
    outputs, width = (state.shape[1] - 2) // 2, weights.shape[1]
    scores, steps, bends, sums = np.empty(width), np.empty(outputs), np.empty(outputs), np.zeros(SUMS)
    for i in range(state.shape[0]):
        if raised(flag):
            return i
        decided[i] = state[i]
        target = class_number(labels[i], classes)
        if target < 0:
            marks[i] = STRANGE
            continue
        _sparse_scores(indices, values, indptr[i], indptr[i + 1], weights, bias, scores)
        mass = 1.0 if masses is None else masses[i]
        sums[BENT] = 0.0
        changed = visit(scores[:outputs], target, mass, decided[i], model, steps, bends, sums)
        marks[i] = (IS_BENT if sums[BENT] != 0.0 else 0) + (HAS_BENDS if changed else 0)
    return state.shape[0]


@njit(nogil=True, cache=True)
def _exchange(state, decided):
    """New states take their places; `decided` keeps what they were before."""
    for i in range(state.shape[0]):
        for t in range(state.shape[1]):
            before = state[i, t]
            state[i, t] = decided[i, t]
            decided[i, t] = before


@njit(nogil=True, cache=True)
def _add_sums(labels, masses, state, before, marks, classes, counts, sums):
    """Counts of the classes, and the sums of `point.visit`."""
    outputs = (state.shape[1] - 2) // 2
    for i in range(state.shape[0]):
        if marks[i] == STRANGE:
            sums[UNKNOWN] += 1.0
            continue
        then = np.float64(before[i, 2 * outputs + 1])
        if then == 0.0:  # there was no visit
            counts[class_number(labels[i], classes)] += 1.0 if masses is None else masses[i]
            sums[SEEN] += 1.0
        sums[LOSS] += np.float64(state[i, outputs]) - np.float64(before[i, outputs])
        sums[STAMPS] += np.float64(state[i, 2 * outputs + 1]) - then
        sums[VISITS] += 1.0
        sums[BENT] += 1.0 if marks[i] & IS_BENT else 0.0


@njit(nogil=True, cache=True)
def _add_columns(rows, state, before, marks, memory, unit, parts, bent_parts, diagonal, low, high):
    """parts[t] += x[t]·steps over all rows, and bent_parts[t] += x̃[t]²·bends where the curvature is a `diagonal`, for
    columns from `low` to `high`; the last one is the bias."""
    indptr, indices, values = rows
    outputs, width, columns = (state.shape[1] - 2) // 2, parts.shape[1], parts.shape[0] - 1
    steps, bends = np.zeros(width), np.zeros(width)
    for i in range(state.shape[0]):
        if marks[i] == STRANGE:
            continue
        bent = diagonal and marks[i] & HAS_BENDS != 0
        for k in range(outputs):
            steps[k] = np.float64(state[i, k]) - memory * np.float64(before[i, k])
        if bent:
            for k in range(outputs):
                at = outputs + 1 + k
                bends[k] = np.float64(state[i, at]) - np.float64(before[i, at])
        for t in range(indptr[i], indptr[i + 1]):
            column = np.int64(indices[t])
            if column < low or column >= high:
                continue
            _add_entry(np.float64(values[t]), steps, parts, column * width)
            if bent:
                mine = values[t] / unit[column]
                _add_entry(np.float64(mine * mine), bends, bent_parts, column * width)
        if high > columns:
            parts[columns] += steps
            if bent:
                bent_parts[columns] += bends


@njit(nogil=True, cache=True)
def _add_outer(rows, state, before, marks, metric, curvature, k):
    """All second derivatives of output k."""
    indptr, indices, values = rows
    at = state.shape[1] // 2 + k
    for i in range(state.shape[0]):
        if marks[i] & HAS_BENDS and state[i, at] != before[i, at]:
            first, last = indptr[i], indptr[i + 1]
            bend = np.float64(state[i, at]) - np.float64(before[i, at])
            sparse_outer(indices[first:last], values[first:last], bend, metric, curvature[k])


@njit(nogil=True, cache=True)
def _copy(source, target, low, high):
    """These columns of sums, from or to the ones kept by column, which have room for whole cache lines of outputs."""
    outputs = min(source.shape[1], target.shape[1])
    for begin in range(low, high, OUTPUTS_AT_ONCE):
        end = min(begin + OUTPUTS_AT_ONCE, high)
        for k in range(outputs):
            for t in range(begin, end):
                target[t, k] = source[t, k]


def _zeros(columns: int, width: int) -> Array:
    """Rows of whole cache lines."""
    found = aligned((columns, width), np.float64)
    found[:] = 0.0
    return found


class ManyClasses:
    """The kernel. It keeps θ by column, which is turned once: calls may visit a few rows only."""

    unit = TILE

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._last: Array | None = None
        """The weights that `_weights` were made of."""
        self._weights = self._parts = self._bent_parts = np.empty((0, 0))
        self._bias = np.empty(0)
        self._decided, self._marks = np.empty((0, 0), np.float32), np.empty(0, np.uint8)
        self._span, self._has_bends, self._outputs = (0, 0), False, 0
        """The points that are being added, and whether their curvature changes."""
        self._edges: list[int] = []
        """Columns at which parts begin and end."""

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Both steps, some rows at a time."""
        self._make_room(shard, min(ROWS_AT_ONCE, shard.points))
        self._take(parameter)
        diagonal, sums, self._has_bends = is_diagonal(parameter, aggregator), opened(aggregator), False
        reached, end, all_columns = start, min(end, shard.points), (0, shard.columns + 1)
        _copy(aggregator.gradient.T, self._parts, *all_columns)
        while reached < end:
            first, stop = reached, min(reached + ROWS_AT_ONCE, end)
            reached = self._decide(shard, parameter, first, stop, first, flag)
            some = self._exchange(shard, first, reached, first)
            if not self._has_bends and some.has_bends:
                self._has_bends = True
                self._fetch_bends(aggregator, diagonal, *all_columns)
            _add_sums(*some[1:], parameter.classes, aggregator.counts, sums)
            self._add_columns(some, parameter, diagonal, *all_columns)
            for k in range(0 if diagonal else len(parameter.weights)):
                _add_outer(some.rows, *some[3:], parameter.internal_metric, aggregator.curvature, k)
            if reached < stop:
                break
        self._finish(aggregator, diagonal, *all_columns)
        close(sums, aggregator)
        return reached

    # -- in two steps ------------------------------------------------------------------------------------------

    def prepare(self, shard: Shard, parameter: Any) -> None:
        self._make_room(shard, shard.points)
        self._take(parameter)
        self._outputs = len(parameter.weights)
        if not self._edges:
            self._edges = column_parts(shard)
            self._compile(shard, parameter)

    def _compile(self, shard: Shard, parameter: Any) -> None:
        """Do both steps with no points."""
        counts, (outputs, columns) = np.zeros(len(parameter.classes)), parameter.weights.shape
        self._decide(shard, parameter, 0, 0, 0, new_flag())
        some = self._exchange(shard, 0, 0, 0)
        _add_sums(*some[1:], parameter.classes, counts, np.zeros(SUMS))
        self._add_columns(some, parameter, True, 0, 0)
        for target in (np.zeros((outputs, columns + 1)), np.zeros((outputs, 1, columns + 1))[:, 0]):
            _copy(target.T, self._parts, 0, 0)
            _copy(self._parts, target.T, 0, 0)
        if parameter.internal_visit[5] == 1.0:
            _add_outer(some.rows, *some[3:], parameter.internal_metric, np.zeros((outputs, 1, 1)), 0)

    def decide(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        return self._decide(shard, parameter, start, min(end, shard.points), 0, flag)

    def collect(self, shard: Shard, start: int, end: int) -> int:
        def exchange(low: int, high: int) -> None:
            self._exchange(shard, low, high, 0)

        self._span, self._has_bends = (start, end), bool((self._marks[start:end] & HAS_BENDS).any())
        in_pieces(end - start, ROWS_AT_ONCE, lambda low, high: exchange(start + low, start + high))
        return len(self._edges) + self._outputs

    def add(self, shard: Shard, parameter: Any, aggregator: Any, part: int) -> None:
        """Parts are those of the columns, the sums, and all second derivatives of each output."""
        some, columns = self._slices(shard, *self._span, 0), len(self._edges) - 1
        diagonal = is_diagonal(parameter, aggregator)
        if part < columns:
            edges = self._edges[part : part + 2]
            _copy(aggregator.gradient.T, self._parts, *edges)
            if self._has_bends:
                self._fetch_bends(aggregator, diagonal, *edges)
            self._add_columns(some, parameter, diagonal, *edges)
            self._finish(aggregator, diagonal, *edges)
        elif part == columns:
            sums = opened(aggregator)
            _add_sums(*some[1:], parameter.classes, aggregator.counts, sums)
            close(sums, aggregator)
        elif not diagonal:
            k = part - columns - 1
            _add_outer(some.rows, *some[3:], parameter.internal_metric, aggregator.curvature, k)

    # -- parts of both -----------------------------------------------------------------------------------------

    def _make_room(self, shard: Shard, points: int) -> None:
        shape = (points, shard.state.shape[1])
        if len(self._decided) < points or self._decided.shape[1:] != shape[1:]:
            self._decided, self._marks = np.empty(shape, shard.state.dtype), np.empty(points, np.uint8)

    def _take(self, parameter: Any) -> None:
        """Turn θ, and make room for its sums."""
        weights = parameter.weights
        outputs, columns = weights.shape
        width = -(-outputs // OUTPUTS_AT_ONCE) * OUTPUTS_AT_ONCE
        if self._weights.shape != (columns, width):
            self._last, self._weights, self._bias = None, _zeros(columns, width), np.zeros(width)
            self._parts, self._bent_parts = _zeros(columns + 1, width), _zeros(columns + 1, width)
        self._bias[:outputs] = parameter.bias
        if self._last is not weights:
            self._last, turned = weights, self._weights

            def some(low: int, high: int) -> None:
                turned[low:high, :outputs] = weights[:, low:high].T

            in_pieces(columns, COLUMNS_TURNED, some)

    def _slices(self, shard: Shard, start: int, end: int, offset: int) -> Changed:
        """These points. What was decided of them begins at `offset`."""
        features, there = shard.features, slice(start - offset, end - offset)
        assert isinstance(features, Sparse)
        rows = (features.indptr[start : end + 1], features.indices, features.values)
        weights = None if shard.weights is None else shard.weights[start:end]
        state = shard.state[start:end]
        return Changed(rows, shard.labels[start:end], weights, state, self._decided[there], self._marks[there])

    def _decide(self, shard: Shard, parameter: Any, start: int, end: int, offset: int, flag: Array) -> int:
        asked = parameter.internal_visit
        numbers = (asked[0], self._memory, asked[1], asked[2], asked[3], asked[4])
        model = (parameter.internal_importance, numbers)
        some = self._slices(shard, start, end, offset)
        return start + int(_decide(*some, self._weights, self._bias, parameter.classes, model, flag))

    def _exchange(self, shard: Shard, start: int, end: int, offset: int) -> Changed:
        some = self._slices(shard, start, end, offset)
        _exchange(some.state, some.before)
        return some

    def _add_columns(self, some: Changed, parameter: Any, diagonal: bool, low: int, high: int) -> None:
        unit = parameter.internal_metric[1]
        sums = (self._parts, self._bent_parts, diagonal)
        _add_columns(some.rows, *some[3:], self._memory, unit, *sums, low, high)

    def _fetch_bends(self, aggregator: Any, diagonal: bool, low: int, high: int) -> None:
        if diagonal:
            _copy(aggregator.curvature[:, 0].T, self._bent_parts, low, high)

    def _finish(self, aggregator: Any, diagonal: bool, low: int, high: int) -> None:
        """Sums of columns go to the statistics."""
        _copy(self._parts, aggregator.gradient.T, low, high)
        if diagonal and self._has_bends:
            _copy(self._bent_parts, aggregator.curvature[:, 0].T, low, high)


class Changed(NamedTuple):
    """Points whose states have changed."""

    rows: tuple[Array, Array, Array]
    labels: Array
    weights: Array | None
    state: Array
    before: Array
    """Their states before, or until they change after."""
    marks: Array

    @property
    def has_bends(self) -> bool:
        return bool((self.marks & HAS_BENDS).any())


def is_diagonal(parameter: Any, aggregator: Any) -> bool:
    """Whether the diagonal of the second derivatives is summed alone: then it is in their first row."""
    return bool(aggregator.curvature.shape[1] == 1 or parameter.internal_visit[5] > 1.0)


def opened(aggregator: Any) -> Array:
    """The sums of `point.visit` as the statistics hold them."""
    sums = np.zeros(SUMS)
    for name, place in PLACES.items():
        sums[place] = getattr(aggregator, name)[0]
    return sums


def close(sums: Array, aggregator: Any) -> None:
    """They go to the statistics."""
    for name, place in PLACES.items():
        getattr(aggregator, name)[0] = sums[place]


def column_parts(shard: Shard) -> list[int]:
    """Edges of parts of the columns, the bias after them, with equally many entries each."""
    rows = shard.features
    assert isinstance(rows, Sparse)
    parts = min(processors(), MOST_PARTS, max(len(rows.values) // FEWEST_ENTRIES, 1))
    ends = np.append(np.bincount(rows.indices, minlength=shard.columns), shard.points).cumsum()
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    return [0, *(int(edge) for edge in edges), shard.columns + 1]
