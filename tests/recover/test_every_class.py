"""Every built-in class, found by the registry of names: under every synchronization model, on numbers of any size, and
from the command line. A class that is new and has no rows yet is named by the first test; what happens to every class
when workers die, points move and jobs stop is in `test_library_under_faults`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from bench.micro.library_models import TABLES, job, judged
from flegel import algorithms
from flegel.algorithms import BUILTINS
from flegel.cli.main import app
from flegel.errors import FlegelError
from flegel.sync import models

NAMES = {place.partition(":")[2]: name for name, place in BUILTINS.items() if not place.startswith("flegel.torch.")}
"""Class to name on the command line. Networks need an extra: tests/extras/networks/test_every_network.py."""
LAGGING = ("LocalLR", "LocalNMF", "PlainLR", "PlainNMF", "NMF")
"""Their objective counts each point with the θ, or the weights, of its last visit."""


def test_every_built_in_class_has_rows() -> None:
    assert set(TABLES) == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_class_trains_under_every_model(name: str) -> None:
    first = job(name, "bsp")
    for sync in models():
        found = judged(name, job(name, sync), first)
        apart = found["verdict"] == "misreported" and name in LAGGING
        assert apart or found["verdict"] in ("ok", "other", "warned"), (sync, found)


def rows_as_submitted(name: str, folder: Path) -> Path:
    _, rows, labels = TABLES[name]
    if labels is None:
        np.save(folder / "rows.npy", rows)
        return folder / "rows.npy"
    np.savez(folder / "rows.npz", X=rows, y=labels)
    return folder / "rows.npz"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_class_is_submitted_by_its_name(name: str, tmp_path: Path) -> None:
    hyper, rows, _ = TABLES[name]
    words = ["submit", NAMES[name], "--data", str(rows_as_submitted(name, tmp_path)), "--max-seconds", "60"]
    words += [word for key, value in hyper.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    words += ["--missing", "keep"] if np.isnan(rows).any() else []
    words += ["--processes", "no", "--no-save", "--seed", "0", "--json", str(tmp_path / "out.json")]
    outcome = CliRunner().invoke(app, words, catch_exceptions=False)
    assert outcome.exit_code in (0, 3), outcome.output
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert np.isfinite(found["objective"]) and found["outcome"] != "diverged", found["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-9, 1e9])
@pytest.mark.parametrize("name", NAMES)
def test_every_class_ends_with_numbers_or_a_sentence_on_rows_of_any_size(name: str, factor: float) -> None:
    """Also with a column that never changes, and rows that are all alike."""
    hyper, rows, labels = TABLES[name]
    table = np.array(rows[:400], dtype=np.float64) * factor
    table[:, 0], table[:50] = table[0, 0], table[0]
    options: dict[str, Any] = {"missing": "keep"} if np.isnan(rows).any() else {}
    small = {key: min(value, 100) if key.startswith("size_") else value for key, value in hyper.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = flegel.run(
                getattr(algorithms, name)(**small), table, None if labels is None else labels[:400],
                workers=2, processes=False, seed=0, max_seconds=20, progress=False, **options,
            )  # fmt: skip
        except FlegelError as error:
            assert str(error)
            return
    assert np.isfinite(result.objective) or result.outcome == "diverged", result.reason
