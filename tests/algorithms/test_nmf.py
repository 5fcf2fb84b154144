"""Factorization: hooks and kernels agree, oracles, conservation, barriers of any length, edge cases, real
data.
"""

from __future__ import annotations

from collections import namedtuple
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import real_data
from local_training import Run, point_of, rows_between, sample_of, sparse_of, start
from numba import njit
from sklearn.decomposition import non_negative_factorization

import flegel
from flegel.algorithms.nmf.nmf import NMF
from flegel.algorithms.nmf.rows import join_columns
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError


def matrix(rows: int = 60, columns: int = 17, rank: int = 4, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, size=(rows, rank)) @ rng.gamma(2.0, size=(rank, columns)) + rng.random((rows, columns))


def ratings(rows: int = 200, columns: int = 50, density: float = 0.4, seed: int = 0) -> tuple[Sparse, Any, Any]:
    """A matrix with holes: the entries to train on, the whole, and which entries are known."""
    whole = matrix(rows, columns, seed=seed)
    whole *= 3.0 / whole.mean()
    known = np.random.default_rng(seed + 1).random(whole.shape) < density
    return sparse_of(whole, observed=known), whole, known


def weights_of(run: Run) -> Any:
    return np.vstack([share.state_rows() for share in run.shares])[:, : run.algorithm.rank]  # type: ignore[attr-defined]


def follow(run: Run, features: Any, state: Any) -> tuple[Any, Any]:
    """The hooks, row by row, each seeing what the rows before it left on this worker."""
    algorithm = run.algorithm
    report = pytree.zeros_like(run.statistics)
    share = make_shard(features, None, state)
    for i in range(share.points):
        local = algorithm.localParameter(run.parameter, report)
        algorithm.aggregate(report, algorithm.updateDataPoint(point_of(share, i), local, 0))
    return report, share.state


def forget(run: Run, rows: slice = slice(None)) -> None:
    """The states of these rows are lost, and with all of them the statistics."""
    (share,) = run.shares
    share.state[rows] = run.algorithm.initState(len(share.state[rows]), share.columns, np.random.default_rng(0))


@pytest.mark.parametrize("solver", ["sgd", "coordinate", "multiplicative"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "holes", "sparse", "lost"])
@pytest.mark.parametrize("rank", [1, 5, 20])
def test_kernel_does_what_the_hooks_do(kind: str, precision: str, solver: str, rank: int) -> None:
    observed, whole, known = ratings(70, 300 if rank == 20 else 40)
    data = {"dense": whole, "holes": np.where(known, whole, np.nan), "sparse": observed, "lost": observed}[kind]
    if solver != "sgd" and kind == "holes":
        pytest.skip("only sgd knows holes")
    passes = 2.0 if kind == "lost" else 0.5
    run = start(NMF(rank=rank, solver=solver, precision=precision), data).passes(passes, interval=35)
    (share,) = run.shares
    if kind == "lost":
        forget(run, slice(20, 50))
    expected, state = follow(run, data, share.state.copy())
    report = pytree.zeros_like(run.statistics)
    kernel = run.algorithm.kernel(share)
    for first, last in ((0, 30), (30, 31), (31, 70)):
        assert kernel(share, run.parameter, report, first, last, 0, new_flag()) == last
    near = 2e-3 if precision == "float32" else 1e-9
    for name, mine, theirs in zip(report._fields, report, expected, strict=True):
        if theirs.size:
            np.testing.assert_allclose(mine, theirs, atol=near * np.abs(theirs).max(), err_msg=name)
    np.testing.assert_allclose(share.state, state, atol=near * np.abs(state).max())


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rounds_in_slices_are_rounds_in_one_piece(precision: str) -> None:
    """Each call begins with what the calls before it left, also when the aggregator was cleared for the same θ, was
    changed by another kernel, or θ is another."""
    observed = ratings(60, 40)[0]
    run = start(NMF(rank=4, precision=precision), observed).passes(1.0, interval=30)
    (share,) = run.shares
    before = share.state.copy()

    def train(pieces: list[int], kernels: int) -> tuple[Any, Any]:
        share.state[...] = before
        made = [run.algorithm.kernel(share) for _ in range(kernels)]
        report = pytree.zeros_like(run.statistics)
        other = pytree.read_only(run.parameter._replace(factors=run.parameter.factors * 1.1))
        found = []
        for parameter, clear in ((run.parameter, False), (run.parameter, True), (other, False), (other, True)):
            if clear:
                pytree.clear(report)
            for turn, (first, last) in enumerate(pairwise(pieces)):
                made[turn % kernels](share, parameter, report, first, last, 0, new_flag())
            found.append(pytree.copy(report))
        return found, share.state.copy()

    near = 1e-5 if precision == "float32" else 1e-12
    expected, state = train([0, 60], 1)
    for kernels in (1, 2):
        found, reached = train([*range(0, 60, 7), 60], kernels)
        np.testing.assert_allclose(reached, state, rtol=near, atol=near)
        for mine, theirs in zip(found, expected, strict=True):
            for name, one, two in zip(mine._fields, mine, theirs, strict=True):
                np.testing.assert_allclose(one, two, rtol=near, atol=near * np.abs(two).max(initial=0), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_hooks_compile_and_say_the_same(kind: str) -> None:
    observed, whole, _ = ratings(20, 12)
    data = observed if kind == "sparse" else whole
    for solver, holdout in (("sgd", 0.25), ("multiplicative", 0.0)):
        algorithm = NMF(rank=3, solver=solver, holdout=holdout)
        run = start(algorithm, data)
        share = run.shares[0]
        own = namedtuple("own", "solver learning_rate sweeps holdout")(solver, 0.4, 3, holdout)
        state = share.state[3].copy()
        expected = algorithm.updateDataPoint(point_of(share, 3)._replace(state=state), run.parameter, 0)
        found = njit(NMF.updateDataPoint)(own, point_of(share, 3), run.parameter, 0)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("solver", ["sgd", "multiplicative"])
def test_kernel_stops_at_once_when_the_flag_is_up(solver: str) -> None:
    for data in ratings()[:2]:
        run = start(NMF(rank=3, solver=solver), data)
        report = pytree.zeros_like(run.statistics)
        flag = new_flag()
        flag[0] = 1
        assert run.algorithm.kernel(run.shares[0])(run.shares[0], run.parameter, report, 0, 200, 0, flag) == 0
        assert all((part == 0).all() for part in report)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_multiplicative_passes_are_scikit_learns(kind: str) -> None:
    whole = matrix()
    whole[whole < np.quantile(whole, 0.3)] = 0.0
    rng = np.random.default_rng(3)
    w, h = rng.random((60, 5)) + 0.1, rng.random((5, 17)) + 0.1
    run = start(NMF(rank=5, solver="multiplicative", precision="float64", regularization=0.0), whole)
    run = start(run.algorithm, sparse_of(whole) if kind == "sparse" else whole, parameter=run.parameter)
    run.parameter = run.parameter._replace(factors=h.T.copy(), scale=np.ones(1))
    run.shares[0].state[:, :5] = w
    for _ in range(20):
        run.barrier(60)
    theirs_w, theirs_h, _ = non_negative_factorization(
        whole, W=w.copy(), H=h.copy(), n_components=5, init="custom", solver="mu", max_iter=20, tol=0
    )
    np.testing.assert_allclose(run.parameter.factors, theirs_h.T, rtol=1e-6, atol=1e-9)
    theirs = ((whole - theirs_w @ theirs_h) ** 2).sum()
    assert run.objectives[-1] == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(("workers", "interval"), [(1, 60), (3, 4), (2, 1)])
def test_multiplicative_objective_is_exact_and_never_rises(workers: int, interval: int) -> None:
    whole = matrix()
    algorithm = NMF(rank=4, solver="multiplicative", precision="float64", regularization=0.01)
    run = start(algorithm, whole, workers=workers).passes(1, interval)
    run.objectives.clear()
    run.passes(15, interval)
    assert (np.diff(run.objectives) <= 1e-9 * run.objectives[0]).all()
    w, h, scale = weights_of(run), run.parameter.factors, run.parameter.scale[0]
    from_scratch = ((whole - scale * w @ h.T) ** 2).sum()
    from_scratch += 0.01 * scale**2 * (17 * (w**2).sum() + 60 * (h**2).sum())
    assert run.objectives[-1] == pytest.approx(from_scratch, rel=1e-9)
    np.testing.assert_allclose(run.statistics.gram, w.T @ w, rtol=1e-10)
    np.testing.assert_allclose(run.statistics.moves, (whole / scale).T @ w, rtol=1e-10)


@pytest.mark.parametrize("solver", ["sgd", "multiplicative"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_pass_without_former_states_gives_no_worse_objective(kind: str, solver: str) -> None:
    observed, whole, _ = ratings(400)
    data = whole if kind == "dense" else observed
    run = start(NMF(rank=6, solver=solver), data).passes(12)
    before = run.objectives[-1]
    pytree.clear(run.statistics)
    forget(run)
    run.barrier(400)
    wobble = 1e-4 if solver == "sgd" else 0.0  # of its steps, also in an undisturbed pass
    assert run.objectives[-1] <= before * (1.0 + wobble)


def test_every_row_contributes_once() -> None:
    observed, _, known = ratings()
    run = start(NMF(rank=6), observed, workers=3).passes(3.4, interval=9)
    losses = np.concatenate([share.state[:, -1] for share in run.shares]).astype(np.float64)
    assert run.statistics.loss[0] == pytest.approx(losses.sum(), rel=1e-10)
    assert run.statistics.seen[0] == 200
    np.testing.assert_array_equal(run.statistics.counts, known.sum(axis=0))


def test_objective_of_sgd_comes_to_that_from_scratch_as_steps_shorten() -> None:
    observed, _, _ = ratings()
    run = start(NMF(rank=4, precision="float64"), observed).passes(200, interval=200)
    evaluated = run.algorithm.evaluate(observed, None, run.parameter)
    assert run.objectives[-1] == pytest.approx(evaluated.objective, rel=1e-2)


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("interval", [1.0, 0.1])
def test_workers_and_barriers_of_any_number_reach_a_good_fit(workers: int, interval: float) -> None:
    observed, whole, known = ratings(640, 60)
    run = start(NMF(rank=8, regularization=0.003), observed, workers=workers)
    run.passes(15, max(round(interval * 640 / workers), 1))
    rows, columns = np.nonzero(~known)
    error = run.algorithm.rmse(weights_of(run), run.parameter, rows, columns, whole[rows, columns])  # type: ignore[attr-defined]
    assert error < 0.35 * whole.std()


def test_moves_are_summed_when_short_and_averaged_when_long() -> None:
    progress, spread = np.array([4e-6, 400.0, 0.0]), np.array([4e-12, 4e4, 0.0])  # of four workers alike

    def joined(moves: float, spread: Array) -> Array:
        found = np.zeros((3, 1))
        join_columns(np.full((3, 1), 2.0), np.full((3, 1), moves), progress, spread, 0, 3, found)
        return found[:, 0]

    np.testing.assert_allclose(joined(1.0, spread), [3.0, 2.25, 3.0], rtol=1e-4)
    np.testing.assert_allclose(joined(1.0, progress**2), 3.0)  # of one worker
    np.testing.assert_array_equal(joined(-9.0, progress**2), 0.0)
    assert np.isnan(joined(np.nan, spread)).all()


def test_columns_are_joined_by_threads_as_by_one() -> None:
    rng = np.random.default_rng(0)
    run = start(NMF(rank=2), ratings(8, 3)[0])
    columns = 3 * active().nmf.joined_columns + 5
    sums = run.statistics._replace(
        moves=rng.normal(size=(columns, 2)), energy=np.zeros(columns), progress=rng.random(columns),
        spread=rng.random(columns),
    )  # fmt: skip
    old = run.parameter._replace(factors=rng.random((columns, 2)), energy=np.zeros(columns))
    alone = np.empty((columns, 2))
    join_columns(old.factors, sums.moves, sums.progress, sums.spread, 0, columns, alone)
    np.testing.assert_array_equal(run.algorithm.updateParameter(sums, old).factors, alone)


def test_rows_and_columns_without_entries_predict_the_mean() -> None:
    _, whole, known = ratings(30, 10)
    known[4] = known[:, 7] = False
    data = sparse_of(whole, observed=known)
    for solver in ("sgd", "multiplicative"):
        run = start(NMF(rank=3, solver=solver), data).passes(5, interval=7)
        assert run.algorithm.predict(data, run.parameter).shape == (30, 10)
    run = start(NMF(rank=3), data).passes(5, interval=7)
    assert (weights_of(run)[4] > 0).all()
    assert 0.2 * 3.0 < run.algorithm.ratings(weights_of(run), run.parameter, np.array([4]), np.array([7]))[0] < 6.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("solver", ["sgd", "multiplicative"])
def test_huge_and_tiny_entries_are_learned_as_well_as_others(scale: float, solver: str) -> None:
    _, whole, _ = ratings(50, 20)
    settings = {"rank": 3, "solver": solver, "regularization": 0.0}
    plain = start(NMF(**settings), whole).passes(6, interval=10)
    scaled = start(NMF(**settings), whole * scale).passes(6, interval=10)
    assert scaled.objectives[-1] / scale / scale == pytest.approx(plain.objectives[-1], rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sgd", "multiplicative"])
@pytest.mark.parametrize(
    "data",
    [np.zeros((5, 3)), np.ones((1, 1)), np.ones((4, 1)), np.eye(6), np.array([[0.0, 5.0]]), np.ones((0, 3))],
)
def test_degenerate_matrices_give_numbers(data: Any, solver: str) -> None:
    for features in (data, data.astype(np.float32), sparse_of(data)):
        run = start(NMF(rank=4, solver=solver, regularization=0.0), features).passes(5, interval=2)
        assert np.isfinite(run.algorithm.predict(features, run.parameter)).all()
        assert np.isfinite(run.algorithm.evaluate(features, None, run.parameter).objective)


def test_wrong_use_is_said_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="must not be negative"):
        NMF().validate(sample_of(np.array([[1.0, -2.0]]), None))
    with pytest.raises(UsageError, match="needs every entry"):
        NMF(solver="multiplicative").validate(sample_of(np.array([[1.0, np.nan]]), None))
    with pytest.raises(UsageError, match="infinite"):
        NMF().validate(sample_of(np.array([[1.0, np.inf]]), None))
    with pytest.raises(UsageError, match="rank"):
        NMF(rank=0)
    with pytest.raises(UsageError, match="solver"):
        NMF(solver="newton")
    assert all(setting.description for setting in NMF.hyper_parameters().values())


def held_out(data: Sparse, share: float = 0.1) -> tuple[Sparse, Any, Any, Any]:
    rows = np.repeat(np.arange(len(data.indptr) - 1), np.diff(data.indptr))
    test = np.random.default_rng(0).random(len(rows)) < share
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[~test], minlength=len(data.indptr) - 1))])
    train = Sparse(indptr, data.indices[~test], data.values[~test], data.columns)
    return train, rows[test], data.indices[test], data.values[test]


def error_of_row_means(train: Sparse, rows: Any, values: Any) -> float:
    """What predicting everybody's own mean gives: the least that a factorization has to beat."""
    entries = np.diff(train.indptr)
    row = np.repeat(np.arange(len(entries)), entries)
    means = np.bincount(row, train.values, minlength=len(entries)) / np.maximum(entries, 1)
    means[entries == 0] = train.values.mean()
    return float(np.sqrt(np.mean((means[rows] - values) ** 2)))


@pytest.mark.data
@pytest.mark.parametrize(("workers", "interval"), [(1, 610), (4, 20)])
def test_movielens(workers: int, interval: int) -> None:
    train, rows, columns, values = held_out(real_data.movielens())
    run = start(NMF(rank=10, regularization=0.06), train, workers=workers).passes(10, interval)
    error = run.algorithm.rmse(weights_of(run), run.parameter, rows, columns, values)  # type: ignore[attr-defined]
    assert error < 0.98 * error_of_row_means(train, rows, values)


@pytest.mark.data
def test_jester_shifted_to_be_non_negative() -> None:
    known = ~np.isnan(table := real_data.jester() + 10.0)
    data = sparse_of(table, np.float32, observed=known)
    train, rows, columns, values = held_out(rows_between(data, 0, 8000))
    run = start(NMF(rank=10, regularization=0.1), train, workers=2).passes(5, interval=400)
    error = run.algorithm.rmse(weights_of(run), run.parameter, rows, columns, values)  # type: ignore[attr-defined]
    assert error < 0.98 * error_of_row_means(train, rows, values)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_entries_that_are_held_out_are_not_trained_on_and_their_error_is_reported(kind: str) -> None:
    rng = np.random.default_rng(3)
    whole = rng.gamma(2.0, size=(200, 3)) @ rng.gamma(2.0, size=(3, 24))
    known = rng.random(whole.shape) < 0.6
    data = sparse_of(whole, observed=known) if kind == "sparse" else np.where(known, whole, np.nan)
    algorithm = NMF(rank=3, holdout=0.2, regularization=1e-3, precision="float64")
    run = start(algorithm, data, workers=2).passes(30)
    found = algorithm.metrics(run.statistics, run.parameter)
    assert found["held_out_entries"] == pytest.approx(0.2 * known.sum(), rel=0.1)
    assert run.statistics.counts.sum() + found["held_out_entries"] == known.sum()
    assert found["held_out_rmse"] < 0.2 * whole[known].std()  # it predicts what it never saw


def test_holding_out_needs_a_solver_that_knows_missing_entries() -> None:
    with pytest.raises(UsageError, match="holdout needs solver=sgd"):
        start(NMF(rank=2, solver="coordinate", holdout=0.1), np.ones((5, 4)))


def test_weights_of_rows_come_with_every_result() -> None:
    """They are half of the model; the page on results promises them without `collect_state`."""
    rows = matrix(40, 6, 3)
    done = flegel.run(NMF(rank=3, solver="coordinate"), rows, workers=2, sync="bsp", processes=False, max_iterations=30)
    assert done.state is not None and done.state.shape[0] == 40
    weights, scale = done.state[:, :3], done.parameters["scale"]
    error = np.linalg.norm(rows - scale * weights @ done.parameters["factors"].T) / np.linalg.norm(rows)
    assert error < 0.2, "in the order of the data"
