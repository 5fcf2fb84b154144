"""Fit the figures of one class of a stand-in to real rows: quantiles and correlations of normal scores.

Quantiles are rounded to four digits. Never keeps a row.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.synthetic.normal_scores import SPAN, normal_cdf, normal_scores

FEW_VALUES = 8
"""A column with at most this many distinct values is drawn from exactly these."""


def fit_class(rows: Array, label: int, share: float, factors: int, knots: int) -> dict[str, Any]:
    """Figures of the rows of one class as plain types."""
    count, columns = rows.shape
    at = normal_cdf(np.linspace(-SPAN, SPAN, knots))
    table = np.quantile(rows, at, axis=0).T
    rng = np.random.default_rng(0)
    scores = np.empty_like(rows)
    atoms: dict[str, Any] = {}
    for column in range(columns):
        order = np.lexsort((rng.random(count), rows[:, column]))
        scores[order, column] = normal_scores((np.arange(count) + 0.5) / count)
        values, counts = np.unique(rows[:, column], return_counts=True)
        if len(values) <= FEW_VALUES:
            edges = normal_scores(np.cumsum(counts)[:-1] / count)
            atoms[str(column)] = {"values": rounded(values), "scores": rounded(edges)}
            table[column] = 0.0
    correlation = np.corrcoef(scores, rowvar=False)
    values, vectors = np.linalg.eigh(correlation)
    kept = np.argsort(values)[::-1][:factors]
    loadings = vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0.0))
    return {
        "label": label,
        "share": round(share, 6),
        "quantiles": rounded(table),
        "loadings": np.round(loadings, 4).tolist(),
        "atoms": atoms,
    }


def rounded(values: Array) -> Any:
    """Four significant digits, as lists."""
    return json.loads("[" + ",".join(_plain(v) for v in values) + "]")


def _plain(value: Any) -> str:
    if np.ndim(value):
        return "[" + ",".join(_plain(v) for v in value) + "]"
    text = f"{float(value):.4g}"
    return str(int(float(text))) if float(text).is_integer() and abs(float(text)) < 1e6 else text
