"""How each fitted stand-in reads its excerpt. Used only when figures are fitted again; never at run time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets.fitting import fit

HIGGS_COLUMNS = (
    "lepton_pT lepton_eta lepton_phi missing_energy_magnitude missing_energy_phi "
    "jet_1_pt jet_1_eta jet_1_phi jet_1_btag jet_2_pt jet_2_eta jet_2_phi jet_2_btag "
    "jet_3_pt jet_3_eta jet_3_phi jet_3_btag jet_4_pt jet_4_eta jet_4_phi jet_4_btag "
    "m_jj m_jjj m_lv m_jlv m_bb m_wbb m_wwbb"
).split()


def higgs(files: list[str]) -> Any:
    """From an `.npz` with X (rows × 28) and y."""
    with np.load(files[0], allow_pickle=False) as data:
        features, labels = data["X"], data["y"]
    tags = [i for i, name in enumerate(HIGGS_COLUMNS) if name.endswith("btag")]
    features[:, tags] = np.round(features[:, tags], 3)
    return fit(features, labels, HIGGS_COLUMNS, {0: "0", 1: "1"}, factors=28, knots=65)


def nbaiot(files: list[str]) -> Any:
    """From one CSV a class; the class is the file's name up to its first dot."""
    import pandas

    frames = [pandas.read_csv(file) for file in files]
    names = [Path(file).name.split(".")[0] for file in files]
    features = np.concatenate([frame.to_numpy(np.float64) for frame in frames])
    labels = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    return fit(features, labels, list(frames[0].columns), dict(enumerate(names)), factors=8, knots=17)


FITS: dict[str, Callable[[list[str]], Any]] = {"higgs": higgs, "nbaiot": nbaiot}
