"""The block kernel of the factorization of observed entries. Called by `nmf`, never by users.

`solving` trains on a copy of H that is opened from θ and the aggregator, kept in the precision of the
state and padded to whole vectors, and closed into the aggregator again; between the two it does, for each
row, what `NMF.updateDataPoint` does on `NMF.localParameter`. Where the aggregator is as the last call left it,
the copy still is what would be opened. The flag is read before every row. `whole_kernel.py` has the other solvers.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.nmf.rows import (
    MOST_SWEEPS,
    ROW_SOLVED_BELOW_GAIN,
    hold_out,
    number_bits,
    row_key,
    settled,
)
from flegel.algorithms.simd.registers import register_lanes
from flegel.algorithms.simd.vectors import fma, fma_each, load, maximum, splats, spread, store, total
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.gaps import GAP
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import Kernel

TOGETHER = kernel_settings().nmf_entries_at_once
LANES = min(register_lanes(np.float32), 8)
"""Numbers in a vector. The rank is padded to a multiple of it, so wider ones would mostly multiply zeros."""


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
    """The same for dense rows, in which a gap is a missing entry."""
    columns = np.empty(features.shape[1], np.int32)
    values = np.empty(features.shape[1], local.dtype)
    for i in range(start, end):
        if raised(flag):
            return i
        found = 0
        for j in range(features.shape[1]):
            if features[i, j] < GAP:
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
