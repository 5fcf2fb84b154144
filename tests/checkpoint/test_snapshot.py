"""The state of a job as plain data: what goes in comes out, and a job that goes on from it does not notice."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flegel.configuration.balance import SPARING, BalanceSettings
from flegel.core import pytree
from flegel.errors import StorageError
from flegel.job import Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.checkpoint.resume import NewerCommit
from flegel.machine.checkpoint.shard_states import WorkerState, redeal
from flegel.machine.plain_data import freeze, pack, thaw, unpack
from flegel.messages import CheckpointPart
from flegel.plan.interval.multi_stage import MultiStage
from flegel.sync import make_policy, models
from tests.checkpoint.simulated_jobs import ROWS, Shelf, job, objectives

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.tuples(st.integers(), st.integers()), inner, max_size=3)
        | st.builds(lambda items: deque(items, 7), st.lists(inner, max_size=3))
    ),
    max_leaves=5,
)


@given(plain)
@settings(max_examples=25)
def test_what_was_frozen_thaws_to_the_same(value: Any) -> None:
    again = thaw(unpack(pack(freeze(value))))
    assert again == value and type(again) is type(value)
    if isinstance(value, deque):
        assert again.maxlen == value.maxlen


def test_arrays_and_dice_come_back_whole() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    again = thaw(unpack(pack(freeze({"a": array, "n": np.float32(2.5)}))))
    assert again["a"].dtype == array.dtype and np.array_equal(again["a"], array) and again["a"].flags.writeable
    assert again["n"] == np.float32(2.5)
    dice = np.random.default_rng(5)
    dice.random(3)
    kept = thaw(unpack(pack(freeze(dice))))
    assert kept.state == dice.bit_generator.state


def test_only_known_classes_are_kept_and_made() -> None:
    with pytest.raises(TypeError, match="Criteria cannot be stored"):
        freeze([Criteria()])
    with pytest.raises(StorageError, match="does not know"):
        thaw(["object", "Popen", [["args", "ls"]]])
    with pytest.raises(StorageError, match=r"MultiStage\.later"):
        thaw(["object", "MultiStage", [["later", 1]]], MultiStage())


def test_what_an_older_version_did_not_keep_has_its_default() -> None:
    old = freeze(MultiStage())
    old[2] = [pair for pair in old[2] if pair[0] != "_held"]
    assert thaw(old, MultiStage())._held == MultiStage()._held


def test_what_others_share_is_not_overwritten() -> None:
    """Rules of balance are the same object for all jobs; how dear a move is, the host says on which a job goes on."""
    roomy = BalanceControl("async", Criteria(max_seconds=1.0))
    roomy._balance.moved.add(3)
    crowded = thaw(freeze(roomy), BalanceControl("async", Criteria(max_seconds=1.0), crowded=True))
    assert crowded._balance.rules is SPARING != BalanceSettings() and crowded._crowded
    assert crowded._balance.moved == {3}
    kept = freeze(SPARING)
    other = BalanceSettings()
    assert thaw(kept, other) == SPARING != other == BalanceSettings()


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(StorageError):
        unpack(b"\xc1")


def test_every_model_goes_on_where_it_stood_under_bsp_to_the_last_bit() -> None:
    whole = job("bsp", criteria=Criteria(max_iterations=25, tolerance=0))
    shelf = Shelf()
    job("bsp", every=1e-6, shelf=shelf, criteria=Criteria(max_iterations=25, tolerance=0))
    assert len(shelf.saves) > 8, "a checkpoint at most barriers"
    for save in shelf.saves[::4]:
        again = job("bsp", shelf=shelf, save=save, criteria=Criteria(max_iterations=25, tolerance=0))
        assert again.iteration == whole.iteration == 25
        for mine, other in zip(pytree.flatten(again.parameter), pytree.flatten(whole.parameter), strict=True):
            assert np.array_equal(mine, other), f"resumed from iteration {save.iteration}"
        mine, other = pytree.flatten(again.store.statistics), pytree.flatten(whole.store.statistics)
        assert all(np.array_equal(a, b) for a, b in zip(mine, other, strict=True))
        assert objectives(again) == objectives(whole)[len(objectives(whole)) - len(objectives(again)) :]


@pytest.mark.parametrize("sync", models())
def test_every_model_can_be_kept_and_goes_on(sync: str) -> None:
    spec = SyncSpec(sync, interval=0.004) if sync == "fsp" else SyncSpec(sync)
    shelf = Shelf()
    limits = Criteria(max_iterations=80, tolerance=0)
    done = job(spec, every=0.01, shelf=shelf, straggler="0:3x", criteria=limits)
    complete = [s for s in shelf.saves if len(shelf.parts.get(s.number, {})) == 3]
    assert len(complete) >= 3, "also models without barriers come to rest for a checkpoint"
    for save in complete[:: max(len(complete) // 4, 1)]:
        again = job(spec, shelf=shelf, save=save, straggler="0:3x", criteria=limits)  # checks the books at each barrier
        assert again.iteration == done.iteration
        assert sum(w.points for w in again.view.workers.values()) == ROWS
        if sync.startswith("fsp") and save.objective is not None:
            values = [save.objective, *objectives(again)]
            assert (np.diff(values) <= 1e-9 * values[0]).all(), "F does not go up"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_another_number_of_workers_takes_every_point_with_its_state(workers: int) -> None:
    shelf = Shelf()
    job(SyncSpec("fsp", interval=0.004), every=0.02, shelf=shelf)
    save = next(s for s in shelf.saves if s.objective is not None)
    again = job(SyncSpec("fsp", interval=0.004), shelf=shelf, save=save, workers=workers)
    values = [save.objective, *objectives(again)]
    assert len(values) == 1 + 60 - save.iteration, "nothing is unvisited, so the objective is known all the time"
    assert (np.diff(values) <= 1e-9 * values[0]).all()


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 6),
)
@settings(max_examples=40)
def test_dealing_anew_loses_and_doubles_no_point(shares: list[list[tuple[int, int]]], count: int) -> None:
    parts, at = [], 0
    for runs in shares:
        n = sum(points for points, _ in runs)
        ids = np.arange(at, at + n)
        parts.append(WorkerState(CheckpointPart(1, tuple(runs)), ids, ids[:, None] * 2.0, (ids % 2).astype(np.uint8)))
        at += n
    if count > at:
        return
    passes = np.concatenate([np.full(n, p) for runs in shares for n, p in runs])
    dealt = redeal(parts, count)
    assert np.array_equal(np.concatenate([p.ids for p in dealt]), np.arange(at))
    assert np.array_equal(np.concatenate([p.state for p in dealt])[:, 0], np.arange(at) * 2.0)
    again = np.concatenate([np.full(n, p) for part in dealt for n, p in part.kept.runs])
    assert np.array_equal(again, passes)
    assert all(sum(n for n, _ in p.kept.runs) == p.points > 0 for p in dealt)


@pytest.mark.parametrize(("anew", "workers"), [(False, 3), (True, 3), (True, 2)])
def test_from_a_newer_commit_the_objective_is_not_worse_than_at_that_commit(anew: bool, workers: int) -> None:
    shelf = Shelf()
    spec = SyncSpec("fsp", interval=0.004)
    job(spec, every=0.05, shelf=shelf, criteria=Criteria(max_iterations=60, tolerance=0))
    tried = 0
    for commit in shelf.commits:
        older = [s for s in shelf.saves if s.objective is not None and s.iteration < commit.iteration]
        if commit.objective is None or not older:
            continue
        tried += 1
        newer = NewerCommit(commit.round, commit.iteration, commit.seconds, commit.parameter)
        limits = Criteria(max_iterations=70, tolerance=0)
        again = job(spec, shelf=shelf, save=older[-1], newer=newer, anew=anew, workers=workers, criteria=limits)
        after = [row.objective for row in again.trace]
        assert after[0] is not None and after[0] <= commit.objective * (1 + 1e-12)
        assert again.trace[0].iteration == commit.iteration + 1
    assert tried >= 2


def test_a_policy_that_learned_goes_on_with_what_it_learned() -> None:
    shelf = Shelf()
    job(SyncSpec("fsp", coordination="semi"), every=0.03, shelf=shelf, straggler="1:20ms/100")
    stored = shelf.stored(shelf.saves[-1])
    fresh = make_policy(SyncSpec("fsp", coordination="semi"))
    kept = thaw(stored["policy"], fresh)
    assert kept is fresh and kept.interval is not None and kept.deltas
    assert kept._interval._state in ("starting", "probing", "holding")
