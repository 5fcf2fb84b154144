"""The gauntlet in small: a few units in this process, how cells are judged, and what the page says."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gauntlet import cells, report
from bench.gauntlet.tables import REAL, TABLES

UNITS = [
    ("tails_2", "kmeans"),
    ("narrow_cone", "kmeans-cosine"),
    ("rare_columns", "gmm"),
    ("outlier_1e6", "fcm"),
    ("lr_nearly_collinear", "lr"),
    ("sparse_mostly_empty", "kmeans"),
    ("nmf_zero_rows_and_columns", "nmf"),
]
"""One for each algorithm."""


@pytest.mark.parametrize(("table", "kind"), UNITS)
def test_no_job_fails_silently(table: str, kind: str) -> None:
    record = cells.unit(table, kind, [("fsp", cells.TEAM), ("fsp", "2")], None)
    assert record["peer"] is not None, record
    for name, cell in record["cells"].items():
        assert cell["verdict"] not in cells.FAILURES, f"{name}: {cell}, peer {record['peer']}"


def test_there_are_at_least_eighty_generated_tables() -> None:
    assert len(TABLES) - len(REAL) >= 80


@pytest.mark.parametrize(
    ("value", "reported", "converged", "warnings", "verdict"),
    [
        (1.0005, 1.0005, True, [], "ok"),
        (0.5, 0.5, True, [], "ok"),
        (1.1, 1.1, True, [], "silent"),
        (1.1, 1.1, False, [], "stopped"),
        (1.1, 1.1, True, ["columns are collinear"], "warned"),
        (1.0, 3.0, True, [], "misreported"),
        (np.nan, 1.0, True, [], "error"),
    ],
)
def test_cells_are_judged(value: float, reported: float, converged: bool, warnings: list[str], verdict: str) -> None:
    cell = {"value": value, "reported": reported, "converged": converged, "warnings": warnings}
    assert cells.judge(cell, "lr", np.zeros((3, 1)), 1.0, maximize=False) == verdict


def test_the_page_names_every_failure() -> None:
    cell = {"verdict": "silent", "value": 2.0, "reason": "relative change 0", "warnings": []}
    fine = {"verdict": "ok", "value": 1.0, "reason": "", "warnings": []}
    record = {"table": "plain", "algorithm": "kmeans", "points": 5, "columns": 2, "peer": 1.0,
              "cells": {"bsp:1": fine, "fsp:2": cell}}  # fmt: skip
    about = {"command": "python -m bench.gauntlet", "commit": "0", "machine": "none", "seconds": 1.0}
    page = report.page([record], about)
    assert "| plain | 5 × 2 | silent 1/2 |" in page
    assert "| plain | k-means | fsp:2 | silent | 1 | relative change 0 |" in page
