"""A kernel is compiled once for a job: the driver and its workers call it with the same types."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flegel
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import protected
from flegel.core.shard import Sparse, make_shard
from flegel.datasets.rows import memory
from flegel.errors import UsageError
from flegel.runtime.backends.numba.backend import BACKEND
from flegel.runtime.backends.numba.compile_turns import COMPILER_BYTES, check_memory


def overloads(folder: Path) -> dict[str, list[str]]:
    """The signatures that numba's cache below this folder holds, by function."""
    found: dict[str, list[str]] = {}
    for index in folder.rglob("*.nbi"):
        with index.open("rb") as file:
            pickle.load(file)  # numba's version
            _, entries = pickle.loads(file.read())
        found.setdefault(index.name.rsplit(".", 2)[0], []).extend(str(key[0]) for key in entries)
    return found


def without_mutability(signature: str) -> str:
    return signature.replace("readonly ", "").replace("'C', True", "'C', False").replace("'A', True", "'A', False")


MEANS = """
import numpy as np
import flegel

class Means(flegel.Algorithm):
    def initParameter(self, sample, rng):
        return np.zeros(sample.columns)

    def updateDataPoint(self, dataPoint, parameter, iteration):
        return dataPoint.features - parameter

    def updateParameter(self, aggregator, parameter):
        return parameter + 0.001 * aggregator
"""


@pytest.mark.processes
def test_a_cold_job_leaves_no_overloads_that_differ_in_mutability_only(tmp_path: Path) -> None:
    (tmp_path / "means.py").write_text(MEANS)
    cold = {**os.environ, "FLEGEL_CACHE": str(tmp_path)}
    command = "submit means.py:Means --data blobs:600 --workers 2 --sync bsp --max-iterations 2"
    ended = subprocess.run(
        [sys.executable, "-m", "flegel", *command.split()], cwd=tmp_path, env=cold, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    kept = overloads(tmp_path)
    assert kept
    for name, signatures in kept.items():
        assert len({without_mutability(s) for s in signatures}) == len(signatures), (name, signatures)


def test_a_shard_and_a_parameter_refuse_writes() -> None:
    dense = make_shard(np.ones((4, 2)), np.zeros(4), np.zeros((4, 1)))
    rows = Sparse(np.array([0, 1, 2]), np.array([0, 1], np.int32), np.ones(2), 2)
    sparse = make_shard(rows, None, np.zeros((2, 1)))
    assert isinstance(sparse.features, Sparse)
    for array in (dense.features, dense.labels, *sparse.features[:3]):
        assert isinstance(array, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 3
    seen = []

    class Looks(flegel.Algorithm):
        def kernel(self, shard):  # type: ignore[no-untyped-def]
            def run(shard, parameter, aggregator, start, end, iteration, flag):  # type: ignore[no-untyped-def]
                seen.append(parameter.flags.writeable)
                return end

            return run

    kernel = BACKEND.build(Looks(), dense, np.ones(2), np.zeros(2), interpret=False)
    kernel.set_parameter([np.ones(2)])
    kernel.run(dense, 0, 4, 0, np.zeros(1, np.uint8))
    assert seen == [False, False]


def test_nobody_compiles_where_the_compiler_would_run_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: COMPILER_BYTES - 1)
    with pytest.raises(UsageError, match="flegel warm"):
        check_memory()
    arguments = protected(np.ones((1, 3, 64))), np.empty((5, 3))
    with pytest.raises(UsageError, match="flegel warm"):
        EntryPoint("flegel.core.tiling", "fill_rows")._compiled(tmp_path / "absent.native", arguments)
    monkeypatch.setattr(memory, "available", lambda: COMPILER_BYTES)
    check_memory()


def test_code_that_another_process_has_compiled_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for its turn finds the code, whatever memory is free then."""
    arguments, path = (protected(np.ones((1, 3, 64))), np.empty((5, 3))), tmp_path / "kept.native"
    EntryPoint("flegel.core.tiling", "fill_rows")._compiled(path, arguments)
    monkeypatch.setattr(memory, "available", lambda: 0)
    rows = np.empty((5, 3))
    EntryPoint("flegel.core.tiling", "fill_rows")._compiled(path, arguments)(arguments[0], rows)
    assert (rows == 1).all()
