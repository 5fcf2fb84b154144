"""Saved models: whole or not at all, readable without pickle, refused when damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import user_classes as users

import flegel
from flegel.algorithm import Algorithm
from flegel.algorithms.kmeans.kmeans import Centroids, KMeans
from flegel.errors import StorageError, UsageError
from flegel.results.result import Result
from flegel.runtime.job import result_store

ROWS = np.random.default_rng(0).normal(size=(12, 3))


def result(algorithm: Algorithm | None = None, parameter: Any = None, **more: Any) -> Result:
    """A finished run that never ran."""
    given: dict[str, Any] = {
        "algorithm": algorithm or KMeans(k=2, init=ROWS[:2]),
        "name": "kmeans",
        "dataset": {"name": "x", "rows": 12, "columns": 3, "stand_in": False},
        "sync": "bsp",
        "workers": 1,
        "seed": 0,
        "converged": True,
        "reason": "because",
        "objective": 1.5,
        "iterations": 2,
        "seconds": 0.1,
        "load_seconds": 0.2,
        "rows": [{"seconds": 0.1, "iteration": 1, "objective": None, "interval": None, "reason": "é"}],
        "worker": [],
        "utilization": 0.9,
        "parameter": Centroids(ROWS[:2].copy(), ROWS.mean(axis=0)) if parameter is None else parameter,
    }
    return Result(**{**given, **more})


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = result(state=np.arange(12, dtype=np.int32)[:, None])
    assert result_store.save(saved, tmp_path / "m") == tmp_path / "m"
    assert saved.model == str(tmp_path / "m")
    model = flegel.load(tmp_path / "m")
    np.testing.assert_array_equal(model.parameters["centroids"], saved.parameter.centroids)
    np.testing.assert_array_equal(model.state, saved.state)
    np.testing.assert_array_equal(model.predict(ROWS), saved.predict(ROWS))
    assert model.algorithm.hyper()["k"] == 2
    assert model.algorithm.hyper()["init"] == "k-means++", "a start has done its work: it is not kept"
    assert result_store.read_trace(tmp_path / "m") == saved.rows
    assert json.loads((tmp_path / "m" / "result.json").read_text())["model"] == str(tmp_path / "m")


def test_nothing_but_the_folder_appears(tmp_path: Path) -> None:
    result_store.save(result(), tmp_path / "m")
    assert everything(tmp_path) == ["m", "m/model.json", "m/model.npz", "m/result.json", "m/trace.msgpack"]


def test_a_bare_array_and_numbers_without_dimensions_come_back(tmp_path: Path) -> None:
    result_store.save(result(users.Histogram(bins=3), np.array([0.25, 0.5, 0.25])), tmp_path / "bare")
    np.testing.assert_array_equal(flegel.load(tmp_path / "bare", trust_code=True).parameter, [0.25, 0.5, 0.25])
    result_store.save(result(users.DenseMean(), users.Sums(np.ones(3), np.float64(4.0))), tmp_path / "tuple")
    parameter = flegel.load(tmp_path / "tuple", trust_code=True).parameter
    assert parameter.count == 4.0 and type(parameter).__name__ == "Sums"


def test_an_empty_folder_may_be_filled_and_a_full_one_may_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result_store.save(result(), tmp_path / "empty")
    before = (tmp_path / "empty" / "model.json").read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        result_store.save(result(objective=9.0), tmp_path / "empty")
    assert (tmp_path / "empty" / "model.json").read_bytes() == before


@pytest.mark.parametrize("target", ["file", "file/below"])
def test_a_file_in_the_way_is_noticed_before_training(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError):
        result_store.check_target(tmp_path / target)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder that no user can write to")
def test_a_folder_that_takes_no_files_is_noticed_before_training(tmp_path: Path) -> None:
    """Also by root, whose rights say that it could."""
    for check in (
        result_store.check_target,
        result_store.check_folder,
        lambda path: result_store.check_file(path, "--json"),
    ):
        with pytest.raises(UsageError, match="Cannot write to"):
            check("/proc/foo")
        check(tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nth", range(5))
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    real, calls = os.fsync, iter(range(100))

    def fsync(descriptor: int) -> None:
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    saved = result()
    with pytest.raises(StorageError, match=r"No space left on device; nothing was written"):
        result_store.save(saved, tmp_path / "m")
    assert everything(tmp_path) == []
    assert saved.model is None


def test_json_is_written_in_one_step_and_not_at_all_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.json").write_text("old")

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="No space left"):
        result_store.write_json(result(), str(tmp_path / "r.json"))
    assert everything(tmp_path) == ["r.json"] and (tmp_path / "r.json").read_text() == "old"


def test_json_to_something_that_is_no_file_goes_through_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        result_store.write_json(result(), str(pipe))
        assert json.loads(os.read(reader, 1 << 20))["algorithm"] == "kmeans"
    finally:
        os.close(reader)
    assert pipe.is_fifo(), "a pipe or a device is written to, not replaced"


def damage(folder: Path, how: str) -> None:
    npz, manifest = folder / "model.npz", folder / "model.json"
    match how:
        case "npz cut":
            npz.write_bytes(npz.read_bytes()[: npz.stat().st_size // 2])
        case "npz empty":
            npz.write_bytes(b"")
        case "npz is text":
            npz.write_text("hello")
        case "npz flipped":
            content = bytearray(npz.read_bytes())
            content[len(content) // 3] ^= 0xFF
            npz.write_bytes(bytes(content))
        case "npz gone":
            npz.unlink()
        case "npz holds objects":
            np.savez(npz, centroids=np.array([{}], object), origin=np.zeros(3), allow_pickle=True)
        case "field missing":
            np.savez(npz, centroids=np.zeros((2, 3)))
        case "json cut":
            manifest.write_bytes(manifest.read_bytes()[:-20])
        case "json with more":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "more": 1}))
        case "json of another format":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
        case "no such builtin":
            content = json.loads(manifest.read_text())
            content["algorithm"]["name"] = "flegel.algorithms.nothing:Nothing"
            manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "how",
    ["npz cut", "npz empty", "npz is text", "npz flipped", "npz gone", "npz holds objects", "field missing",
     "json cut", "json with more", "json of another format", "no such builtin"],
)  # fmt: skip
def test_a_damaged_model_is_refused_in_a_sentence(tmp_path: Path, how: str) -> None:
    result_store.save(result(), tmp_path / "m")
    damage(tmp_path / "m", how)
    with pytest.raises(StorageError, match=r"model in .*/m"):
        flegel.load(tmp_path / "m").predict(ROWS)


def test_a_folder_without_a_model_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no saved model"):
        flegel.load(tmp_path)


def test_code_inside_a_model_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    parameter = users.Sums(np.ones(3), np.float64(1.0))
    result_store.save(result(users.DenseMean(), parameter), tmp_path / "m")
    model = flegel.load(tmp_path / "m")
    np.testing.assert_array_equal(model.parameters["sums"], np.ones(3))
    with pytest.raises(UsageError, match="trust_code=True"):
        model.predict(ROWS)
    with pytest.raises(UsageError, match="does not define predict"):
        flegel.load(tmp_path / "m", trust_code=True).predict(ROWS)
    assert flegel.load(tmp_path / "m", algorithm=users.DenseMean()).parameter.count == 1.0
    assert flegel.load(tmp_path / "m", algorithm=users.DenseMean).parameter.count == 1.0, "the class itself"


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    result_store.save(result(), tmp_path / "m")
    with pytest.raises(UsageError, match="trained on 3 columns"):
        flegel.load(tmp_path / "m").predict(np.zeros((4, 2)))


def test_hyper_parameters_that_json_has_no_word_for_survive(tmp_path: Path) -> None:
    parameter = users.Sums(np.ones(3), np.float64(1.0))
    result_store.save(result(users.HaltsWhenLarge(threshold=float("inf")), parameter), tmp_path / "m")
    assert flegel.load(tmp_path / "m", trust_code=True).algorithm.hyper()["threshold"] == float("inf")
    text = (tmp_path / "m" / "result.json").read_text()
    assert "Infinity" not in text, "valid JSON for every reader"
