"""Generated tables without structure of labels or ratings: what clustering meets, by name. Trains nothing.

Every table is a function without arguments, registered with `table`; the same name always gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLUSTERING = ("kmeans", "gmm", "fcm")
DENSE = (*CLUSTERING, "nmf")
SPARSE = ("kmeans", "lr", "nmf")


@dataclass(frozen=True)
class Table:
    """Rows (an array, or a `flegel` Sparse), labels where there are some, and how to train on them."""

    rows: Any
    labels: Any = None
    k: int = 4
    lr: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters of LR."""
    algorithms: tuple[str, ...] | None = None
    """Which algorithms make sense; None: all that the kind of rows and labels allow."""


TABLES: dict[str, Callable[[], Table]] = {}
REAL: set[str] = set()


def table(function: Callable[[], Table]) -> Callable[[], Table]:
    if function.__name__ in TABLES:
        raise ValueError(f"two tables are called {function.__name__}")
    TABLES[function.__name__] = function
    return function


def clouds(points: int = 600, columns: int = 4, clusters: int = 4, seed: int = 0, apart: float = 4.0) -> Any:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, columns)) * apart
    return centres[rng.integers(clusters, size=points)] + rng.normal(size=(points, columns))


def variant(name: str, make: Callable[[], Any], k: int = 4, **more: Any) -> None:
    """A table of one expression."""

    def build() -> Table:
        return Table(np.ascontiguousarray(make()), k=k, **more)

    build.__name__ = name
    table(build)


def tails(spread: float, columns: int = 3, points: int = 600) -> Any:
    return np.exp(spread * np.random.default_rng(4).normal(size=(points, columns)))


variant("plain", clouds)
variant("plain_float32", lambda: clouds().astype(np.float32))
variant("overlapping", lambda: clouds(800, 4, 5, seed=8, apart=1.0), k=5)
variant("no_clusters", lambda: np.random.default_rng(9).normal(size=(500, 6)), k=5)
variant("uniform", lambda: np.random.default_rng(10).random((500, 2)), k=6)
variant("tails_1", lambda: tails(1.0))
variant("tails_2", lambda: tails(2.0))
variant("tails_25", lambda: tails(2.5))
variant("tails_3", lambda: tails(3.0))
variant("tails_2_float32", lambda: tails(2.0).astype(np.float32))
variant("cauchy", lambda: np.random.default_rng(5).standard_cauchy(size=(600, 2)), k=5)
variant("pareto", lambda: np.random.default_rng(6).pareto(1.2, size=(600, 3)))
variant("student_2", lambda: np.random.default_rng(7).standard_t(2, size=(600, 4)))
variant("duplicates", lambda: np.repeat(clouds(30), 20, axis=0))
variant("three_distinct_rows", lambda: clouds(3)[np.arange(500) % 3], k=5)
variant("half_duplicates", lambda: np.r_[clouds(300), np.repeat(clouds(1), 300, axis=0)])
variant("tiny", lambda: clouds() * 1e-12)
variant("huge", lambda: clouds() * 1e12)
variant("tiny_float32", lambda: (clouds() * 1e-12).astype(np.float32))
variant("huge_float32", lambda: (clouds() * 1e12).astype(np.float32))
variant("extreme_small", lambda: clouds() * 1e-60)
variant("extreme_large", lambda: clouds() * 1e60)
variant("unequal_scales", lambda: clouds() * np.array([1e-12, 1.0, 1e6, 1e12]))
variant("offset_1e4_float32", lambda: (clouds() + 1e4).astype(np.float32))
variant("offset_1e8", lambda: clouds() + 1e8)
variant("offset_1e12", lambda: clouds() + 1e12)
variant("timestamps", lambda: np.c_[1.7e9 + 3600.0 * np.arange(700), clouds(700, 2)])
variant("all_equal", lambda: np.full((200, 3), -4.5), k=3)
variant("all_zero", lambda: np.zeros((200, 3)), k=3)
variant("one_row", lambda: np.array([[2.5, -1.0, 0.0]]), k=1)
variant("two_rows", lambda: np.array([[2.5, -1.0, 0.0], [2.0, 1.0, 7.0]]), k=2)
variant("k_is_one", clouds, k=1)
variant("k_near_n", lambda: clouds(60), k=55)
variant("k_is_n", lambda: clouds(40), k=40)
variant("hundred_clusters", lambda: clouds(2000, 3, 100, seed=11, apart=20.0), k=100)
variant("one_column", lambda: clouds(600, 1), k=3)
variant("one_binary_column", lambda: (np.random.default_rng(12).random((300, 1)) < 0.2) * 1.0, k=2)
variant("binary_columns", lambda: (clouds(600, 12) > 0.5) * 1.0)
variant("rounded", lambda: clouds().round(0))
variant("grid", lambda: np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), axis=-1).reshape(-1, 2), k=4)
variant("small_integers", lambda: np.random.default_rng(13).poisson(2.0, size=(600, 5)).astype(np.float64))
variant("zero_inflated", lambda: np.where(np.random.default_rng(14).random((600, 5)) < 0.8, 0.0, tails(1.0, 5)))
variant("sentinel_999", lambda: np.where(np.random.default_rng(15).random((600, 4)) < 0.05, -999.0, clouds()))
variant("sorted_by_column", lambda: (rows := clouds())[np.argsort(rows[:, 0])])
variant("sorted_by_cluster", lambda: np.concatenate([clouds(150, clusters=1, seed=s) for s in range(4)]))
variant("tight_and_wide", lambda: np.r_[clouds(300, clusters=1) * 1e-4, clouds(300, clusters=2) * 10.0], k=3)
variant("rings", lambda: _rings(), k=4)
variant("stretched", lambda: clouds(600, 3) @ np.array([[30.0, 0, 0], [29.0, 1.0, 0], [0, 0, 0.05]]))
variant("noise_columns", lambda: np.c_[clouds(400), np.random.default_rng(16).normal(size=(400, 60))])
variant("more_columns_than_rows", lambda: clouds(40, 120), k=3)
variant("imbalanced_clusters", lambda: np.r_[clouds(590, clusters=1), clouds(10, clusters=1) + 12.0], k=2)
variant("wide", lambda: clouds(1500, 96, 64, seed=19, apart=2.0).astype(np.float32), k=64, algorithms=("kmeans", "fcm"))
variant("narrow", lambda: clouds(3000, 2, 64, seed=20, apart=8.0), k=64, algorithms=("kmeans", "gmm"))
variant("narrow_cone", lambda: clouds(800, 24, 6, seed=21, apart=2.0) + 40.0, k=6, algorithms=("kmeans", "gmm"))
variant("one_in_1e4", lambda: np.r_[clouds(10000, 2, 1), np.full((1, 2), 50.0)], k=2)


def _rings() -> Any:
    rng = np.random.default_rng(17)
    angle, radius = rng.random(600) * 2 * np.pi, rng.integers(1, 3, size=600) * 3.0
    return np.c_[np.cos(angle), np.sin(angle)] * radius[:, None] + 0.1 * rng.normal(size=(600, 2))


def outliers(count: int, far: float) -> Any:
    rows = clouds()
    rows[np.random.default_rng(18).choice(len(rows), count, replace=False), 1] *= far
    return rows


variant("outlier_1e3", lambda: outliers(1, 1e3))
variant("outlier_1e6", lambda: outliers(1, 1e6))
variant("outlier_1e12", lambda: outliers(1, 1e12))
variant("outliers_1_percent", lambda: outliers(6, 1e3))
variant("outlier_float32", lambda: outliers(1, 1e6).astype(np.float32))


@table
def collinear() -> Table:
    rows = clouds()
    return Table(np.c_[rows, rows @ np.random.default_rng(1).normal(size=(4, 4)), rows[:, :1]])


@table
def nearly_collinear() -> Table:
    rows = clouds()
    return Table(np.c_[rows, rows[:, :2] + 1e-8 * np.random.default_rng(1).normal(size=(600, 2))])


@table
def constant_columns() -> Table:
    rows = clouds()
    return Table(np.c_[rows, np.full(len(rows), 7.25), np.zeros(len(rows)), np.full(len(rows), 1e9)])


@table
def rare_columns() -> Table:
    """Two columns that differ from 0 in 2 and in 6 of 600 rows."""
    seldom = np.zeros((600, 2))
    seldom[:2, 0], seldom[-6:, 1] = 25.0, np.random.default_rng(2).uniform(5, 15, 6)
    return Table(np.c_[clouds(), seldom])


def network(points: int, seed: int = 3) -> Any:
    """One-hot words, counts with long tails, rates, duplicates and constants."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(12, points, p=0.5 ** np.arange(1, 13) / (1 - 0.5**12))
    words, flags = np.eye(12)[kind], np.eye(6)[(kind + (rng.random(points) < 0.1)) % 6]
    counts = np.exp(rng.normal(size=(points, 4)) * 1.5 + kind[:, None] % 4)
    rates = np.where(kind[:, None] % 3 == 0, 0.0, rng.random((points, 3)).round(2))
    return np.c_[words, flags, counts, rates, 1 - rates, counts[:, :1] * 2, np.zeros((points, 2))]


def standardized(rows: Any) -> Any:
    spread = rows.std(axis=0)
    return (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


variant("one_hot_raw", lambda: network(800), k=6)
variant("one_hot_standardized", lambda: standardized(network(800)), k=6)


@table
def starts_given_twice() -> Table:
    """Every start occurs twice in k: half of the clusters lose their points at once and must find others."""
    return Table(np.r_[clouds(900, 4, 8, seed=1), clouds(300, 4, 3, seed=2) * 0.3], k=16, algorithms=("kmeans",))
