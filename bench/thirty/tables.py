"""The rows of the thirty tasks: real tables where their files are, sets that scikit-learn carries, and generated ones.

Large tables are cut to every n-th row; each function says to how many. Text columns are one-hot encoded, rows with
missing numbers left out, columns scaled to mean 0 and deviation 1 where the function says so. A table whose file is
absent is None. HTRU2, KDD99, ml-100k, TF-IDF of the 20 newsgroups and embeddings have a generated look-alike. The
folder of real tables is that of `bench.gauntlet.real`.
"""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.gauntlet.real import FOLDER
from bench.micro.text import rating_rows, text_rows

RARE = 10  # rows: text values with fewer of them share no column


class Rows(NamedTuple):
    """What both sides train on: a NumPy array or a matrix of scipy; labels are numbers of classes."""

    features: Any
    labels: Any = None
    origin: str = "real"


def scaled(features: Any) -> Any:
    """Mean 0 and deviation 1; columns that do not vary are left out."""
    features = np.asarray(features, np.float64)
    features = features[:, features.std(axis=0) > 1e-12 * np.abs(features).max(axis=0)]
    return np.ascontiguousarray((features - features.mean(axis=0)) / features.std(axis=0))


def cut(rows: Any, most: int) -> Any:
    return rows[:: max(1, -(-len(rows) // most))]


def numbered(labels: Any) -> Any:
    return np.unique(np.asarray(labels), return_inverse=True)[1]


def found(pattern: str) -> Path | None:
    """The first file of the folder with this name."""
    return next(iter(sorted(FOLDER.rglob(pattern))), None) if FOLDER.is_dir() else None


def frame(name: str, most: int) -> Any:
    """A table of the folder without rows that have gaps, cut to so many rows; None where it is absent."""
    import pandas as pd

    path = found(f"{name}.csv.gz")
    if path is None:
        return None
    whole = pd.read_csv(path)
    whole = whole.drop(columns=[c for c in whole.columns if whole[c].isna().mean() > 0.3])
    return cut(whole.dropna(), most)


def encoded(rows: Any, label: Callable[[Any], Any], drop: tuple[str, ...]) -> Rows | None:
    """Scaled columns, text one-hot; rare values of text have no column."""
    import pandas as pd

    if rows is None:
        return None
    labels = numbered(label(rows))
    features = pd.get_dummies(rows.drop(columns=[c for c in drop if c in rows])).to_numpy(np.float64)
    features = features[:, ~(np.isin(features, (0.0, 1.0)).all(axis=0) & (features.sum(axis=0) < RARE))]
    return Rows(scaled(features), labels)


def of_numbers(rows: Any, drop: tuple[str, ...]) -> Rows | None:
    """The columns of numbers alone, scaled."""
    if rows is None:
        return None
    return Rows(scaled(rows.drop(columns=[c for c in drop if c in rows]).select_dtypes("number")))


@cache
def htru2() -> Rows:
    """17,898 candidates of pulsars: mean, deviation, kurtosis and skewness of two curves each; scaled."""
    path = found("HTRU_2.csv*")
    if path is not None:
        rows = np.loadtxt(path, delimiter=",")
        return Rows(scaled(rows[:, :8]), rows[:, 8].astype(int))
    rng = np.random.default_rng(2)
    pulsar = rng.random(17_898) < 0.092
    bins = np.arange(64)

    def moments(curves: Any) -> Any:
        curves = 255.0 * (curves - curves.min(axis=1, keepdims=True)) / np.ptp(curves, axis=1)[:, None]
        mean, deviation = curves.mean(axis=1), curves.std(axis=1)
        z = (curves - mean[:, None]) / deviation[:, None]
        return np.stack([mean, deviation, (z**4).mean(axis=1) - 3.0, (z**3).mean(axis=1) ** 3], axis=1)

    def curves(height: Any, width: Any, noise: Any) -> Any:
        place = rng.uniform(16, 48, (len(height), 1))
        peak = height[:, None] * np.exp(-0.5 * ((bins - place) / width[:, None]) ** 2)
        return peak + noise[:, None] * rng.standard_normal((len(height), 64))

    count = len(pulsar)
    height = np.where(pulsar, rng.gamma(6.0, 1.0, count), rng.exponential(0.4, count))
    profile = curves(height, rng.lognormal(1.0, 0.5, count), np.ones(count))
    height = np.where(pulsar | (rng.random(count) < 0.1), rng.gamma(2.0, 2.0, count), rng.exponential(3.0, count))
    dispersed = curves(height, rng.lognormal(0.6, 1.0, count), rng.lognormal(-1.0, 0.4, count))
    return Rows(scaled(np.hstack([moments(profile), moments(dispersed)])), pulsar.astype(int), "look-alike")


KDD_ROWS = 20_000


@cache
def kdd99() -> Rows:
    """Connections of a network, normal and 22 kinds of attack, some of them very rare; cut to 20,000 rows, one-hot,
    scaled. Most rows are nearly equal to many others."""
    import pandas as pd

    path = found("kddcup.data*")
    if path is not None:
        whole = pd.read_csv(path, header=None)
        rows = cut(whole, KDD_ROWS)
        return Rows(scaled(pd.get_dummies(rows.iloc[:, :-1]).to_numpy(np.float64)), numbered(rows.iloc[:, -1]))
    rng = np.random.default_rng(99)
    shares = np.array([0.568, 0.217, 0.197, *np.geomspace(5e-3, 1e-4, 20)])
    labels = rng.choice(len(shares), KDD_ROWS, p=shares / shares.sum())
    numeric = np.empty((KDD_ROWS, 38))
    text = np.empty((KDD_ROWS, 3), int)
    for kind in range(len(shares)):
        mine = np.flatnonzero(labels == kind)
        spread = 1.0 if kind == 2 else 0.05
        usual = rng.lognormal(0.0, 3.0, 14)
        bursts = rng.random((len(mine), 14)) < (0.3 if kind == 2 else 0.02)
        numeric[mine, :14] = np.floor(
            usual * np.exp(spread * rng.standard_normal((len(mine), 14))) * np.where(bursts, 10, 1)
        )
        rates = np.round(rng.random(12), 1)
        moved = rng.random((len(mine), 12)) < (0.4 if kind == 2 else 0.05)
        numeric[mine, 14:26] = np.where(moved, np.round(rng.random((len(mine), 12)), 2), rates)
        numeric[mine, 26:] = numeric[mine, 14:26] + 0.01 * np.round(rng.standard_normal((len(mine), 12)), 1)
        for column, kinds in enumerate((3, 60, 11)):
            usual_kind = rng.integers(kinds)
            other = rng.random(len(mine)) < (0.5 if kind == 2 else 0.03)
            text[mine, column] = np.where(other, rng.integers(kinds, size=len(mine)), usual_kind)
    one_hot = [np.eye(text[:, column].max() + 1)[text[:, column]] for column in range(3)]
    return Rows(scaled(np.hstack([numeric, *one_hot])), labels, "look-alike")


@cache
def skin() -> Rows | None:
    """Colours of skin and of other things, three columns from 0 to 255, as they are; cut to 50,000 rows."""
    path = found("Skin_NonSkin.txt*")
    if path is None:
        return None
    rows = cut(np.loadtxt(path), 50_000)
    return Rows(np.ascontiguousarray(rows[:, :3]), numbered(rows[:, 3]))


@cache
def higgs() -> Rows | None:
    """Collisions, 28 columns, scaled; all 20,474 rows. Not in float32, in which scikit-learn's mixtures fail."""
    path = found("higgs_real_combined.npz")
    if path is None:
        return None
    with np.load(path) as archive:
        arrays = [archive[name] for name in archive.files]
    rows = next(a for a in arrays if a.ndim == 2)
    labels = rows[:, 0] if len(arrays) == 1 else next(a for a in arrays if a.ndim == 1)
    return Rows(scaled(rows[:, 1:] if len(arrays) == 1 else rows), numbered(labels))


def flights() -> Rows | None:
    """Flights from New York, late by 15 minutes or not, text one-hot; cut to 20,000 rows."""
    drop = ("arr_delay", "tailnum", "time_hour", "year", "dest", "flight", "arr_time", "sched_arr_time")
    return encoded(frame("flights", 20_000), lambda t: t["arr_delay"] > 15, drop)


def planes() -> Rows | None:
    return encoded(frame("planes", 4000), lambda t: t["engine"] == "Turbo-jet", ("engine", "tailnum", "model"))


def weather() -> Rows | None:
    """Hours of weather at three airports, columns of numbers; wet or not."""
    rows = frame("weather", 30_000)
    if rows is None:
        return None
    found = of_numbers(rows, ("time_hour", "year", "precip"))
    return None if found is None else found._replace(labels=numbered(rows["precip"] > 0))


def weather_smooth() -> Rows | None:
    """The columns of it that vary continuously."""
    rows = frame("weather", 30_000)
    return (
        None if rows is None else of_numbers(rows[["temp", "dewp", "humid", "wind_dir", "wind_speed", "pressure"]], ())
    )


def diamonds() -> Rows | None:
    """Sizes and prices of diamonds, quality one-hot, its cut the label; cut to 20,000 rows."""
    return encoded(frame("diamonds", 20_000), lambda t: t["cut"], ("cut",))


def diamond_sizes() -> Rows | None:
    """The columns of numbers alone."""
    return of_numbers(frame("diamonds", 20_000), ())


def penguins() -> Rows | None:
    return encoded(frame("penguins", 400), lambda t: t["species"], ("species",))


def penguin_sizes() -> Rows | None:
    return of_numbers(frame("penguins", 400), ("year",))


def seattle() -> Rows | None:
    return encoded(frame("seattle_weather", 1500), lambda t: t["weather"], ("weather", "date"))


@cache
def fashion() -> Rows | None:
    """Pictures of clothes, 784 columns from 0 to 1, float32; cut to 5,000 rows."""
    pictures, names = found("t10k-images-idx3-ubyte.gz"), found("t10k-labels-idx1-ubyte.gz")
    if pictures is None or names is None:
        return None
    pixels = np.frombuffer(gzip.decompress(pictures.read_bytes()), np.uint8, offset=16).reshape(-1, 784)
    labels = np.frombuffer(gzip.decompress(names.read_bytes()), np.uint8, offset=8)
    return Rows(cut(pixels, 5000).astype(np.float32) / np.float32(255), cut(labels, 5000).astype(int))


def adult() -> Rows | None:
    """a9a: 32,561 people, 123 columns of 0 and 1, sparse."""
    from sklearn.datasets import load_svmlight_file

    path = found("a9a.gz")
    if path is None:
        return None
    features, labels = load_svmlight_file(str(path), n_features=123)
    features.indices, features.indptr = features.indices.astype(np.int32), features.indptr.astype(np.int32)
    return Rows(features, numbered(labels))  # scikit-learn's own solver refuses the 64-bit indices of its own reader


def botnet() -> Rows | None:
    """N-BaIoT: 115 statistics of packets, nearly all collinear, with heavy tails; benign and three attacks; scaled."""
    paths = [found(f"{name}.csv.gz") for name in ("benign_traffic", "scan", "doorbell_udp", "thermostat_udp")]
    parts = [np.loadtxt(path, delimiter=",", skiprows=1) for path in paths if path is not None]
    if len(parts) < len(paths):
        return None
    return Rows(scaled(np.concatenate(parts)), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))


def ml100k() -> Rows:
    """MovieLens 100K: 943 users, 1,682 films, 0 where there is no rating."""
    import scipy.sparse

    path = found("u.data")
    if path is None:
        return Rows(rating_rows(), origin="look-alike")
    user, film, rating = np.loadtxt(path)[:, :3].T
    return Rows(scipy.sparse.csr_matrix((rating, (user.astype(int) - 1, film.astype(int) - 1))))


def movielens() -> Rows | None:
    """ml-latest-small: 610 users, films with at least 5 ratings."""
    import scipy.sparse

    path = found("ratings.csv.gz")
    if path is None:
        return None
    user, film, rating = np.loadtxt(path, delimiter=",", skiprows=1)[:, :3].T
    whole = scipy.sparse.csr_matrix((rating, (numbered(user), numbered(film))))
    return Rows(whole[:, np.diff(whole.tocsc().indptr) >= 5].tocsr())


def jester() -> Rows | None:
    """Ratings of 100 jokes, shifted to be positive, 0 where there is none; cut to 5,000 rows."""
    import pandas as pd

    path = found("jester-data-1.zip")
    if path is None:
        return None
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith((".xls", ".csv"))]
        with archive.open(name) as file:
            whole = pd.read_excel(file, header=None) if name.endswith(".xls") else pd.read_csv(file, header=None)
    ratings = cut(whole.to_numpy(np.float64), 5000)[:, 1:]
    return Rows(np.ascontiguousarray(np.where(ratings == 99, 0.0, ratings + 11.0)))


def digits() -> Rows:
    """Handwritten digits, 1,797 pictures of 8 × 8, from 0 to 16; with scikit-learn."""
    from sklearn.datasets import load_digits

    return Rows(*load_digits(return_X_y=True))


def tumours() -> Rows:
    """569 tumours, 30 columns, collinear; with scikit-learn; scaled."""
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    return Rows(scaled(features), labels)


@cache
def text() -> Rows:
    """TF-IDF in the shape of the 20 newsgroups, cut to 6,000 texts and 8,000 words; sparse."""
    return Rows(*text_rows(6000, 8000), origin="look-alike")


@cache
def embeddings() -> Rows:
    """Rows as models of sentences give them: 8,000 of 384 columns, length 1, float32, 40 subjects of unequal size."""
    rng = np.random.default_rng(384)
    shares = 1.0 / np.arange(1, 41) ** 0.7
    labels = rng.choice(40, 8000, p=shares / shares.sum())
    usual = rng.standard_normal((384, 384)) * np.arange(1, 385) ** -0.5
    subjects = rng.standard_normal((40, 384)) @ usual
    own = rng.lognormal(0.3, 0.3, (8000, 1)) * (rng.standard_normal((8000, 384)) @ usual)
    rows = subjects[labels] + own + 2.0 * usual.sum(axis=1)
    return Rows((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels, "look-alike")


def tiny() -> Rows:
    """Three groups of points, for a test of this program."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    return Rows(rng.normal(size=(300, 2)) + 6.0 * np.eye(3, 2)[labels], labels, "generated")
