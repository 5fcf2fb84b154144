"""Programs that only watch load neither numba nor scipy: they start at once and stay small."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "flegel.cli.main",
        "flegel.cluster.client",
        "flegel.dashboard.frames",
        "flegel.dashboard.saved_runs",
        "flegel.machine.coordinator.observation",
        "flegel.runtime.job.result_store",
    ],
)
def test_watching_loads_no_compiler(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('numba', 'llvmlite', 'scipy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
