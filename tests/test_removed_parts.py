"""A job can do without each of its parts: one is hidden at a time, its line gone from the registry, and training works.

Each case is a process of its own, forked from one that has imported the heart of the engine while all parts were
hidden; modules of the part cannot be imported there. What is trained is k-means under `bsp` and `fsp`, in threads.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flegel.runtime.job.parts import PARTS, PartLine

PROGRAM = """
import json, os, sys, traceback


class Hidden:
    names = ()

    def hides(self, name):
        return any(name == hidden or name.startswith(hidden + ".") for hidden in self.names)

    def find_spec(self, name, path=None, target=None):
        if self.hides(name):
            raise ModuleNotFoundError(f"{name} belongs to a part that was removed")


cases = json.loads(sys.argv[1])
hidden = Hidden()
hidden.names = cases["all"]
sys.meta_path.insert(0, hidden)

import numpy
import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.job import parts, run


def heart(part):
    hidden.names = cases[part]
    parts.PARTS = tuple(line for line in parts.PARTS if part not in (line.name, "all"))
    rng = numpy.random.default_rng(0)
    middles = numpy.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    rows = numpy.concatenate([middle + rng.normal(size=(100, 3)) for middle in middles])
    for sync in ("bsp", "fsp"):
        result = flegel.run(KMeans(k=3), rows, sync=sync, workers=2, processes=False)
        assert result.converged, result.reason
        assert sorted(result.sizes) == [100, 100, 100], (sync, result.sizes)
    loaded = [name for name in sys.modules if hidden.hides(name)]
    assert not loaded, loaded


for part in cases:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        why = ""
        try:
            heart(part)
        except BaseException:
            why = traceback.format_exc()
        print(json.dumps([part, why]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def hidden(line: PartLine) -> list[str]:
    """Everything that only this part needs."""
    return [line.place.partition(":")[0], *line.folders]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """By part: why training fails without it; empty where it works."""
    cases: dict[str, list[str]] = {"none": [], "all": [name for line in PARTS for name in hidden(line)]}
    cases |= {line.name: hidden(line) for line in PARTS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("part", ["none", "all", *(line.name for line in PARTS)])
def test_the_heart_trains_without(part: str, outcomes: dict[str, str]) -> None:
    assert outcomes[part] == ""


def test_no_part_is_hidden_in_another_one() -> None:
    names = [name for line in PARTS for name in hidden(line)]
    assert len({line.name for line in PARTS}) == len(PARTS) and len(set(names)) == len(names)
