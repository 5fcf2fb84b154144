"""Generated rows depend on the set and the seed alone, and stand-ins look like what they stand in for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flegel.datasets import open_data
from flegel.datasets.catalog.registry import names
from flegel.datasets.catalog.sets import ENTRIES
from tests import needs
from tests.datasets.helpers import check_shards, dense

SMALL = {
    "ratings": 20_000,
    "ml10m": 600,
    "ml25m": 600,
    "cifar10": 300,
    "mnist": 2000,
    "fashion-mnist": 2000,
    "syn": 2000,
}


@pytest.mark.parametrize("name", names())
def test_every_set_opens_and_its_shards_do_not_depend_on_the_number_of_workers(name: str) -> None:
    data = open_data(f"{name}:{SMALL.get(name, 9000)}")
    assert data.stand_in is (name not in ("blobs", "ratings", "syn"))
    for count in (1, 4):
        check_shards(data, count)


@pytest.mark.parametrize("name", ["higgs", "nbaiot", "blobs", "mnist"])
def test_more_rows_begin_with_the_same_rows(name: str) -> None:
    short, long = open_data(f"{name}:5000"), open_data(f"{name}:9000")
    assert np.array_equal(short.load()[0], long.load()[0][:5000])


def test_shapes_are_those_of_the_real_sets() -> None:
    for entry in ENTRIES:
        if entry.name in ("ratings", "ml25m"):
            continue
        source = entry.stand_in(SMALL.get(entry.name, 1000))
        assert source.columns == entry.columns, entry.name
    assert open_data("ratings:20000").load()[0].indptr[-1] == 20_000


def test_every_entry_says_where_it_comes_from() -> None:
    for entry in ENTRIES:
        info = entry.info()
        assert all(info[key] for key in ("title", "home", "licence", "rows", "columns", "suits", "without_it"))
        if not entry.generated:
            assert info["files"]
            assert all(file["url"].startswith("http") for file in info["files"])


def test_an_arbiter_puf_answers_as_its_model_says() -> None:
    features, labels = open_data("puf:4096").load()
    assert set(np.unique(features)) == {-1.0, 1.0}
    assert set(np.unique(labels)) == {-1.0, 1.0}
    assert abs(features.mean()) < 0.02
    assert abs(labels.mean()) < 0.1


def test_images_are_bytes_and_their_classes_can_be_told_apart() -> None:
    features, labels = open_data("syn:4096").load()
    assert features.min() >= 0
    assert features.max() <= 255
    assert np.array_equal(features, np.rint(features))
    centres = np.array([features[:2048][labels[:2048] == k].mean(axis=0) for k in range(10)])
    nearest = ((features[2048:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels[2048:]).mean() > 0.8


def test_ratings_are_halves_sparse_skewed_and_low_rank() -> None:
    data = open_data("ratings:100000")
    rows = data.load()[0]
    assert set(np.unique(rows.values)) <= {k / 2 for k in range(1, 11)}
    popularity = np.sort(np.bincount(rows.indices, minlength=data.columns))[::-1]
    assert popularity[: data.columns // 10].sum() > 0.3 * len(rows.indices)
    for lo, hi in zip(rows.indptr[:50], rows.indptr[1:51], strict=True):
        assert (np.diff(rows.indices[lo:hi]) > 0).all()
    matrix = dense(rows).astype(np.float64)
    assert matrix.shape == (data.rows, data.columns)


@pytest.mark.data
def test_the_higgs_stand_in_has_the_marginals_correlations_and_separation_of_real_rows(
    real_data: Path,
) -> None:
    with np.load(real_data / "higgs/higgs_real_combined.npz") as found:
        real, answers = found["X"].astype(float), found["y"]
    made, labels = open_data("higgs:40000").load()
    for label in (0, 1):
        ours, theirs = made[labels == label], real[answers == label]
        for k in range(28):
            if k in (8, 12, 16, 20):  # b-tags: three values
                assert abs((ours[:, k] == 0).mean() - (theirs[:, k] == 0).mean()) < 0.02
                continue
            shares = np.linspace(0.02, 0.98, 25)
            below = (ours[:, k][:, None] <= np.quantile(theirs[:, k], shares)).mean(axis=0)
            assert np.abs(below - shares).max() < 0.02
        difference = np.corrcoef(ours, rowvar=False) - np.corrcoef(theirs, rowvar=False)
        assert np.abs(difference).mean() < 0.03
    assert abs(labels.mean() - answers.mean()) < 0.02
    linear_model = needs.library("sklearn.linear_model")

    def accuracy(x: np.ndarray, y: np.ndarray) -> float:
        z = (x - x.mean(axis=0)) / x.std(axis=0)
        half = len(z) // 2
        return float(linear_model.LogisticRegression(max_iter=200).fit(z[:half], y[:half]).score(z[half:], y[half:]))

    order = np.random.default_rng(0).permutation(len(real))
    assert abs(accuracy(made, labels) - accuracy(real[order], answers[order])) < 0.03


@pytest.mark.data
def test_the_nbaiot_stand_in_has_the_marginals_of_real_rows(real_data: Path) -> None:
    made, labels = open_data("nbaiot:40000").load()
    real, _ = open_data(real_data / "nbaiot/benign_traffic.csv.gz").load()
    benign = made[labels == 0]
    assert abs((labels == 0).mean() - 0.0787) < 0.01
    for k in range(115):
        low, high = real[:, k].min(), real[:, k].max()
        middle = np.median(benign[:, k])
        assert low - 1e-3 * abs(low) <= middle <= high + 1e-3 * abs(high)
        spread = np.quantile(real[:, k], 0.75) - np.quantile(real[:, k], 0.25)
        assert abs(middle - np.median(real[:, k])) <= max(0.5 * spread, 2e-3 * abs(middle) + 1e-3)
