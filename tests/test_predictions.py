"""What a result and a saved model say about rows: by name, checked, alike; wrong uses are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.cli.main import app
from flegel.datasets import Treatment
from flegel.results.prediction import predict
from flegel.runtime.job.result_store import Model
from tests import needs

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {"width": RNG.normal(size=300), "depth": RNG.normal(3, 2, size=300), "noise": RNG.normal(size=300)}
)
WORDS = np.where(FRAME.width + RNG.logistic(size=300) > 0, "pulsar", "background")
ROWS = FRAME.to_numpy()


class Trained(NamedTuple):
    result: flegel.Result
    model: Model
    folder: Path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A classifier that was trained on a frame with words as labels."""
    folder = tmp_path_factory.mktemp("models") / "lr"
    result = flegel.run(LR(), (FRAME, WORDS), sync="bsp", out=folder)
    return Trained(result, flegel.load(folder), folder)


@pytest.fixture(scope="module")
def clusters() -> flegel.Result:
    return flegel.run(KMeans(k=3), ROWS, sync="bsp")


def test_class_names_are_in_everything(words: Trained) -> None:
    result, model, _ = words
    assert result.class_names == model.class_names == ["background", "pulsar"]
    assert set(result.predict(FRAME)) == {"background", "pulsar"}
    assert np.array_equal(result.predict(FRAME), model.predict(FRAME))
    assert result.parameters["classes"].tolist() == model.parameters["classes"].tolist() == ["background", "pulsar"]
    assert result.to_json()["classes"] == ["background", "pulsar"]
    assert result.sizes.sum() == 300 and result.sizes[1] == (result.labels == "pulsar").sum()


def test_answers_about_rows_of_training_are_in_the_order_of_the_data(words: Trained, clusters: flegel.Result) -> None:
    result = words.result
    assert np.array_equal(result.labels, result.predict(FRAME))
    assert np.array_equal(result.probabilities(), result.probabilities(FRAME))
    assert np.array_equal(result.scores() > 0, result.labels == "pulsar")
    assert np.array_equal(clusters.labels, clusters.distances().argmin(axis=1))
    np.testing.assert_allclose(clusters.distances().min(axis=1) ** 2, -clusters.scores(), rtol=1e-9)
    assert clusters.sizes.tolist() == np.bincount(clusters.labels, minlength=3).tolist()


def test_columns_are_found_by_name_in_any_order(words: Trained) -> None:
    turned = FRAME[["noise", "width", "depth"]]
    assert np.array_equal(words.result.predict(turned), words.result.labels)
    assert np.array_equal(words.model.probabilities(turned.assign(more=1.0)), words.result.probabilities())


def test_the_model_is_apart_from_what_the_algorithm_remembers(words: Trained, clusters: flegel.Result) -> None:
    assert set(words.result.parameters) == {"weights", "bias", "classes"}
    assert set(clusters.parameters) == {"centroids"} and "origin" in clusters.internals
    assert set(words.model.parameters) == {"weights", "bias", "classes"}
    assert set(words.result.internals) == set(words.model.internals) and "internal_search" in words.model.internals


@pytest.mark.parametrize(
    ("kind", "shape"), [("full", (2, 3, 3)), ("tied", (3, 3)), ("diagonal", (2, 3)), ("spherical", (2,))]
)
def test_covariances_have_the_shapes_of_scikit_learn(kind: str, shape: tuple[int, ...]) -> None:
    algorithm = GMM(k=2, covariance=kind)
    theta = algorithm._blank(np.zeros(3), np.ones(3), np.full(3, 1e-6))
    assert algorithm.model(theta)["covariances"].shape == shape


def test_memberships_and_responsibilities_are_probabilities() -> None:
    for algorithm in (FCM(k=2), GMM(k=2)):
        sample = flegel.Sample(ROWS, None, len(ROWS), 3)
        theta = algorithm.initParameter(sample, np.random.default_rng(0))
        np.testing.assert_allclose(algorithm.probabilities(ROWS, theta).sum(axis=1), 1.0)
        assert len(algorithm.scores(ROWS, theta)) == len(ROWS)


def sparse() -> Any:
    scipy_sparse = needs.library("scipy.sparse")
    return scipy_sparse.csr_matrix(ROWS)


WRONG: list[tuple[str, Any, str]] = [
    ("too few columns", ROWS[:, :2], "these data have 2"),
    ("too many columns", np.hstack([ROWS, ROWS]), "these data have 6"),
    ("one row that is no table", ROWS[0], r"reshape\(1, -1\)"),
    ("a column with another name", FRAME.rename(columns={"depth": "height"}), "no column 'depth'"),
    ("a column of words", FRAME.assign(depth="deep"), "'depth'"),
    ("a missing value", FRAME.assign(depth=np.where(FRAME.width > 0, np.nan, 1.0)), "'depth'"),
    ("an infinite value", np.where(ROWS > 3, np.inf, ROWS), "is inf"),
    ("complex numbers", ROWS.astype(complex), "complex"),
    ("no rows", FRAME[:0], "0 rows"),
    ("a number", 3.0, "cannot be read as rows"),
    ("rows of different lengths", [[1.0, 2.0, 3.0], [1.0]], "equal length"),
    ("nothing", None, "rows"),
]


@pytest.mark.parametrize(("case", "table", "told"), WRONG, ids=[case for case, _, _ in WRONG])
def test_wrong_tables_are_refused_in_one_sentence(words: Trained, case: str, table: Any, told: str) -> None:
    for ask in (words.result.predict, words.model.predict):
        with pytest.raises(flegel.FlegelError, match=told) as refused:
            ask(table)
        assert str(refused.value).endswith((".", "?")) and "\n" not in str(refused.value)


def test_sparse_rows_are_refused_where_the_model_is_dense_and_taken_where_it_is_not(clusters: flegel.Result) -> None:
    fuzzy = FCM(k=2)
    theta = fuzzy.initParameter(flegel.Sample(ROWS, None, len(ROWS), 3), np.random.default_rng(0))
    dense = SimpleNamespace(algorithm=fuzzy, parameter=theta, classes=None)
    with pytest.raises(flegel.UsageError, match="FCM takes dense rows"):
        predict(dense, Treatment(3), sparse())
    assert np.array_equal(clusters.predict(sparse()), clusters.labels)


def test_labels_that_were_whole_numbers_come_back_as_integers() -> None:
    plain = flegel.run(LR(), (ROWS, (WORDS == "pulsar").astype(int)), sync="bsp")
    assert plain.predict(ROWS).dtype == np.int64 and plain.class_names == [0, 1]
    assert np.array_equal(plain.predict(sparse()), plain.labels)


def test_what_an_algorithm_cannot_answer_is_said(clusters: flegel.Result, words: Trained) -> None:
    with pytest.raises(flegel.UsageError, match="KMeans gives no probabilities"):
        clusters.probabilities()
    with pytest.raises(flegel.UsageError, match="LR gives no distances"):
        words.model.distances(FRAME)


def test_summary_and_notebook_picture(words: Trained) -> None:
    text = words.result.summary()
    assert "converged" in text and "background, pulsar" in text and "300 rows of 3 columns" in text
    page = words.result._repr_html_()
    assert "<svg" in page and "converged" in page


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_predictions_in_files(words: Trained, kind: str, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / f"p.{kind}"
    call = ["predict", str(words.folder), "--data", str(tmp_path / "rows.csv"), "--out", str(out)]
    assert CliRunner().invoke(app, call).exit_code == 0
    if kind == "npy":
        found = np.load(out)
    elif kind == "csv":
        found = pd.read_csv(out, header=None)[0].to_numpy()
    else:
        found = pd.read_parquet(out)["prediction"].to_numpy()
    assert np.array_equal(found.astype(str), words.result.labels)
    assert CliRunner().invoke(app, [*call, "--probabilities"]).exit_code == 0
    if kind == "parquet":
        assert list(pd.read_parquet(out).columns) == ["background", "pulsar"]


# -- scores, files, names --------------------------------------------------------------------------------------------


def test_score_is_the_share_of_right_classes(words: Trained, tmp_path: Path) -> None:
    right = np.mean(words.result.predict(FRAME) == WORDS)
    table = FRAME.assign(kind=WORDS)
    table.to_csv(tmp_path / "table.csv", index=False)
    table.to_parquet(tmp_path / "table.parquet", index=False)
    for one in (words.result, words.model):
        assert (
            one.score(FRAME, WORDS) == one.score(FRAME, WORDS.tolist()) == one.score(FRAME, pd.Series(WORDS)) == right
        )
        assert one.score(table, "kind") == right
        assert one.score(tmp_path / "table.csv", "kind") == one.score(str(tmp_path / "table.parquet"), "kind") == right
    assert words.result.score(FRAME, np.where(WORDS == "pulsar", "pulsar", "quasar")) < right  # unknown: wrong


def test_score_of_models_without_labels_is_that_of_scikit_learn(clusters: flegel.Result) -> None:
    assert clusters.score(ROWS) == pytest.approx(clusters.to_sklearn().score(ROWS), rel=1e-6)
    mixture = flegel.run(GMM(k=2), ROWS, sync="bsp")
    assert mixture.score(ROWS) == pytest.approx(mixture.to_sklearn().score(ROWS), rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "said"),
    [(None, "needs labels to score"), (WORDS[:7], "300 rows and 7 labels"), ("knd", "has no column 'knd'")],
)
def test_labels_that_do_not_fit_are_refused(words: Trained, labels: Any, said: str) -> None:
    with pytest.raises(flegel.UsageError, match=said):
        words.result.score(FRAME, labels)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_predict_takes_a_path(words: Trained, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "npy":
        np.save(path, ROWS)
    else:
        FRAME[["noise", "depth", "width"]].to_csv(path, index=False) if kind == "csv" else FRAME.to_parquet(path)
    assert np.array_equal(words.model.predict(path), words.result.predict(FRAME))
    assert np.array_equal(words.result.predict(str(path)), words.result.predict(FRAME))
    assert words.model.probabilities(path).shape == (300, 2)


def test_a_loaded_model_says_what_it_is(words: Trained) -> None:
    text = repr(words.model)
    assert "Model of LR(" in text and "300 rows of 3 columns" in text and "columns: width, depth, noise" in text
    assert "classes: background, pulsar" in text and "weights 1 × 3" in text and ".predict(" in text


@pytest.mark.parametrize("name", ["k", "n_clusters", "n_components"])
def test_names_of_other_libraries_are_accepted(name: str) -> None:
    assert all(cls(**{name: 4}).k == 4 for cls in (KMeans, GMM, FCM))
    assert NMF(**{"n_components" if name == "n_clusters" else name: 4}).rank == 4


def test_two_names_of_one_thing_are_refused() -> None:
    with pytest.raises(flegel.UsageError, match="n_clusters is another name of k"):
        KMeans(k=3, n_clusters=4)
