"""Factorization of a whole matrix, in which entries that are not stored are 0: as many rows at a time as two vectors
have lanes. Called by `nmf`, never by users.

H is fixed during a pass, so HHᵀ is the same for all rows: a weight of many rows is improved by one product of
registers, in the precision of the state. Statistics are float64. The flag is read before every group of rows. Compiled
code; `WholeMatrix` is how `nmf` calls it.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.nmf.rows import EPSILON, improve_whole_row, settled, start_whole_row
from flegel.algorithms.simd.registers import ONE_REGISTER, TWO_REGISTERS, register_lanes
from flegel.algorithms.simd.vectors import (
    fma,
    fma_each,
    lane_count,
    load,
    loads,
    maximum,
    splats,
    spread,
    store,
    store_each,
    total,
    where,
)
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse
from flegel.core.team_loop import team_loop
from flegel.declarations.kernels import TeamCode

GROUP = 4  # factors of a register tile; tables of factors are padded to a multiple of it
DOUBLES = register_lanes(np.float64)
"""Numbers of float64 in a vector, for whole rows of columns."""


# -- weights of many rows ------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _sweep(minus, inverse, targets, weights):
    """A sweep of coordinate descent on wᵀ·gram·w − 2·target·w, w ≥ 0, for a row in each lane. `minus`: −gram, padded.
    A factor's residual is computed when its turn comes, so nothing is carried from sweep to sweep but the weights."""
    lanes, padded = lane_count(weights, TWO_REGISTERS), minus.shape[0]
    zero = spread(0.0, load(weights, 0, TWO_REGISTERS))
    for f in range(0, padded, GROUP):
        at = f * lanes
        rest = loads(targets, at, lanes, GROUP, TWO_REGISTERS)
        for g in range(padded):
            w = load(weights, g * lanes, TWO_REGISTERS)
            rest = fma_each(w, splats(minus, g * padded + f, GROUP, TWO_REGISTERS), rest)
        before = loads(weights, at, lanes, GROUP, TWO_REGISTERS)
        own = f * padded + f
        first = maximum(rest[0] * inverse[f], zero - before[0])
        one = fma(first, spread(minus[f, f + 1], zero), rest[1])
        second = maximum(one * inverse[f + 1], zero - before[1])
        links = splats(minus, own + 2, 2, TWO_REGISTERS), splats(minus, own + padded + 2, 2, TWO_REGISTERS)
        two = fma(second, links[1][0], fma(first, links[0][0], rest[2]))
        third = maximum(two * inverse[f + 2], zero - before[2])
        three = fma(second, links[1][1], fma(first, links[0][1], rest[3]))
        three = fma(third, spread(minus[f + 2, f + 3], zero), three)
        fourth = maximum(three * inverse[f + 3], zero - before[3])
        after = before[0] + first, before[1] + second, before[2] + third, before[3] + fourth
        store_each(weights, at, lanes, after)


@njit(nogil=True, cache=True)
def _multiply(minus, targets, weights, lasso):
    """One multiplicative update (Lee and Seung) of a row in each lane, with the penalty 2·lasso·Σw."""
    lanes, padded, old = lane_count(weights, TWO_REGISTERS), minus.shape[0], weights.copy()
    zero = spread(0.0, load(weights, 0, TWO_REGISTERS))
    for f in range(padded):
        below = spread(lasso, zero)
        for g in range(padded):
            below = fma(load(old, g * lanes, TWO_REGISTERS), spread(-minus[g, f], zero), below)
        below = where(below > 0.0, below, spread(EPSILON, zero))
        at = f * lanes
        store(weights, at, load(old, at, TWO_REGISTERS) * (load(targets, at, TWO_REGISTERS) / below))


@njit(nogil=True, cache=True)
def descend_columns(factors: Array, target: Array, gram: Array, sweeps: int, start: int, end: int) -> None:
    """Columns `start` to `end` of H, in place: coordinate descent on Σ (x − w·h)² by its statistics."""
    rank = factors.shape[1]
    padded = -(-rank // GROUP) * GROUP
    minus, inverse = np.zeros((padded, padded)), np.zeros(padded)
    for f in range(rank):
        inverse[f] = 1.0 / gram[f, f] if gram[f, f] > 0.0 else 0.0
        for g in range(rank):
            minus[f, g] = -gram[f, g]
    lanes = lane_count(factors, TWO_REGISTERS)
    targets, weights = np.zeros((padded, lanes)), np.zeros((padded, lanes))
    for first in range(start, end, lanes):
        count = min(lanes, end - first)
        for lane in range(count):
            for f in range(rank):
                targets[f, lane], weights[f, lane] = target[first + lane, f], factors[first + lane, f]
        for _ in range(sweeps):
            _sweep(minus, inverse, targets, weights)
        for lane in range(count):
            for f in range(rank):
                factors[first + lane, f] = weights[f, lane]


# -- a group of rows -----------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _open_rows(rank, model, room, state, start, count):
    """Weights of `count` rows into lanes, and those before, by row. Targets are in place; lanes behind are empty."""
    gram, (targets, weights, before, mine, aims) = model[0], room[:5]
    for lane in range(weights.shape[1]):
        new = lane >= count or state[start + lane, rank] < 0
        for f in range(rank):
            weights[f, lane] = state[start + lane, f] if lane < count else 0
            before[lane, f] = 0.0 if new else weights[f, lane]
            if lane >= count:
                targets[f, lane] = 0
        if new and lane < count:
            for f in range(rank):
                mine[f], aims[f] = state[start + lane, f], targets[f, lane]
            start_whole_row(gram, aims, mine)
            for f in range(rank):
                weights[f, lane] = mine[f]


@njit(nogil=True, cache=True)
def _improve(rank, model, room, sweeps, lasso):
    _, minus, inverse = model[:3]
    targets, weights = room[:2]
    if sweeps == 0:
        _multiply(minus, targets, weights, lasso)
    elif lasso > 0.0:
        for f in range(rank):
            for lane in range(targets.shape[1]):
                targets[f, lane] -= lasso
    for _ in range(sweeps):
        _sweep(minus, inverse, targets, weights)


@njit(nogil=True, cache=True)
def _solve(rank, model, ridge, lasso, room, lane, target, weights):
    """The row in this lane, which has lost its state, exactly."""
    for f in range(rank):
        weights[f] = 0.0
    improve_whole_row(model[0], target, weights, ridge, lasso, 1, True, True)
    for f in range(rank):
        room[1][f, lane] = weights[f]


@njit(nogil=True, cache=True)
def _close_rows(rank, room, state, masses, start, count, squares, sums):
    """The rows' new states, which round their weights; `before` and `after` become change times mass, and sum."""
    weights, before, after = room[1], room[2], room[5]
    for lane in range(count):
        i = start + lane
        mass = 1.0 if masses is None else masses[i]
        if state[i, rank] < 0:
            sums[0] += mass * squares[lane]
            sums[1] += mass
        for f in range(rank):
            state[i, f] = weights[f, lane]
            now, old = np.float64(state[i, f]), before[lane, f]
            before[lane, f], after[lane, f] = mass * (now - old), now + old
            sums[2] += before[lane, f]
        state[i, rank] = squares[lane]


@njit(nogil=True, cache=True)
def _add_gram(changes, both, count, gram):
    """gram += changesᵀ·both, whose symmetric part is Σ (w·wᵀ − v·vᵀ) for w after and v before."""
    padded = gram.shape[1]
    for f in range(0, gram.shape[0], GROUP):
        for c in range(0, padded, DOUBLES):
            some = loads(gram, f * padded + c, padded, GROUP, DOUBLES)
            for t in range(count):
                at = t * padded
                some = fma_each(load(both, at + c, DOUBLES), splats(changes, at + f, GROUP, DOUBLES), some)
            store_each(gram, f * padded + c, padded, some)


@njit(nogil=True, cache=True)
def _room(rank, padded, narrow):
    """Room for a group of rows: targets, weights, weights before by row, two of a row, sums of weights by row; and the
    change of WᵀW."""
    lanes, wide = lane_count(narrow, TWO_REGISTERS), -(-padded // DOUBLES) * DOUBLES
    targets, weights = np.zeros((padded, lanes), narrow.dtype), np.zeros((padded, lanes), narrow.dtype)
    before, after = np.zeros((lanes, wide)), np.zeros((lanes, wide))
    return (targets, weights, before, np.zeros(rank), np.zeros(rank), after), np.zeros((padded, wide))


@njit(nogil=True, cache=True)
def _take_gram(change, gram):
    for f in range(gram.shape[0]):
        for g in range(gram.shape[0]):
            gram[f, g] += 0.5 * (change[f, g] + change[g, f])


# -- sparse rows ---------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _row_target(narrow, columns, values, unit, target):
    """Write H·x of one sparse row into `target` and return Σx². `narrow`: H in the precision of the state, a row
    for each column of the matrix, filled up with zeros to whole registers; `target` is as wide. `unit`: 1 / scale of
    the matrix."""
    padded, step = narrow.shape[1], lane_count(narrow, ONE_REGISTER)
    zero = spread(0.0, load(narrow, 0, ONE_REGISTER))
    squares, c = 0.0, 0
    for t in range(columns.shape[0]):
        squares += (values[t] * unit) ** 2
    while c + 4 * step <= padded:
        four = zero, zero, zero, zero
        for t in range(columns.shape[0]):
            x, at = spread(values[t] * unit, zero), np.intp(columns[t]) * padded + c
            four = fma_each(x, loads(narrow, at, step, 4, ONE_REGISTER), four)
        store_each(target, c, step, four)
        c += 4 * step
    while c < padded:
        one = zero
        for t in range(columns.shape[0]):
            x, at = spread(values[t] * unit, zero), np.intp(columns[t]) * padded + c
            one = fma(x, load(narrow, at, ONE_REGISTER), one)
        store(target, c, one)
        c += step
    return squares


@njit(nogil=True, cache=True)
def _sparse(rows, model, parameter, state, masses, sweeps, moves, gram, sums, start, end, flag):
    """Visit sparse rows of a matrix whose missing entries are zeros."""
    indptr, indices, entries = rows
    factors, scale, narrow = parameter.factors, parameter.scale[0], model[3]
    rank, unit, settle = factors.shape[1], 1.0 / scale, settled(parameter.rows)
    ridge, lasso = parameter.penalty[0] * factors.shape[0], parameter.penalty[2] * factors.shape[0]
    room, change = _room(rank, model[1].shape[0], narrow)
    targets, lanes = room[0], room[0].shape[1]
    target = np.zeros(narrow.shape[1], narrow.dtype)
    squares, exact, mine = np.zeros(lanes), np.empty(rank), np.empty(rank)
    reached = start
    while reached < end and not raised(flag):
        count = min(lanes, end - reached)
        for lane in range(count):
            first, last = indptr[reached + lane], indptr[reached + lane + 1]
            squares[lane] = _row_target(narrow, indices[first:last], entries[first:last], unit, target)
            for f in range(rank):
                targets[f, lane] = target[f]
        _open_rows(rank, model, room, state, reached, count)
        _improve(rank, model, room, sweeps, lasso)
        for lane in range(count if settle else 0):
            if state[reached + lane, rank] < 0:
                exact[:] = 0.0
                for t in range(indptr[reached + lane], indptr[reached + lane + 1]):
                    x = entries[t] * unit
                    for f in range(rank):
                        exact[f] += x * factors[indices[t], f]
                _solve(rank, model, ridge, lasso, room, lane, exact, mine)
        _close_rows(rank, room, state, masses, reached, count, squares, sums)
        _add_gram(room[2], room[5], count, change)
        for lane in range(count):
            for t in range(indptr[reached + lane], indptr[reached + lane + 1]):
                x, j = entries[t] * unit, indices[t]
                for f in range(rank):
                    moves[j, f] += x * room[2][lane, f]
        reached += count
    _take_gram(change, gram)
    return reached


# -- dense rows ----------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _products(turned, values, above):
    """H·x into `above`, and Σx². `turned` is H with a factor in each row, four of them together; columns are padded."""
    padded = values.shape[0]
    zero = spread(0.0, load(values, 0, DOUBLES))
    squares = zero
    for c in range(0, padded, DOUBLES):
        x = load(values, c, DOUBLES)
        squares = fma(x, x, squares)
    for f in range(0, turned.shape[0], GROUP):
        at = f * padded
        four = zero, zero, zero, zero
        for c in range(0, padded, DOUBLES):
            four = fma_each(load(values, c, DOUBLES), loads(turned, at + c, padded, GROUP, DOUBLES), four)
        for g in range(GROUP):
            above[f + g] = total(four[g])
    return total(squares)


@njit(nogil=True, cache=True)
def _add_moves(turned, values, changes, lane):
    """Row f of `turned` += change of the row's weight f · x; four of them together."""
    padded, wide = values.shape[0], changes.shape[1]
    for f in range(0, turned.shape[0], GROUP):
        at, four = f * padded, splats(changes, lane * wide + f, GROUP, DOUBLES)
        for c in range(0, padded, DOUBLES):
            moved = fma_each(load(values, c, DOUBLES), four, loads(turned, at + c, padded, GROUP, DOUBLES))
            store_each(turned, at + c, padded, moved)


@njit(nogil=True, cache=True)
def _dense(features, model, parameter, state, masses, sweeps, moves, gram, sums, start, end, flag):
    """H and its moves lie with a factor in each row while rows are visited: products of whole vectors. The moves are
    brought along and taken back, so that their sums do not depend on where a pass is cut into calls."""
    factors, scale, turned = parameter.factors, parameter.scale[0], model[3]
    columns, rank = factors.shape
    settle, ridge, lasso = settled(parameter.rows), parameter.penalty[0] * columns, parameter.penalty[2] * columns
    room, change = _room(rank, model[1].shape[0], model[1])
    targets, lanes = room[0], room[0].shape[1]
    turned_moves = np.zeros(turned.shape)
    for j in range(columns):
        for f in range(rank):
            turned_moves[f, j] = moves[j, f]
    values, squares, mine = np.zeros((lanes, turned.shape[1])), np.zeros(lanes), np.empty(rank)
    above = np.zeros((lanes, turned.shape[0]))
    reached = start
    while reached < end and not raised(flag):
        count = min(lanes, end - reached)
        for lane in range(count):
            for j in range(columns):
                values[lane, j] = features[reached + lane, j] / scale
            squares[lane] = _products(turned, values[lane], above[lane])
            for f in range(rank):
                targets[f, lane] = above[lane, f]
        _open_rows(rank, model, room, state, reached, count)
        _improve(rank, model, room, sweeps, lasso)
        for lane in range(count if settle else 0):
            if state[reached + lane, rank] < 0:
                _solve(rank, model, ridge, lasso, room, lane, above[lane, :rank], mine)
        _close_rows(rank, room, state, masses, reached, count, squares, sums)
        _add_gram(room[2], room[5], count, change)
        for lane in range(count):
            _add_moves(turned_moves, values[lane], room[2], lane)
        reached += count
    for j in range(columns):
        for f in range(rank):
            moves[j, f] = turned_moves[f, j]
    _take_gram(change, gram)
    return reached


# -- as called -----------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _team_dense(features, state, masses, parameter, aggregator, start, end, flag, sweeps, model):
    """Dense rows; arguments as `team_loop` gives them."""
    sums = np.zeros(3)
    into = aggregator.moves, aggregator.gram, sums
    reached = _dense(features, model, parameter, state, masses, sweeps, *into, start, end, flag)
    aggregator.loss[0] += sums[0]
    aggregator.seen[0] += sums[1]
    aggregator.loss[1] += sums[2]
    return reached


@njit(nogil=True, cache=True)
def _team_sparse(features, state, masses, parameter, aggregator, start, end, flag, sweeps, model):
    """The same for sparse rows."""
    sums = np.zeros(3)
    rows = (features.indptr, features.indices, features.values)
    into = aggregator.moves, aggregator.gram, sums
    reached = _sparse(rows, model, parameter, state, masses, sweeps, *into, start, end, flag)
    aggregator.loss[0] += sums[0]
    aggregator.seen[0] += sums[1]
    aggregator.loss[1] += sums[2]
    return reached


serve_dense, serve_sparse = team_loop(_team_dense), team_loop(_team_sparse)
_TEAMS = {name: EntryPoint("flegel.algorithms.nmf.whole_kernel", name) for name in ("serve_dense", "serve_sparse")}


class WholeMatrix:
    """The kernel of the solvers for whole matrices: coordinate, or multiplicative without sweeps. `home`: the shard
    that a team visits. What all rows need of H is made once for each θ: a call may visit a few rows only."""

    def __init__(self, sweeps: int, rank: int, home: Shard) -> None:
        dtype, sparse, padded = home.state.dtype, isinstance(home.features, Sparse), -(-rank // GROUP) * GROUP
        self._sweeps = sweeps
        self._of: Array | None = None
        self._gram, self._minus, self._inverse = (
            np.zeros((rank, rank)),
            np.zeros((padded,) * 2, dtype),
            np.zeros(padded, dtype),
        )
        if sparse:
            lanes = register_lanes(dtype)
            self._laid_out = np.zeros((home.columns, -(-rank // lanes) * lanes), dtype)
        else:
            self._laid_out = np.zeros((padded, -(-home.columns // DOUBLES) * DOUBLES))
        rest = (sweeps, (self._gram, self._minus, self._inverse, self._laid_out))
        code = _TEAMS["serve_sparse" if sparse else "serve_dense"]
        self.team = TeamCode(code, lambda iteration: rest, home.points, self._prepare)

    def _prepare(self, shard: Shard, parameter: Tree) -> None:
        """θ for the calls that follow."""
        factors = parameter.factors
        if self._of is factors:
            return
        columns, rank = factors.shape
        self._of, self._gram[:] = factors, factors.T @ factors
        ridged = self._gram + float(parameter.penalty[0]) * columns * np.eye(rank)
        self._minus[:rank, :rank] = -ridged
        diagonal = np.diag(ridged)
        np.divide(1.0, diagonal, out=self._inverse[:rank], where=diagonal > 0.0, casting="same_kind")
        self._inverse[:rank][diagonal <= 0.0] = 0.0
        if isinstance(shard.features, Sparse):
            self._laid_out[:, :rank] = factors
        else:
            self._laid_out[:rank, :columns] = factors.T

    def __call__(
        self, shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        self._prepare(shard, parameter)
        train = _team_sparse if isinstance(shard.features, Sparse) else _team_dense
        rest = self.team.rest(iteration)
        end = min(end, shard.points)
        return int(train(shard.features, shard.state, shard.weights, parameter, aggregator, start, end, flag, *rest))
