"""Fit the figures of a stand-in to an excerpt of real rows; run by hand, never at run time.

`python -m flegel.datasets.synthetic.fitting NAME FILE… > datasets/synthetic/fitted/NAME.json`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets.synthetic.class_fit import fit_class

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


def main(arguments: list[str]) -> None:
    name, *files = arguments
    json.dump(FITS[name](files), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
