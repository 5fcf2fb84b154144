"""An installation without extras: every built-in algorithm is there, whatever an extra would bring."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

for absent in ("scipy", "sklearn", "pyarrow", "torch", "polars", "fsspec"):
    sys.modules[absent] = None  # every import of it fails

import numpy as np

import flegel
from flegel.algorithms import BUILTINS
from flegel.algorithms.lda import LDA
from flegel.algorithms.least_squares import Lasso
from flegel.algorithms.lr import LR
from flegel.runtime.job.find_algorithm import find_builtin

for name in BUILTINS:
    find_builtin(name)
counts = np.random.default_rng(0).poisson(1.0, (40, 6)).astype(float)
labels = (counts[:, 0] > 1.0).astype(float)
print(flegel.run(LDA(k=2), counts, max_passes=2, progress=False))
print(flegel.run(Lasso(), (counts, labels), max_passes=2, progress=False))
print(flegel.run(LR(l1=0.01), (counts, labels), max_passes=9, progress=False))
"""


@pytest.mark.processes
def test_every_algorithm_is_there_without_extras() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.count("Result of") == 3, done.stdout + done.stderr
