"""Rows where they are: collections of other libraries are written in parts by whoever has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.datasets import open_data
from flegel.datasets.lazy import parts
from tests import needs

X = np.random.default_rng(0).normal(size=(1000, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEGEL_SCRATCH", str(tmp_path))


def test_dask_arrays_block_by_block() -> None:
    da = needs.library("dask.array")
    features, labels = open_data((da.from_array(X, chunks=(300, 2)), da.from_array(Y, chunks=450))).load()
    assert np.array_equal(features, X) and np.array_equal(np.asarray(labels), Y)


def test_dask_frames_by_partition() -> None:
    dd = needs.library("dask.dataframe")
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.where(Y, "yes", "no"))
    data = open_data(dd.from_pandas(frame, npartitions=3), label="kind")
    assert data.rows == 1000 and data.classes == ["no", "yes"] and np.array_equal(data.load()[0], X)


def test_zarr_by_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zarr = needs.library("zarr")
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(64, 4), dtype="float32")
    array[:] = X
    monkeypatch.setattr(parts, "BLOCK_ROWS", 512)
    assert np.array_equal(open_data(array).load()[0], X)


def test_duckdb_relations() -> None:
    duckdb = needs.library("duckdb")
    relation = duckdb.sql("select i::float as a, (i * 2)::float as b from range(1000) t(i)")
    features = np.asarray(open_data(relation).load()[0])
    assert np.array_equal(features[:, 1], 2 * features[:, 0]) and len(features) == 1000


HUGGING_FACE = """
import numpy as np, datasets
from flegel.datasets import open_data
found = datasets.Dataset.from_dict({"a": np.arange(9.0), "label": [0, 1, 2] * 3})
features, labels = open_data(found, label="label").load()
assert features[:, 0].tolist() == list(range(9)) and labels.tolist() == [0, 1, 2] * 3
"""


def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    """In a process elsewhere: in a checkout, the folder `datasets` has the name of that library."""
    needs.installed("xxhash")  # needed by that library, and by no other of the extras
    subprocess.run([sys.executable, "-c", HUGGING_FACE], cwd=tmp_path, check=True, timeout=600)


def test_datasets_of_torch() -> None:
    torch = needs.library("torch")
    from torch.utils.data import TensorDataset

    features, labels = open_data(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))).load()
    assert np.array_equal(features, X) and np.array_equal(np.asarray(labels), Y)


@pytest.mark.processes
def test_a_lazy_dask_array_trains_with_one_block_in_memory() -> None:
    da = needs.library("dask.array")
    lazy: Any = da.random.default_rng(0).normal(size=(20_000, 4), chunks=(5_000, 4)).astype("float32")
    result = flegel.run(KMeans(k=4, init="first"), lazy, workers=2, sync="bsp", max_iterations=3)
    assert result.iterations == 3 and result.dataset["rows"] == 20_000
