"""Figures of sets of which no real rows are available, from the publications: columns, classes and their separation.

Coarser than a fit: only shapes of columns (angle, momentum, mass, flag) and the distances of the classes. Never
checked against real rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from flegel.core.pytree import Array

KNOTS = 33  # of a quantile function
SPAN = 3.5
"""Quantiles are tabulated at equal steps of the normal score from -SPAN to SPAN, and extended linearly. Fits use
the same grid."""


def _uniform(scores: Array) -> Array:
    return np.array([3**0.5 * erf(s / 2**0.5) for s in scores])


_SHAPES: dict[str, Callable[[Array], Array]] = {
    "normal": lambda s: s,
    "angle": _uniform,
    "positive": lambda s: np.exp(0.6 * s - 0.18),
    "skewed": lambda s: np.exp(0.9 * s - 0.4) - 1.0,
}

# name of a column, shape, distance of the classes in standard deviations
SUSY = [
    ("lepton_1_pT", "positive", 0.55),
    ("lepton_1_eta", "normal", 0.0),
    ("lepton_1_phi", "angle", 0.0),
    ("lepton_2_pT", "positive", 0.35),
    ("lepton_2_eta", "normal", 0.0),
    ("lepton_2_phi", "angle", 0.0),
    ("missing_energy_magnitude", "positive", 0.95),
    ("missing_energy_phi", "angle", 0.0),
    ("MET_rel", "skewed", 0.85),
    ("axial_MET", "normal", -0.45),
    ("M_R", "positive", 0.45),
    ("M_TR_2", "positive", 0.9),
    ("R", "positive", 0.6),
    ("MT2", "skewed", 0.75),
    ("S_R", "positive", 0.35),
    ("M_Delta_R", "positive", 0.7),
    ("dPhi_r_b", "positive", 0.1),
    ("cos_theta_r1", "positive", -0.1),
]
_HEPMASS_DISTANCES = """
    0.6 0 0 0.7 0 0.1 0.5 0 0 0.2 0.45 0 0 0.2 0.3 0 0 0.1 0.2 0 0 0.1 0.5 0.55 0.1 0.65 1.15
""".split()  # noqa: SIM905 - easier to read
HEPMASS = [
    (
        f"f{k}",
        "angle" if k in (2, 8, 12, 16, 20) else "flag" if k in (5, 9, 13, 17, 21) else "normal",
        float(d),
    )
    for k, d in enumerate(_HEPMASS_DISTANCES)
]
TABLES: dict[str, tuple[list[tuple[str, str, float]], float]] = {
    "susy": (SUSY, 0.4576),
    "hepmass": (HEPMASS, 0.5),
}


def figures(name: str) -> dict[str, Any]:
    """Figures in the form of a fit, with the classes 0 and 1."""
    columns, share = TABLES[name]
    grid = np.linspace(-SPAN, SPAN, KNOTS)
    rng = np.random.default_rng(len(columns))
    loadings = rng.uniform(-0.45, 0.45, (len(columns), 4))
    parts = []
    for label, part in ((0, 1 - share), (1, share)):
        side = label - 0.5
        table, atoms = [], {}
        for k, (_, shape, distance) in enumerate(columns):
            if shape == "flag":
                atoms[str(k)] = {"values": [-1.0, 1.0], "scores": [-side * distance]}
                table.append(np.zeros(KNOTS))
            else:
                table.append(_SHAPES[shape](grid + side * distance))
        parts.append({"label": label, "share": part, "quantiles": table, "loadings": loadings, "atoms": atoms})
    return {"names": [column[0] for column in columns], "classes": parts}
