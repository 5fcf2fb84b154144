"""Real tables, as their files have them, drawn to a size that trains in a second. Reads a folder beside the project.

Text columns are one-hot encoded and rows with missing numbers left out; nothing is scaled. The folder is
`../shared/data`, or FLEGEL_TEST_DATA.
"""

from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.gauntlet.matrices import sparse_of
from bench.gauntlet.tables import DENSE, REAL, SPARSE, Table, table
from flegel.core.shard import Sparse

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FLEGEL_TEST_DATA", ROOT.parent / "shared" / "data"))
EVERY = (*DENSE, "lr")


def real(function: Callable[[], Table]) -> Callable[[], Table]:
    REAL.add(function.__name__)
    return table(function)


def present() -> bool:
    return FOLDER.is_dir()


def frame(name: str, most: int) -> Any:
    import pandas as pd

    whole = pd.read_csv(FOLDER / "tables" / f"{name}.csv.gz")
    return whole.iloc[:: max(1, len(whole) // most)]


def encoded(rows: Any, label: Callable[[Any], Any], drop: tuple[str, ...], k: int = 5, **lr: Any) -> Table:
    import pandas as pd

    rows = rows.dropna()
    labels = np.asarray(label(rows), dtype=np.float64)
    features = pd.get_dummies(rows.drop(columns=[*drop])).to_numpy(np.float64)
    return Table(np.ascontiguousarray(features), labels, k=k, lr=lr, algorithms=EVERY)


@real
def flights() -> Table:
    drop = ("arr_delay", "tailnum", "time_hour", "year")
    return encoded(frame("flights", 3000), lambda t: t["arr_delay"] > 15, drop)


@real
def planes() -> Table:
    rows = frame("planes", 3000).drop(columns=["speed", "tailnum", "model"])
    return encoded(rows, lambda t: t["engine"] == "Turbo-jet", ("engine",), l2=1e-4)


@real
def weather() -> Table:
    rows = frame("weather", 3000).drop(columns=["wind_gust", "time_hour"])
    return encoded(rows, lambda t: t["precip"] > 0, ("precip",))


@real
def penguins() -> Table:
    return encoded(frame("penguins", 400), lambda t: t["species"].astype("category").cat.codes, ("species",), l2=1e-4)


@real
def diamonds() -> Table:
    return encoded(frame("diamonds", 3000), lambda t: t["price"] > 5000, ("price",))


@real
def cars() -> Table:
    return encoded(frame("cars", 500), lambda t: t["Origin"] == "USA", ("Origin", "Name", "Year"), k=3)


@real
def seattle_weather() -> Table:
    kinds = frame("seattle_weather", 1500)
    return encoded(kinds, lambda t: t["weather"].astype("category").cat.codes, ("weather", "date"), l2=1e-4)


@real
def higgs() -> Table:
    with np.load(FOLDER / "higgs" / "higgs_real_combined.npz") as archive:
        arrays = [archive[name] for name in archive.files]
    rows = next(a for a in arrays if a.ndim == 2)
    labels = rows[:, 0] if len(arrays) == 1 else next(a for a in arrays if a.ndim == 1)
    rows = rows[:, 1:] if len(arrays) == 1 else rows
    return Table(np.ascontiguousarray(rows[::8], np.float32), labels[::8].astype(np.float64), 5, {}, EVERY)


@real
def higgs_as_text() -> Table:
    """A file of another collection, with its numbers in scientific notation."""
    rows = np.loadtxt(FOLDER / "higgs" / "higgs_xlearn.csv", delimiter=",")
    return Table(np.ascontiguousarray(rows[:, 1:]), rows[:, 0], 4, {}, EVERY)


@real
def skin() -> Table:
    """Colours in file order, sorted by label; many equal."""
    with gzip.open(FOLDER / "skin" / "Skin_NonSkin.txt.gz", "rt") as file:
        rows = np.loadtxt(file)[::80]
    return Table(np.ascontiguousarray(rows[:, :3]), rows[:, 3], 4, {}, EVERY)


def svmlight(name: str, columns: int, most: int) -> tuple[Sparse, Any]:
    indptr, indices, values, labels = [0], [], [], []
    with gzip.open(FOLDER / "libsvm" / name, "rt") as file:
        lines = file.readlines()
    for line in lines[:: max(1, len(lines) // most)]:
        label, *pairs = line.split()
        labels.append(float(label))
        for pair in pairs:
            index, value = pair.split(":")
            indices.append(int(index) - 1)
            values.append(float(value))
        indptr.append(len(indices))
    return Sparse(np.array(indptr), np.array(indices, np.int32), np.array(values), columns), np.array(labels)


@real
def adult() -> Table:
    rows, labels = svmlight("a9a.gz", 123, 3000)
    return Table(rows, labels, 5, {"l2": 1e-4}, SPARSE)


@real
def adult_test_part() -> Table:
    rows, labels = svmlight("a9a.t.gz", 123, 2000)
    return Table(rows._replace(values=rows.values.astype(np.float32)), labels, 4, {"l2": 1e-3}, SPARSE)


def botnet_rows() -> list[Any]:
    names = ("benign_traffic", "scan", "doorbell_udp", "thermostat_udp")
    return [np.loadtxt(FOLDER / "nbaiot" / f"{name}.csv.gz", delimiter=",", skiprows=1) for name in names]


@real
def botnet() -> Table:
    """115 statistics of packets, nearly all collinear, from 1e-10 to 1e15; benign traffic against three attacks."""
    parts = botnet_rows()
    labels = np.repeat([0.0, 1.0, 1.0, 1.0], [len(part) for part in parts])
    return Table(np.concatenate(parts), labels, 4, {}, EVERY)


@real
def botnet_four_classes() -> Table:
    parts = botnet_rows()
    labels = np.repeat(np.arange(4.0), [len(part) for part in parts])
    return Table(np.concatenate(parts), labels, 4, {}, ("lr",))


@real
def movielens() -> Table:
    with gzip.open(FOLDER / "movielens" / "ml-latest-small" / "ratings.csv.gz", "rt") as file:
        ratings = np.loadtxt(file, delimiter=",", skiprows=1)
    user = np.unique(ratings[:, 0], return_inverse=True)[1]
    films, film = np.unique(ratings[:, 1], return_inverse=True)
    order = np.argsort(user, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(user))])
    return Table(Sparse(indptr, film[order].astype(np.int32), ratings[order, 2], len(films)), algorithms=("nmf",))


@real
def jester() -> Table:
    """Ratings of jokes from −10 to 10, shifted to be positive."""
    import pandas as pd

    with zipfile.ZipFile(FOLDER / "jester" / "jester-data-1.zip") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith((".xls", ".csv"))]
        with archive.open(name) as file:
            whole = pd.read_excel(file, header=None) if name.endswith(".xls") else pd.read_csv(file, header=None)
    ratings = whole.to_numpy(np.float64)[::30, 1:]
    return Table(sparse_of(np.where(ratings == 99, 0.0, ratings + 11.0)), algorithms=("nmf",))


@real
def fashion() -> Table:
    """Pictures of clothes: 784 columns from 0 to 255, many of them constant."""
    with gzip.open(FOLDER / "fashion-mnist" / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(FOLDER / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return Table(pixels[::10].astype(np.float32), labels[::10].astype(np.float64), 10, {"l2": 1e-2}, EVERY)
