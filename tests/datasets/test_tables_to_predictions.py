"""Public-style tables from file to prediction, beside a scikit-learn pipeline with the same encoding.

Each is one call of `flegel.run` with the options that a person would type, and one of `predict`, on the same file. The
pipeline is built from pandas' reading: numbers and dates standardized, booleans as they are, text one-hot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans as OtherKMeans
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.datasets import open_for_prediction

L2 = 1e-3
SAME = 0.999


class Table(NamedTuple):
    """A file, pandas' reading of it, and the options."""

    write: Callable[[Path, Path], Path]
    read: Callable[[Path], pd.DataFrame]
    label: str
    options: dict[str, Any]
    slow: bool = True


def real(name: str) -> Callable[[Path, Path], Path]:
    return lambda folder, data: data / name


def made(name: str, write: Callable[[pd.DataFrame, Path], Any], rows: int = 600) -> Callable[[Path, Path], Path]:
    def make(folder: Path, data: Path) -> Path:
        path = folder / name
        write(people(rows), path)
        return path

    return make


def people(rows: int) -> pd.DataFrame:
    """A look-alike of census and customer tables: numbers, text, dates, booleans, and a label that depends on them."""
    rng = np.random.default_rng(rows)
    age = rng.integers(18, 90, rows)
    income = np.round(rng.lognormal(10, 0.6, rows), 2)
    town = rng.choice(["Köln", "Paris", "Oslo", "Zürich, CH"], rows)
    since = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3000, rows), "D")
    member = rng.random(rows) < 0.4
    score = (age - 50) / 20 + np.log(income) - 10 + (town == "Oslo") - member + rng.normal(0, 0.7, rows)
    bought = np.where(score > 0.3, "yes, twice", np.where(score > -0.7, "once", "never"))
    return pd.DataFrame(
        {"age": age, "income": income, "town": town, "since": since, "member": member, "bought": bought}
    )


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    holes = frame.copy()
    holes["income"] = holes["income"].where(rng.random(len(holes)) > 0.1)
    holes["town"] = holes["town"].where(rng.random(len(holes)) > 0.05)
    return holes


def partitioned(frame: pd.DataFrame, path: Path) -> None:
    for town, part in frame.groupby("town"):
        place = path / f"town={town.replace(', ', '-')}"
        place.mkdir(parents=True)
        part.drop(columns="town").to_parquet(place / "part.parquet", index=False)


def read_partitioned(path: Path) -> pd.DataFrame:
    parts = [pd.read_parquet(place / "part.parquet").assign(town=place.name[5:]) for place in sorted(path.iterdir())]
    return pd.concat(parts, ignore_index=True)


def csv(**how: Any) -> Callable[[Path], pd.DataFrame]:
    return lambda path: pd.read_csv(path, **how)


def people_csv(**how: Any) -> Callable[[Path], pd.DataFrame]:
    return lambda path: pd.read_csv(path, parse_dates=["since"], **how)


TABLES: dict[str, Table] = {
    "penguins": Table(real("tables/penguins.csv.gz"), csv(), "species", {"missing": "drop"}, slow=False),
    "cars": Table(real("tables/cars.csv.gz"), csv(parse_dates=["Year"]), "Origin",
                  {"missing": "mean", "drop": ["Name"]}),
    "seattle weather": Table(real("tables/seattle_weather.csv.gz"), csv(parse_dates=["date"]), "weather", {}),
    "planes": Table(real("tables/planes.csv.gz"), csv(), "engine",
                    {"missing": "median", "drop": ["tailnum", "speed"]}),
    "weather": Table(real("tables/weather.csv.gz"), csv(parse_dates=["time_hour"]), "origin", {"missing": "indicator"}),
    "diamonds": Table(real("tables/diamonds.csv.gz"), csv(), "color", {}),
    "flights": Table(real("tables/flights.csv.gz"), csv(parse_dates=["time_hour"]), "origin",
                     {"missing": "drop", "drop": ["tailnum", "year"]}),
    "skin": Table(real("skin/Skin_NonSkin.txt.gz"), csv(sep="\t", header=None), "3", {}),
    "higgs": Table(real("higgs/higgs_lightgbm_train.tsv"), csv(sep="\t", header=None), "0", {}),
    "higgs, commas": Table(real("higgs/higgs_xlearn.csv"), csv(header=None), "0", {}),
    "census, CSV": Table(made("p.csv", lambda f, p: f.to_csv(p, index=False)), people_csv(), "bought", {}),
    "census, index": Table(made("p.csv", lambda f, p: f.to_csv(p)), people_csv(index_col=0), "bought", {}),
    "census, gaps": Table(made("p.csv", lambda f, p: with_gaps(f).to_csv(p, index=False)), people_csv(), "bought",
                          {"missing": "median"}),
    "census, marked gaps": Table(made("p.csv", lambda f, p: with_gaps(f).to_csv(p, index=False)), people_csv(),
                                 "bought", {"missing": "indicator"}),
    "census, German Excel": Table(
        made("p.csv", lambda f, p: f.to_csv(p, index=False, sep=";", decimal=",", encoding="cp1252",
                                            date_format="%d.%m.%Y")),
        people_csv(sep=";", decimal=",", encoding="cp1252", dayfirst=True), "bought", {}),
    "census, UTF-16": Table(
        made("p.tsv", lambda f, p: f.to_csv(p, index=False, sep="\t", encoding="utf-16", lineterminator="\r\n")),
        people_csv(sep="\t", encoding="utf-16"), "bought", {}),
    "census, no header": Table(
        made("p.data", lambda f, p: f.to_csv(p, index=False, header=False)),
        lambda p: pd.read_csv(p, header=None, parse_dates=[3]), "5", {}),
    "census, old Mac": Table(
        made("p.csv", lambda f, p: f.to_csv(p, index=False, lineterminator="\r")), people_csv(), "bought", {}),
    "census, Parquet": Table(made("p.parquet", lambda f, p: f.to_parquet(p)), pd.read_parquet, "bought", {}),
    "census, Feather": Table(made("p.feather", lambda f, p: f.to_feather(p)), pd.read_feather, "bought", {}),
    "census, folders": Table(made("set", partitioned), read_partitioned, "bought", {}),
}  # fmt: skip


def pipeline(frame: pd.DataFrame, missing: str) -> ColumnTransformer:
    """scikit-learn's counterpart: the same encoding of each column."""
    fill = "median" if missing == "median" else "mean"
    flags = [c for c in frame if pd.api.types.is_bool_dtype(frame[c])]
    scaled = [c for c in frame if pd.api.types.is_numeric_dtype(frame[c]) and c not in flags]
    text = [c for c in frame if c not in scaled and c not in flags]
    numbers = make_pipeline(SimpleImputer(strategy=fill), StandardScaler())
    parts: list[Any] = [("numbers", numbers, scaled), ("flags", "passthrough", flags)]
    if missing == "indicator":
        marks = [c for c in scaled if frame[c].isna().any()]
        parts.append(("marks", MissingIndicator(features="all"), marks))
    parts.append(("text", OneHotEncoder(handle_unknown="ignore"), text))
    return ColumnTransformer(parts)


def prepared(table: Table, path: Path) -> tuple[pd.DataFrame, pd.Series]:
    """pandas' rows and labels: dates as days, rows with gaps left out where that is asked for."""
    frame = table.read(path)
    frame.columns = [str(name) for name in frame.columns]
    frame = frame.drop(columns=table.options.get("drop", []))
    if table.options.get("missing") == "drop":
        frame = frame.dropna()
    frame = frame[frame[table.label].notna()]
    labels = frame.pop(table.label)
    for name in frame:
        if pd.api.types.is_datetime64_any_dtype(frame[name]):
            moments = pd.to_datetime(frame[name], utc=True)
            frame[name] = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return frame, labels


def option(label: str) -> str | int:
    return int(label) if label.isdigit() else label


def found_by_flegel(table: Table, path: Path, whole: bool) -> np.ndarray:
    """Predicted class names, or label values, of the rows of the file."""
    result = flegel.run(
        LR(l2=L2), path, label=option(table.label), scale="standard", sync="bsp", workers=1, processes="no",
        tolerance=1e-9, max_iterations=400, **table.options,
    )  # fmt: skip
    assert result.treatment is not None
    if whole:
        rows = open_for_prediction(str(path), result.treatment) if path.is_file() else table.read(path)
    else:  # rows with gaps cannot be predicted by a model that was trained without
        rows = table.read(path).drop(columns=table.options.get("drop", [])).dropna()
    found = np.asarray(result.predict(rows))
    if found.dtype.kind == "f" and result.classes is not None:
        return np.array(result.classes)[found.astype(int)]
    return found


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * t.slow, id=n) for n, t in TABLES.items()])
def test_a_table_from_file_to_prediction_agrees_with_scikit_learn(name: str, tmp_path: Path, real_data: Path) -> None:
    table = TABLES[name]
    path = table.write(tmp_path, real_data)
    frame, labels = prepared(table, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = pipeline(frame, table.options.get("missing", "error"))
        rows = how.fit_transform(frame)
        other = LogisticRegression(C=1 / (L2 * len(frame)), max_iter=5000, tol=1e-10).fit(rows, labels)
        wanted = other.predict(rows)
        found = found_by_flegel(table, path, table.options.get("missing") != "drop")
    assert len(found) == len(wanted)
    if np.asarray(wanted).dtype.kind in "fi":
        found = np.asarray(found, np.float64)
    assert np.mean(found == np.asarray(wanted)) >= SAME


@pytest.mark.parametrize("name", ["census, CSV", pytest.param("penguins", marks=pytest.mark.slow)])
def test_clusters_of_a_table_from_the_same_start_are_those_of_scikit_learn(
    name: str, tmp_path: Path, real_data: Path
) -> None:
    table = TABLES[name]
    path = table.write(tmp_path, real_data)
    frame = table.read(path).drop(columns=[table.label])
    frame = frame.dropna() if table.options.get("missing") == "drop" else frame
    options: dict[str, Any] = {**table.options, "label": table.label, "scale": "standard", "sync": "bsp", "workers": 1}
    first = flegel.run(KMeans(k=4, init="first"), path, processes="no", max_iterations=1, **options)
    rows = first.treatment.apply(frame)
    again = flegel.run(KMeans(k=4, init=rows[:4]), path, processes="no", tolerance=1e-12, **options)
    other = OtherKMeans(4, init=rows[:4], n_init=1, tol=0, max_iter=1000).fit(rows)
    assert np.mean(np.asarray(again.predict(frame)) == other.labels_) >= SAME
