"""Fit the figures of a stand-in to real rows: `python -m flegel.datasets.synthetic.fitting NAME FILE...

> fitted/NAME.json`.

Keeps class shares, quantiles rounded to four digits, and correlations of normal scores; never keeps a row.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.synthetic.copula import SPAN

FEW_VALUES = 8
"""A column with at most so many different values is drawn from exactly these."""


def normal_cdf(scores: Array) -> Array:
    from math import erf

    return np.array([0.5 * (1 + erf(s / 2**0.5)) for s in scores])


def normal_scores(ranks: Array) -> Array:
    """Inverse of the normal distribution function, by interpolation in a fine table."""
    grid = np.linspace(-6, 6, 24001)
    return np.interp(ranks, normal_cdf(grid), grid)


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


def main(arguments: list[str]) -> None:
    from flegel.datasets.synthetic.fitting_sets import FITS

    name, *files = arguments
    json.dump(FITS[name](files), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
