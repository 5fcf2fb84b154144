"""Compiled hooks are found in the cache only where everything that was compiled in is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flegel.runtime.backends.numba.compiled_values import compiled_values

CLASS = """
import numpy as np
import flegel
{imports}

class Base(flegel.Algorithm):
    def initParameter(self, sample, rng):
        return np.zeros(2)

    def updateParameter(self, aggregator, parameter):
        return aggregator

class Sum(Base):
    def updateDataPoint(self, dataPoint, parameter, iteration):
        return {change}

rows = np.ones((50, 2))
print(flegel.run(Sum(), rows, workers=1, max_iterations=1, sync="bsp").parameter[0])
"""


def said(folder: Path, **environment: str) -> float:
    ended = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "mine.py"],
        cwd=folder,
        env={**os.environ, "FLEGEL_CACHE": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return float(ended.stdout.split()[-1])


def test_an_edit_of_what_hooks_use_is_compiled_anew(tmp_path: Path) -> None:
    """A function of a module imported by name, a constant that it imports, and a number read from the environment."""
    imports = "import helper\nfrom factor import FACTOR"
    (tmp_path / "mine.py").write_text(
        CLASS.format(imports=imports, change="FACTOR * helper.scaled(dataPoint.features)")
    )
    (tmp_path / "helper.py").write_text(
        "import numba\nfrom consts import C\n@numba.njit\ndef scaled(x):\n    return C * x\n"
    )
    (tmp_path / "consts.py").write_text("C = 1.0\n")
    (tmp_path / "factor.py").write_text("import os\nFACTOR = float(os.environ['FACTOR'])\n")
    assert said(tmp_path, FACTOR="1") == 50.0
    assert said(tmp_path, FACTOR="7") == 350.0
    (tmp_path / "consts.py").write_text("C = 3.0\n")
    assert said(tmp_path, FACTOR="1") == 150.0


def test_an_edit_of_an_inherited_hook_is_compiled_anew(tmp_path: Path) -> None:
    base = "import numpy as np\nimport flegel\nclass Other(flegel.Algorithm):\n"
    base += "    def initParameter(self, sample, rng):\n        return np.zeros(2)\n"
    base += "    def updateParameter(self, aggregator, parameter):\n        return aggregator\n"
    hook = "    def updateDataPoint(self, dataPoint, parameter, iteration):\n        return {} * dataPoint.features\n"
    rest = CLASS[CLASS.index("rows =") :]
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nimport flegel\nfrom base import Other\nclass Sum(Other):\n    pass\n" + rest
    )
    (tmp_path / "base.py").write_text(base + hook.format(1.0))
    assert said(tmp_path) == 50.0
    (tmp_path / "base.py").write_text(base + hook.format(7.0))
    assert said(tmp_path) == 350.0


LIMITS = np.array([1.0, 2.0])
WORDS = {"b", "a", "c"}


def inner(x: float) -> float:
    return x * float(LIMITS[0])


def outer(x: float) -> float:
    return inner(x) if "a" in WORDS else np.sqrt(x)


def test_values_of_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled_values([outer])
    assert compiled_values([outer]) == before
    monkeypatch.setitem(globals(), "LIMITS", np.array([1.0, 3.0]))
    assert compiled_values([outer]) != before
    monkeypatch.setitem(globals(), "LIMITS", np.array([1.0, 2.0]))
    assert compiled_values([outer]) == before
    monkeypatch.setitem(globals(), "WORDS", {"c", "b", "a"})
    assert compiled_values([outer]) == before
    monkeypatch.setitem(globals(), "inner", lambda x: x)
    assert compiled_values([outer]) != before


def test_functions_that_call_each_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "inner", outer)
    assert compiled_values([outer])
