"""Lists of ratings: recognized where they are given to an algorithm that factorizes them, said, and chosen by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf import NMF
from flegel.cli.main import app
from flegel.core.shard import Sparse
from flegel.datasets import open_data
from flegel.datasets.formats.registry import BY_NAME, FORMATS
from flegel.errors import DataError, UsageError

from .helpers import check_shards, dense

USERS, ITEMS = 30, 12


def triples(seed: int = 0) -> pd.DataFrame:
    """Ratings of two tastes, in random order, with times."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.6)
    rating = np.where(user % 2 == item % 2, 5, 2)
    frame = pd.DataFrame(
        {"user": user + 101, "item": 7 * item + 3, "rating": rating, "time": 881_250_949 + rng.permutation(len(user))}
    )
    return frame.sample(frac=1.0, random_state=1)


def matrix(frame: pd.DataFrame) -> Any:
    return frame.pivot(index="user", columns="item", values="rating").fillna(0).to_numpy()


def written(folder: Path, style: str, frame: pd.DataFrame) -> Path:
    """The same ratings as several publishers write them."""
    if style == "u.data":
        frame.to_csv(folder / style, sep="\t", header=False, index=False)
    elif style == "three.txt":
        frame.iloc[:, :3].to_csv(folder / style, sep=" ", header=False, index=False)
    elif style == "ml-100k.inter":
        named = frame.set_axis(["user_id:token", "item_id:token", "rating:float", "timestamp:float"], axis=1)
        named.to_csv(folder / style, sep="\t", index=False)
    elif style == "dates.csv":
        days = frame.assign(time=pd.to_datetime(frame["time"], unit="s").dt.strftime("%Y-%m-%d"))
        days.to_csv(folder / style, header=False, index=False)
    elif style == "reviews.parquet":
        frame.rename(columns={"item": "product_id", "rating": "stars"}).assign(votes=0, text="good").to_parquet(
            folder / style
        )
    else:
        rows = frame.to_numpy().tolist()
        (folder / style).write_text("".join("::".join(map(str, row)) + "\n" for row in rows))
    return folder / style


STYLES = ["u.data", "three.txt", "ml-100k.inter", "dates.csv", "reviews.parquet", "ratings.dat"]


@pytest.mark.parametrize("style", STYLES)
def test_ratings_are_recognized_for_a_factorization(tmp_path: Path, style: str) -> None:
    frame = triples()
    path = written(tmp_path, style, frame)
    said: list[str] = []
    result = flegel.run(NMF(rank=2), str(path), max_passes=3, workers=1, say=said.append)
    data = open_data(path, ratings=True)
    assert np.array_equal(dense(data.load()[0]), matrix(frame))
    assert data.names == [str(item) for item in sorted(frame["item"].unique())]
    assert data.source.row_names == [str(user) for user in sorted(frame["user"].unique())]
    line = next(text for text in said if "ratings" in text)
    assert f"{len(frame)} ratings of {ITEMS} items by {USERS} users" in line and "--format table" in line
    assert result.parameter.factors.shape == (ITEMS, 2)
    check_shards(data, 2)


@pytest.mark.parametrize("style", ["u.data", "dates.csv"])
def test_other_algorithms_take_columns_without_names_as_they_are(tmp_path: Path, style: str) -> None:
    path = written(tmp_path, style, triples())
    assert not open_data(path).sparse
    assert flegel.run(KMeans(k=2), str(path), max_passes=1, workers=1).parameter.centroids.shape == (2, 4)


def test_format_and_columns_are_chosen_by_hand(tmp_path: Path) -> None:
    frame = triples()[["time", "rating", "item", "user"]]
    path = tmp_path / "log.csv"
    frame.to_csv(path, header=False, index=False)
    found = open_data(path, format="ratings", columns=[3, 2, 1])
    assert np.array_equal(dense(found.load()[0]), matrix(frame))
    assert open_data(written(tmp_path, "u.data", triples()), format="table", ratings=True).columns == 4
    for format in ("csv", "text"):
        assert open_data(path, format=format, ratings=True).columns == 4
    command = ["submit", "nmf", "--data", str(path), "--format", "ratings", "--columns", "3,2,1", "--set", "rank=2"]
    done = CliRunner().invoke(app, [*command, "--max-passes", "2", "--workers", "1", "--out", str(tmp_path / "model")])
    assert done.exit_code == 0, done.output
    assert re.search(r"rmse \d", done.output)
    wrong = CliRunner().invoke(app, [*command[:4], "--format", "rating"])
    assert wrong.exit_code == 2 and "--format rating is not known" in wrong.output and "ratings" in wrong.output
    with pytest.raises(UsageError, match="ratings need user,item,rating"):
        open_data(path, format="ratings", columns=[0, 1])


def test_frames_arrays_and_sparse_matrices_from_python() -> None:
    frame = triples()
    for rows in (frame, frame.to_numpy(), frame[["user", "item", "rating"]].to_numpy().astype(float)):
        said: list[str] = []
        result = flegel.run(NMF(rank=2), rows, max_passes=2, workers=1, say=said.append)
        assert result.parameter.factors.shape == (ITEMS, 2)
        assert sum("ratings of" in line for line in said) == 1
    assert flegel.run(NMF(rank=2), frame, max_passes=1, workers=1, format="table").parameter.factors.shape == (4, 2)
    whole = matrix(frame)
    indptr = np.concatenate(([0], np.cumsum((whole > 0).sum(axis=1))))
    sparse = Sparse(indptr, np.nonzero(whole)[1].astype(np.int32), whole[whole > 0].astype(np.float32), ITEMS)
    assert flegel.run(NMF(rank=2), sparse, max_passes=1, workers=1).parameter.factors.shape == (ITEMS, 2)
    with pytest.raises(UsageError, match="a matrix already"):
        open_data(sparse, format="ratings")
    with pytest.raises(UsageError, match="is for files"):
        open_data(frame, format="parquet")


def test_matrices_of_three_or_four_columns_stay_matrices(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    colours = np.repeat(rng.integers(0, 256, (40, 3)), 5, axis=0)
    measured = rng.random((200, 4))
    counts = np.column_stack([np.arange(200), rng.integers(0, 9, 200), rng.integers(0, 9, 200), np.ones(200, int)])
    for rows in (colours, measured, counts):
        assert open_data(rows, ratings=True).columns == rows.shape[1]
        np.savetxt(tmp_path / "rows.txt", rows, fmt="%g")
        data = open_data(tmp_path / "rows.txt", ratings=True)
        assert data.columns == rows.shape[1]
        assert ("--format ratings" in " ".join(data.source.report)) == (rows is not measured)


def test_names_of_users_and_items_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("asin,reviewer,overall\nB2,zoe,4\nB1,adam,3\nB1,zoe,5\nB2,zoe,2\n")
    data = open_data(tmp_path / "reviews.csv")
    assert (data.names, data.source.row_names) == (["B1", "B2"], ["adam", "zoe"])
    assert dense(data.load()[0]).tolist() == [[3, 0], [5, 2]]


def test_several_files_are_one_list(tmp_path: Path) -> None:
    frame = triples()
    for k in range(3):
        frame[k::3].to_csv(tmp_path / f"part-{k}.csv", index=False)
    assert np.array_equal(dense(open_data(str(tmp_path / "part-*.csv")).load()[0]), matrix(frame))


def test_a_model_finds_its_items_by_name(tmp_path: Path) -> None:
    frame = triples()
    flegel.run(NMF(rank=2), str(written(tmp_path, "u.data", frame)), max_passes=8, workers=1, out=tmp_path / "model")
    loaded = flegel.load(tmp_path / "model")
    some = frame[(frame["user"] < 110) & (frame["item"] > 3)]
    other = pd.DataFrame({"user": [500], "item": [4], "rating": [5], "time": [881_250_949]})
    whole = loaded.predict(frame)
    assert whole.shape == (USERS, ITEMS)
    with pytest.warns(UserWarning, match="1 of 12 items did not occur"):
        found = loaded.predict(pd.concat([some, other]))
    assert found.shape == (len(some["user"].unique()) + 1, ITEMS)
    out = tmp_path / "found.npy"
    done = CliRunner().invoke(
        app, ["predict", str(tmp_path / "model"), "--data", str(tmp_path / "u.data"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(np.load(out), whole, rtol=1e-5)


def test_the_metric_is_the_error_of_observed_entries() -> None:
    rows = open_data(triples()).load()[0]
    for algorithm, given in ((NMF(rank=1), rows), (NMF(rank=1, solver="coordinate"), dense(rows) + 1.0)):
        result = flegel.run(algorithm, given, max_passes=60, workers=1, sync="bsp")
        again = algorithm.evaluate(given, None, result.parameter).metrics["rmse"]
        assert again > 0.3
        assert result.metrics["rmse"] == pytest.approx(again, rel=0.03)


def test_a_header_with_types_is_no_svmlight(tmp_path: Path) -> None:
    (tmp_path / "a.thing").write_text("a:token\tb:float\n1\t2\n3\t4\n")
    assert open_data(tmp_path / "a.thing").names == ["a:token", "b:float"]
    (tmp_path / "b.thing").write_text("1 2:3 4:5 # remark\n-1 1:1e-3\n")
    assert open_data(tmp_path / "b.thing").sparse
    (tmp_path / "a9a.txt").write_text("+1 2:3 4:5\n-1 1:1\n")
    assert open_data(tmp_path / "a9a.txt").sparse


def test_every_format_has_one_entry() -> None:
    names = [name for each in FORMATS for name in (each.name, *each.other_names)]
    suffixes = [suffix for each in FORMATS for suffix in each.suffixes]
    assert len(names) == len(set(names)) == len(BY_NAME) and len(suffixes) == len(set(suffixes))


def test_a_file_that_is_no_table_holds_no_ratings(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.ones((3, 3)))
    with pytest.raises(UsageError, match="npz file and no table of user"):
        open_data(tmp_path / "rows.npz", format="ratings")
    (tmp_path / "two.csv").write_text("1,2\n3,4\n")
    with pytest.raises(DataError, match="ratings need three"):
        open_data(tmp_path / "two.csv", format="ratings")


@pytest.mark.parametrize("names", [None, ["column_1", "column_2", "column_3", "column_4"], ["f0", "f1", "f2", "f3"]])
def test_names_that_only_count_columns_hide_no_ratings(names: list[str] | None) -> None:
    frame = triples()
    frame.columns = pd.RangeIndex(4) if names is None else names
    found = open_data(frame, ratings=True)
    assert found.sparse and found.columns == ITEMS
    assert found.source.treatment.rating_columns == [0, 1, 2]
    frame.columns = ["a", "b", "c", "d"]
    assert not open_data(frame, ratings=True).sparse


def test_generated_ratings_are_factorized() -> None:
    """The algorithm asks for ratings; that is no option of the user's that would have no effect."""
    result = flegel.run("nmf", "ratings", workers=1, processes="no", max_passes=1)
    assert result.iterations >= 1 and np.isfinite(result.objective)
