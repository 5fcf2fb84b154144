"""Every script of docs/gallery runs without a screen and prints something, and the page lists all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))
MOST_LINES = 60


def named(path: Path) -> str:
    return path.stem


def run(script: Path, folder: Path) -> str:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "Agg", "PYTHONWARNINGS": "error::FutureWarning"}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_a_script_runs(script: Path, tmp_path: Path) -> None:
    for library in ("matplotlib", "torch", "sklearn"):
        if re.search(rf"^(?:import|from) {library}\b", script.read_text(encoding="utf-8"), re.MULTILINE):
            needs.installed(library)
    assert run(script, tmp_path).strip()
    assert not list(tmp_path.iterdir()), "a script leaves no files"


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_a_script_has_a_title_and_few_lines(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) < MOST_LINES
    assert lines[0] == '"""' and lines[2] == "=" * len(lines[1]), "a title, underlined, as sphinx-gallery wants it"
    assert lines.count("# %%") >= 2, "cells"


def test_the_page_lists_every_script() -> None:
    listed = re.findall(r"\((\w+\.py)\)", (GALLERY / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [script.name for script in SCRIPTS]
