"""Checkpoints that somebody has made on purpose: what no job can have stored is refused before anything is trained."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.errors import FlegelError, StorageError
from flegel.job import Criteria, SyncSpec
from flegel.machine.checkpoint.state_limits import check_clocks, check_position, check_runs, check_state
from flegel.machine.plain_data import freeze, pack, thaw, unpack
from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.termination import Termination
from flegel.runtime.checkpoint.format import digest, seal, unseal
from flegel.sync import make_policy
from tests.checkpoint.simulated_jobs import Shelf, job

Change = Callable[[dict[str, Any]], None]


@cache
def stored(sync: str) -> dict[str, Any]:
    """The last state of a job, and how many points its workers had."""
    shelf = Shelf()
    job(SyncSpec(sync, interval=0.004) if sync == "fsp" else sync, every=0.01, shelf=shelf, straggler="0:3x",
        criteria=Criteria(max_iterations=20, tolerance=0))  # fmt: skip
    return shelf.stored(shelf.saves[-1])


def points_of(state: dict[str, Any]) -> list[int]:
    return [worker.points for worker in thaw(state["view"]).workers.values()]


def of_part(part: str, name: str, value: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        state["parts"][part] = freeze(thaw(state["parts"][part]) | {name: value})

    return change


def of_object(place: str, kind: str, name: str, value: Any) -> Change:
    """Of all objects of a class within this place."""

    def walk(data: Any) -> None:
        if isinstance(data, list):
            if data[:2] == ["object", kind]:
                data[2] = [pair for pair in data[2] if pair[0] != name] + [[name, freeze(value)]]
            for inner in data:
                walk(inner)

    return lambda state: walk(state[place])


def of_now(value: Any) -> Change:
    return lambda state: state.update(now=value)


ENDLESS: dict[str, tuple[str, Change]] = {
    "iterations below zero never reach their limit": ("bsp", of_part("job", "iteration", -(10**12))),
    "an iteration that is no number": ("bsp", of_part("job", "iteration", math.nan)),
    "an iteration of more bits than a message has": ("bsp", of_part("job", "iteration", 1 << 70)),
    "a beginning in the future": ("bsp", of_part("job", "began", 1e9)),
    "a beginning that is no number": ("bsp", of_part("job", "began", math.nan)),
    "a clock to which a second more is the same": ("bsp", of_now(1e300)),
    "a clock that is no number": ("bsp", of_now(math.nan)),
    "an endless clock": ("bsp", of_now(math.inf)),
    "a clock in words": ("bsp", of_now("soon")),
    "a round below zero": ("bsp", of_object("view", "View", "round", -5)),
    "no evidence": ("fsp", of_object("view", "View", "evidence", 0.0)),
    "visits below zero": ("bsp", of_object("view", "WorkerView", "visits", -(10**15))),
    "passes below zero": ("bsp", of_object("view", "WorkerView", "carried", -(10**15))),
    "more unseen points than there are": ("bsp", of_object("view", "WorkerView", "unseen", 10**9)),
    "other points than the files hold": ("bsp", of_object("view", "WorkerView", "points", 10**9)),
    "a worker that trains, and will never report": ("bsp", of_object("view", "WorkerView", "phase", "training")),
    "a speed that is no number": ("fsp", of_object("view", "WorkerView", "rate", math.nan)),
    "a commit of workers that are not there": ("bsp", of_object("event", "Updated", "workers", (7, 8))),
    "rounds of no length": ("fsp", of_object("policy", "FixedInterval", "seconds", 0.0)),
    "rounds of less than a visit": ("fsp", of_object("policy", "Step", "seconds", 1e-300)),
    "a search that begins at nothing": ("bsp-mini", of_object("policy", "Search", "size", 0.0)),
    "a staleness that nobody keeps": ("ssp", of_object("policy", "SSP", "staleness", math.nan)),
    "no batches": ("psp", of_object("policy", "PSP", "batches", 0)),
    "a pass that was never made is awaited": ("bsp", of_object("termination", "Termination", "_checked_at", math.inf)),
    "objectives of passes that are no numbers": (
        "bsp", of_object("termination", "Termination", "_marks", [(math.nan, 1.0)]),
    ),
    "lateness that is no number": ("fsp", of_object("policy", "LocalTimers", "_usual", math.nan)),
}  # fmt: skip


@pytest.mark.parametrize("why", ENDLESS)
def test_a_state_that_no_job_reaches_is_refused(why: str) -> None:
    sync, change = ENDLESS[why]
    state = deepcopy(stored(sync))
    points = points_of(state)
    check_state(state, points)
    change(state)
    with pytest.raises(StorageError, match="it holds "):
        check_state(unpack(pack(state)), points)


@pytest.mark.parametrize("wrong", [(-1, 0, 0.0), (0, -1, 0.0), (0, 1 << 60, 0.0), (0, 0, math.nan), (0, 0, -1e18)])
def test_a_commit_from_nowhere_is_refused(wrong: tuple[Any, Any, Any]) -> None:
    check_position(3, 4, 1.5)
    with pytest.raises(StorageError):
        check_position(*wrong)
    with pytest.raises(StorageError):
        check_runs([(10, wrong[1] or -1)], 0, 0.0)


def test_a_file_does_not_say_what_it_never_stores_and_keeps_to_the_kinds_of_things() -> None:
    own = Termination(Criteria(max_iterations=3), maximize=False)
    file = freeze(own)
    file[2] += [["_criteria", None], ["_sign", 0.0]]
    thaw(file, own)
    assert own._criteria.max_iterations == 3 and own._sign == 1.0
    for name, value in (("_eta", "long"), ("_queue", None), ("_phi", 3.0), ("probes", 7)):
        with pytest.raises(StorageError, match=name):
            thaw(["object", "MultiStage", [[name, value]]], MultiStage())


def test_a_resumed_job_awaits_no_pass_beyond_those_that_its_workers_have_made() -> None:
    own = Termination(Criteria(), maximize=False, slow_gains=True)
    own._checked_at, own._marks = 1e15, [(2.0, 5.0), (1e15, 4.0)]
    own.resumed(3.0)
    assert own._checked_at == 3.0 and own._marks == [(2.0, 5.0)]


def test_a_worker_far_ahead_of_the_others_is_refused() -> None:
    """The others would have to make as many reports before it trains again."""
    view = thaw(stored("ssp")["view"])
    for sync in ("ssp", "asp", "bsp"):
        check_clocks(make_policy(SyncSpec(sync)), view)
    view.workers[0].clock += 10**12
    check_clocks(make_policy(SyncSpec("asp")), view)
    with pytest.raises(StorageError, match="batches ahead"):
        check_clocks(make_policy(SyncSpec("ssp")), view)


# -- real jobs -----------------------------------------------------------------------------------------------


def tampered(place: Path, change: Change, record: Change = lambda _: None) -> None:
    """The newest checkpoint alone, changed; all checksums are right."""
    for path in (*place.glob("commit-*"), *sorted(place.glob("*.manifest"))[:-1]):
        path.unlink()
    (path,) = place.glob("*.manifest")
    manifest = msgspec.json.decode(unseal(path.read_bytes()))
    state = unpack((place / manifest["state"]).read_bytes())
    change(state)
    content = pack(state)
    (place / manifest["state"]).write_bytes(content)
    manifest["files"][manifest["state"]] = digest([content])
    record(manifest["record"])
    path.write_bytes(seal(msgspec.json.encode(manifest)))
    (place / "job").write_bytes(seal(msgspec.json.encode(manifest["record"])))


def wider(*names: str) -> Change:
    """Arrays of the parameter store with a column more, and all others that go with them."""

    def change(state: dict[str, Any]) -> None:
        store = thaw(state["parts"]["store"])
        for name in names:
            arrays = store[name]
            if isinstance(arrays, dict):
                store[name] = {owner: [grown(a) for a in held] for owner, held in arrays.items()}
            else:
                store[name] = [grown(a) for a in arrays]
        state["parts"]["store"] = freeze(store)

    return change


def grown(array: np.ndarray) -> np.ndarray:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 4096)]) if array.ndim else array


def scaled(record: dict[str, Any]) -> None:
    record["scaling"] = [[0.0] * 3, [1.0] * 3]


ALL = ("parameter", "statistics", "accounts")
CASES: dict[str, tuple[Any, dict[str, Any], Change, Change, str]] = {
    "columns of k-means": (KMeans(k=3), {}, wider(*ALL), lambda _: None, "of θ had the shape"),
    "weights of LR": (LR(), {}, wider(*ALL), lambda _: None, "of θ had the shape"),
    "factors of NMF": (NMF(rank=2), {}, wider(*ALL), lambda _: None, "of θ had the shape"),
    "statistics": (KMeans(k=3), {}, wider("statistics", "accounts"), lambda _: None, "of the statistics had the shape"),
    "accounts": (KMeans(k=3), {}, wider("accounts"), lambda _: None, "workers' statistics have another form"),
    "scaling": (KMeans(k=3), {"scale": "standard"}, lambda _: None, scaled, "scales other columns"),
    "endless": (KMeans(k=3), {}, of_part("job", "iteration", -(10**12)), lambda _: None, "is damaged"),
    "a method": (
        KMeans(k=3), {},
        lambda state: state.update(algorithm=freeze({"updateParameter": 1})), lambda _: None, "which cannot be",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_a_resumed_job_refuses_what_does_not_fit_its_rows(what: str, points: np.ndarray, tmp_path: Path) -> None:
    algorithm, options, change, record, words = CASES[what]
    rows = np.abs(points[:60])
    data: Any = (rows, (rows[:, 0] > rows[:, 1]).astype(float)) if what == "weights of LR" else rows
    common: dict[str, Any] = {"workers": 1, "processes": False, "tolerance": 0, "sync": "bsp", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flegel.run(algorithm, data, max_iterations=2, checkpoint=tmp_path / "job", **common)
        assert flegel.resume(tmp_path / "job", data=data, max_iterations=3).iterations == 3
        tampered(tmp_path / "job", change, record)
        with pytest.raises(FlegelError, match=words):
            flegel.resume(tmp_path / "job", data=data, max_iterations=4)
