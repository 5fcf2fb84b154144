"""Floors: what fell is named, what was not measured fails nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.common.paired_ratio import paired_ratio
from bench.regress import FLOORS
from flegel.compare import write
from tests.compare.samples import bench

ROOT = Path(__file__).resolve().parents[2]


def regress(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.regress", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_floors_are_recorded_below_what_was_measured_and_then_hold(tmp_path: Path) -> None:
    write(bench(), tmp_path / "skew.json")
    floors = tmp_path / "floors" / "floors.json"
    floors.parent.mkdir()
    common = (str(tmp_path), "--scale", "smoke", "--floors", str(floors))
    assert regress(*common, "--record").returncode == 0
    assert json.loads(floors.read_text()) == {"skew: bsp / fsp": 10.8}
    assert regress(*common).returncode == 0
    floors.write_text(json.dumps({"skew: bsp / fsp": 13.0, "skew: another": 1.0}))
    done = regress(*common)
    assert done.returncode == 1
    assert "fallen: skew: bsp / fsp: 12" in done.stdout and "not measured: skew: another" in done.stdout


def test_ratios_of_kernels_are_read_too(tmp_path: Path) -> None:
    raw = {"contests": [{"title": "kmeans k=10", "ratio": {"scikit-learn": 4.0}}]}
    (tmp_path / "kernels.raw.json").write_text(json.dumps(raw))
    floors = tmp_path / "floors" / "floors.json"
    floors.parent.mkdir()
    floors.write_text(json.dumps({"kernels: kmeans k=10: scikit-learn / flegel": 5.0}))
    assert regress(str(tmp_path), "--floors", str(floors)).returncode == 1


def test_barriers_and_loading_are_ratios_too(tmp_path: Path) -> None:
    costs = {"4": {"median_us": 900.0}, "16": {"median_us": 1800.0}}
    (tmp_path / "barrier.raw.json").write_text(json.dumps({"cores": 16, "barrier": costs}))
    lines = [{"format": "csv", "speed_against_library": 1.5}, {"generate": "higgs"}]
    (tmp_path / "load.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    floors = tmp_path / "floors" / "floors.json"
    floors.parent.mkdir()
    common = (str(tmp_path), "--floors", str(floors))
    assert regress(*common, "--record").returncode == 0
    wanted = {"barrier: 4 workers / 16 workers": 0.45, "load: csv: library / flegel": 1.35}
    assert json.loads(floors.read_text()) == wanted
    assert regress(*common).returncode == 0


def test_no_results_are_no_success(tmp_path: Path) -> None:
    assert regress(str(tmp_path)).returncode == 2


def test_the_recorded_floors_can_be_read() -> None:
    floors = json.loads(FLOORS.read_text())
    assert floors and all(isinstance(value, int | float) for value in floors.values())


def test_races_are_compared_from_the_same_start() -> None:
    """The second start is hard for everybody; a rival that was given up after the first is not set against it."""
    models = {
        "fsp": {"all": [1.0, 3.0], "reached": True},
        "bsp": {"all": [12.0], "reached": False},
        "psp": {"all": [1.5, 6.0], "reached": True},
    }
    assert paired_ratio(models, "bsp") == (12.0, True)
    assert paired_ratio(models, "psp") == (1.75, False)
