"""Generated tables with labels: what logistic regression meets. Trains nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.gauntlet.tables import Table, network, standardized, table

LABELLED = ("lr",)


def drawn(scores: Any, rng: np.random.Generator) -> Any:
    """Labels 0 and 1 of a logistic model with these scores."""
    return (rng.random(len(scores)) < 1.0 / (1.0 + np.exp(-np.clip(scores, -500, 500)))).astype(np.float64)


def several(scores: Any, rng: np.random.Generator) -> Any:
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)


def normal(points: int = 2000, columns: int = 6, seed: int = 0) -> tuple[Any, Any, np.random.Generator]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((points, columns))
    return rows, rows @ rng.standard_normal(columns), rng


def labelled(rows: Any, labels: Any, **lr: Any) -> Table:
    return Table(np.ascontiguousarray(rows), labels, lr=lr, algorithms=LABELLED)


@table
def lr_plain() -> Table:
    rows, scores, rng = normal()
    return labelled(rows, drawn(scores, rng))


@table
def lr_float32() -> Table:
    rows, scores, rng = normal()
    return labelled(rows.astype(np.float32), drawn(scores, rng), l2=1e-3)


def heavy(spread: float, of_log: bool) -> Table:
    rng = np.random.default_rng(int(10 * spread))
    normals = rng.standard_normal((4000, 6))
    rows = np.exp(spread * normals)
    weights = np.array([1.0, -1.0, 0.5, -0.5, 2.0, 0.0])
    return labelled(rows, drawn(normals @ weights if of_log else rows @ weights / 4, rng))


@table
def lr_tails_2() -> Table:
    return heavy(2.0, True)


@table
def lr_tails_25() -> Table:
    return heavy(2.5, False)


@table
def lr_tails_3() -> Table:
    return heavy(3.0, False)


@table
def lr_tails_3_of_log() -> Table:
    return heavy(3.0, True)


@table
def lr_cauchy() -> Table:
    rng = np.random.default_rng(4)
    rows = rng.standard_cauchy((4000, 6))
    return labelled(rows, drawn(np.arctan(rows) @ np.array([1.0, -1.0, 2.0, 0.5, 0.0, 1.0]), rng))


@table
def lr_network_standardized() -> Table:
    rng = np.random.default_rng(5)
    rows = network(4000)
    return labelled(standardized(rows), drawn(rows @ rng.standard_normal(rows.shape[1]) / 8, rng))


@table
def lr_network_raw_l2() -> Table:
    rng = np.random.default_rng(6)
    rows = network(4000, seed=8)
    return labelled(rows, drawn(rows @ rng.standard_normal(rows.shape[1]) / 8, rng), l2=1e-4)


@table
def lr_imbalance_20_in_20000() -> Table:
    rows, scores, rng = normal(20000, 5, seed=6)
    noisy = scores + rng.standard_normal(20000)
    return labelled(rows, (noisy >= np.sort(noisy)[-20]).astype(np.float64))


@table
def lr_imbalance_1_in_1e5() -> Table:
    rows, _, _ = normal(100_000, 3, seed=7)
    labels = np.zeros(100_000)
    labels[777] = 1.0
    return labelled(rows, labels, l2=1e-6, classes=[0.0, 1.0])


@table
def lr_scales() -> Table:
    rows, scores, rng = normal(seed=11)
    return labelled(rows * np.logspace(-12, 12, 6), drawn(scores, rng))


@table
def lr_offsets() -> Table:
    rows, scores, rng = normal(columns=4, seed=12)
    return labelled(rows + np.array([1e8, -1e8, 1e4, 0.0]), drawn(scores, rng))


@table
def lr_collinear_constant() -> Table:
    rows, scores, rng = normal(seed=13)
    mixed = rows @ rng.standard_normal((6, 5))
    return labelled(np.c_[rows, rows[:, :2], mixed, np.ones(2000), np.zeros(2000)], drawn(scores, rng))


@table
def lr_nearly_collinear() -> Table:
    rows, scores, rng = normal(columns=3, seed=14)
    close = rows[:, :1] + 1e-4 * rng.standard_normal((2000, 1))
    return labelled(np.c_[rows, close], drawn(scores + 2e4 * (close[:, 0] - rows[:, 0]), rng))


@table
def lr_separable() -> Table:
    rows, scores, _ = normal(seed=15)
    return labelled(rows, (scores > 0).astype(np.float64))


@table
def lr_separable_l2() -> Table:
    rows, scores, _ = normal(seed=15)
    return labelled(rows, (scores > 0).astype(np.float64), l2=1e-3)


@table
def lr_partly_separable() -> Table:
    rows, scores, rng = normal(columns=3, seed=16)
    labels = drawn(scores, rng)
    rare = np.zeros((2000, 1))
    rare[np.flatnonzero(labels == 1)[:7]] = 1.0
    return labelled(np.c_[rows, rare], labels)


@table
def lr_one_class() -> Table:
    rows, _, _ = normal(300, 3)
    return labelled(rows, np.ones(300))


@table
def lr_one_row() -> Table:
    return labelled(np.array([[1.0, 2.0]]), np.array([1.0]), l2=0.1)


@table
def lr_noise_only() -> Table:
    rows, _, rng = normal(1500, 8, seed=17)
    return labelled(rows, (rng.random(1500) < 0.5).astype(np.float64))


@table
def lr_more_columns_than_rows() -> Table:
    rows, scores, rng = normal(60, 100, seed=17)
    return labelled(rows, drawn(scores, rng), l2=0.01)


@table
def lr_300_columns() -> Table:
    rng = np.random.default_rng(18)
    rows = rng.standard_normal((1200, 6)) @ rng.standard_normal((6, 300)) + rng.standard_normal((1200, 300))
    return labelled(rows, drawn(rows[:, :5].sum(axis=1) / 3, rng), l2=1e-2)


@table
def lr_lasso() -> Table:
    rows, scores, rng = normal(columns=20, seed=19)
    rows[:, 10:] = rows[:, :10] + 0.3 * rows[:, 10:]
    return labelled(rows * np.logspace(-0.5, 0.5, 20), drawn(scores / 2, rng), l1=0.02)


@table
def lr_elastic_net_tails() -> Table:
    rows, scores, rng = normal(columns=12, seed=20)
    return labelled(np.exp(rows), drawn(scores, rng), l1=0.005, l2=0.01)


@table
def lr_balanced() -> Table:
    rows, scores, rng = normal(seed=21)
    return labelled(rows, drawn(scores - 5, rng), class_weight="balanced", l2=1e-4)


@table
def lr_three_classes_scales() -> Table:
    rows, _, rng = normal(seed=23)
    scores = rows @ rng.standard_normal((6, 3))
    return labelled(rows * np.logspace(-3, 3, 6) + 5.0, several(scores, rng), l2=1e-6)


@table
def lr_rare_classes() -> Table:
    rows, _, rng = normal(4000, 5, seed=24)
    scores = rows @ rng.standard_normal((5, 5)) + np.array([0.0, -2.0, -4.0, -6.0, 1.0])
    return labelled(np.exp(rows), several(scores, rng), l2=1e-5)


@table
def lr_fifty_classes() -> Table:
    rows, _, rng = normal(3000, 5, seed=25)
    return labelled(rows, several(rows @ rng.standard_normal((5, 50)), rng), l2=1e-3)


@table
def lr_odd_labels() -> Table:
    rows, scores, rng = normal(seed=26)
    return labelled(rows, np.where(drawn(scores, rng) > 0, 2.5, -7.0))


@table
def lr_sorted_by_label() -> Table:
    rows, scores, rng = normal(seed=27)
    labels = drawn(scores, rng)
    order = np.argsort(labels, kind="stable")
    return labelled(rows[order], labels[order])


@table
def lr_duplicate_rows() -> Table:
    rows, scores, rng = normal(40, 3, seed=28)
    labels = drawn(scores, rng)
    return labelled(np.repeat(rows, 50, axis=0), np.repeat(labels, 50), l2=1e-3)
