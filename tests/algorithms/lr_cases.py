"""Data that nobody prepared, for logistic regression: heavy tails, rare or collinear columns, odd scales, rare labels.

Every case is a function without arguments that returns rows, labels and hyper-parameters. Real tables are read from the
folder of `real_data`. Never trains anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import real_data

Case = tuple[Any, Any, dict[str, Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


def drawn(scores: Any, rng: np.random.Generator) -> Any:
    """Labels 0 and 1 of a logistic model with these scores."""
    return (rng.random(len(scores)) < 1.0 / (1.0 + np.exp(-np.clip(scores, -500, 500)))).astype(np.float64)


def several(scores: Any, rng: np.random.Generator) -> Any:
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)


def normal(points: int = 3000, columns: int = 8, seed: int = 0) -> tuple[Any, Any, np.random.Generator]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((points, columns))
    return rows, rows @ rng.standard_normal(columns), rng


@case
def plain() -> Case:
    rows, scores, rng = normal()
    return rows, drawn(scores, rng), {}


@case
def plain_float32() -> Case:
    rows, scores, rng = normal()
    return rows.astype(np.float32), drawn(scores, rng), {"l2": 1e-3}


def tails(spread: float, of_log: bool, points: int = 6000) -> Case:
    rng = np.random.default_rng(int(10 * spread))
    normals = rng.standard_normal((points, 6))
    rows = np.exp(spread * normals)
    weights = np.array([1.0, -1.0, 0.5, -0.5, 2.0, 0.0])
    scores = normals @ weights if of_log else rows @ weights / 4
    return rows, drawn(scores, rng), {}


@case
def tails_2_of_log() -> Case:
    return tails(2.0, True)


@case
def tails_3_of_log() -> Case:
    return tails(3.0, True)


@case
def tails_25_of_rows() -> Case:
    return tails(2.5, False)


@case
def tails_3_of_rows() -> Case:
    return tails(3.0, False)


@case
def cauchy() -> Case:
    rng = np.random.default_rng(4)
    rows = rng.standard_cauchy((6000, 6))
    return rows, drawn(np.arctan(rows) @ np.array([1.0, -1.0, 2.0, 0.5, 0.0, 1.0]), rng), {}


def traffic(points: int, groups: int, seed: int = 3) -> Case:
    """One-hot groups with rare levels, duplicates and heavy tails, standardized: rare ones reach 1 / √frequency."""
    rng = np.random.default_rng(seed)
    parts, scores = [], np.zeros(points)
    for _ in range(groups):
        levels = int(rng.integers(2, 7))
        odds = np.r_[1.0, 10.0 ** -rng.uniform(0.3, np.log10(points) - 0.3, levels - 1)]
        chosen = rng.choice(levels, points, p=odds / odds.sum())
        parts.append(np.eye(levels)[chosen])
        scores += (3.0 * rng.standard_normal(levels))[chosen]
    lengths = np.exp(2.5 * rng.standard_normal((points, 4)))
    scores += 2.0 * np.log(lengths[:, 0]) - lengths[:, 1] / 50.0
    rows = np.hstack([*parts, lengths, parts[0][:, :1], lengths[:, :1] * 2.0])
    rows = rows - rows.mean(axis=0)
    deviation = rows.std(axis=0)
    return rows / np.where(deviation > 0, deviation, 1.0), drawn(scores, rng), {}


@case
def network_traffic() -> Case:
    return traffic(6000, 12)


@case
def network_traffic_l2() -> Case:
    rows, labels, _ = traffic(6000, 12, seed=8)
    return rows, labels, {"l2": 1e-4}


@case
def network_traffic_sorted() -> Case:
    rows, labels, _ = traffic(6000, 12, seed=9)
    order = np.argsort(labels + 1e-3 * rows[:, -1], kind="stable")
    return rows[order], labels[order], {"l2": 1e-5}


@case
def twenty_positives() -> Case:
    rows, scores, rng = normal(20000, 5, seed=6)
    noisy = scores + rng.standard_normal(20000)
    return rows, (noisy >= np.sort(noisy)[-20]).astype(np.float64), {}


@case
def one_in_thirty_thousand() -> Case:
    rows, _, _ = normal(30000, 3, seed=7)
    labels = np.zeros(30000)
    labels[[77, 9000]] = 1.0
    return rows, labels, {"l2": 1e-6, "classes": [0.0, 1.0]}


@case
def scales() -> Case:
    rows, scores, rng = normal(seed=11)
    return rows * np.logspace(-12, 12, 8), drawn(scores, rng), {}


@case
def offsets() -> Case:
    rows, scores, rng = normal(columns=4, seed=12)
    return rows + np.array([1e8, -1e8, 1e4, 0.0]), drawn(scores, rng), {}


@case
def collinear() -> Case:
    rows, scores, rng = normal(seed=13)
    mixed = rows @ rng.standard_normal((8, 5))
    return np.hstack([rows, rows[:, :2], mixed, np.ones((3000, 1)), np.zeros((3000, 1))]), drawn(scores, rng), {}


@case
def nearly_collinear() -> Case:
    rows, scores, rng = normal(columns=3, seed=14)
    close = rows[:, :1] + 1e-4 * rng.standard_normal((3000, 1))
    return np.hstack([rows, close]), drawn(scores + 2e4 * (close[:, 0] - rows[:, 0]), rng), {}


@case
def separable() -> Case:
    rows, scores, _ = normal(seed=15)
    return rows, (scores > 0).astype(np.float64), {}


@case
def separable_l2() -> Case:
    rows, scores, _ = normal(seed=15)
    return rows, (scores > 0).astype(np.float64), {"l2": 1e-3}


@case
def partly_separable() -> Case:
    rows, scores, rng = normal(columns=3, seed=16)
    labels = drawn(scores, rng)
    rare = np.zeros((3000, 1))
    rare[np.flatnonzero(labels == 1)[:7]] = 1.0
    return np.hstack([rows, rare]), labels, {}


@case
def more_columns_than_rows() -> Case:
    rows, scores, rng = normal(60, 100, seed=17)
    return rows, drawn(scores, rng), {"l2": 0.01}


@case
def many_columns() -> Case:
    rng = np.random.default_rng(18)
    rows = rng.standard_normal((1500, 6)) @ rng.standard_normal((6, 300)) + rng.standard_normal((1500, 300))
    return rows, drawn(rows[:, :5].sum(axis=1) / 3, rng), {"l2": 1e-2}


@case
def lasso() -> Case:
    rows, scores, rng = normal(columns=20, seed=19)
    rows[:, 10:] = rows[:, :10] + 0.3 * rows[:, 10:]
    return rows * np.logspace(-0.5, 0.5, 20), drawn(scores / 2, rng), {"l1": 0.02}


@case
def elastic_net() -> Case:
    rows, scores, rng = normal(columns=12, seed=20)
    return np.exp(rows), drawn(scores, rng), {"l1": 0.005, "l2": 0.01}


@case
def balanced() -> Case:
    rows, scores, rng = normal(seed=21)
    return rows, drawn(scores - 5, rng), {"class_weight": "balanced", "l2": 1e-4}


@case
def weighted_classes() -> Case:
    rows, scores, rng = normal(seed=22)
    return rows, several(np.stack([scores, -scores, 0.0 * scores], axis=1), rng), {"class_weight": {0: 3.0, 2: 0.5}}


@case
def three_classes() -> Case:
    rows, _, rng = normal(seed=23)
    rows = rows * np.logspace(-3, 3, 8) + 5.0
    scores = (rows - 5.0) / np.logspace(-3, 3, 8) @ rng.standard_normal((8, 3))
    return rows, several(scores, rng), {"l2": 1e-6}


@case
def rare_classes() -> Case:
    rows, _, rng = normal(5000, 5, seed=24)
    scores = rows @ rng.standard_normal((5, 5)) + np.array([0.0, -2.0, -4.0, -6.0, 1.0])
    return np.exp(rows), several(scores, rng), {"l2": 1e-5}


@case
def lasso_of_classes() -> Case:
    rows, _, rng = normal(seed=25)
    return rows, several(rows @ rng.standard_normal((8, 4)), rng), {"l1": 0.01}


@case
def no_intercept() -> Case:
    rows, scores, rng = normal(seed=26)
    return rows + 1.0, drawn(scores, rng), {"intercept": False}


# -- real tables --------------------------------------------------------------------------------------------


def one_hot(name: str, label: Callable[[Any], Any], drop: tuple[str, ...] = (), points: int = 8000) -> tuple[Any, Any]:
    """A table as it is: text one-hot encoded, rows with missing values left out, nothing scaled."""
    import pandas as pd

    table = pd.read_csv(real_data.find(f"tables/{name}.csv.gz")).dropna()
    if len(table) > points:
        table = table.iloc[:: len(table) // points]
    labels = np.asarray(label(table), dtype=np.float64)
    features = pd.get_dummies(table.drop(columns=[*drop]), drop_first=False)
    return features.to_numpy(np.float64), labels


@case
def diamonds() -> Case:
    rows, labels = one_hot("diamonds", lambda t: t["price"] > 5000, ("price",))
    return rows, labels, {}


@case
def penguins() -> Case:
    rows, labels = one_hot("penguins", lambda t: t["species"].astype("category").cat.codes, ("species",))
    return rows, labels, {"l2": 1e-4}


@case
def skin() -> Case:
    rows, labels = real_data.skin()
    return rows[::25].astype(np.float32), labels[::25], {}


@case
def higgs() -> Case:
    rows, labels = real_data.higgs()
    return rows[::4].astype(np.float32), labels[::4], {}


@case
def flights() -> Case:
    rows, labels = one_hot("flights", lambda t: t["arr_delay"] > 15, ("arr_delay", "tailnum", "time_hour"), 6000)
    return rows, labels, {}


@case
def botnet() -> Case:
    """Benign traffic against three attacks, 115 statistics of it, from 1e-10 to 1e15, many of them collinear."""
    names = ("benign_traffic", "scan", "doorbell_udp", "thermostat_udp")
    tables = [np.loadtxt(real_data.find(f"nbaiot/{name}.csv.gz"), delimiter=",", skiprows=1) for name in names]
    return np.vstack(tables), np.repeat([0.0, 1.0, 1.0, 1.0], [len(table) for table in tables]), {}


@case
def census() -> Case:
    rows, labels = real_data.a9a()
    return rows, labels, {"l2": 1e-4}


# -- what scikit-learn finds --------------------------------------------------------------------------------


def objective(rows: Any, labels: Any, hyper: dict[str, Any], weights: Any, bias: Any) -> float:
    """Mean weighted log-loss + penalty, from scratch."""
    classes = np.unique(labels)
    scores = rows @ weights.T + bias
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    loss = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), np.searchsorted(classes, labels)]
    given = hyper.get("class_weight")
    if given == "balanced":
        given = {c: len(labels) / (len(classes) * (labels == c).sum()) for c in classes}
    if given:
        loss = loss * np.array([given.get(c, 1.0) for c in labels])
    penalty = 0.5 * hyper.get("l2", 0.0) * (weights**2).sum() + hyper.get("l1", 0.0) * np.abs(weights).sum()
    return float(loss.mean() + penalty)


def scikit_learn(rows: Any, labels: Any, hyper: dict[str, Any]) -> float:
    """The best objective that its solvers find. Without penalty they are given standardized columns."""
    import warnings

    from sklearn.linear_model import LogisticRegression

    l1, l2 = hyper.get("l1", 0.0), hyper.get("l2", 0.0)
    data, points = np.asarray(rows, dtype=np.float64), len(labels)
    mean, deviation = np.zeros(data.shape[1]), np.ones(data.shape[1])
    if not l1 and not l2:
        mean = data.mean(axis=0) if hyper.get("intercept", True) else mean
        deviation = np.sqrt(((data - mean) ** 2).mean(axis=0))
        deviation[deviation <= 1e-12 * np.abs(mean)] = np.inf
    unit = (data - mean) / deviation
    common = {"fit_intercept": hyper.get("intercept", True), "class_weight": hyper.get("class_weight")}
    if l1:
        solvers = [{"solver": "saga", "penalty": "elasticnet", "l1_ratio": l1 / (l1 + l2), "max_iter": 3000}]
        common |= {"C": 1 / (points * (l1 + l2)), "tol": 1e-6}
    else:
        solvers = [{"solver": "lbfgs", "max_iter": 3000}, {"solver": "newton-cholesky", "max_iter": 200}]
        common |= {"C": 1 / (points * l2) if l2 else 1e10, "tol": 1e-8}
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for solver in solvers:
            model = LogisticRegression(**common, **solver).fit(unit, labels)
            weights = model.coef_ / deviation
            bias = model.intercept_ - weights @ np.where(np.isfinite(deviation), mean, 0.0)
            found.append(objective(data, labels, hyper, weights, bias))
    return min(found)
