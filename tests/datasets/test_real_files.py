"""The readers on real files, against pandas and scikit-learn."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flegel.datasets import open_data
from tests import needs
from tests.datasets.helpers import check_shards, dense

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("name", "rows", "label"),
    [
        ("higgs/higgs_lightgbm_train.tsv", 7000, 0),
        ("higgs/higgs_lightgbm_test.tsv", 500, 0),
        ("higgs/higgs_xlearn.csv", 2000, 0),
        ("higgs/higgs_sas.csv", 10984, "label"),
        ("skin/Skin_NonSkin.txt.gz", 245057, 3),
        ("nbaiot/scan.csv.gz", 299, None),
    ],
)
def test_tables(real_data: Path, name: str, rows: int, label: str | int | None) -> None:
    separator = "," if ".csv" in name else "\t"
    theirs = pd.read_csv(
        real_data / name, sep=separator, header=0 if name.endswith(("sas.csv", "scan.csv.gz")) else None
    )
    data = open_data(real_data / name, label=label)
    features, labels = data.load()
    assert features.shape == (rows, theirs.shape[1] - (label is not None))
    if label is not None:
        assert np.array_equal(labels, theirs.pop(label))
    assert np.allclose(features, theirs.to_numpy(), rtol=2e-7, atol=0)
    check_shards(data, 3)


def test_npz(real_data: Path) -> None:
    path = real_data / "higgs/higgs_real_combined.npz"
    data = open_data(path)
    with np.load(path) as theirs:
        assert np.array_equal(data.load()[0], theirs["X"])
        assert np.array_equal(data.load()[1], theirs["y"])


@pytest.mark.parametrize(("name", "rows"), [("a9a.gz", 32561), ("a9a.t.gz", 16281)])
def test_libsvm(real_data: Path, name: str, rows: int) -> None:
    datasets = needs.library("sklearn.datasets")
    theirs, labels = datasets.load_svmlight_file(str(real_data / "libsvm" / name), n_features=123)
    data = open_data(real_data / "libsvm" / name, width=123)
    features, ours = data.load()
    assert (data.rows, data.columns) == (rows, 123)
    assert np.array_equal(features.indptr, theirs.indptr)
    assert np.array_equal(features.indices, theirs.indices)
    assert np.array_equal(features.values, theirs.data)
    assert np.array_equal(ours, labels)


def test_a_folder_of_compressed_tables_with_the_file_as_label(real_data: Path) -> None:
    data = open_data(real_data / "nbaiot", label="@file")
    assert (data.rows, data.columns) == (1196, 115)
    assert data.classes == ["benign_traffic", "doorbell_udp", "scan", "thermostat_udp"]
    assert np.bincount(data.load()[1].astype(int)).tolist() == [299] * 4
    check_shards(data, 2, "dirichlet:0.5")


def test_movielens(real_data: Path) -> None:
    folder = real_data / "movielens/ml-latest-small"
    theirs = pd.read_csv(folder / "ratings.csv.gz").pivot(index="userId", columns="movieId", values="rating")
    data = open_data(folder)
    assert (data.rows, data.columns) == theirs.shape == (610, 9724)
    assert data.names == [str(c) for c in theirs.columns]
    assert np.array_equal(dense(data.load()[0]), theirs.fillna(0).to_numpy())
    check_shards(data, 4)


def test_jester(real_data: Path) -> None:
    path = real_data / "jester/jester-data-1.zip"
    with zipfile.ZipFile(path) as archive, archive.open("jester-data-1.csv") as file:
        theirs = pd.read_csv(file, header=None).to_numpy(np.float32)
    data = open_data(path)
    features, _ = data.load()
    assert (data.rows, data.columns) == (24983, 100)
    assert np.array_equal(np.diff(features.indptr), theirs[:, 0])
    assert np.array_equal(dense(features), np.where(theirs[:, 1:] == 99, 0, theirs[:, 1:]))


def test_fashion_mnist(real_data: Path, cache_folder: Path) -> None:
    import gzip

    folder = real_data / "fashion-mnist"
    data = open_data(folder / "t10k-images-idx3-ubyte.gz")
    pixels = np.frombuffer(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    answers = np.frombuffer(gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    features, labels = data.load()
    assert np.array_equal(features, pixels.reshape(10000, 784))
    assert np.array_equal(labels, answers)
    (cache_folder / "fashion-mnist").mkdir()
    for file in folder.iterdir():
        (cache_folder / "fashion-mnist" / file.name).symlink_to(file)
    registered = open_data("fashion-mnist")
    assert (registered.rows, registered.columns, registered.stand_in) == (60000, 784, False)
