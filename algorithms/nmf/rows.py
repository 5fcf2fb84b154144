"""One row of a factorization: its observed entries, its first weights, and the two ways to improve them.

Plain compiled code in float64, called by the per-point hooks and for new rows. Never touches statistics;
the block kernels have a faster form of `solve_row`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from flegel.configuration.compiled import kernel_settings
from flegel.core.code_cache import njit
from flegel.core.gaps import GAP
from flegel.core.gaps import observed as known_numbers
from flegel.core.pytree import Array
from flegel.core.shard import Sparse, SparseRow

EPSILON = float(np.finfo(np.float32).eps)
"""Replaces a zero in a denominator."""
ROW_SOLVED_BELOW_GAIN = kernel_settings().nmf_row_solved_below_gain
MOST_SWEEPS = kernel_settings().nmf_most_sweeps
MOST_EXCHANGES = kernel_settings().nmf_most_exchanges
EXPLAINED_ROUNDING = 1e-15
"""Of the squares that a row explains: a gain that is lost in their rounding."""
DEPENDENT = 1e-13
"""Part of a factor's squares that is no combination of others, below which rounding has made it."""


def observed(row: Array | SparseRow, scale: float) -> tuple[Array, Array]:
    """Columns and values, in units of `scale`, of the entries a row has: the stored ones, or all but gaps."""
    if isinstance(row, SparseRow):
        return row.indices, row.values.astype(np.float64) / scale
    columns = np.flatnonzero(known_numbers(row))
    return columns, row[columns].astype(np.float64) / scale


@overload(observed)
def _observed(row: Any, scale: Any) -> Any:
    """Compiled form of `observed`: dense rows drop gaps, sparse ones have only observed entries."""

    def dense(row: Any, scale: Any) -> Any:
        columns = np.empty(row.shape[0], np.int64)
        values = np.empty(row.shape[0], np.float64)
        found = 0
        for j in range(row.shape[0]):
            if row[j] < GAP:  # NaN is not
                columns[found] = j
                values[found] = row[j] / scale
                found += 1
        return columns[:found], values[:found]

    def sparse(row: Any, scale: Any) -> Any:
        values = np.empty(row.values.shape[0], np.float64)
        for t in range(values.shape[0]):
            values[t] = row.values[t] / scale
        return row.indices, values

    return dense if isinstance(row, types.Array) else sparse


def number_bits(values: Array) -> Array:
    """The same numbers as unsigned integers, bit by bit, for `row_key`."""
    return values.view(np.dtype(f"u{values.dtype.itemsize}"))


@njit(nogil=True, cache=True)
def scramble(number: Any) -> Any:
    """A number of 64 bits that looks drawn at random (SplitMix64)."""
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True)
def row_key(bits: Array) -> Any:
    """A number that depends on every entry of a row, so that a row holds out the same entries anywhere."""
    key: Any = np.uint64(bits.shape[0])
    for t in range(bits.shape[0]):
        key = scramble(key ^ np.uint64(bits[t]))
    return key


@njit(nogil=True, cache=True)
def is_held_out(key: Any, column: int, fraction: float) -> bool:
    return bool(
        np.float64(scramble(np.uint64(key) ^ np.uint64(column)) >> np.uint64(11)) < fraction * 9007199254740992.0
    )


@njit(nogil=True, cache=True)
def hold_out(columns: Array, values: Array, count: int, key: Any, fraction: float) -> int:
    """Reorder the first `count` entries so that those to train on come first, in order; how many these are."""
    kept = 0
    held_columns, held_values = columns[:count].copy(), values[:count].copy()
    held = 0
    for t in range(count):
        if is_held_out(key, columns[t], fraction):
            held_columns[held], held_values[held] = columns[t], values[t]
            held += 1
        else:
            columns[kept], values[kept] = columns[t], values[t]
            kept += 1
    for t in range(held):
        columns[kept + t], values[kept + t] = held_columns[t], held_values[t]
    return kept


def split_row(row: Array | SparseRow, columns: Array, values: Array, fraction: float) -> tuple[Array, ...]:
    """Columns and values to train on, and those held out."""
    entries = row.values if isinstance(row, SparseRow) else row
    own_columns, own_values, kept = columns.copy(), values.copy(), len(columns)
    if fraction > 0.0:
        key = row_key(number_bits(np.ascontiguousarray(entries)))
        kept = hold_out(own_columns, own_values, kept, key, fraction)
    return own_columns[:kept], own_values[:kept], own_columns[kept:], own_values[kept:]


@overload(split_row)
def _split_row(row: Any, columns: Any, values: Any, fraction: Any) -> Any:
    """Compiled form of `split_row`: which entries are held out follows from the bits of the row, so that every visit
    chooses the same."""
    unsigned = getattr(np, f"uint{(row if isinstance(row, types.Array) else row[1]).dtype.bitwidth}")

    def dense(row: Any, columns: Any, values: Any, fraction: Any) -> Any:
        own_columns, own_values, kept = columns.copy(), values.copy(), columns.shape[0]
        if fraction > 0.0:
            kept = hold_out(own_columns, own_values, kept, row_key(row.copy().view(unsigned)), fraction)
        return own_columns[:kept], own_values[:kept], own_columns[kept:], own_values[kept:]

    def sparse(row: Any, columns: Any, values: Any, fraction: Any) -> Any:
        own_columns, own_values, kept = columns.copy(), values.copy(), columns.shape[0]
        if fraction > 0.0:
            kept = hold_out(own_columns, own_values, kept, row_key(row.values.copy().view(unsigned)), fraction)
        return own_columns[:kept], own_values[:kept], own_columns[kept:], own_values[kept:]

    return dense if isinstance(row, types.Array) else sparse


@njit(nogil=True, cache=True)
def settled(rows: Array) -> bool:
    """True where H was made of all rows: a row without a state has lost it then, and is solved at once."""
    return bool(rows[1] >= rows[0])


@njit(nogil=True, cache=True)
def start_row(factors: Array, columns: Array, values: Array, weights: Array) -> None:
    """Equal weights that fit the row best, unless it was given some; of an empty row those that predict 1."""
    for f in range(weights.shape[0]):
        if weights[f] != 0.0:
            return
    above, below = 0.0, 0.0
    for t in range(columns.shape[0]):
        whole = 0.0
        for f in range(weights.shape[0]):
            whole += factors[columns[t], f]
        above += whole * values[t]
        below += whole * whole
    equal = above / below if below > 0.0 else 1.0 / np.sqrt(weights.shape[0])
    for f in range(weights.shape[0]):
        weights[f] = equal


@njit(nogil=True, cache=True)
def start_whole_row(gram: Array, target: Array, weights: Array) -> None:
    """`start_row` where entries that are not stored are 0: equal weights that fit all columns best. A row that has
    weights keeps them.

    A fit of the stored entries alone gave weights of 1e13 to a row whose columns have hardly any factors, and the
    rounding of its large predictions elsewhere was then the row's error.
    """
    for f in range(weights.shape[0]):
        if weights[f] != 0.0:
            return
    below = gram.sum()
    for f in range(weights.shape[0]):
        weights[f] = target.sum() / below if below > 0.0 else 0.0


@njit(nogil=True, cache=True)
def descend(gram: Array, target: Array, weights: Array, sweeps: int, settle: bool) -> None:
    """Coordinate descent on wᵀ·gram·w − 2·target·w, w ≥ 0, in place: `sweeps` times, or until the row is solved."""
    sweep_row(gram, target, weights, sweeps, settle)
    if settle:
        _finish(gram, target, weights)


@njit(nogil=True, cache=True)
def sweep_row(gram: Array, target: Array, weights: Array, sweeps: int, settle: bool) -> None:
    """`descend` without the exact end; what the kernel of sgd does."""
    rank = weights.shape[0]
    explained = dot(weights, target)
    pull = _pull(gram, target, weights)
    for sweep in range(MOST_SWEEPS if settle else sweeps):
        gain = 0.0
        for f in range(rank):
            if gram[f, f] > 0.0:
                step = max(pull[f] / gram[f, f], -weights[f])
                weights[f] += step
                gain += step * step * gram[f, f]
                for g in range(rank):
                    pull[g] -= step * gram[f, g]
        if settle and sweep + 1 >= sweeps and gain <= ROW_SOLVED_BELOW_GAIN * explained:
            break


@njit(nogil=True, cache=True)
def _finish(gram: Array, target: Array, weights: Array) -> None:
    """The least value by active sets (Lawson and Hanson 1974), from weights that are near it. Coordinate descent takes
    thousands of sweeps where columns of H are almost parallel; each of them gains little, and seems to be the last.
    """
    rank = weights.shape[0]
    free = weights > 0.0
    found = weights.copy()
    for _ in range(MOST_EXCHANGES):
        pull = _pull(gram, target, found)
        step = _newton_step(gram, pull, free)
        part, bound = 1.0, -1
        for f in range(rank):
            if free[f] and found[f] + part * step[f] < 0.0:
                part, bound = found[f] / -step[f], f
        found += part * step
        for f in range(rank):
            if f == bound or found[f] < 0.0:
                found[f], free[f] = 0.0, False
        if bound >= 0:
            continue
        pull, most, entering = _pull(gram, target, found), 0.0, -1
        for f in range(rank):
            if not free[f] and gram[f, f] > 0.0 and pull[f] > 0.0 and pull[f] * pull[f] / gram[f, f] > most:
                most, entering = pull[f] * pull[f] / gram[f, f], f
        if entering < 0 or most <= EXPLAINED_ROUNDING * dot(found, target):
            break
        free[entering] = True
    if dot(found, _pull(gram, target, found) + target) > dot(weights, _pull(gram, target, weights) + target):
        weights[:] = found


@njit(nogil=True, cache=True)
def _pull(gram: Array, target: Array, weights: Array) -> Array:
    """Minus half the gradient."""
    pull = target.copy()
    for f in range(weights.shape[0]):
        pull[f] -= dot(gram[f], weights)
    return pull


@njit(nogil=True, cache=True)
def _newton_step(gram: Array, pull: Array, free: Array) -> Array:
    """The step to the least value over the free weights; 0 for those whose factor is a combination of earlier ones."""
    at = np.flatnonzero(free)
    count = at.shape[0]
    lower, solved = np.zeros((count, count)), np.zeros(count)
    for i in range(count):
        for j in range(i + 1):
            rest = gram[at[i], at[j]]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if i == j:
                lower[i, i] = np.sqrt(rest) if rest > DEPENDENT * gram[at[i], at[i]] else 0.0
            elif lower[j, j] > 0.0:
                lower[i, j] = rest / lower[j, j]
    for i in range(count):
        if lower[i, i] > 0.0:
            solved[i] = (pull[at[i]] - dot(lower[i, :i], solved[:i])) / lower[i, i]
    step = np.zeros(pull.shape[0])
    for i in range(count - 1, -1, -1):
        if lower[i, i] > 0.0:
            rest = solved[i]
            for k in range(i + 1, count):
                rest -= lower[k, i] * step[at[k]]
            step[at[i]] = rest / lower[i, i]
    return step


@njit(nogil=True, cache=True)
def solve_row(
    factors: Array, columns: Array, values: Array, weights: Array, penalty: float, sweeps: int, settle: bool
) -> float:
    """The weights that minimize Σ(x − w·h)² + n·penalty·‖w‖², or nearer to them (`sweep_row`); the value reached."""
    rank, entries = weights.shape[0], columns.shape[0]
    if entries == 0:
        return 0.0
    gram = np.zeros((rank, rank))
    target = np.zeros(rank)
    for t in range(entries):
        h = factors[columns[t]]
        for f in range(rank):
            target[f] += values[t] * h[f]
            for g in range(rank):
                gram[f, g] += h[f] * h[g]
    for f in range(rank):
        gram[f, f] += entries * penalty
    sweep_row(gram, target, weights, sweeps, settle)
    value = 0.0
    for f in range(rank):
        value += entries * penalty * weights[f] * weights[f]
    for t in range(entries):
        error = values[t] - dot(weights, factors[columns[t]])
        value += error * error
    return value


@njit(nogil=True, cache=True)
def dot(x: Array, y: Array) -> float:
    value = 0.0
    for f in range(x.shape[0]):
        value += x[f] * y[f]
    return value


@njit(nogil=True, cache=True)
def step_columns(
    factors: Array,
    energies: Array,
    columns: Array,
    values: Array,
    weights: Array,
    penalty: float,
    rate: float,
    mass: float,
    moves: Array,
    energy: Array,
    progress: Array,
) -> None:
    """One AdaGrad step on h_j for every entry of a row that weighs `mass`: how far, with how much gradient, and how
    long a step.
    """
    rank = weights.shape[0]
    length = dot(weights, weights)
    for t in range(columns.shape[0]):
        h = factors[columns[t]]
        error = values[t] - dot(weights, h)
        step = rate / np.sqrt(energies[columns[t]])
        energy[t] = mass * mass * (error * error * length / rank)
        step *= mass
        progress[t] = step * length
        for f in range(rank):
            moves[t, f] = max(h[f] + step * (error * weights[f] - penalty * h[f]), 0.0) - h[f]


@njit(nogil=True, cache=True)
def join_columns(
    factors: Array, moves: Array, progress: Array, spread: Array, start: int, end: int, joined: Array
) -> None:
    """Columns `start` to `end` of H with the moves of all workers, which were summed.

    A worker whose steps on a column add up to the length x came 1 − exp(−x) of the way to where its own rows pull; W
    alike, together, may come 1 − exp(−W·x) of the way to the mean of their ends. So the sum of short moves is right,
    and of long ones the mean. W is the effective number of workers, (Σx)² / Σx².
    """
    for j in range(start, end):
        far = max(progress[j], 1e-12)
        workers = max(progress[j] ** 2 / max(spread[j], 1e-300), 1.0)
        part = np.expm1(-far) / (workers * np.expm1(-far / workers))
        for f in range(factors.shape[1]):
            h = factors[j, f] + part * moves[j, f]
            joined[j, f] = 0.0 if h < 0.0 else h  # NaN stays NaN, so that the check of θ reports it


@njit(nogil=True, cache=True)
def add_products(
    columns: Array, values: Array, weights: Array, before: Array, mass: float, moves: Array, gram: Array
) -> None:
    """Change of x_ij·w_i, one row an entry, and of w_i·w_iᵀ, of a row that weighs `mass`."""
    for t in range(columns.shape[0]):
        for f in range(weights.shape[0]):
            moves[t, f] += mass * (values[t] * (weights[f] - before[f]))
    for f in range(weights.shape[0]):
        for g in range(weights.shape[0]):
            gram[f, g] += mass * (weights[f] * weights[g] - before[f] * before[g])


@njit(nogil=True, cache=True)
def whole_row(
    factors: Array,
    columns: Array,
    values: Array,
    weights: Array,
    penalty: Array,
    sweeps: int,
    first: bool,
    settle: bool,
) -> float:
    """A row over all columns, in place: so many sweeps of coordinate descent, without any Lee and Seung's rule, or its
    solution; the sum of its squares. Its `first` visit begins with `start_whole_row`. Needs all of H, for its gram.
    """
    rank = weights.shape[0]
    above = np.zeros(rank)
    squares = 0.0
    for t in range(columns.shape[0]):
        squares += values[t] * values[t]
        for f in range(rank):
            above[f] += values[t] * factors[columns[t], f]
    ridge, lasso = penalty[0] * factors.shape[0], penalty[2] * factors.shape[0]
    improve_whole_row(gram_of(factors), above, weights, ridge, lasso, sweeps, first, settle)
    return squares


@njit(nogil=True, cache=True)
def improve_whole_row(
    gram: Array, above: Array, weights: Array, ridge: float, lasso: float, sweeps: int, first: bool, settle: bool
) -> None:
    """Weights of a row over all columns, in place, from H·x (`above`, which is overwritten) and HHᵀ (`gram`), where H
    has a row for each factor and a column for each column of the data. `first`: the row has no weights yet, and begins
    with those of `start_whole_row`. `sweeps` of coordinate descent; with `settle` as many as the row needs until a
    sweep gains next to nothing. With 0 sweeps and no `settle`: one multiplicative update (Lee and Seung). Penalties on
    the row: ridge·‖w‖² + 2·lasso·Σw.
    """
    rank = weights.shape[0]
    if first:
        start_whole_row(gram, above, weights)
    if settle or sweeps > 0:
        ridged = gram.copy()
        for f in range(rank):
            ridged[f, f] += ridge
            above[f] -= lasso
        descend(ridged, above, weights, max(sweeps, 1), settle)
        return
    below = np.zeros(rank)
    for f in range(rank):
        below[f] = ridge * weights[f] + lasso
        for g in range(rank):
            below[f] += gram[f, g] * weights[g]
    for f in range(rank):
        weights[f] *= above[f] / (below[f] if below[f] > 0.0 else EPSILON)


@njit(nogil=True, cache=True)
def gram_of(factors: Array) -> Array:
    rank = factors.shape[1]
    gram = np.zeros((rank, rank))
    for j in range(factors.shape[0]):
        for f in range(rank):
            for g in range(rank):
                gram[f, g] += factors[j, f] * factors[j, g]
    return gram


def fold_in(features: Any, factors: Array, scale: float, penalty: Array, only_observed: bool) -> Array:
    """Weights of new rows for a given H: each solved to convergence, over observed entries or over all
    columns. `penalty` as in `Factors`.
    """
    factors = np.ascontiguousarray(factors, dtype=np.float64)
    rows = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
    weights = np.zeros((rows, factors.shape[1]))
    gram = factors.T @ factors
    ridged, lasso = gram + len(factors) * penalty[0] * np.eye(len(gram)), len(factors) * penalty[2]
    for i in range(rows):
        columns, values = observed(_row(features, i), scale)
        if only_observed:
            start_row(factors, columns, values, weights[i])
            solve_row(factors, columns, values, weights[i], penalty[0], 1, True)
        else:
            target = factors[columns].T @ values
            start_whole_row(gram, target, weights[i])
            descend(ridged, target - lasso, weights[i], 1, True)
    return weights


def _row(features: Any, i: int) -> Any:
    if not isinstance(features, Sparse):
        return np.asarray(features[i])
    lo, hi = features.indptr[i : i + 2]
    return SparseRow(features.indices[lo:hi], features.values[lo:hi])


def errors(
    features: Any, weights: Array, factors: Array, scale: float, penalty: Array, only_observed: bool
) -> tuple[float, int, float]:
    """Σ squared errors, number of entries, and what penalties add, from scratch; `penalty` as in `Factors`. Entries
    that a sparse row does not store count by sums of products, which round to 1e-16 of all squares; those of dense rows
    one by one.
    """
    implied = not only_observed and isinstance(features, Sparse)
    rows, columns, values = _entries(features)
    own, other = (weights**2).sum(axis=1), (factors**2).sum(axis=1)
    squares = 0.0
    for first in range(0, len(rows), 1 << 20):
        at = slice(first, first + (1 << 20))
        about = scale * np.einsum("tf,tf->t", weights[rows[at]], factors[columns[at]])
        squares += float(((values[at] - about) ** 2).sum())
        if implied:
            squares -= float((about**2).sum())
    if only_observed:
        return squares, len(values), scale**2 * float(penalty[0] * (own[rows].sum() + other[columns].sum()))
    if implied:
        squares += scale**2 * float(((weights.T @ weights) * (factors.T @ factors)).sum())
    of_rows = penalty[0] * own.sum() + 2.0 * penalty[2] * weights.sum()
    of_columns = penalty[1] * other.sum() + 2.0 * penalty[3] * factors.sum()
    added = scale**2 * float(len(factors) * of_rows + len(weights) * of_columns)
    return max(squares, 0.0), len(weights) * len(factors), added


def _entries(features: Any) -> tuple[Array, Array, Array]:
    """Row, column and value of every observed entry."""
    if isinstance(features, Sparse):
        rows = np.repeat(np.arange(len(features.indptr) - 1), np.diff(features.indptr))
        return rows, features.indices, features.values.astype(np.float64)
    dense = np.asarray(features, dtype=np.float64)
    rows, columns = np.nonzero(known_numbers(dense))
    return rows, columns, dense[rows, columns]
