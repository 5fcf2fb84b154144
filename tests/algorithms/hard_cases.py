"""Tables that nobody prepared, for tests of the clustering algorithms and factorizations: (rows, k) by name.

Small on purpose: each trains in well under a second. Real tables are read from a folder beside the project.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
from real_data import find, higgs, skin

Case = tuple[np.ndarray, int]


def clouds(points: int = 600, columns: int = 4, clusters: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, columns)) * 4
    return centres[rng.integers(clusters, size=points)] + rng.normal(size=(points, columns))


def collinear() -> Case:
    rows = clouds()
    return np.c_[rows, rows @ np.random.default_rng(1).normal(size=(4, 4)), rows[:, :1]], 4


def constant() -> Case:
    rows = clouds()
    return np.c_[rows, np.full(len(rows), 7.25), np.zeros(len(rows))], 4


def rare() -> Case:
    """Two columns that differ from 0 in 2 and in 6 of 600 rows."""
    rng = np.random.default_rng(2)
    seldom = np.zeros((600, 2))
    seldom[:2, 0], seldom[-6:, 1] = 25.0, rng.uniform(5, 15, 6)
    return np.c_[clouds(), seldom], 4


def one_hot() -> Case:
    """Traffic as tables of networks have it: one-hot words, counts with long tails, standardized, many collinear."""
    rng = np.random.default_rng(3)
    kind = rng.choice(12, 800, p=0.5 ** np.arange(1, 13) / (1 - 0.5**12))
    words = np.eye(12)[kind]
    flags = np.eye(6)[(kind + (rng.random(800) < 0.1)) % 6]
    counts = np.exp(rng.normal(size=(800, 4)) * 1.5 + kind[:, None] % 4)
    rates = np.where(kind[:, None] % 3 == 0, 0.0, rng.random((800, 3)).round(2))
    table = np.c_[words, flags, counts, rates, 1 - rates, counts[:, :1] * 2, np.zeros((800, 2))]
    spread = table.std(axis=0)
    return (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0), 6


def heavy() -> Case:
    return np.exp(2.0 * np.random.default_rng(4).normal(size=(600, 3))), 4


def cauchy() -> Case:
    return np.random.default_rng(5).standard_cauchy(size=(600, 2)), 5


def duplicates() -> Case:
    return np.repeat(clouds(30), 20, axis=0), 4


def tiny() -> Case:
    return clouds() * 1e-12, 4


def huge() -> Case:
    return clouds() * 1e12, 4


def unequal_scales() -> Case:
    return clouds() * np.array([1e-12, 1.0, 1e6, 1e12]), 4


def offset() -> Case:
    return clouds() + 1e8, 4


def imbalance() -> Case:
    return np.r_[clouds(590, clusters=1), clouds(10, clusters=1) + 12.0], 2


def outlier() -> Case:
    rows = clouds()
    rows[37, 1] = 1e6
    return rows, 4


def many_clusters() -> Case:
    return clouds(60), 55


def one_column() -> Case:
    return clouds(600, 1), 3


def one_row() -> Case:
    return np.array([[2.5, -1.0, 0.0]]), 1


def by_label() -> Case:
    rows = clouds()
    return rows[np.argsort(rows[:, 0])], 4


def all_equal() -> Case:
    return np.full((200, 3), -4.5), 3


SYNTHETIC: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        collinear, constant, rare, one_hot, heavy, cauchy, duplicates, tiny, huge, unequal_scales, offset, imbalance,
        outlier, many_clusters, one_column, one_row, by_label, all_equal,
    )
}  # fmt: skip


def skin_rows() -> Case:
    """Colours in file order, sorted by label; many equal."""
    return skin()[0][::300], 4


def higgs_rows() -> Case:
    return higgs()[0][:1500].astype(np.float64), 5


def traffic() -> Case:
    """115 statistics of packets from four devices, nearly all collinear, on scales from 1e-10 to 1e15."""
    parts: list[Any] = []
    for name in ("benign_traffic", "scan", "doorbell_udp", "thermostat_udp"):
        with gzip.open(find(f"nbaiot/{name}.csv.gz"), "rt") as lines:
            parts.append(np.genfromtxt(lines, delimiter=",", skip_header=1))
    return np.concatenate(parts), 4


def weather() -> Case:
    """Numbers of nine columns, hours with missing ones left out."""
    import pandas as pd

    table = pd.read_csv(find("tables/weather.csv.gz")).select_dtypes("number").drop(columns=["wind_gust"])
    return table.dropna().to_numpy(np.float64)[::20], 5


REAL: dict[str, Callable[[], Case]] = {make.__name__: make for make in (skin_rows, higgs_rows, traffic, weather)}
EPSILON = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-6}
"""Relative bound of law 1 by precision: the reported objective is that of θ evaluated from scratch."""
