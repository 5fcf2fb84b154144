"""The documented class for a Bregman divergence beside Lloyd's algorithm with that divergence, by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel

FILE = Path(__file__).parents[2] / "docs/examples/divergence.py"
RNG = np.random.default_rng(0)
X = 4.0 * RNG.normal(size=(3, 5))[RNG.integers(3, size=600)] + RNG.standard_t(3, size=(600, 5))


def documented() -> Any:
    spec = importlib.util.spec_from_file_location("documented_bregman", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Divergence


def divergences(means: Any) -> Any:
    """f(x) − f(m) − f'(m)·(x − m) with f = √(1 + x²), summed over columns."""
    rows, size = X[:, None], np.sqrt(1 + means**2)
    return (np.sqrt(1 + rows**2) - size - means / size * (rows - means)).sum(axis=2)


def test_clusters_by_a_divergence_are_those_of_lloyds_algorithm() -> None:
    algorithm = documented()(k=3)
    result = flegel.run(algorithm, X, sync="bsp", workers=1, processes="no", seed=3, progress=False)
    assert result.outcome == "converged", result.reason
    means = np.asarray(result.parameter)
    cost = divergences(means)
    assert result.objective == pytest.approx(cost.min(axis=1).sum(), rel=1e-4)
    labels = cost.argmin(axis=1)
    better = np.stack([X[labels == j].mean(axis=0) for j in range(3)])
    assert divergences(better).min(axis=1).sum() >= result.objective * (1 - 1e-3)
