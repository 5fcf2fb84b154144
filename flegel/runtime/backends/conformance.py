"""Does a backend keep the contract of `protocol.py`? `check_backend` says so, for any backend and any algorithm.

It compares with the hooks themselves, one point after the other, in the precision of the data. Nothing is timed.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, make_shard, unit_rows
from flegel.core.stop_flag import new_flag
from flegel.declarations.accepts import RowHooks
from flegel.declarations.optional import hook
from flegel.errors import AlgorithmError
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.protocol import Backend, ShardKernel

EQUAL_SUMS_WITHIN = 1e-9  # relative: sums may be added up in another order


def check_backend(
    backend: Backend,
    algorithm: Algorithm,
    features: Array,
    labels: Array | None = None,
    seed: int = 0,
    close: float = EQUAL_SUMS_WITHIN,
) -> ShardKernel:
    """Raises `AlgorithmError` with what differs by more than `close`, relatively; returns the checked kernel."""
    if hook(algorithm, RowHooks.unit_rows)():
        features = np.asarray(unit_rows(features))
    sample = Sample(features, labels, len(features), features.shape[1])
    theta = pytree.starting(algorithm.initParameter(sample, np.random.default_rng(seed)), algorithm.placement.typed)
    empty = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(theta)), algorithm.placement.typed)

    def shard(layout: str) -> Shard:
        state = algorithm.initState(len(features), features.shape[1], np.random.default_rng(seed))
        return make_shard(features, algorithm.accepts.kept_labels(labels), state, layout)

    mine, expected = shard(backend.layout(algorithm, features.shape[1], interpret=False)), shard("rows")
    sent = pytree.without(theta, algorithm.placement.unsent)
    kernel = backend.build(algorithm, mine, sent, empty, interpret=False)
    _check(kernel.device == backend.device, f"the kernel says {kernel.device!r}, its backend {backend.device!r}")
    kernel.put_states([mine])
    kernel.set_parameter(pytree.flatten(sent))
    _check_raised_flag(kernel, mine, expected)
    _check_two_passes(kernel, mine, expected, algorithm, theta, empty, close)
    _check_states_from_outside(kernel, mine, expected, algorithm, theta, empty, close)
    kernel.close()
    return kernel


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AlgorithmError(f"The backend breaks its contract: {otherwise}.")


def _check_raised_flag(kernel: ShardKernel, tested: Shard, reference: Shard) -> None:
    flag = new_flag()
    flag[0] = 1
    kernel.clear_statistics()
    _check(kernel.run(tested, 0, tested.points, 0, flag) == 0, "points were trained although the flag was up")
    kernel.fetch_states([tested])
    _check(np.array_equal(tested.state_rows(), reference.state_rows()), "states changed although the flag was up")
    _check(not any(a.any() for a in kernel.statistics()), "statistics changed although the flag was up")


def _train(kernel: ShardKernel, shard: Shard, pieces: int, iteration: int) -> None:
    """All points, in so many calls that end at the edges of tiles."""
    edges = [shard.points * piece // pieces // 64 * 64 for piece in range(pieces)]  # whole tiles
    for start, end in zip(edges, [*edges[1:], shard.points], strict=True):
        if start < end:
            reached = kernel.run(shard, start, end, iteration, new_flag())
            _check(reached == end, f"`run` stopped at {reached} of {end} without a signal")


def _check_two_passes(
    kernel: ShardKernel, tested: Shard, reference: Shard, algorithm: Algorithm, theta: Tree, empty: Tree, close: float
) -> None:
    """Two passes must give the same in one call and in several; statistics are cleared between the passes."""
    for iteration, pieces in enumerate((1, 3)):
        total = pytree.copy(empty)
        interpreted(algorithm)(reference, theta, total, 0, reference.points, iteration, new_flag())
        kernel.clear_statistics()
        _train(kernel, tested, pieces, iteration)
        _compare(kernel, tested, reference, total, f"pass {iteration}", close, algorithm.statistics.per_report)


def _check_states_from_outside(
    kernel: ShardKernel, tested: Shard, reference: Shard, algorithm: Algorithm, theta: Tree, empty: Tree, close: float
) -> None:
    """Points that come from another worker bring their states; changes of a resumed job are added to."""
    for shard in (tested, reference):
        shard.state[...] = 0
        shard.halted[...] = 0
    kernel.put_states([tested])
    before = [np.full_like(a, 3.0) for a in pytree.flatten(empty)]
    total = pytree.unflatten(empty, [a.copy() for a in before])
    kernel.clear_statistics()
    kernel.add_statistics(before)
    interpreted(algorithm)(reference, theta, total, 0, reference.points, 2, new_flag())
    _train(kernel, tested, 1, 2)
    _compare(kernel, tested, reference, total, "pass with states from outside", close, algorithm.statistics.per_report)


def _compare(
    kernel: ShardKernel, tested: Shard, reference: Shard, total: Tree, when: str, close: float, skipped: tuple[str, ...]
) -> None:
    """Votes, states and statistics of a backend against those of the interpreted hooks, after some visits."""
    kernel.fetch_states([tested])
    _check(np.array_equal(tested.halted, reference.halted), f"other points voted to halt in the {when}")
    states, wanted = tested.state_rows(), reference.state_rows()
    _check(np.allclose(states, wanted, rtol=close, atol=close), f"states differ after the {when}")
    found = kernel.statistics()
    for name, ours, theirs in zip(pytree.names(total), found, pytree.flatten(total), strict=True):
        if name in skipped:
            continue
        scale = max(float(np.abs(theirs).max(initial=0.0)), 1.0)
        _check(ours.dtype == theirs.dtype, f"statistics {name} are {ours.dtype}, not {theirs.dtype}")
        _check(np.allclose(ours, theirs, rtol=close, atol=close * scale), f"statistics {name} differ after the {when}")
