"""Fit the figures of a stand-in to an excerpt of real rows: quantiles and correlations of normal scores, by class.

`python -m bench.fit_standin NAME FILE… > datasets/synthetic/fitted/NAME.json`. Quantiles are rounded to four digits.
Run by hand; never keeps a row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from math import erf
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.synthetic.published_figures import SPAN

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


def normal_cdf(scores: Array) -> Array:
    return np.array([0.5 * (1 + erf(s / 2**0.5)) for s in scores])


def normal_scores(ranks: Array) -> Array:
    """Inverse of the normal distribution function, by interpolation in a fine table."""
    grid = np.linspace(-6, 6, 24001)
    return np.interp(ranks, normal_cdf(grid), grid)


HIGGS_COLUMNS = [
    "lepton_pT",
    "lepton_eta",
    "lepton_phi",
    "missing_energy_magnitude",
    "missing_energy_phi",
    "jet_1_pt",
    "jet_1_eta",
    "jet_1_phi",
    "jet_1_btag",
    "jet_2_pt",
    "jet_2_eta",
    "jet_2_phi",
    "jet_2_btag",
    "jet_3_pt",
    "jet_3_eta",
    "jet_3_phi",
    "jet_3_btag",
    "jet_4_pt",
    "jet_4_eta",
    "jet_4_phi",
    "jet_4_btag",
    "m_jj",
    "m_jjj",
    "m_lv",
    "m_jlv",
    "m_bb",
    "m_wbb",
    "m_wwbb",
]


def higgs(files: list[str]) -> Any:
    """From an `.npz` with X (rows × 28) and y."""
    with np.load(files[0], allow_pickle=False) as data:
        features, labels = data["X"], data["y"]
    tags = [i for i, name in enumerate(HIGGS_COLUMNS) if name.endswith("btag")]
    features[:, tags] = np.round(features[:, tags], 3)
    parts = [
        fit_class(features[labels == k].astype(np.float64), k, float((labels == k).mean()), factors=28, knots=65)
        for k in (0, 1)
    ]
    return {"names": HIGGS_COLUMNS, "classes": parts}


NBAIOT_BENIGN = 555_932 / 7_062_606
"""Fraction of benign rows in the whole set; the excerpts have equally many rows of each file."""


def nbaiot(files: list[str]) -> Any:
    """From one CSV of benign traffic and one for each kind of attack; the label is 1 for an attack."""
    import pandas

    parts = []
    for file in files:
        frame = pandas.read_csv(file)
        attack = not Path(file).name.startswith("benign")
        share = (1 - NBAIOT_BENIGN) / (len(files) - 1) if attack else NBAIOT_BENIGN
        parts.append(fit_class(frame.to_numpy(np.float64), int(attack), share, factors=8, knots=17))
    return {"names": list(frame.columns), "classes": parts}


FITS: dict[str, Callable[[list[str]], Any]] = {"higgs": higgs, "nbaiot": nbaiot}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=list(FITS))
    parser.add_argument("files", nargs="+", help="excerpts of the real set: one .npz for higgs, CSV files for nbaiot")
    given = parser.parse_args()
    json.dump(FITS[given.name](given.files), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
