"""Block kernels of the factorization. Called by `nmf`, never by users.

`solving` trains on a copy of H that is opened from θ and the aggregator, kept in the precision of the
state and padded to whole vectors, and closed into the aggregator again; between the two it does, for each
row, what `NMF.updateDataPoint` does on `NMF.localParameter`. Where the aggregator is as the last call left it,
the copy still is what would be opened. `whole_matrix` leaves H alone. Both look at the flag before every row.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.nmf.rows import (
    MOST_SWEEPS,
    ROW_SOLVED_BELOW_GAIN,
    gram_of,
    hold_out,
    improve_whole_row,
    number_bits,
    row_key,
    settled,
    whole_row_with,
)
from flegel.algorithms.simd.registers import register_lanes
from flegel.algorithms.simd.vectors import fma, fma_each, load, maximum, splats, spread, store, total
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse
from flegel.core.team_loop import team_loop
from flegel.declarations.kernels import Kernel, TeamCode

TOGETHER = kernel_settings().nmf_entries_at_once
LANES = min(register_lanes(np.float32), 8)
"""Numbers in a vector. The rank is padded to a multiple of it, so wider ones would mostly multiply zeros."""
DOUBLES = register_lanes(np.float64)
"""Numbers of float64 in a vector, for whole rows of columns."""


@njit(nogil=True, cache=True)
def _gather(local, columns, values, first, count, block, pull):
    """Factors of the entries into one place, and Σ value·h on the way."""
    padded = local.shape[1]
    for t in range(count):
        at = np.intp(columns[first + t]) * padded
        for c in range(0, padded, LANES):
            h = load(local, at + c, LANES)
            store(block, t * padded + c, h)
            store(pull, c, fma(spread(values[first + t], h), h, load(pull, c, LANES)))
    if count % 2:
        for c in range(padded):
            block[count, c] = 0


@njit(nogil=True, cache=True)
def _add_gram(block, count, gram):
    """gram += blockᵀ·block, on and right of the diagonal's vectors; two entries at a time."""
    padded = gram.shape[0]
    for f in range(0, padded, 4):
        for c in range(f // LANES * LANES, padded, LANES):
            at = f * padded + c
            a = (
                load(gram, at, LANES),
                load(gram, at + padded, LANES),
                load(gram, at + 2 * padded, LANES),
                load(gram, at + 3 * padded, LANES),
            )
            zero = spread(0.0, a[0])
            b = (zero, zero, zero, zero)
            for t in range(0, count, 2):
                one, two = t * padded, (t + 1) * padded
                a = fma_each(load(block, one + c, LANES), splats(block, one + f, 4, LANES), a)
                b = fma_each(load(block, two + c, LANES), splats(block, two + f, 4, LANES), b)
            store(gram, at, a[0] + b[0])
            store(gram, at + padded, a[1] + b[1])
            store(gram, at + 2 * padded, a[2] + b[2])
            store(gram, at + 3 * padded, a[3] + b[3])


@njit(nogil=True, cache=True)
def _descend(gram, pull, weights, rank, ridge, sweeps, start, settle):
    """`rows.descend` on the row's weights, from equal ones if it has none (`start`)."""
    padded = gram.shape[0]
    for f in range(rank):
        for g in range(f // 4 * 4 // LANES * LANES):
            gram[f, g] = gram[g, f]
    if start:
        above, below = pull[0] * 0, pull[0] * 0
        for f in range(rank):
            above += pull[f]
            for g in range(rank):
                below += gram[f, g]
        equal = above / below if below > 0 else weights.dtype.type(1 / np.sqrt(rank))
        for f in range(rank):
            weights[f] = equal
    for f in range(rank):
        gram[f, f] += ridge
    explained = pull[0] * 0
    for f in range(rank):
        explained += weights[f] * pull[f]
    for f in range(rank):
        w = weights[f]
        for c in range(0, padded, LANES):
            p = load(pull, c, LANES)
            store(pull, c, fma(spread(-w, p), load(gram, f * padded + c, LANES), p))
    for sweep in range(MOST_SWEEPS if settle else sweeps):
        gain = pull[0] * 0
        for f in range(rank):
            if gram[f, f] > 0:
                step = max(pull[f] / gram[f, f], -weights[f])
                weights[f] += step
                gain += step * step * gram[f, f]
                for c in range(0, padded, LANES):
                    p = load(pull, c, LANES)
                    store(pull, c, fma(spread(-step, p), load(gram, f * padded + c, LANES), p))
        if settle and sweep + 1 >= sweeps and gain <= ROW_SOLVED_BELOW_GAIN * explained:
            break


@njit(nogil=True, cache=True)
def _move(local, energy, progress, columns, values, first, last, weights, rank, penalty, rate, masses, row):
    """One AdaGrad step on the factors of every entry; the sum of squared errors before it. `masses`: None, or what each
    row weighs.
    """
    padded = local.shape[1]
    zero = spread(0.0, load(weights, 0, LANES))
    length = zero
    for c in range(0, padded, LANES):
        w = load(weights, c, LANES)
        length = fma(w, w, length)
    length = total(length)
    share = length / weights.dtype.type(rank)
    squares = 0.0
    for t in range(first, last):
        j = np.intp(columns[t])
        at = j * padded
        product = zero
        for c in range(0, padded, LANES):
            product = fma(load(weights, c, LANES), load(local, at + c, LANES), product)
        error = values[t] - total(product)
        squares += error * error
        step = rate / np.sqrt(energy[j])
        if masses is None:
            energy[j] += error * error * share
        else:
            mass = weights.dtype.type(masses[row])
            energy[j] += mass * mass * (error * error * share)
            step *= mass
        progress[j] += step * length
        keep, take = spread(1 - step * penalty, zero), spread(step * error, zero)
        for c in range(0, padded, LANES):
            h = fma(take, load(weights, c, LANES), keep * load(local, at + c, LANES))
            store(local, at + c, maximum(h, zero))
    return squares


@njit(nogil=True, cache=True)
def _row(local, energy, progress, columns, values, state, penalty, rate, sweeps, settle, room, masses, row):
    """A visit; returns the changes of the row's loss and of its entries · ‖w‖². `room` is scratch: gram, block, pull,
    weights.
    """
    gram, block, pull, weights = room
    entries, rank = columns.shape[0], state.shape[0] - 1
    new = state[rank] < 0
    start = new
    for f in range(rank):
        weights[f] = state[f]
        start = start and weights[f] == 0
    squares = 0.0
    if entries:
        for f in range(gram.shape[0]):
            pull[f] = 0
            for g in range(gram.shape[1]):
                gram[f, g] = 0
        for first in range(0, entries, TOGETHER):
            count = min(TOGETHER, entries - first)
            _gather(local, columns, values, first, count, block, pull)
            _add_gram(block, count, gram)
        _descend(gram, pull, weights, rank, weights.dtype.type(entries) * penalty, sweeps, start, new and settle)
        squares = _move(local, energy, progress, columns, values, 0, entries, weights, rank, penalty, rate, masses, row)
        for f in range(rank):
            squares += entries * np.float64(penalty) * np.float64(weights[f]) * np.float64(weights[f])
    elif start:
        for f in range(rank):
            weights[f] = 1 / np.sqrt(rank)
    length = 0.0
    for f in range(rank):
        if not new:
            length -= np.float64(state[f]) ** 2
        state[f] = weights[f]
        length += np.float64(weights[f]) ** 2
    length *= entries
    old = 0.0 if new else np.float64(state[rank])
    state[rank] = squares
    change = np.float64(state[rank]) - old
    return (change, length) if masses is None else (masses[row] * change, masses[row] * length)


@njit(nogil=True, cache=True)
def _visit(columns, values, found, key, state, masses, i, local, numbers, sums, counts):
    """A row with its first `found` columns and values, of which some may be held out."""
    energy, progress, penalty, rate, sweeps, settle, room, rank, fraction = numbers
    kept = hold_out(columns, values, found, key, fraction) if fraction > 0.0 else found
    mass = 1.0 if masses is None else masses[i]
    new = state[i, rank] < 0
    if new:
        sums[1] += mass
        sums[3] += mass * (found - kept)
        sums[5] += mass * kept
        for t in range(kept):
            counts[columns[t]] += mass
    row = (penalty, rate, sweeps, settle, room, masses, i)
    change, length = _row(local, energy, progress, columns[:kept], values, state[i, : rank + 1], *row)
    sums[0] += change
    sums[4] += length
    if fraction > 0.0:
        squares = 0.0
        for t in range(kept, found):
            about = 0.0
            for f in range(rank):
                about += state[i, f] * local[columns[t], f]
            squares += (values[t] - about) ** 2
        old = 0.0 if new else np.float64(state[i, rank + 1])
        state[i, rank + 1] = squares
        sums[2] += mass * (np.float64(state[i, rank + 1]) - old)


@njit(nogil=True, cache=True)
def _sparse_rows(indptr, indices, entries, bits, unit, state, masses, local, numbers, sums, counts, start, end, flag):
    """Visit rows of a sparse matrix in order; returns where it stopped when the flag was raised."""
    values, columns = np.empty(0, local.dtype), np.empty(0, np.int32)
    for i in range(start, end):
        if raised(flag):
            return i
        first, last = indptr[i], indptr[i + 1]
        if values.shape[0] < last - first:
            values = np.empty(2 * (last - first), local.dtype)
            columns = np.empty(2 * (last - first), np.int32)
        for t in range(first, last):
            values[t - first] = entries[t] * unit
            columns[t - first] = indices[t]
        key = row_key(bits[first:last]) if numbers[8] > 0.0 else np.uint64(0)
        _visit(columns, values, last - first, key, state, masses, i, local, numbers, sums, counts)
    return end


@njit(nogil=True, cache=True)
def _dense_rows(features, bits, unit, state, masses, local, numbers, sums, counts, start, end, flag):
    """The same for dense rows, in which NaN is a missing entry."""
    columns = np.empty(features.shape[1], np.int32)
    values = np.empty(features.shape[1], local.dtype)
    for i in range(start, end):
        if raised(flag):
            return i
        found = 0
        for j in range(features.shape[1]):
            if not np.isnan(features[i, j]):
                columns[found] = j
                values[found] = features[i, j] * unit
                found += 1
        key = row_key(bits[i]) if numbers[8] > 0.0 else np.uint64(0)
        _visit(columns, values, found, key, state, masses, i, local, numbers, sums, counts)
    return end


@njit(nogil=True, cache=True)
def _open(factors, moves, energy, gathered, progress, local, local_energy, local_progress):
    for j in range(factors.shape[0]):
        for f in range(factors.shape[1]):
            local[j, f] = factors[j, f] + moves[j, f]
        local_energy[j] = energy[j] + gathered[j]
        local_progress[j] = progress[j]


@njit(nogil=True, cache=True)
def _close(factors, moves, energy, gathered, progress, spread_, local, local_energy, local_progress):
    """Bring what was computed locally back into the sums, for columns that were visited; all others differ by rounding
    only."""
    for j in range(factors.shape[0]):
        if local_progress[j] != progress[j]:
            for f in range(factors.shape[1]):
                moves[j, f] = local[j, f] - factors[j, f]
            gathered[j] = local_energy[j] - energy[j]
            progress[j] = local_progress[j]
            spread_[j] = progress[j] * progress[j]


def solving(shard: Shard, rank: int, learning_rate: float, sweeps: int, fraction: float) -> Kernel:
    """The kernel of the solver sgd, in the precision of the shard's state; `fraction` of the entries is held out."""
    dtype = shard.state.dtype
    padded = -(-rank // LANES) * LANES
    number = dtype.type
    room = (
        np.zeros((padded, padded), dtype),
        np.zeros((TOGETHER + 1, padded), dtype),
        np.zeros(padded, dtype),
        np.zeros(padded, dtype),
    )
    local = np.zeros((shard.columns, padded), dtype)
    energy, progress = np.zeros(shard.columns, dtype), np.zeros(shard.columns, dtype)
    opened: Array | None = None
    """The H from which `local` was computed."""

    def run(shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array) -> int:
        """Visit rows: solve for their factors, then take steps on the local copy of the columns' factors, which is
        brought back into the sums at the end."""
        nonlocal opened
        theirs = (
            parameter.factors,
            aggregator.moves,
            parameter.energy,
            aggregator.energy,
            aggregator.progress,
        )
        if opened is not parameter.factors or not np.array_equal(progress, aggregator.progress):
            _open(*theirs, local, energy, progress)
            opened = parameter.factors
        scale = float(parameter.scale[0])
        rate = number(learning_rate / np.sqrt(rank))
        settle = settled(parameter.rows)
        numbers = (energy, progress, number(parameter.penalty[0]), rate, sweeps, settle, room, rank, fraction)
        sums = np.zeros(6)
        rest = (1.0 / scale, shard.state, shard.weights, local, numbers, sums, aggregator.counts, start, end, flag)
        if isinstance(shard.features, Sparse):
            rows = shard.features
            reached = _sparse_rows(rows.indptr, rows.indices, rows.values, number_bits(rows.values), *rest)
        else:
            reached = _dense_rows(shard.features, number_bits(shard.features), *rest)
        _close(*theirs, aggregator.spread, local, energy, progress)
        aggregator.loss[0] += sums[0]
        aggregator.loss[1:] += sums[4:]
        aggregator.seen[0] += sums[1]
        aggregator.held[:] += sums[2:4]
        return int(reached)

    return run


@njit(nogil=True, cache=True)
def _whole(factors, gram_h, columns, values, state, mass, penalty, sweeps, settle, moves, gram, sums):
    """Solve for the weights of one row against the fixed factors, and add the change of its products to the sums."""
    rank = factors.shape[1]
    new = state[rank] < 0
    before, weights = np.zeros(rank), np.empty(rank)
    for f in range(rank):
        weights[f] = state[f]
    if not new:
        before[:] = weights
    squares = whole_row_with(factors, gram_h, columns, values, weights, penalty, sweeps, new, new and settle)
    _note_row(state, weights, before, squares, new, mass, gram, sums)
    for t in range(columns.shape[0]):
        if values[t] != 0.0:
            for f in range(rank):
                moves[columns[t], f] += mass * (values[t] * (weights[f] - before[f]))


@njit(nogil=True, cache=True)
def _note_row(state, weights, before, squares, new, mass, gram, sums):
    """The row's new state, which rounds its weights, and the change of WᵀW and of the row's squares."""
    rank = weights.shape[0]
    for f in range(rank):
        state[f] = weights[f]
        weights[f] = state[f]
    state[rank] = squares
    for f in range(rank):
        for g in range(rank):
            gram[f, g] += mass * (weights[f] * weights[g] - before[f] * before[g])
    if new:
        sums[0] += mass * squares
        sums[1] += mass


@njit(nogil=True, cache=True)
def _products(turned, values, above):
    """H·x into `above`, and Σx². `turned` is H with a factor in each row, four of them together; columns are padded."""
    padded = values.shape[0]
    zero = spread(0.0, load(values, 0, DOUBLES))
    squares = zero
    for c in range(0, padded, DOUBLES):
        x = load(values, c, DOUBLES)
        squares = fma(x, x, squares)
    for f in range(0, turned.shape[0], 4):
        at = f * padded
        one, two, three, four = zero, zero, zero, zero
        for c in range(0, padded, DOUBLES):
            x = load(values, c, DOUBLES)
            one = fma(x, load(turned, at + c, DOUBLES), one)
            two = fma(x, load(turned, at + padded + c, DOUBLES), two)
            three = fma(x, load(turned, at + 2 * padded + c, DOUBLES), three)
            four = fma(x, load(turned, at + 3 * padded + c, DOUBLES), four)
        above[f], above[f + 1], above[f + 2], above[f + 3] = total(one), total(two), total(three), total(four)
    return total(squares)


@njit(nogil=True, cache=True)
def _add_moves(turned, values, changes):
    """Row f of `turned` += change of the row's weight f · x; four of them together."""
    padded = values.shape[0]
    zero = spread(0.0, load(values, 0, DOUBLES))
    for f in range(0, turned.shape[0], 4):
        at = f * padded
        one, two = spread(changes[f], zero), spread(changes[f + 1], zero)
        three, four = spread(changes[f + 2], zero), spread(changes[f + 3], zero)
        for c in range(0, padded, DOUBLES):
            x = load(values, c, DOUBLES)
            store(turned, at + c, fma(x, one, load(turned, at + c, DOUBLES)))
            store(turned, at + padded + c, fma(x, two, load(turned, at + padded + c, DOUBLES)))
            store(turned, at + 2 * padded + c, fma(x, three, load(turned, at + 2 * padded + c, DOUBLES)))
            store(turned, at + 3 * padded + c, fma(x, four, load(turned, at + 3 * padded + c, DOUBLES)))


@njit(nogil=True, cache=True)
def _whole_sparse(rows, factors, scale, state, masses, penalty, sweeps, settle, moves, gram, sums, start, end, flag):
    """Visit sparse rows of a matrix whose missing entries are zeros."""
    indptr, indices, entries = rows
    gram_h = gram_of(factors)
    for i in range(start, end):
        if raised(flag):
            return i
        first, last = indptr[i], indptr[i + 1]
        values = np.empty(last - first)
        for t in range(first, last):
            values[t - first] = entries[t] / scale
        mass, columns = 1.0 if masses is None else masses[i], indices[first:last]
        _whole(factors, gram_h, columns, values, state[i], mass, penalty, sweeps, settle, moves, gram, sums)
    return end


@njit(nogil=True, cache=True)
def _whole_dense(features, factors, scale, state, masses, penalty, sweeps, settle, moves, gram, sums, start, end, flag):
    """H and its moves lie with a factor in each row while rows are visited: products of whole vectors. The moves are
    brought along and taken back, so that their sums do not depend on where a pass is cut into calls."""
    gram_h, (columns, rank) = gram_of(factors), factors.shape
    padded, groups = -(-columns // DOUBLES) * DOUBLES, -(-rank // 4) * 4
    turned, turned_moves = np.zeros((groups, padded)), np.zeros((groups, padded))
    for j in range(columns):
        for f in range(rank):
            turned[f, j], turned_moves[f, j] = factors[j, f], moves[j, f]
    values, above, changes = np.zeros(padded), np.zeros(groups), np.zeros(groups)
    before, weights = np.zeros(rank), np.empty(rank)
    reached = end
    for i in range(start, end):
        if raised(flag):
            reached = i
            break
        for j in range(columns):
            values[j] = features[i, j] / scale
        mass, new = 1.0 if masses is None else masses[i], state[i, rank] < 0
        for f in range(rank):
            weights[f] = state[i, f]
            before[f] = 0.0 if new else weights[f]
        squares = _products(turned, values, above)
        improve_whole_row(gram_h, above[:rank], weights, penalty * columns, sweeps, new, new and settle)
        _note_row(state[i], weights, before, squares, new, mass, gram, sums)
        for f in range(rank):
            changes[f] = mass * (weights[f] - before[f])
        _add_moves(turned_moves, values, changes)
    for j in range(columns):
        for f in range(rank):
            moves[j, f] = turned_moves[f, j]
    return reached


def _open_whole(parameter, state, masses, sweeps):
    """What the loops over rows of a whole matrix take besides rows and statistics, and room for two sums."""
    scale, penalty, settle = parameter.scale[0], parameter.penalty[0], settled(parameter.rows)
    return (parameter.factors, scale, state, masses, penalty, sweeps, settle), np.zeros(2)


def _close_whole(sums, aggregator):
    aggregator.loss[0] += sums[0]
    aggregator.seen[0] += sums[1]


_opened, _closed = njit(nogil=True, cache=True)(_open_whole), njit(nogil=True, cache=True)(_close_whole)


@njit(nogil=True, cache=True)
def _team_dense(features, state, masses, parameter, aggregator, start, end, flag, sweeps):
    """Dense rows for the solvers of whole matrices; arguments as `team_loop` gives them."""
    fixed, sums = _opened(parameter, state, masses, sweeps)
    reached = _whole_dense(features, *fixed, aggregator.moves, aggregator.gram, sums, start, end, flag)
    _closed(sums, aggregator)
    return reached


@njit(nogil=True, cache=True)
def _team_sparse(features, state, masses, parameter, aggregator, start, end, flag, sweeps):
    """The same for sparse rows."""
    rows = (features.indptr, features.indices, features.values)
    fixed, sums = _opened(parameter, state, masses, sweeps)
    reached = _whole_sparse(rows, *fixed, aggregator.moves, aggregator.gram, sums, start, end, flag)
    _closed(sums, aggregator)
    return reached


serve_dense, serve_sparse = team_loop(_team_dense), team_loop(_team_sparse)
_TEAMS = {name: EntryPoint("flegel.algorithms.nmf.kernels", name) for name in ("serve_dense", "serve_sparse")}


def whole_matrix(sweeps: int, home: Shard) -> Kernel:
    """The kernel of the solvers for whole matrices: coordinate, or multiplicative without sweeps. `home`: the shard
    that a team visits."""

    def run(shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array) -> int:
        fixed, sums = _open_whole(parameter, shard.state, shard.weights, sweeps)
        rest = (*fixed, aggregator.moves, aggregator.gram, sums, start, end, flag)
        rows = shard.features
        reached = _whole_sparse(rows[:3], *rest) if isinstance(rows, Sparse) else _whole_dense(rows, *rest)
        _close_whole(sums, aggregator)
        return int(reached)

    code = _TEAMS["serve_sparse" if isinstance(home.features, Sparse) else "serve_dense"]
    run.team = TeamCode(code, lambda iteration: (sweeps,), home.points)  # type: ignore[attr-defined]
    return run
